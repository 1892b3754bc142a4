"""The steps of an optimizer of PyTorch, as the hooks see them that PyTorch calls around each.

A step is counted when it has ended. Its requests are the gradients that its parameters have when
it begins; if it is given a closure, which computes them, or if other hooks come after ours, those
that they have when it ends. A step in which no other is called makes an update of each parameter
that has a gradient. Steps that are called inside of one, as by `super().step()`, or of an optimizer
around another one, make its updates, and it makes those of what else it wrote to.

PyTorch calls no hook for a step that raises: see `tracer.backends.torch.under_way`.
"""

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any
from weakref import ref

from tracer.backends.torch import compat, dynamo, effects
from tracer.backends.torch.hooks import After, Before, found_inf
from tracer.backends.torch.operators import number_for
from tracer.backends.torch.parameters import Parameters, parameters_of
from tracer.backends.torch.programs import Handed, Program
from tracer.backends.torch.under_way import (
    ASKED,
    STEP,
    Step,
    Unsure,
    drop_ended,
    here,
    known_by,
    take_off,
)
from tracer.core.calls import Frame
from tracer.core.registry import Binding

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
_PAST = (
    "{name} has a step of its own that may write past the versions of tensors, as to `.data`: "
    "where a parameter with a gradient holds the same bits after a step, whether the step updated "
    "it is not known, and it is not counted"
)
_CLEARED = (
    "a closure gave {name} its gradients, and a hook came after its step before the tracer's own: "
    "what that hook took away is not counted"
)
_UNSEEN = (
    "{name} has a step of its own that wrote past the versions of tensors, which had counted its "
    "writes before: what the first such step updated is not counted"
)
_NOT_COMPARABLE = (
    "{name} has a step of its own, and neither the versions nor the bits of all its parameters "
    "can be compared: each that has a gradient counts as updated"
)

_ENOUGH = 100


