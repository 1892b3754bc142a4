"""Find out which backward passes the steps use: one may be lost, or serve two steps.

During a recording, `torch.autograd.backward` is replaced. Before and after each pass, one small
parameter of each optimizer is checked, as a sample. A gradient has an identity and a version that
each write increments: if both are unchanged since a step when a pass begins, the gradients were not
cleared, and the pass adds to them. If they are unchanged at the next step, no pass came between. If
the gradient is None, no step used the passes before.

Nothing is reported for an optimizer whose steps call `backward` or run inside it. Passes are not
lost if another optimizer stepped meanwhile, or if the program changed weights or gradients between
them. If the first steps show nothing and each uses one pass, the checks end, because they slow
training down.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import get_ident
from typing import Any
from weakref import WeakSet, ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.effects import is_same
from tracer.backends.torch.parameters import parameters_of
from tracer.core.call_paths import Paths
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import interrupt_in
from tracer.core.patches import Patch
from tracer.model.evidence import BackwardPasses, Evidence, GradientsAdded, GradientsLeft, NoStep
from tracer.model.timeline import fold

FIRST_STEPS = 300
"""How many steps are checked at least."""
IDLE_PASSES = 100
"""How many passes are checked for an optimizer that has not stepped yet."""
READ_STEPS = 10
"""In how many steps to read the values of a gradient, which waits for the device."""
MAX_LOST = 10_000
"""How many groups of lost passes are stored."""

Pass = tuple[int, int]
"""The number of a backward pass, and the number of the path to it."""


def _gone() -> None:
    """Stands for a reference to a parameter if none was chosen yet."""


def _none() -> None:
    """Stands for a reference to a parameter if there is none to choose."""


class GradientMonitor(Collector):
    """The gradients of one optimizer, by the sample of one parameter."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _passes.all.add(self)
        self.begin()

    def begin(self) -> None:
        """Forget everything, as a recording begins."""
        self.thread = get_ident()
        """The thread that steps; passes on other threads belong to other optimizers."""
        self._ended = False
        self._parameter: Any = _gone
        self._gradient: Any = None
        self._version = self._weights = self._steps = 0
        self._stepped = _passes.steps
        """The versions of gradient and parameter, and `_Passes.steps`, as last seen; steps."""
        self._used = self._adds = False
        """Whether a step used the gradient last seen; whether passes added to a used one."""
        self._waiting: list[Pass] = []
        """The passes whose gradients no step has used yet."""
        self._cleared: list[list[Pass]] = []
        """Groups of passes whose gradients were cleared since the last step."""
        self._lost: list[list[Pass]] = []
        self._groups: Counter[int] = Counter()
        """By number of passes, how many steps used the gradients of that many."""
        self._group_of: dict[int, int] = {}
        """By version of the gradient in a step, the number of passes that it had used."""
        self._first: list[tuple[int, int]] = []
        """The version of the gradient, and `_Passes.count`, in steps that began the checks."""
        self._origin: tuple[Any, int, Any] = _none, 0, None
        """The parameter, and its version and a copy, before the first pass."""
        self._since = _passes.count
        self._came = self._moved = False
        """Whether a pass reached the parameter, and whether it was updated, before a step."""
        self._missed = self._is_unknown = False
        """Whether a pass did not reach it since the last step, and whether it alone came before a
        step: the passes that steps used are unknown."""
        self._added = self._written = 0
        """In how many steps passes had added to used gradients; in how many the program wrote."""
        self._paths: set[int] = set()
        if _passes.watched:
            _passes.monitors.add(self)

    def pass_begins(self) -> None:
        """Check the gradient before a backward pass."""
        if self._parameter is _gone:
            self._choose()
        weights = getattr(self._parameter(), "_version", 0)
        gradient, is_kept = self._look()
        if self.root.calls_under_way.stack():
            self.rest()  # a closure: only the optimizer knows how it uses the gradients
        elif not is_kept:
            if self._waiting and gradient is None:
                self._cleared.append(self._waiting)
            self._waiting, self._used, self._adds = [], False, False
        elif (
            self._used
            and self._steps <= READ_STEPS
            and (compat.is_capturing() or not gradient.any())
        ):
            self.rest()  # a hook of the step sets the gradients to 0
        if weights != self._weights:
            self._cleared = []  # the program computed each for other weights, on purpose
            self._moved = True
        self._weights = weights

    def pass_ends(self, number: Pass) -> None:
        """Check the gradient after a backward pass."""
        gradient, is_kept = self._look()
        if gradient is not None and not is_kept:
            self._waiting.append(number)
            self._used, self._adds = False, self._used or self._adds
            self._came = True
        else:
            self._missed = True
        if not self._steps and _passes.count > self._since + IDLE_PASSES:
            self._parameter, self._waiting, self._cleared = _none, [], []
            _passes.monitors.discard(self)

    def step_ends(self, call: Call) -> None:
        """Check the gradient after a step, or after a step that a scaler skipped."""
        if call.parent is not None or not _passes.watched:
            return
        if self.thread != get_ident():
            self.begin()
        _passes.steps += 1
        is_alone, self._stepped = _passes.steps == self._stepped + 1, _passes.steps
        if get_ident() in _passes.under_way:
            self.rest()  # the hook of a gradient calls `step`
        if self._ended:
            return
        gradient, is_kept = self._look()
        passes, self._steps = len(self._waiting), self._steps + 1
        if gradient is None:
            if self._steps <= FIRST_STEPS and self._choose(with_gradient=True):
                self._first.append((self._version, _passes.count))
        elif passes or is_kept:
            self._groups[passes] += 1
            self._is_unknown |= self._missed and not passes
            if passes:
                self._group_of[self._version] = passes
            self._added += self._adds
            self._paths.update(path for _, path in self._waiting[-1:])
            groups = passes > 1 and self._steps > 1  # a pass before the first group may be a test
            if is_alone and passes and (is_kept or groups):
                self._lost += self._cleared[: MAX_LOST - len(self._lost)]
        else:
            self._written += 1
        self._waiting, self._cleared, self._used, self._adds = [], [], True, False
        self._missed = False
        if self._steps == FIRST_STEPS:
            eventful = self._added or self._lost or len(self._groups) > 1 or self._every() > 1
            if not eventful:
                self.rest(found=1 in self._groups)

    def rest(self, *, found: bool = False) -> None:
        """Stop the checks; unless something was `found`, nothing is reported."""
        if not found:
            self._groups.clear()
            self._added, self._written = 0, 1
        self._ended, self._parameter, self._gradient = True, _gone, None
        _passes.monitors.discard(self)

    def evidence(self) -> Iterator[Evidence]:
        """Evidence of the passes that steps used, and of gradients added to used ones or lost."""
        if self._came and not (self._steps or self._moved or self._was_updated()):
            yield NoStep("gradients came")
        yield from self._used_passes()
        if self._added:
            yield GradientsAdded(self._added, self._groups.total() - self._groups[0])
        yield from self._lost_passes()

    def _was_updated(self) -> bool:
        """True if the program has changed the parameter since the first pass."""
        reference, version, before = self._origin
        own = reference()
        return own is not None and not (own._version == version and is_same(before, own.detach()))

    def _used_passes(self) -> Iterator[Evidence]:
        """The passes that all steps used, unless one each, or those of some step are unknown.

        Nobody saw the passes before the first step of an optimizer that was made before the
        recording. Their number is that of a later step which found a gradient of this version, or
        all passes of the recording.
        """
        first = 0
        for version, count in self._first:
            first = self._group_of.get(version) or (count if count in (1, self._every()) else 0)
        passes = first + sum(size * steps for size, steps in self._groups.items())
        steps = len(self._first) + self._groups.total()
        known = len(self._first) == bool(first) and not (self._written or self._is_unknown)
        if known and passes != steps:
            yield BackwardPasses(passes, steps)
        elif self._steps and not (self._first or _passes.count):
            yield BackwardPasses(0, self._steps)

    def _lost_passes(self) -> Iterator[Evidence]:
        """The passes whose gradients no step used."""
        every = self._every()
        is_over = every > 1 and not _passes.watched and _passes.steps == self._stepped
        groups = [*self._lost, *([*self._cleared, self._waiting] if is_over else ())]
        lost = [
            [number for number, _ in group]
            for group in groups
            if group and (every == 1 or len(group) < every) and group[0][1] in self._paths
        ]
        numbers, applied = list(chain.from_iterable(lost)), self._groups[every]
        if len({*map(len, lost)}) == 1 and (every > 1 or len(numbers) >= applied > 1):
            yield GradientsLeft(
                len(numbers),
                _passes.count if every > 1 else len(numbers) + applied,
                every,
                _passes.paths.line(min(self._paths)),
                tuple(fold((number, 1) for number in numbers)),
            )

    def _every(self) -> int:
        """The number of passes that most steps used."""
        return max(filter(None, self._groups), key=self._groups.__getitem__, default=0)

    def _look(self) -> tuple[Any, bool]:
        """The gradient, and whether it is the one last seen, and nobody wrote to it."""
        gradient = getattr(self._parameter(), "grad", None)
        version = getattr(gradient, "_version", 0)
        is_kept = gradient is self._gradient and version == self._version
        self._gradient, self._version = gradient, version
        return gradient, is_kept

    def _choose(self, *, with_gradient: bool = False) -> bool:
        """Choose a small parameter to check from now on; returns whether there is one."""
        every = [own for each in self.root.optimizers.alive() for own in _parameters(each)]
        found = min(filter(compat.is_plain, every), key=_by_size, default=None)
        if found is None or (with_gradient and found.grad is None):
            self._parameter = _none if self._parameter is _gone else self._parameter
            return False
        self._parameter, self._weights = ref(found), found._version
        if not with_gradient:
            self._origin = self._parameter, found._version, found.detach().clone()
        self._look()
        _passes.monitors.add(self)
        return True


