"""The steps of an optimizer of PyTorch, as the hooks see them that PyTorch calls around each.

A step is counted when it has ended. Its requests are the gradients that its parameters have when
it begins; if it is given a closure, which computes them, or if other hooks come before it, those
that they have when it ends. Steps that are called inside of one, as by `super().step()`, or of an
optimizer around another one, make its updates; a step in which none is called makes its own: one
of each parameter that has a gradient.

PyTorch calls no hook for a step that raises: see `tracer.recorder.torch_optim.under_way`.

A step that `torch.compile` compiles calls the hooks while it is compiled. There the other one of
them adds an op to the program, which calls back each time that it runs. Where effects are asked
for, the first one does so, too, and both ops are handed what the parameters hold.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary, ref

from tracer.hooks.registry import Binding
from tracer.recorder.frames import Frame
from tracer.recorder.torch import effects
from tracer.recorder.torch_optim import compat
from tracer.recorder.torch_optim.blocks import Program
from tracer.recorder.torch_optim.parameters import Parameters, parameters_of
from tracer.recorder.torch_optim.under_way import ASKED, STEP, Step, drop_ended, here

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


_numbers = count(1)
_by_number: "WeakValueDictionary[int, Watch]" = WeakValueDictionary()
_programs: dict[
    int, tuple["ref[Watch]", tuple[int, ...], tuple[int, ...]]
] = {}  # what each program's op counts


class Watch:
    """Counts the steps of one optimizer."""

    def __init__(self, optimizer: Any, binding: Binding) -> None:
        self.optimizer = binding.optimizer
        self.recorder = binding.recorder
        self.index = binding.index
        self.number = next(_numbers)
        self._one_step = compat.steps_with_hooks(type(optimizer)) == 1
        self._may_stop = any(each.__name__ == "LBFGS" for each in type(optimizer).__mro__)
        self._located = False  # whether it was asked which rank this process is
        self._scaled = False  # whether a `GradScaler` was ever asked for its step
        self._last: tuple[list[int], list[Any], list[int], list[int]] | None = None
        self._alive: list[ref[Any]] = []
        _by_number[self.number] = self
        self._handles = (
            optimizer.register_step_pre_hook(Before(self)),
            optimizer.register_step_post_hook(After(self)),
        )

    @property
    def alone(self) -> bool:
        """Whether no other step is called inside of its steps, as far as the class shows."""
        return self._one_step and len(self.recorder.optimizers) == 1

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _leaves_alone(self, optimizer: Any) -> bool:
        """Whether nothing is counted; also of a copy that has the hooks of the original."""
        return self.recorder.broken or self.optimizer() is not optimizer

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
            if self._may_stop or len(self.recorder.optimizers) > 1:
                step.begun = _version_of(optimizer)
            if not _computes(given, named) and len(optimizer._optimizer_step_pre_hooks) == 1:
                step.parameters = parameters_of(optimizer.param_groups)
                step.layouts = compat.layouts_of(step.parameters)
            self._hold(step, optimizer)
            here.steps.append(step)
        except Exception as error:
            self.recorder.fault(error)

    def _hold(self, step: Step, optimizer: Any) -> None:
        """Copy what a step may change that begins now, if effects are asked for.

        What it is handed is not known yet, if it is given a closure.
        """
        comparing = self.recorder.effects
        if comparing is not None and self._around() is None:
            step.held = {}
            for each in parameters_of(optimizer.param_groups):
                if id(each) not in step.held and (each.requires_grad or each.grad is not None):
                    step.held[id(each)] = comparing.copy_of(each)

    def after(self, optimizer: Any, named: Mapping[str, Any], python: FrameType | None) -> None:
        """A step has ended."""
        if self._leaves_alone(optimizer):
            return
        try:
            step = self._begun(python)
            if step.layouts is None:
                step.parameters = parameters_of(optimizer.param_groups)
                step.layouts = compat.layouts_of(step.parameters)
            step.requests, updates = self._sites(step.parameters, step.layouts)
            if step.inside is None:
                stopped = step.begun is not None and step.begun == _version_of(optimizer)
                step.inside = [] if stopped else list(updates)
            found = vars(optimizer).get("found_inf")
            if found is not None:
                if effects.is_held_back(found):
                    step.skipped = found
                elif float(found):
                    step.inside = []
            elif "grad_scaler" in named:
                self.recorder.note(_UNKNOWN_SKIP)
            self.ended(step)
        except Exception as error:
            self.recorder.fault(error)

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
            self._hold(step, self.optimizer())
            here.steps.append(step)
            return step
        except Exception as error:
            self.recorder.fault(error)
            return None

    def answered(self, step: Step, optimizer: Any, failed: bool) -> None:
        """The `GradScaler` has done that, or left it out; or an exception ended it."""
        try:
            self._take_off(step)
            if failed:
                self.raised(ASKED, inner=False)
                return
            if step.requests is None:
                parameters = parameters_of(optimizer.param_groups)
                step.requests, _ = self._sites(parameters, compat.layouts_of(parameters))
            self.ended(step)
        except Exception as error:
            self.recorder.fault(error)

    def holds(self, parameters: Sequence[Any]) -> None:
        """A program with a step begins to run, which may change these parameters."""
        comparing = self.recorder.effects
        if comparing is not None and not self.recorder.broken and self._around() is None:
            try:
                here.held[self.number] = [comparing.copy_of(each) for each in parameters]
            except Exception as error:
                self.recorder.fault(error)

    def ran(
        self, number: int, requests: Sequence[int], updates: Sequence[int], now: Sequence[Any]
    ) -> None:
        """The program with this number has run: a step with these sites.

        `now` has what its parameters hold, if it was built to compare them.
        """
        held = here.held.pop(self.number, None)
        if not self.recorder.broken:
            try:
                step = Step(self, None)
                step.requests, step.inside = requests, list(updates)
                step.skipped = Program(number)
                if held is not None and len(held) == len(now) == len(requests):
                    step.seen = self._seen(requests, held, now)
                self.ended(step)
            except Exception as error:
                self.recorder.fault(error)

    def program(self, handed: Sequence[bool | None]) -> int:
        """The number of what a program counts in which each parameter has a gradient or not."""
        try:
            optimizer: Any = self.optimizer()
            parameters = parameters_of(optimizer.param_groups)
            layouts = [compat.layout_if(each) for each in handed]
            requests, updates = self._sites(parameters, layouts)
            number = len(_programs) + 1
            _programs[number] = ref(self), tuple(requests), tuple(updates)
            self.recorder.step_traced(self.index, STEP, updates)
            return number
        except Exception as error:
            self.recorder.fault(error)
            return 0

    def _begun(self, python: FrameType | None) -> Step:
        """The step that ends now; a new one if its begin was not seen."""
        for step in reversed(here.steps):
            if step.python == id(python) and step.watch is self and step.method == STEP:
                self._take_off(step)
                return step
        return Step(self, python)

    def _take_off(self, step: Step) -> None:
        """A step is under way no more, nor what an exception ended in it."""
        place = here.steps.index(step)
        for raised in here.steps[place + 1 :]:
            raised.watch.raised(raised.method, inner=True)
        del here.steps[place:]

    def raised(self, method: str, *, inner: bool) -> None:
        """A step was ended by an exception; an inner one, if the step around it went on."""
        self.recorder.step_raised(self.index, method)
        if not inner:
            self.recorder.note(_RAISED)

    def _sites(
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
                variables.meet(optimizer.param_groups)
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

    def ended(self, step: Step) -> None:
        """Count a step, or hand what it did to the step that it was called in."""
        recorder, inside = self.recorder, step.inside or []
        around = self._around()
        if around is not None:
            own = recorder.step_site(self.index, step.method)
            around.inside = [*(around.inside or ()), *inside, own]
            if step.skipped is not None and not isinstance(step.skipped, Program):
                around.skipped = step.skipped
            if around.method == ASKED:
                around.requests = step.requests
            return
        if not self._located:
            self._located = True
            recorder.reader.where = recorder.backend.surroundings()
        frame = Frame()
        frame.recorder, frame.python = recorder, None
        recorder.enter(frame, self.index, step.method, "step")
        frame.result = step.skipped
        frame.sites += step.requests or ()
        frame.sites += inside
        if step.held is not None:
            step.seen = self._seen_since(step.held, step.requests or ())
        frame.begun = step.seen
        recorder.leave(frame, False)

    def _around(self) -> Step | None:
        """The step under way, of this thread, in which one of this optimizer is a part of it."""
        steps = reversed(here.steps)
        return next((each for each in steps if each.watch.recorder is self.recorder), None)

    def _seen_since(self, held: Mapping[int, Any], requests: Sequence[int]) -> effects.Seen:
        """What came of the parameters that a step was handed, by what they `held` by their `id`."""
        parameters = [parameter for _, parameter in self.recorder.handed(requests)]
        if not all(id(each) in held for each in parameters):
            self.recorder.note(_CAME_LATE)
        return self._seen(requests, [held.get(id(each)) for each in parameters], parameters)

    def _seen(
        self, requests: Sequence[int], before: Sequence[Any], now: Sequence[Any]
    ) -> effects.Seen:
        """What came of the parameters with these sites, each once; None is not compared."""
        found = {
            index: (old, new)
            for (index, _), old, new in zip(
                self.recorder.handed(requests), before, now, strict=True
            )
            if old is not None
        }
        olds, news = [old for old, _ in found.values()], [new for _, new in found.values()]
        return effects.Seen(tuple(found), olds, news)


class Before:
    """The hook before the steps of an optimizer; in a copy of the optimizer it does nothing."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.number = watch.number
        self.counters = watch.recorder.counters

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if compat.is_compiling():
            if not _is_alone(self.number):
                _before_in_program(self.watch, optimizer, given, named)
            elif self.counters.effects is not None:
                compat.HOLD(compat.MOVED, self.number, _values(optimizer))
            return
        self.watch.before(optimizer, given, named, sys._getframe(1))

    def __reduce__(self) -> Any:
        return _no_hook, ()