class Watch:
    """Counts the steps of one optimizer."""

    def __init__(self, binding: Binding) -> None:
        optimizer = binding.optimizer()
        self.binding = binding
        self.shells: list[Binding] = []
        """The same of those around it whose own `step` calls no hooks."""
        self.optimizer = binding.optimizer
        self.recorder = binding.recorder
        self.index = binding.index
        self.number = number_for(self)
        self._one_step = compat.steps_with_hooks(type(optimizer)) == 1
        self._own = compat.steps_by_itself(type(optimizer))
        """Whether it has a step of its own, so that a gradient proves no update."""
        self._may_stop = _is_lbfgs(optimizer) and not self._own
        groups: Any = optimizer.param_groups if optimizer is not None else ()
        self._past = compat.writes_past_versions(type(optimizer), groups)
        self._versioned: set[int] = set()  # the parameters that a version was seen to count
        self._doubts = 0
        """How many parameters are still to be compared before versions are believed for good."""
        self._believed = False
        self.mark: dynamo.Mark | None = None
        """Where the step begins that is being compiled."""
        self._located = False  # whether it was asked which rank this process is
        self._scaled = False  # whether a `GradScaler` was ever asked for its step
        self._last: tuple[list[int], list[Any], list[int], list[int]] | None = None
        self._alive: list[ref[Any]] = []
        before = Before(self)
        self._before, self._after = compat.HookPlace(before), compat.HookPlace(After(self, before))

    def attach(self, optimizer: Any) -> None:
        """Give the optimizer the hooks, behind its others, which may give it gradients.

        So they can be taken away while another thread is in one of them: of what it iterates over
        they are the end.
        """
        self._located = False
        self.shells.clear()
        self._before.put_in(optimizer._optimizer_step_pre_hooks)
        self._after.put_in(optimizer._optimizer_step_post_hooks)

    @property
    def alone(self) -> bool:
        """Whether no other step is called inside of its steps, as far as the class shows."""
        return self._one_step and len(self.recorder.optimizers) == 1

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
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks)) == self._before.key)

    @dynamo.left_alone
    def before(
        self,
        optimizer: Any,
        given: Sequence[Any],
        named: Mapping[str, Any],
        python: FrameType | None,
    ) -> None:
        """A step begins; `python` is the frame that calls the hooks around it."""
        if self._leaves_alone(optimizer):
            return
        try:
            if here.steps:
                drop_ended(python)
            step = Step(self, python)
            if self.recorder.optimizers.stateless:
                self._note_begin(optimizer)
            parameters = parameters_of(optimizer.param_groups)
            if self._is_last(optimizer) and not _computes(given, named):
                step.layouts = compat.layouts_of(parameters)
                step.requests, step.updates = self.sites(parameters, step.layouts)
            if step.requests is None or self._may_stop or self._own or not self.alone:
                step.begun = compat.versions_of(parameters)
            if self._own or (self._may_stop and optimizer.state):
                step.copies = self._copies(parameters)
            self._hold(step, parameters)
            here.steps.append(step)
        except Exception as error:
            self.recorder.fault(error)

    def _copies(self, parameters: Sequence[Any]) -> dict[int, Any]:
        """Copies of the parameters whose versions may not tell what a step of its own writes to."""
        every = self._past or self._doubts > 0 or self._adds_zeros()
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
        collectors = self.recorder.collectors
        collectors.call(collectors.first_step_begins, parameters_of(optimizer.param_groups))
        if optimizer.state:
            self.recorder.optimizers.tell(self.index, state_loaded=True)

    def _hold(self, step: Step, parameters: Sequence[Any]) -> None:
        """Copy what a step may change that begins now, if effects are asked for.

        What it is handed is not known yet, if it is given a closure; and an optimizer in it may
        have parameters of its own.
        """
        comparing = self.recorder.effects
        if comparing is not None and self._around() is None:
            step.held = {}
            if len(self.recorder.optimizers) > 1:
                parameters = [*parameters]
                for optimizer in self.recorder.optimizers.alive():
                    parameters += parameters_of(optimizer.param_groups)
            for each in parameters:
                asks = self._may_stop or each.requires_grad or each.grad is not None
                if asks and id(each) not in step.held and not compat.is_lazy(each):
                    step.held[id(each)] = comparing.copy_of(each)

    @dynamo.left_alone
    def after(
        self,
        optimizer: Any,
        named: Mapping[str, Any],
        python: FrameType | None,
        compiled: bool = False,
    ) -> None:
        """A step has ended; in code that is `compiled` in part, its begin was in another frame."""
        if self._leaves_alone(optimizer):
            return
        try:
            step = self._begun(python, compiled)
            found = found_inf(optimizer)
            if found is not None and effects.is_held_back(found):
                step.skipped = found
            elif found is None and "grad_scaler" in named:
                self.recorder.note(_UNKNOWN_SKIP)
            if step.requests is None:
                self._ask(step, optimizer)
            skips = found is not None and step.skipped is None and bool(found)
            if self._own:  # what it writes beside a kernel that skips
                self._compare(step, optimizer, skips)
            elif skips:
                step.inside = []
            else:
                step.inside = self._inside(step, optimizer)
            self.ended(step)
        except Exception as error:
            self.recorder.fault(error)

    def _ask(self, step: Step, optimizer: Any) -> None:
        """Note the gradients at the end of a step; one that is gone was there if it was used."""
        parameters = parameters_of(optimizer.param_groups)
        layouts = compat.layouts_of(parameters)
        first = next(iter(optimizer._optimizer_step_post_hooks), None)
        if None in layouts and first != self._after.key and (self._may_stop or self._past):
            self.recorder.note(_CLEARED.format(name=type(optimizer).__name__))
        if self._own:
            step.layouts = layouts
        elif step.begun is not None:
            layouts = [
                compat.layout_if(True)
                if layout in (None, compat.FROZEN) and self._wrote(step, each, layout)
                else layout
                for layout, each in zip(layouts, parameters, strict=True)
            ]
        step.requests, step.updates = self.sites(parameters, layouts)
        if not self._is_last(optimizer):
            optimizer._optimizer_step_pre_hooks.move_to_end(self._before.key)

    def _wrote(self, step: Step, parameter: Any, layout: Any) -> bool:
        """Whether a step wrote to a parameter that has no gradient when it has ended."""
        if not self._may_stop:
            return layout is None and compat.has_moved(step.begun or {}, parameter)
        before = step.copies.get(id(parameter))
        return before is not None and not bool(effects.is_left(before, parameter, None))

    def _inside(self, step: Step, optimizer: Any) -> list[int]:
        """The sites of what a step has done, those of the steps in it and its own."""
        called, begun = step.inside, step.begun
        others = len(self.recorder.optimizers) > 1
        if begun is None or (called is None and not others):
            stopped = self._may_stop and begun is not None and not self._moved_any(begun, optimizer)
            return [*(called or ()), *(() if stopped or called is not None else step.updates)]
        done = self.recorder.variables_of(called or ())
        own = []
        for site in step.updates:
            ((index, parameter),) = self.recorder.variables_of([site]).items()
            if index not in done and parameter is not None and compat.has_moved(begun, parameter):
                own.append(site)
        return [*(called or ()), *own]

    def _compare(self, step: Step, optimizer: Any, skips: bool) -> None:
        """Note what a step of its own has done: it updated each parameter that it wrote to.

        If it `skips`, what it left alone was not updated, and no note is needed.

        What has no gradient counts too if it was written to: a step may make its own gradients.
        """
        parameters, layouts = parameters_of(optimizer.param_groups), list(step.layouts or ())
        if len(layouts) != len(parameters):  # it got others while it stepped, or lost some
            layouts = compat.layouts_of(parameters)
        inside = step.inside or []
        done = {id(each) for each in self.recorder.variables_of(inside).values()}
        same: list[Any] = []
        for place, (parameter, layout) in enumerate(zip(parameters, layouts, strict=True)):
            asks = layout not in (None, compat.FROZEN)
            known = id(parameter) in done
            same.append(not known and self._is_same(step, parameter, asks and not skips, optimizer))
            if not asks and same[-1] is not True:
                now = compat.layouts_of([parameter])[0]
                layouts[place] = compat.layout_if(True) if now in (None, compat.FROZEN) else now
        step.requests, updates = self.sites(parameters, layouts)
        of_updates = iter(updates)
        unsure = []
        for parameter, layout, is_same in zip(parameters, layouts, same, strict=True):
            if layout in (None, compat.FROZEN):
                continue
            site = next(of_updates)
            if id(parameter) in done:
                continue
            if is_same is False:
                inside = [*inside, site]
            elif is_same is not True:
                doubtful = self._past and id(parameter) not in self._versioned
                note = _PAST.format(name=type(optimizer).__name__) if doubtful else ""
                unsure.append(Unsure(is_same, site, note))
        step.inside, step.unsure = inside, unsure

    def _is_same(self, step: Step, parameter: Any, asks: bool, optimizer: Any) -> Any:
        """Whether a step left a parameter alone: True, False or a tensor that will say it.

        `asks` says whether it had a gradient.
        """
        key = id(parameter)
        by_version = asks or not self._adds_zeros()
        if by_version and compat.has_moved(step.begun or {}, parameter):
            self._versioned.add(key)
            return False
        if by_version and key in self._versioned and not self._past:
            return not asks or self._is_left(step.copies.get(key), parameter)
        if key not in step.copies:  # it came while the step ran, or was lazy until then
            return not asks
        before, name = step.copies[key], type(optimizer).__name__
        if before is None:
            if asks:
                self.recorder.note(_NOT_COMPARABLE.format(name=name))
            return not asks
        gradient, doubtful = None, asks and self._past and key not in self._versioned
        if doubtful:  # an update by 0 leaves the same bits
            gradient = parameter.grad
            if all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups):
                return False
        same = effects.is_left(before, parameter, gradient)
        if same is not True and same is not False and (not asks or self._around() is not None):
            same = bool(same)
        if same is True and doubtful:
            self.recorder.note(_PAST.format(name=name))
        return same

    def _is_left(self, before: Any, parameter: Any) -> bool:
        """Whether a version is right that says that a step left a parameter with a gradient alone.

        A step that skips some is such, and one that writes past versions now and then. So from the
        first time on parameters are copied, until the bits agreed often enough.
        """
        if before is None:
            self._doubts = self._doubts or (0 if self._believed else _ENOUGH)
            return True
        if bool(effects.is_left(before, parameter, None)):
            self._doubts = max(0, self._doubts - 1)
            self._believed = self._doubts == 0
            return True
        self._past = True
        self.recorder.note(_UNSEEN.format(name=type(self.optimizer()).__name__))
        return False

    def _moved_any(self, begun: Mapping[int, int], optimizer: Any) -> bool:
        return any(compat.has_moved(begun, each) for each in parameters_of(optimizer.param_groups))

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
            if here.steps:
                drop_ended(python)
            step = Step(self, python, ASKED)
            optimizer: Any = self.optimizer()
            self._hold(step, parameters_of(optimizer.param_groups))
            here.steps.append(step)
            return step
        except Exception as error:
            self.recorder.fault(error)
            return None

    @dynamo.left_alone
    def answered(self, step: Step, optimizer: Any, failed: bool) -> None:
        """The `GradScaler` has done that, or left it out; or an exception ended it."""
        try:
            self._take_off(step)
            if failed:
                self.raised(ASKED, inner=False)
                return
            if step.requests is None:
                parameters = parameters_of(optimizer.param_groups)
                step.requests, _ = self.sites(parameters, compat.layouts_of(parameters))
            self.ended(step)
        except Exception as error:
            self.recorder.fault(error)

    def begins(self, values: Sequence[Any]) -> None:
        """A program with a step begins to run, whose parameters hold these values."""
        comparing = self.recorder.effects
        if comparing is not None and not self.recorder.broken and self._around() is None:
            try:
                here.held[self] = [comparing.copy_of(each) for each in values]
            except Exception as error:
                self.recorder.fault(error)

    def ran(self, program: Program, skipped: Any, now: Sequence[Any]) -> None:
        """A program has run; `skipped` is None or says on the device whether it did nothing.

        `now` has what its parameters hold, if it was built to compare them.
        """
        held = here.held.pop(self, None)
        step = Step(self, None)
        step.requests, step.inside = program.requests, list(program.updates)
        step.program = program.number
        if held is not None and len(held) == len(now) == len(program.requests):
            indices = [index for index, _ in self.recorder.handed(program.requests)]
            step.seen = effects.Seen(zip(indices, held, now, strict=True))
        if skipped is not None and not effects.is_held_back(skipped):
            step.inside, skipped = [] if float(skipped) else step.inside, None
        step.skipped = skipped
        self.ended(step)

    def traced(self, updates: Sequence[int]) -> None:
        """A step with these updates was called to build a program."""
        self.recorder.step_traced(self.index, STEP, updates)

    def program(self, handed: Handed) -> int:
        """The number of a program in which each parameter has a gradient or not."""
        program = Program(self.optimizer(), handed, self.mark)
        try:
            program.fit(self)
        except Exception as error:
            self.recorder.fault(error)
        return program.number

    def _begun(self, python: FrameType | None, compiled: bool) -> Step:
        """The step that ends now; a new one if its begin was not seen."""
        frame = known_by(python)
        for step in reversed(here.steps):
            if (compiled or step.python == frame) and step.watch is self and step.method == STEP:
                self._take_off(step)
                return step
        return Step(self, python)

    def _take_off(self, step: Step) -> None:
        """A step is under way no more, nor what an exception ended in it."""
        for raised in take_off(step):
            raised.watch.raised(raised.method, inner=True)

    def raised(self, method: str, *, inner: bool) -> None:
        """A step was ended by an exception; an inner one, if the step around it went on."""
        self.recorder.step_raised(self.index, method)
        if not inner:
            self.recorder.note(_RAISED)

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
            variables = self.recorder.variables
            optimizer = self.optimizer()
            if isinstance(variables, Parameters) and optimizer is not None:
                variables.meet(optimizer)
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

    def ended(self, step: Step) -> None:
        """Count a step, or hand what it did to the step that it was called in."""
        recorder, inside = self.recorder, step.inside or []
        around = self._around()
        if around is not None:
            own = recorder.step_site(self.index, step.method)
            around.inside = [*(around.inside or ()), *inside, own]
            if step.skipped is not None:
                around.skipped = step.skipped
            if around.method == ASKED:
                around.requests = step.requests
            return
        if not self._located:
            self._located = True
            recorder.where = recorder.backend.surroundings()
        frame = Frame()
        recorder.enter(frame, self.index, step.method, "step")
        frame.result = step
        frame.sites += step.requests or ()
        frame.sites += inside
        if step.held is not None:
            step.seen = self._seen_since(step, step.held)
        step.begun = step.layouts = step.held = None  # while it waits for the device
        step.copies = {}
        recorder.leave(frame, False)

    def _around(self) -> Step | None:
        """The step under way, of this thread, in which one of this optimizer is a part of it."""
        steps = reversed(here.steps)
        return next((each for each in steps if each.watch.recorder is self.recorder), None)

    def _seen_since(self, step: Step, held: Mapping[int, Any]) -> effects.Seen:
        """What came of the parameters that a step was handed or updated; `held` is by `id`."""
        parameters = dict(self.recorder.handed(step.requests or ()))
        parameters |= self.recorder.variables_of(step.inside or ())
        alive = {index: each for index, each in parameters.items() if each is not None}
        if not all(id(each) in held or compat.is_lazy(each) for each in alive.values()):
            self.recorder.note(_CAME_LATE)
        return effects.Seen((i, held.get(id(each)), each) for i, each in alive.items())


def _is_lbfgs(optimizer: Any) -> bool:
    return any(each.__name__ == "LBFGS" for each in type(optimizer).__mro__)


def _computes(given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a step is given a closure, which computes the gradients; the first is the optimizer.

    >>> _computes(("optimizer",), {"closure": None})
    False
    """
    return any(map(callable, given[1:])) or any(map(callable, named.values()))