def _parameters(optimizer: Any) -> Sequence[Any]:
    return parameters_of(vars(optimizer).get("param_groups", ()))


def _by_size(parameter: Any) -> tuple[bool, int]:
    """Sorts small parameters with a gradient first."""
    return parameter.grad is None, parameter.numel()


class _Passes:
    """The backward passes of the program, and the monitors to notify."""

    watched = False
    """Whether a recording runs."""
    count = steps = 0
    """The passes since the recording began, and the steps of all optimizers."""

    def __init__(self) -> None:
        self.under_way: set[int] = set()
        """The threads that run a pass."""
        self.all: WeakSet[GradientMonitor] = WeakSet()
        self.monitors: WeakSet[GradientMonitor] = WeakSet()
        """Those that check the passes now."""
        self.paths = Paths(lambda code, line: None)

    def watch(self, wanted: bool) -> None:
        """Count the passes from now on, or stop."""
        begins, self.watched = wanted and not self.watched, wanted
        self.count = 0 if begins else self.count
        _BACKWARD.put(wanted)
        for monitor in list(self.all) if begins else ():
            monitor.begin()
        for monitor in () if wanted else list(self.monitors):
            monitor.rest(found=True)

    @dynamo.left_alone
    def notify(self, callback: str, *given: Pass) -> None:
        """Call a method of all monitors of this thread; one that raises is dropped."""
        for monitor in [own for own in list(self.monitors) if own.thread == get_ident()]:
            try:
                getattr(monitor, callback)(*given)
            except Exception as error:
                if interrupt_in(error) is not None:
                    raise
                monitor.rest()


_passes = _Passes()
watch = _passes.watch


@dynamo.without_dynamo
def _backward(*given: Any, **named: Any) -> Any:
    thread = get_ident()
    # A pass in another pass, as in checkpointing, is part of it.
    if not _passes.watched or thread in _passes.under_way:
        return _BACKWARD.original(*given, **named)
    _passes.count += 1
    _passes.under_way.add(thread)
    try:
        path = _passes.paths.above(sys._getframe(1)) if _passes.monitors else 0
        number = _passes.count, path
        _passes.notify("pass_begins")
        result = _BACKWARD.original(*given, **named)
        _passes.notify("pass_ends", number)
        return result
    finally:
        _passes.under_way.discard(thread)


_BACKWARD = Patch(compat.autograd, "backward", _backward, "to count passes", "recorded")
functools.update_wrapper(_backward, _BACKWARD.original)
"""`Tensor.backward` looks up `torch.autograd.backward` at each call."""
