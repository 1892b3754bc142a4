"""Count the steps of an optimizer of PyTorch: a hook before each step opens a call.

A hook after the step closes the call. The requests of a step are the gradients of its parameters
when the step begins, or when it ends if a closure computes the gradients or the program has step
hooks of its own. PyTorch's own code updates each parameter that has a gradient. A step of the
program's code may skip parameters: then the versions of the parameters decide. A step may call
another one, by `super().step()` or on a nested optimizer: what the inner one updated, the outer one
did not. If a closure or a hook calls the inner one, both update what has a gradient, unless the
outer one is custom, which is noted.

PyTorch increments the version of a tensor at each write. A write through `.data` or NumPy, and that
of a fused kernel (PyTorch's own, bitsandbytes, Triton), changes no version. So where a custom step
does not change the version of a parameter with a gradient, the trace is incomplete; the parameter
counts as updated unless an earlier step changed its version.

PyTorch calls no hook after a step that raises: see `CallsUnderWay.abandoned`.
"""

from collections.abc import Mapping, Sequence, Set
from functools import partial, wraps
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast
from weakref import ref

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import parameters_of
from tracer.core import calls
from tracer.core.call_paths import frames_from
from tracer.core.calls import EAGER, known_by
from tracer.core.optimizers import Binding

STEP, ASKED = "step", "GradScaler.step"
"""The methods whose outermost execution is a step: see `tracer.kinds`."""
_RAISED = (
    "a call of step raised an exception: neither the step nor the updates before the exception "
    "are counted"
)
_UNKNOWN_SKIP = (
    "an optimizer that gets the GradScaler in its step looks for non-finite gradients itself: a "
    "step that it skipped is counted as if it had updated"
)
_CAPTURED = (
    "a step of {name} was captured in a CUDA graph: it is counted once, at the capture, and not "
    "when the graph is replayed, because a replay calls no Python"
)
_CLEARED = (
    "a closure or a hook computed the gradients of {name}, and a hook after the step ran before "
    "the tracer's: if it removed gradients, their updates are not counted"
)
_WITHIN = (
    "a closure or a hook of the custom step of {name} called another step: a parameter that both "
    "updated is counted once"
)
_MAY_HIDE = (
    "{name} has a custom step that did not change the version of a parameter with a gradient: it "
    "left the parameter out, or wrote to it by `.data`, NumPy or a fused kernel. Such a parameter "
    "counts as updated, unless an earlier step changed its version"
)


class Asked(NamedTuple):
    """The gradients of a step; mostly reused from the step before."""

    ids: Sequence[int]
    """The `id` of each parameter."""
    layouts: Sequence[object]
    """The layout of its gradient: `compat.layouts_of`."""
    requests: Sequence[int]
    """The sites of the requests."""
    updates: Sequence[int]
    """The sites of the updates, if the step updates each parameter that has a gradient."""
    whole: Sequence[int]
    """All sites of a step that does so, and calls no other one: made once, and never changed."""


_NO_CODE, _NO_GRADIENT = frozenset([None]), (None, compat.FROZEN)


class Step(calls.Step):
    """A step under way; it keeps neither parameters nor tensors of the program alive."""

    __slots__ = ("asked", "callers", "counter", "foreign", "method", "versions")
    place, replica, distributed = EAGER, 0, False

    def __init__(self, counter: "StepCounter", method: str, parent: Any, python: FrameType) -> None:
        self.counter, self.recorder = counter, counter.recorder
        self.method, self.parent = method, parent
        self.python, self.thread = (id(python), id(python.f_code)), get_ident()
        self.sites, self.numbers, self.before = [], {}, None
        self.asked: Asked | None = None
        """The gradients of the step; None until they are known."""
        self.versions: Mapping[int, int | None] = {}
        """The versions of parameters as the step began, by `id`, if they decide what it updated."""
        self.callers: Set[CodeType | int | None] = _NO_CODE
        """The code between this step and the inner ones, and the line of PyTorch that called it."""
        self.foreign: Set[CodeType | int | None] = frozenset()
        """Those of a closure and of hooks; None for a closure whose code Python cannot see."""

    @property
    def interrupted(self) -> str:
        """The note for a step that raised; none for one by `super()`, as the outer one compares."""
        is_inner = getattr(self.parent, "counter", None) is self.counter
        return "" if is_inner or self.counter.stopped else _RAISED