class After:
    """The hook after the steps of an optimizer; in a copy of the optimizer it does nothing."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.number = watch.number
        self.counters = watch.recorder.counters

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if not compat.is_compiling():
            self.watch.after(optimizer, named, sys._getframe(1))
        elif _is_alone(self.number):
            handed = []
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    none = False if parameter.requires_grad else None
                    handed.append(True if parameter.grad is not None else none)
            values = _values(optimizer) if self.counters.effects is not None else []
            compat.RAN(compat.MOVED, _program(self.number, tuple(handed)), values)
        else:
            _after_in_program(self.watch, optimizer, named)

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _no_hook() -> Callable[..., None]:
    return _nothing


def _nothing(*given: Any) -> None:
    """What a copy of a hook does."""


def _values(optimizer: Any) -> list[Any]:
    """What the parameters hold of which a step is told whether they have a gradient."""
    return [
        parameter.detach()
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None or parameter.requires_grad
    ]


@compat.constant
def _is_alone(number: int) -> bool:
    return _by_number[number].alone


@compat.constant
def _program(number: int, handed: tuple[bool | None, ...]) -> int:
    return _by_number[number].program(handed)


@compat.eagerly
def _before_in_program(watch: Watch, optimizer: Any, given: Any, named: Any) -> None:
    watch.before(optimizer, given, named, None)


@compat.eagerly
def _after_in_program(watch: Watch, optimizer: Any, named: Any) -> None:
    watch.after(optimizer, named, None)


def _computes(given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a step is given a closure, which computes the gradients; the first is the optimizer.

    >>> _computes(("optimizer",), {"closure": None})
    False
    """
    return any(map(callable, given[1:])) or any(map(callable, named.values()))


def _version_of(optimizer: Any) -> int | None:
    """How often the first parameter was written to, as PyTorch counts it for its gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return int(parameter._version)
    return None


def _run(number: int, values: list[Any]) -> None:
    """A program that counts runs."""
    known = _programs.get(number)
    watch = None if known is None else known[0]()
    if known is not None and watch is not None:
        watch.ran(number, known[1], known[2], values)


def _hold(number: int, values: list[Any]) -> None:
    """A program that compares begins to run."""
    watch = _by_number.get(number)
    if watch is not None:
        watch.holds(values)


compat.on_run("ran", _run)
compat.on_run("hold", _hold)
