"""The steps of an optimizer of PyTorch: a hook before each opens a call, and one after it ends it.

Its requests are the gradients that its parameters have when it begins; if it is given a closure,
which computes them, or if other hooks come after ours, those that they have when it ends. A step of
PyTorch's own code in which no other is called updates each parameter that has a gradient. Code of
the program may leave some out, and one step may call others, by `super().step()` or of an optimizer
that it is around: then it updated what it wrote to. A tensor has a version that counts that; where
the version may not tell, the bits are compared.

PyTorch calls no hook for a step that raises: see `abandoned`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

from tracer.backends.torch import compat, dynamo, effects
from tracer.backends.torch.parameters import parameters_of
from tracer.backends.torch.programs import PROGRAM, Program, Programs
from tracer.backends.torch.step_hooks import After, Before, found_inf
from tracer.core.calls import Frame, known_by
from tracer.core.registry import Binding

STEP, ASKED = "step", "GradScaler.step"
"""The methods of which one outermost execution is a step: see `tracer.kinds`."""
UPDATE = "update"
"""What the update of one parameter is called, for which there is no method."""

_RAISED = (
    "a call of step was ended by an exception: it is no step, and what it had updated by then is "
    "not counted"
)
_UNKNOWN_SKIP = (
    "an optimizer looks for gradients that are not finite by itself, in its step, with the "
    "GradScaler that it is given: a step that it skipped is counted as if it had updated"
)
_CAME_LATE = (
    "an optimizer was given a parameter while it stepped: effects of that step on it are not known"
)
_CLEARED = (
    "a closure gave {name} its gradients, and a hook came after its step before the tracer's own: "
    "what that hook took away is not counted"
)
_PAST = (
    "{name} has a step of its own that may write past the versions of tensors, as to `.data`: "
    "where a parameter with a gradient holds the same bits after a step, or a version was believed "
    "until then, whether the step updated it is not known, and it is not counted"
)
_NOT_COMPARABLE = (
    "{name} has a step of its own, and neither the versions nor the bits of all its parameters "
    "can be compared: each that has a gradient counts as updated"
)

_ENOUGH = 100
"""So often the bits agree with the versions before versions are believed again."""


class Unsure(NamedTuple):
    """A parameter of which only the device knows whether a step updated it."""

    is_same: Any
    """A tensor on the device: whether it holds what it held."""
    site: int
    """That of the update."""
    learn: Any
    """Is called with what the device says."""


class Step(Frame):
    """A step that is under way; it keeps no parameter alive, nor what its program computed."""

    __slots__ = (
        "copies",
        "counter",
        "expected",
        "function",
        "layouts",
        "method",
        "program",
        "requests",
        "skipped",
        "unsure",
        "versions",
    )

    def __init__(self, counter: "StepCounter", method: str = STEP) -> None:
        self.counter = counter
        self.method = method
        self.function = ""
        self.layouts: list[Any] | None = None
        """The layouts of the gradients that it was given; None if they come until its end."""
        self.requests: Sequence[int] | None = None
        """The sites of what it was asked for; None if that is not known yet."""
        self.expected: Sequence[int] = ()
        """Those of the updates that it makes if it updates what has a gradient."""
        self.versions: Mapping[int, int | None] = {}
        """By `id`, the versions of its parameters, if they may be asked for: `compat.versions_of`.
        """
        self.copies: Mapping[int, Any] = {}
        """Copies of those whose versions may not tell, by `id`; None of one that has none."""
        self.skipped: Any = None
        """A number on the device: whether it was skipped; None if that is known."""
        self.unsure: list[Unsure] = []
        self.program: Program | None = None
        """The program of which it is a run; None if Python runs it."""

    @property
    def interrupted(self) -> str:
        """Nothing is said of a step in another one, which knows what it wrote to."""
        return _RAISED if self.parent is None else ""


def abandoned(steps: Iterable[Frame]) -> Iterator[Step]:
    """Those of the `steps` that an exception ended: no Python code runs them any more."""
    seen = [each for each in steps if isinstance(each, Step)]
    frames = sys._current_frames() if seen else {}  # what began after that look is none of them
    running = set()
    for thread in {each.thread for each in seen}:
        at = frames.get(thread)
        while at is not None:
            running.add(known_by(at))
            at = at.f_back
    return (each for each in seen if each.python not in running)


def take_off(stack: list[Frame], frame: Frame) -> None:
    """A call ends: what an exception had ended in it comes off the `stack` before."""
    while stack[-1] is not frame:
        frame.recorder.abandon(stack.pop())


def drop(stack: list[Frame], ended: Callable[[Frame], bool]) -> None:
    """Forget the first call on the `stack` of which it is known that an exception `ended` it."""
    found = next(filter(ended, stack), None)
    if found is not None:
        take_off(stack, found)
        found.recorder.abandon(stack.pop())


class StepCounter:
    """Counts the steps of one optimizer."""

    def __init__(self, binding: Binding) -> None:
        optimizer: Any = binding.optimizer()
        self.binding = binding
        self.proxies: list[Binding] = []
        """The same of those around it whose own `step` calls no hooks."""
        self.optimizer = binding.optimizer
        self.recorder = binding.recorder
        self.index = binding.index
        self.programs = Programs(optimizer)
        self._name = type(optimizer).__name__
        self._own = _is_lbfgs(optimizer) or compat.steps_by_itself(type(optimizer))
        """Whether a gradient proves no update, as in code of the program."""
        self._versioned: set[int] = set()
        """The parameters, by `id`, of which the version was seen to move."""
        self._past = False
        """Whether bits were seen to change where no version moved."""
        self._may = self._own and compat.names_data(type(optimizer))
        """Whether code of its own may do so, as far as it shows."""
        self._left = self._doubts = False
        """Whether a parameter was left alone, and whether one whose versions were believed then."""
        self._agreed = 0
        """How often the bits agreed since then."""
        self._scaled = False  # whether a `GradScaler` was ever asked for its step
        self._last: tuple[list[int], list[Any], list[int], list[int]] | None = None
        self._alive: list[ref[Any]] = []
        self._before, self._after = compat.HookPlace(Before(self)), compat.HookPlace(After(self))

    def attach(self, optimizer: Any) -> None:
        """Give the optimizer the hooks, behind its others, which may give it gradients.

        So they can be taken away while another thread is in one of them: of what it iterates over
        they are the end.
        """
        self.proxies.clear()
        self._before.put_in(optimizer._optimizer_step_pre_hooks)
        self._after.put_in(optimizer._optimizer_step_post_hooks)

    def remove(self) -> None:
        """Take the hooks away."""
        optimizer: Any = self.optimizer()
        self._before.take_out(optimizer._optimizer_step_pre_hooks)
        self._after.take_out(optimizer._optimizer_step_post_hooks)

    def _leaves_alone(self, optimizer: Any) -> bool:
        """Whether nothing is counted; also of a copy that has the hooks of the original."""
        return self.recorder.broken or self.optimizer() is not optimizer

    def _is_last(self, optimizer: Any) -> bool:
        """Whether no hook comes between ours and the step."""
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks), None) == self._before.key)

    # A step that Python runs.

    @dynamo.left_alone
    def before(
        self,
        optimizer: Any,
        given: Sequence[Any],
        named: Mapping[str, Any],
        python: FrameType,
        compiled: bool = False,
    ) -> None:
        """A step begins; `python` is the frame that calls the hooks around it.

        In code that is `compiled` in part it is that of the program, which runs on afterwards.
        """
        if self._leaves_alone(optimizer):
            return
        try:
            stack = self.recorder.calls_under_way.stack()
            if stack and compiled:
                self._drop(stack, known_by(python))
            elif stack:
                self.recorder.drop_interrupted(python.f_back)
            if self.recorder.optimizers.stateless:
                self._note_begin(optimizer)
            frame = self._enter(Step(self), python)
            parameters = parameters_of(optimizer.param_groups)
            if self._is_last(optimizer) and not _computes(given, named):
                frame.layouts = compat.layouts_of(parameters)
                frame.requests, frame.expected = self.sites(parameters, frame.layouts)
            if frame.requests is None or self._own or not self.programs.alone:
                frame.versions = compat.versions_of(parameters)
            if self._own:
                frame.copies = self._copies(parameters)
            self._hold(frame)
        except Exception as error:
            self.recorder.fault(error)

    def _enter(self, frame: Step, python: FrameType) -> Step:
        self.recorder.enter(frame, self.index, frame.method, "step", python)
        frame.python = known_by(python)
        return frame

    def _drop(self, stack: list[Frame], known: tuple[int, int]) -> None:
        """No frame of Python runs two steps of one optimizer at once: the one before has ended."""
        drop(
            stack,
            lambda frame: (
                isinstance(frame, Step) and (frame.counter, frame.python) == (self, known)
            ),
        )

    def _copies(self, parameters: Sequence[Any]) -> dict[int, Any]:
        """Copies of the parameters whose versions may not tell whether a step writes to them."""
        doubts = self._doubts and self._agreed < _ENOUGH
        every = self._past or self._may or doubts or self._adds_zeros()
        return {
            id(each): effects.copy_of(each)
            for each in parameters
            if (every or id(each) not in self._versioned) and not compat.is_lazy(each)
        }

    def _adds_zeros(self) -> bool:
        """Whether versions do not tell which parameters without a gradient a step moves.

        LBFGS writes to all, and moves those that have a gradient in its history.
        """
        return any(map(_is_lbfgs, self.recorder.optimizers.alive()))

    def _note_begin(self, optimizer: Any) -> None:
        """Note what the weights are before the first step, and whether it goes on with a state."""
        parameters = parameters_of(optimizer.param_groups)
        self.recorder.collectors.call("first_step_begins", parameters)
        if optimizer.state:
            self.recorder.optimizers.tell(self.index, state_loaded=True)

    def _hold(self, frame: Step) -> None:
        """Copy what a step may change that begins now, if effects are asked for.

        What it is handed is not known yet, if it is given a closure; and an optimizer in it may
        have parameters of its own.
        """
        comparing = self.recorder.effects
        if comparing is None or frame.parent is not None:
            return
        frame.before = {}
        variables: Any = self.recorder.variables
        for optimizer in self.recorder.optimizers.alive():
            variables.meet(optimizer)
            for each in parameters_of(optimizer.param_groups):
                if (each.requires_grad or each.grad is not None) and not compat.is_lazy(each):
                    comparing.hold(frame, variables.index(each, None), each)

    @dynamo.left_alone
    def after(
        self, optimizer: Any, named: Mapping[str, Any], python: FrameType, compiled: bool = False
    ) -> None:
        """A step has ended; in code that is `compiled` in part, its begin was in another frame."""
        if self._leaves_alone(optimizer):
            return
        try:
            known = None if compiled else known_by(python)
            frame = self._under_way(known) or self._enter(Step(self), python)
            skips = self._skips(frame, optimizer, named)
            updates = self._updates(frame, optimizer, skips)
            if skips and not self._own:
                updates = ()
            self._leave(frame, updates)
        except Exception as error:
            self.recorder.fault(error)

    def _under_way(self, known: tuple[int, int] | None) -> Step | None:
        """The innermost step of this optimizer, run by the frame that is `known` by this if any."""
        steps = [f for f in self.recorder.calls_under_way.stack() if isinstance(f, Step)]
        own = (f for f in reversed(steps) if f.counter is self and f.method == STEP)
        return next((frame for frame in own if known in (None, frame.python)), None)

    def _skips(self, frame: Step, optimizer: Any, named: Mapping[str, Any]) -> bool:
        """Whether a fused step is known to have left out its work."""
        found = found_inf(optimizer)
        if found is None:
            if "grad_scaler" in named:
                self.recorder.note(_UNKNOWN_SKIP)
            return False
        if effects.is_held_back(found):
            frame.skipped = found
            return False
        return bool(found)

    def _updates(self, frame: Step, optimizer: Any, skips: bool) -> Sequence[int]:
        """The sites of the updates that a step made by itself; its requests are known then.

        What has no gradient counts too if it was written to: a step may make its own gradients,
        and a hook may have taken them away.
        """
        if frame.requests is not None and not self._own and not frame.sites:
            return frame.expected
        parameters = parameters_of(optimizer.param_groups)
        layouts = list(frame.layouts or ())
        if len(layouts) != len(parameters):  # they come late, or others came while it stepped
            layouts = compat.layouts_of(parameters)
        if frame.requests is None:
            self._note_late(layouts, optimizer)
        done = {id(each) for each in self.recorder.variables_of(frame.sites).values()}
        moved: list[Any] = []
        for place, (parameter, layout) in enumerate(zip(parameters, layouts, strict=True)):
            asks = _asks(layout)
            moves = id(parameter) not in done and self._moved(frame, parameter, asks and not skips)
            moved.append(moves)
            if moves is True and not asks:
                (now,) = compat.layouts_of([parameter])
                layouts[place] = now if _asks(now) else compat.layout_if(True)
        frame.requests, updates = self.sites(parameters, layouts)
        asked = [each for each in zip(parameters, moved, layouts, strict=True) if _asks(each[2])]
        made = []
        for site, (parameter, moves, _) in zip(updates, asked, strict=True):
            if moves is True:
                made.append(site)
            elif moves is not False:
                learn = partial(self._learn, id(parameter), True)
                frame.unsure.append(Unsure(moves, site, learn))
        return made

    def _note_late(self, layouts: Sequence[Any], optimizer: Any) -> None:
        """Gradients are looked at when the step has ended: next time perhaps when it begins."""
        fused = any(group.get("fused") for group in optimizer.param_groups)
        first = next(iter(optimizer._optimizer_step_post_hooks), None)
        if None in layouts and first != self._after.key and fused and not self._own:
            self.recorder.note(_CLEARED.format(name=self._name))
        if self._before.key not in optimizer._optimizer_step_pre_hooks:  # the program took it away
            if self._own:
                self.recorder.note(_NOT_COMPARABLE.format(name=self._name))
        elif not self._is_last(optimizer):
            optimizer._optimizer_step_pre_hooks.move_to_end(self._before.key)

    def _moved(self, frame: Step, parameter: Any, asks: bool) -> Any:
        """Whether a step updated a parameter, which had a gradient if it `asks`.

        True, False or a tensor that will say whether it holds what it held.
        """
        key = id(parameter)
        if key not in frame.versions or (asks and not self._own and not frame.sites):
            return asks  # it came while the step ran, or was lazy until then
        version = frame.versions[key]
        if version != compat.version_of(parameter) and (asks or not self._adds_zeros()):
            self._versioned.add(key)
            return True
        if key not in frame.copies:
            self._left = self._doubts = True
            return False
        before = frame.copies[key]
        if before is None:
            if asks:
                self.recorder.note(_NOT_COMPARABLE.format(name=self._name))
            return asks
        same = effects.is_left(before, parameter)
        if not isinstance(same, bool) and asks and frame.parent is None:
            return same
        self._learn(key, asks, bool(same))
        return not same

    def _learn(self, key: int, asks: bool, same: bool) -> None:
        """Learn from the bits of a parameter of which the version did not move.

        Who writes past versions may do so now and then, and an update by 0 leaves the same bits.
        """
        doubtful = False
        if same:
            self._left |= asks
            doubtful = asks and self._may and key not in self._versioned
            self._agreed += key in self._versioned
        elif not self._adds_zeros():
            self._past = True
        if doubtful or (self._past and self._left):
            self.recorder.note(_PAST.format(name=self._name))

    # A `GradScaler`, and a program that `torch.compile` made.

    @dynamo.left_alone
    def asked(self, scaler: Any, python: FrameType) -> Step | None:
        """A `GradScaler` is asked for a step of the optimizer, which it may leave out."""
        if self.recorder.broken:
            return None
        try:
            if not self._scaled and scaler.is_enabled():
                self._scaled = True
                scale = float(scaler._init_scale)
                self.recorder.optimizers.tell(self.index, grad_scaler=True, initial_scale=scale)
            if self.recorder.calls_under_way.stack():
                self.recorder.drop_interrupted(python.f_back)
            frame = self._enter(Step(self, ASKED), python)
            self._hold(frame)
            return frame
        except Exception as error:
            self.recorder.fault(error)
            return None

    @dynamo.left_alone
    def answered(self, frame: Step, optimizer: Any, failed: bool) -> None:
        """The `GradScaler` has done that, or left it out; or an exception ended it."""
        try:
            if failed:
                drop(self.recorder.calls_under_way.stack(), lambda each: each is frame)
                return
            if frame.requests is None:
                parameters = parameters_of(optimizer.param_groups)
                frame.requests, _ = self.sites(parameters, compat.layouts_of(parameters))
            self._leave(frame, ())
        except Exception as error:
            self.recorder.fault(error)

    def begins(self, values: Sequence[Any]) -> None:
        """A program with a step begins to run, whose parameters hold these values."""
        comparing = self.recorder.effects
        if comparing is None or self.recorder.broken:
            return
        try:
            python = dynamo.frame_around(sys._getframe())
            self._drop(self.recorder.calls_under_way.stack(), known_by(python))
            frame = self._enter(Step(self), python)
            if frame.parent is None:
                frame.copies = dict(enumerate(map(comparing.copy_of, values)))
        except Exception as error:
            self.recorder.fault(error)

    def ran(self, program: Program, skipped: Any, now: Sequence[Any]) -> None:
        """A program has run; `skipped` is None or says on the device whether it did nothing.

        `now` has what its parameters hold, if it was built to compare them.
        """
        python = dynamo.frame_around(sys._getframe())
        frame = self._under_way(known_by(python)) or self._enter(Step(self), python)
        frame.function, frame.program = PROGRAM, program
        frame.requests, updates = program.requests, program.updates
        if len(frame.copies) == len(now) == len(program.requests):
            handed = self.recorder.handed(program.requests)
            for (index, variable), before, value in zip(
                handed, frame.copies.values(), now, strict=True
            ):
                self.recorder.effects.compare(frame, index, variable, before, value)
        if skipped is not None and not effects.is_held_back(skipped):
            updates, skipped = [] if float(skipped) else updates, None
        frame.skipped = skipped
        self._leave(frame, updates)

    def _leave(self, frame: Step, updates: Sequence[int]) -> None:
        """A step has ended that made these updates by itself: count it, or add it to the one
        around it.
        """
        take_off(self.recorder.calls_under_way.stack(), frame)
        around = frame.parent
        if around is None:
            self._note_uncompared(frame, updates)
        elif isinstance(around, Step):
            around.skipped = around.skipped if frame.skipped is None else frame.skipped
            if around.method == ASKED:
                around.requests = frame.requests
            frame.requests = ()
        frame.sites += frame.requests or ()
        frame.sites += updates
        self.recorder.leave(frame, False)

    def _note_uncompared(self, frame: Step, updates: Sequence[int]) -> None:
        """Say it if effects are asked for on a parameter that came while the step ran."""
        held = frame.before
        if held is not None and frame.program is None:
            sites = (*frame.sites, *(frame.requests or ()), *updates)
            found = dict(self.recorder.handed(sites)) | self.recorder.variables_of(sites)
            came = [each for index, each in found.items() if index not in held]
            if any(each is not None and not compat.is_lazy(each) for each in came):
                self.recorder.note(_CAME_LATE)

    # Sites.

    def sites(
        self, parameters: list[Any], layouts: list[Any]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The sites of requests for these parameters, and of their updates.

        Nearly each step has those of the one before.
        """
        ids = list(map(id, parameters))
        last = self._last
        if last is not None and last[1] == layouts and last[0] == ids:
            return last[2], last[3]
        if last is None or last[0] != ids:
            variables: Any = self.recorder.variables
            variables.meet(self.optimizer())
            # One that is gone may leave its `id` to another one.
            self._alive = [ref(parameter, self._forget) for parameter in parameters]
        requests, updates = [], []
        for parameter, layout in zip(parameters, layouts, strict=True):
            if layout is compat.FROZEN:
                continue
            kind = self.recorder.backend.kind_of_gradient(None)
            if layout is not None:
                kind = "sparse" if compat.is_sparse(layout) else "dense"
            site = self.recorder.site_of
            requests.append(site(self.index, "step", "request", kind, parameter))
            if layout is not None:
                updates.append(site(self.index, UPDATE, "update", kind, parameter))
        self._last = ids, layouts, requests, updates
        return requests, updates

    def _forget(self, reference: Any) -> None:
        self._last = None
        self._versioned.clear()  # another one may come to have its `id`


def _asks(layout: Any) -> bool:
    """Whether a parameter has a gradient, by the layout of that."""
    return layout is not None and layout is not compat.FROZEN


def _is_lbfgs(optimizer: Any) -> bool:
    return any(each.__name__ == "LBFGS" for each in type(optimizer).__mro__)


def _computes(given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a step is given a closure, which computes the gradients; the first is the optimizer.

    >>> _computes(("optimizer",), {"closure": None})
    False
    """
    return any(map(callable, given[1:])) or any(map(callable, named.values()))