def counting(method: compat.F) -> compat.F:
    """Run a method of a `StepCounter` in Python, also where Dynamo fell back to eager mode.

    An exception in the method disables the recorder, not the program: see `Recorder.fault`. All
    these methods have four arguments: each step calls them, and a call with `*args` is slower.
    """

    @wraps(method)
    def guarded(self: "StepCounter", of: Any, given: Any, named: Any, python: FrameType) -> object:
        if self.recorder.broken:
            return None
        compiler = compat.set_eval_frame(None)
        try:
            return method(self, of, given, named, python)
        except Exception as error:
            self.recorder.fault(error)
            return None
        finally:
            compat.set_eval_frame(compiler)

    return cast(compat.F, compat.without_dynamo(guarded))


class StepCounter:
    """Counts the steps of one optimizer."""

    def __init__(self, binding: Binding) -> None:
        optimizer: compat.Optimizer = binding.optimizer()
        self.optimizer = binding.optimizer
        self.recorder = binding.recorder
        self.index = binding.index
        self._name = type(optimizer).__name__
        self._is_custom = compat.steps_by_itself(optimizer)
        home = str(type(optimizer).step.__module__)
        self._delegates = home.startswith("torch.distributed") and not self._is_custom
        """Whether a step only calls one of another optimizer, and shares its result with ranks, as
        that of a `ZeroRedundancyOptimizer`."""
        self._looks = self._is_custom or self._delegates or _is_lbfgs(optimizer)
        """Whether a step may leave out a parameter that has a gradient."""
        self._is_fused = False
        self._moved: set[int] = set()
        """By `id`, the parameters of which a step changed the version."""
        self.stopped = False
        """Whether `torch.compile` compiled a step: no later step is counted."""
        self._own: dict[str, tuple[int]] = {}
        """The site of each method that was called."""
        self._last: Asked | None = None
        self._alive: list[ref[compat.Tensor]] = []

    @counting
    def before(
        self,
        optimizer: compat.Optimizer,
        given: Sequence[object],
        named: Mapping[str, object],
        python: FrameType,
    ) -> None:
        """Open the call of a step; `python` is the frame that calls its hooks."""
        if self.stopped:
            return
        call = self._enter(STEP, python)
        alone = len(given) == 1 and not named
        closures: list[Any] = (
            [] if alone else [e for e in (*given[1:], *named.values()) if callable(e)]
        )
        if self._looks:
            call.foreign = {python.f_lineno, *map(compat.code_of, closures)}
        parameters = parameters_of(optimizer.param_groups)
        # A closure, or a hook of the program, may still change the gradients.
        hooks = optimizer._optimizer_step_pre_hooks or len(compat.global_hooks[0]) > 1
        if not (closures or hooks):
            call.asked = self.asked_for(parameters, compat.layouts_of(parameters))
        if self._looks or call.asked is None:
            call.versions = compat.versions_of(parameters)
        self._hold(call)

    def _enter(self, method: str, python: FrameType) -> Step:
        """Open a call; `python` is its frame, which PyTorch's hooks are called from."""
        recorder, caller = self.recorder, python.f_back
        stack: list[Any] = recorder.calls_under_way.stack()
        if stack:
            recorder.drop_interrupted(caller)
        call = Step(self, method, stack[-1] if stack else None, python)
        if method not in self._own:
            recorder.optimizers.first_step(self.index)
            self._own[method] = (recorder.sites.number(self.index, method, "step"),)
        call.own = self._own[method]
        call.path = None if stack else recorder.blocks.callers.above(caller)
        for frame in frames_from(caller) if stack else ():
            is_outer = known_by(frame) == stack[-1].python
            stack[-1].callers |= {frame.f_lineno if is_outer else frame.f_code}
            if is_outer:
                break
        recorder.calls_under_way.steps.append(call)
        if not recorder.where.strategy and compat.has_ranks():
            recorder.where = recorder.backend.surroundings()
        stack.append(call)
        return call

    def _hold(self, call: Step) -> None:
        """Copy all that an outermost step may change, if effects are recorded.

        A nested optimizer may have its own parameters.
        """
        if self.recorder.blocks.counters.effects is None or call.parent is not None:
            return
        variables: Any = self.recorder.variables
        for optimizer in self.recorder.optimizers.alive():
            variables.find_names(optimizer)
            for each in parameters_of(optimizer.param_groups):
                if (each.requires_grad or each.grad is not None) and not compat.is_lazy(each):
                    index = variables.index(each, None)
                    if not compat.is_elsewhere(each):
                        self.recorder.blocks.counters.effects.hold(call, index, each)

    @counting
    def after(
        self,
        optimizer: compat.Optimizer,
        given: Sequence[object],
        named: Mapping[str, object],
        python: FrameType,
    ) -> None:
        """Close the call of a step."""
        stack: list[Any] = self.recorder.calls_under_way.stack()
        for call in reversed(stack):
            if call.counter is self and call.python[0] == id(python):
                break
        else:
            if self.stopped:
                return
            call = self._enter(STEP, python)
        # A `GradScaler` sets it for a fused kernel; to read the tensor, the program waits.
        skipped = getattr(optimizer, "found_inf", None)
        if compat.is_capturing():
            self.recorder.note(_CAPTURED.format(name=type(optimizer).__name__))
            skipped = False  # to read it would end the capture
        elif skipped is None and "grad_scaler" in named:
            self.recorder.note(_UNKNOWN_SKIP)
        skipped = bool(skipped)
        if call.asked is None or self._looks or call.sites:
            call.foreign |= {python.f_lineno}
            updates = self._look(call, optimizer, skipped)
        else:
            updates = call.asked.updates
        self._leave(call, () if skipped and not self._looks else updates)

    def _look(self, call: Step, optimizer: compat.Optimizer, skipped: bool) -> Sequence[int]:
        """Find the requests and updates of a step that has ended; returns the sites of the updates.

        A parameter that the step wrote to is a request even without a gradient: the step may have
        computed one itself, or a hook may have cleared the gradient.
        """
        parameters = parameters_of(optimizer.param_groups)
        self._is_fused |= any(group.get("fused") for group in optimizer.param_groups)
        layouts = [] if call.asked is None else list(call.asked.layouts)
        if len(layouts) != len(parameters):
            layouts = compat.layouts_of(parameters)
        adds_zero = any(map(_is_lbfgs, self.recorder.optimizers.alive()))
        inner = {id(each) for each in self.recorder.variables_of(call.sites).values()}
        hooks = optimizer._optimizer_step_post_hooks or len(compat.global_hooks[1]) > 1
        if call.asked is None and None in layouts and hooks:
            hides = self._is_fused or _is_lbfgs(optimizer) or not call.versions
            after = compat.versions_of(parameters)
            still = [
                own
                for own, layout in zip(map(id, parameters), layouts, strict=True)
                if layout is None and after.get(own) == call.versions.get(own)
            ]
            if hides or (inner and not self._looks) or (self._is_custom and still):
                self.recorder.note(_CLEARED.format(name=self._name))
        updated = []
        for place, parameter in enumerate(parameters):
            asks = layouts[place] not in _NO_GRADIENT
            did = asks and not skipped
            if id(parameter) in inner and (self._looks or not asks):
                did = False  # counted by the inner step
                self._moved.add(id(parameter))
                if self._looks and call.callers & call.foreign:
                    self.recorder.note(_WITHIN.format(name=self._name))
            elif self._delegates:
                did = False
            elif call.versions and (self._looks or not did):
                did = self._wrote_to(parameter, call.versions, did, adds_zero)
            if did and not asks:
                (now,) = compat.layouts_of([parameter])
                layouts[place] = compat.DENSE if now in _NO_GRADIENT else now
            updated.append(did)
        call.asked = self.asked_for(parameters, layouts)
        asking = [
            place for place, layout in enumerate(call.asked.layouts) if layout not in _NO_GRADIENT
        ]
        site_at = zip(asking, call.asked.updates, strict=True)
        return [site for place, site in site_at if updated[place]]

    def _wrote_to(
        self,
        parameter: compat.Tensor,
        before: Mapping[int, int | None],
        asks: bool,
        adds_zero: bool,
    ) -> bool:
        """True if a step wrote to a parameter, which has a gradient if it `asks`.

        It `adds_zero` to a parameter that never had a gradient if it is one of LBFGS.
        """
        key = id(parameter)
        if key not in before:
            return asks  # it was added during the step, or was lazy until then
        if before[key] != compat.versions_of([parameter])[key]:
            if asks or not adds_zero:
                self._moved.add(key)
            return key in self._moved
        if not (asks and self._is_custom):
            return False
        self.recorder.note(_MAY_HIDE.format(name=self._name))
        return self._is_fused or key not in self._moved

    # Steps called by a `GradScaler`.

    @counting
    def asked(
        self,
        scaler: compat.GradScaler,
        given: Sequence[object],
        named: Mapping[str, object],
        python: FrameType,
    ) -> Step | None:
        """Open a call for `GradScaler.step`, which may skip the step of the optimizer."""
        if self.stopped:
            return None
        settings = self.recorder.optimizers.all[self.index].settings
        if "grad_scaler" not in settings and scaler.is_enabled():
            settings.update(grad_scaler=True, initial_scale=float(scaler._init_scale))
        call = self._enter(ASKED, python)
        self._hold(call)
        return call

    @counting
    def answered(
        self, optimizer: compat.Optimizer, call: Step, failed: bool, python: FrameType
    ) -> None:
        """Close the call of `GradScaler.step`, or abandon it if `failed` by an exception."""
        if failed:
            self.recorder.abandon(call)
            return
        parameters = parameters_of(optimizer.param_groups)
        call.asked = call.asked or self.asked_for(parameters, compat.layouts_of(parameters))
        self._leave(call, ())

    def _leave(self, call: Step, updates: Sequence[int]) -> None:
        """Close a call that made these updates itself: count it, or add it to the outer step."""
        around: Any = call.parent
        for inside in self.recorder.calls_under_way.take_off(call):
            self.recorder.abandon(inside)
        asked: Any = call.asked
        if around is not None:
            around.sites += [*call.sites, *updates, *call.own]
            around.asked = asked if around.method is ASKED else around.asked
        else:
            sites = asked.whole
            if call.sites or updates is not asked.updates:
                sites = (*call.sites, *asked.requests, *updates, *call.own)
            call.sites = sites  # collectors ask for them
            self.recorder.blocks.log(call, 0, sites, call.path)
        self.recorder.end_step(call)

    # Sites.

    def asked_for(self, parameters: Sequence[compat.Tensor], layouts: Sequence[object]) -> Asked:
        """The sites of a step whose gradients have these layouts."""
        ids, last = list(map(id, parameters)), self._last
        if last is not None and last.layouts == layouts and last.ids == ids:
            return last
        if last is None or last.ids != ids:
            variables: Any = self.recorder.variables
            variables.find_names(self.optimizer())
            # A parameter that is gone may leave its `id` to another one.
            self._alive = [ref(each, self._forget) for each in parameters]
        # Checkpoints also give a gradient to parameters on other ranks: see `docs/facts.toml`.
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
                    updates.append(site_of("update", "update", kind, parameter))
            elif parameter.requires_grad:  # other ranks hold it, and their traces name it
                self.recorder.variables.index(parameter, None)
        own = self.recorder.sites.number(self.index, STEP, "step")
        self._last = Asked(ids, layouts, requests, updates, (*requests, *updates, own))
        return self._last

    def _forget(self, reference: object) -> None:
        self._last = None
        self._moved.clear()  # another parameter may get its `id`


def _is_lbfgs(optimizer: compat.Optimizer) -> bool:
    return any(each.__name__ == "LBFGS" for each in type(optimizer).__mro__)
