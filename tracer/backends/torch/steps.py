"""The steps of an optimizer of PyTorch: a hook before each opens a call, and one after it ends it.

Its requests are the gradients that its parameters have when it begins; if it is given a closure,
which computes them, or if the program has hooks of its own, those that they have when it ends. A
step of PyTorch's own code in which no other is called updates each parameter that has a gradient.
Code of the program may leave some out, and one step may call others, by `super().step()` or of an
optimizer that it is around: then it updated what it wrote to, as `writes` finds out.

PyTorch calls no hook for a step that raises: see `CallsUnderWay.abandoned`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import FrameType
from typing import Any, NamedTuple, cast
from weakref import ref

from tracer.backends.torch import compat, dynamo, effects
from tracer.backends.torch.compiled_steps import CLEARED, PROGRAM, Program
from tracer.backends.torch.dynamo import F
from tracer.backends.torch.grad_scaler import found_inf
from tracer.backends.torch.parameters import parameters_of
from tracer.backends.torch.writes import Before, Writes
from tracer.core.calls import Call, known_by
from tracer.core.registry import Binding

STEP, ASKED = "step", "GradScaler.step"
"""The methods whose outermost execution is a step: see `tracer.kinds`."""
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
_CAPTURED = (
    "a step of {name} was captured in a CUDA graph: it is counted once, as it was captured, and "
    "not when the graph is replayed, which calls no Python"
)
_CAME_LATE = (
    "effects of a step on a parameter that the optimizer got while it stepped are not known"
)
_BEGAN_UNSEEN = (
    "effects of a step whose begin was not seen are not known: torch.compile may have compiled it "
    "in part"
)
_WITHIN = (
    "a step of {name} was called in another one, as by a hook: of a parameter that both updated, "
    "one update is counted"
)


class Asked(NamedTuple):
    """The gradients that a step was given; nearly each has those of the step before."""

    ids: Sequence[int]
    """The `id` of each parameter."""
    layouts: Sequence[Any]
    """The layout of its gradient: `compat.layouts_of`."""
    requests: Sequence[int]
    """The sites of what it was asked for."""
    updates: Sequence[int]
    """Those of the updates that it makes if it updates what has a gradient."""


class Unsure(NamedTuple):
    """A parameter for which only the device knows whether a step updated it."""

    is_same: Any
    """A tensor on the device: whether it holds what it held."""
    site: int
    """That of the update."""
    learn: Any
    """Is called with what the device says."""


class Step(Call):
    """A step that is under way; it keeps no parameter alive, nor what its program computed."""

    __slots__ = ("asked", "counter", "method", "program", "skipped", "unsure", "values", "written")

    def __init__(self, counter: "StepCounter", method: str = STEP) -> None:
        self.counter = counter
        self.method = method
        self.asked: Asked | None = None
        """The gradients that it was given; None if they come until its end."""
        self.written: Before | None = None
        """The parameters as it began, if what it writes to them tells what it updates."""
        self.skipped: Any = None
        """A number on the device: whether it was skipped; None if that is known."""
        self.unsure: Sequence[Unsure] = ()
        self.program: Program | None = None
        """The program that is run; None if Python runs it."""
        self.values: Sequence[Any] = ()
        """Of a program copies of its parameters as it began, if effects are asked for."""

    @property
    def function(self) -> str:  # type: ignore[override]
        """What stands for the name of a program, where one was compiled."""
        return "" if self.program is None else PROGRAM

    @property
    def interrupted(self) -> str:
        """Nothing is said of a step in another one, which knows what it wrote to."""
        return _RAISED if self.parent is None else ""


def drop(stack: list[Call], ended: Callable[[Call], bool]) -> None:
    """Forget the first call on the `stack` that an exception `ended`."""
    found = next(filter(ended, stack), None)
    if found is not None:
        found.recorder.abandon(found)


def counting(method: F) -> F:
    """A method of a `StepCounter` that Python runs, also where Dynamo has given up.

    A fault of it ends the counting, and not the program: see `Recorder.fault`.
    """

    @wraps(method)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        if self.recorder.broken:
            return None
        compiler = dynamo.set_compiler(None)
        try:
            return method(self, *given, **named)
        except Exception as error:
            self.recorder.fault(error)
            return None
        finally:
            dynamo.set_compiler(compiler)

    return cast(F, dynamo.without_dynamo(guarded))


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
        self._name = type(optimizer).__name__
        self._writes: Writes | None = None
        """What its steps write to, if a gradient proves no update, as in code of the program."""
        cls = type(optimizer)
        by_itself = compat.steps_by_itself(cls)
        if by_itself or _is_lbfgs(optimizer):
            blocks: Any = self.recorder.blocks
            self._writes = Writes(self._name, by_itself, compat.names_data(cls))
            blocks.writes.append(self._writes)
        self._scaled = False  # whether a `GradScaler` was ever asked for its step
        self._last: Asked | None = None
        self._alive: list[ref[Any]] = []

    # A step that Python runs.

    @counting
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
        recorder = self.recorder
        stack = recorder.calls_under_way.stack()
        if stack and compiled:
            self._drop(stack, known_by(python))
        elif stack:
            recorder.drop_interrupted(python.f_back)
        if recorder.optimizers.stateless:
            self._note_begin(optimizer)
        call = self._enter(Step(self), python)
        parameters = parameters_of(optimizer.param_groups)
        # A closure or a hook of the program may still change the gradients.
        if not (compat.hooks_before(optimizer) or _computes(given, named)):
            call.asked = self.asked_for(parameters, compat.layouts_of(parameters))
        if self._writes is not None:
            call.written = self._writes.before(parameters, bits=self._adds_zeros())
        elif call.asked is None or len(recorder.optimizers.all) > 1:
            call.written = Before(compat.versions_of(parameters), {})
        if recorder.effects is not None and call.parent is None:
            self._hold(call)

    def _enter(self, call: Step, python: FrameType) -> Step:
        self.recorder.open(call, self.index, call.method, "step", python)
        call.python = known_by(python)
        return call

    def _drop(self, stack: list[Call], known: tuple[int, int]) -> None:
        """No frame of Python runs two steps of one optimizer at once: the one before has ended."""
        drop(
            stack,
            lambda call: isinstance(call, Step) and (call.counter, call.python) == (self, known),
        )

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
            self.recorder.optimizers.all[self.index].settings["state_loaded"] = True

    def _hold(self, call: Step) -> None:
        """Copy what a step may change that begins now, as effects are asked for.

        What it is passed is not known yet, if it is given a closure; and an optimizer in it may
        have parameters of its own.
        """
        call.before = {}
        variables: Any = self.recorder.variables
        for optimizer in self.recorder.optimizers.alive():
            variables.find_names(optimizer)
            may_clear = self._writes is not None or compat.hooks_after(optimizer)
            for each in parameters_of(optimizer.param_groups):
                if (each.requires_grad or each.grad is not None) and not compat.is_lazy(each):
                    index, gradient = variables.index(each, None), each.grad
                    if not compat.is_elsewhere(each):
                        came = call.asked or call.method is ASKED
                        known = gradient if came else False if may_clear else None
                        self.recorder.effects.hold(call, index, each, known)

    @counting
    def after(
        self, optimizer: Any, named: Mapping[str, Any], python: FrameType, compiled: bool = False
    ) -> None:
        """A step has ended; in code that is `compiled` in part, its begin was in another frame."""
        call = self._under_way(None if compiled else known_by(python))
        if call is None:
            call = self._enter(Step(self), python)
            if self.recorder.effects is not None and call.parent is None:
                self.recorder.note(_BEGAN_UNSEEN)
        if compat.HAS_CUDA and compat.is_capturing():
            self.recorder.note(_CAPTURED.format(name=type(optimizer).__name__))
        found, skipped = found_inf(optimizer), False
        # What the program's own code writes stays if the kernel leaves out its work: `_updated`
        # looks at each parameter then, and waits for the device.
        looks = self._writes is not None and call.parent is not None
        if found is None and "grad_scaler" in named:
            self.recorder.note(_UNKNOWN_SKIP)
        elif found is not None and effects.is_held_back(found) and not looks:
            call.skipped = found
        elif found is not None:
            skipped = bool(found)
        around = self._is_around(call, optimizer)
        if call.asked is None or self._writes is not None or around:
            updates = self._look(call, optimizer, skipped, around)
        else:
            updates = call.asked.updates
        self._leave(call, () if skipped and self._writes is None else updates)

    def _under_way(self, known: tuple[int, int] | None) -> Step | None:
        """The innermost step of this optimizer, run by the frame that is `known` by this if any."""
        for call in reversed(self.recorder.calls_under_way.stack()):
            own = isinstance(call, Step) and call.counter is self and call.method is STEP
            if own and (known is None or call.python == known):
                return call  # type: ignore[return-value]
        return None

    def _is_around(self, call: Step, optimizer: Any) -> bool:
        """Whether its own code may have called what stepped inside of it, and no closure or hook.

        Then it did not update itself what that has updated.
        """
        return bool(call.sites) and (self._writes is not None or compat.holds_optimizer(optimizer))

    def _look(self, call: Step, optimizer: Any, skipped: bool, around: bool) -> Sequence[int]:
        """Find out what a step did by itself, now that it has ended; returns the sites of updates.

        Its requests are known then. A parameter that it wrote to is one of them, also if it has no
        gradient: a step may make its own, and a hook may have taken that away.
        """
        parameters = parameters_of(optimizer.param_groups)
        if call.asked is not None and not skipped and self._wrote_to_all(call, parameters):
            return call.asked.updates
        layouts = self._layouts_of(call, optimizer, parameters)
        updated = self._updated(call, parameters, layouts, skipped, around)
        for place, parameter in enumerate(parameters):
            if updated[place] is True and not _asks(layouts[place]):
                (now,) = compat.layouts_of([parameter])
                layouts[place] = now if _asks(now) else compat.layout_if(True)
        call.asked = self.asked_for(parameters, layouts)
        asking = [place for place, layout in enumerate(call.asked.layouts) if _asks(layout)]
        site_at = dict(zip(asking, call.asked.updates, strict=True))
        call.unsure = [
            Unsure(updated[place], site, partial(self._writes.learn, id(parameters[place]), True))
            for place, site in site_at.items()
            if self._writes is not None and not isinstance(updated[place], bool)
        ]
        return [site for place, site in site_at.items() if updated[place] is True]

    def _layouts_of(self, call: Step, optimizer: Any, parameters: Sequence[Any]) -> list[Any]:
        """The layouts of the gradients that a step was given, which has ended.

        They are those of now if they came late, or if others came while it stepped.
        """
        if call.asked is not None and len(call.asked.layouts) == len(parameters):
            return list(call.asked.layouts)
        layouts = compat.layouts_of(parameters)
        if call.asked is None:
            self._note_cleared(call, optimizer, layouts)
        return layouts

    def _updated(
        self,
        call: Step,
        parameters: Sequence[Any],
        layouts: Sequence[Any],
        skipped: bool,
        around: bool,
    ) -> list[Any]:
        """Whether a step updated each parameter: True, False or a tensor: see `Writes.wrote_to`."""
        inner = {id(each) for each in self.recorder.variables_of(call.sites).values()}
        writes = self._writes or Writes(self._name, by_itself=False)
        writes.seen |= bool(inner)
        bits, waits = self._adds_zeros(), call.parent is not None
        updated: list[Any] = []
        for parameter, layout in zip(parameters, layouts, strict=True):
            did: Any = _asks(layout) and not skipped
            if did and self._writes is None and not around:
                pass  # PyTorch's own code updates whatever has a gradient
            elif id(parameter) in inner:
                did = False  # the step inside of this one has counted it
            elif call.written is not None:
                did = writes.wrote_to(call.written, parameter, did, bits=bits, waits=waits)
            updated.append(did)
        return updated

    def _wrote_to_all(self, call: Step, parameters: Sequence[Any]) -> bool:
        """Whether each parameter has a gradient and was written to, as in nearly each step."""
        if self._writes is None or call.written is None or call.asked is None or call.sites:
            return False
        asks = len(call.asked.updates) == len(parameters)
        return asks and self._writes.wrote_to_all(call.written, parameters)

    def _note_cleared(self, call: Step, optimizer: Any, layouts: Sequence[Any]) -> None:
        """Say it if a hook may have taken away gradients of an update that no version shows.

        A fused kernel moves none, and of a step whose begin was not seen none is known.
        """
        fused = any(group.get("fused") for group in optimizer.param_groups)
        cleared = compat.hooks_after(optimizer) and None in layouts
        if cleared and ((fused and self._writes is None) or call.written is None):
            self.recorder.note(CLEARED.format(name=self._name))

    # A `GradScaler`, and a program that `torch.compile` made.

    @counting
    def asked(self, scaler: Any, python: FrameType) -> Step | None:
        """A `GradScaler` is asked for a step of the optimizer, which it may leave out."""
        if not self._scaled and scaler.is_enabled():
            self._scaled = True
            scale = float(scaler._init_scale)
            settings = self.recorder.optimizers.all[self.index].settings
            settings.update(grad_scaler=True, initial_scale=scale)
        if self.recorder.calls_under_way.stack():
            self.recorder.drop_interrupted(python.f_back)
        call = self._enter(Step(self, ASKED), python)
        if self.recorder.effects is not None and call.parent is None:
            self._hold(call)
        return call

    @counting
    def answered(self, call: Step, optimizer: Any, failed: bool) -> None:
        """The `GradScaler` has done that, or left it out; or an exception ended it."""
        if failed:
            self.recorder.abandon(call)
            return
        parameters = parameters_of(optimizer.param_groups)
        call.asked = call.asked or self.asked_for(parameters, compat.layouts_of(parameters))
        self._leave(call, ())

    @counting
    def begins(self, values: Sequence[Any]) -> None:
        """A program with a step begins to run, whose parameters hold these values."""
        comparing = self.recorder.effects
        if comparing is None:
            return
        python = dynamo.frame_around(sys._getframe())
        self._drop(self.recorder.calls_under_way.stack(), known_by(python))
        call = self._enter(Step(self), python)
        if call.parent is None:
            call.values = list(map(comparing.copy_of, values))

    @counting
    def ran(self, program: Program, skipped: Any, now: Sequence[Any]) -> None:
        """A program has run; `skipped` is None or says on the device whether it did nothing.

        `now` has what its parameters hold, if it was built to compare them.
        """
        python = dynamo.frame_around(sys._getframe())
        call = self._under_way(known_by(python)) or self._enter(Step(self), python)
        call.program, call.asked, updates = program, program.asked, program.updates
        if len(call.values) == len(now) == len(call.asked.requests):
            passed = self.recorder.variables_of(call.asked.requests, "request").items()
            for (index, variable), before, value in zip(passed, call.values, now, strict=True):
                self.recorder.effects.compare(call, index, variable, before, value)
        if skipped is not None and not effects.is_held_back(skipped):
            updates, skipped = [] if float(skipped) else updates, None
        call.skipped = skipped
        self._leave(call, updates)

    def _leave(self, call: Step, updates: Sequence[int]) -> None:
        """A step has ended that made these updates by itself: count it, or add it to the one
        around it.
        """
        around = call.parent
        if isinstance(around, Step):
            self._note_within(call, around)
            around.skipped = around.skipped if call.skipped is None else call.skipped
            if around.method is ASKED:
                around.asked = call.asked
        elif call.asked is not None:
            call.sites += call.asked.requests
        call.sites += updates
        if call.before is not None and call.program is None and around is None:
            self._note_uncompared(call)
        self.recorder.close(call, False)

    def _note_within(self, call: Step, around: Step) -> None:
        """Say it if a hook may have called a step in one of own code, which may update the same."""
        optimizer: Any = self.optimizer()
        alike = around.counter is self and call.method is around.method is STEP
        if not alike or self._writes is None or compat.steps_with_hooks(type(optimizer)) > 1:
            return
        if compat.hooks_before(optimizer) or compat.hooks_after(optimizer):
            self.recorder.note(_WITHIN.format(name=self._name))

    def _note_uncompared(self, call: Step) -> None:
        """Say it if effects are asked for on a parameter that came while the step ran."""
        variables_of = self.recorder.variables_of
        found = variables_of(call.sites, "request") | variables_of(call.sites)
        came = [each for index, each in found.items() if index not in call.before]
        if any(each is not None and not compat.is_lazy(each) for each in came):
            self.recorder.note(_CAME_LATE)

    # Sites.

    def asked_for(self, parameters: Sequence[Any], layouts: Sequence[Any]) -> Asked:
        """What a step is asked for that is given gradients with these layouts."""
        ids, last = list(map(id, parameters)), self._last
        if last is not None and last.layouts == layouts and last.ids == ids:
            return last
        if last is None or last.ids != ids:
            variables: Any = self.recorder.variables
            variables.find_names(self.optimizer())
            # One that is gone may leave its `id` to another one.
            self._alive = [ref(each, partial(self._forget, id(each))) for each in parameters]
        # Checkpoints give those that other ranks hold a gradient, too: see `docs/facts.md`.
        layouts = [
            compat.FROZEN if compat.is_elsewhere(each) else layout
            for each, layout in zip(parameters, layouts, strict=True)
        ]
        site_of = partial(self.recorder.site_of, self.index)
        requests, updates = [], []
        for parameter, layout in zip(parameters, layouts, strict=True):
            if layout is not compat.FROZEN:
                kind = compat.kind_of(layout)
                requests.append(site_of("step", "request", kind, parameter))
                if layout is not None:
                    updates.append(site_of(UPDATE, "update", kind, parameter))
            elif parameter.requires_grad:  # other ranks hold it, and name it in their traces
                self.recorder.variables.index(parameter, None)
        self._last = Asked(ids, layouts, requests, updates)
        return self._last

    def _forget(self, key: int, reference: Any) -> None:
        self._last = None
        if self._writes is not None:
            self._writes.forget(key)


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
    if len(given) == 1 and not named:
        return False
    return any(map(callable, given[1:])) or any(map(callable, named.values()))
