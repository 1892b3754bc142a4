"""Find out what becomes of the gradients of each backward pass: a step uses them, or they are lost.

During a recording, `torch.autograd.backward` is replaced. Before and after each pass, one small
parameter of each optimizer is checked, as a sample. A gradient has an identity and a version that
each write increments: if both are unchanged since a step when a pass begins, the gradients were not
cleared, and the pass adds to them.

Nothing is reported for an optimizer whose steps call `backward` or run inside it, for passes that
also compute gradients of inputs, for passes that a step of any optimizer used, or for gradients
that the program wrote to. If the first steps show nothing and each step uses one pass, the checks
end, because they slow training down.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from threading import get_ident
from typing import Any
from weakref import ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.parameters import parameters_of
from tracer.core.call_paths import Paths
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import interrupt_in
from tracer.model.evidence import Evidence, GradientsAdded, GradientsLeft
from tracer.model.runs import fold

FIRST_STEPS = 300
"""How many steps are checked at least."""
MAX_MONITORS = 16
"""How many optimizers are checked: a program may make one in each step."""
MAX_LOST = 10_000
"""How many groups of lost passes are stored."""
MAX_WAITS = 100
"""How often the values of a gradient are read, which waits for the device."""
MAX_GRAPHS = 8
"""In the graphs of how many passes to search for inputs."""
MAX_STACKS = 4096
"""How many stacks are cached by their innermost instructions."""


class Pass:
    """A backward pass."""

    __slots__ = ("number", "path", "used")

    def __init__(self, number: int, path: int) -> None:
        self.number, self.path = number, path
        self.used = False
        """Whether a step of any optimizer used its gradients."""


def _no_gradient() -> None:
    """Stands for a reference to a gradient if there is none."""


class GradientMonitor(Collector):
    """The gradients of one optimizer, by the sample of one parameter."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._ended = False
        """Whether checks have ended."""
        self.thread = 0
        """The thread that steps; passes on other threads belong to other optimizers."""
        self._steps = self._waits = self._graphs = 0
        self._parameter: Callable[[], Any] = _no_gradient
        self._gradient: Callable[[], Any] = _no_gradient
        self._version = 0
        """The gradient of the parameter and its version, as last seen."""
        self._waiting: list[Pass] = []
        """The passes whose gradients no step has used yet."""
        self._used = self._adds = False
        """Whether a step used the gradient last seen; whether passes added to a used one."""
        self._cleared: list[list[Pass]] = []
        """Groups of passes whose gradients were cleared since the last step."""
        self._weights = 0
        """The version of the parameter before the first of these passes."""
        self._copy: Any = None
        """A copy of the gradient after the last pass, if earlier passes were cleared."""
        self._before: list[tuple[list[Pass], bool]] = []
        """Groups cleared before the last step; whether their line also made its gradient."""
        self._lost: list[tuple[list[Pass], bool]] = []
        """The same for earlier steps; no step of another optimizer used them."""
        self._groups: Counter[int] = Counter()
        """By number of passes, how many steps used the gradients of that many."""
        self._paths: set[int] = set()
        """The paths of these passes."""
        self._added = 0
        """How many steps used gradients that were added to used ones."""
        self._clears = False
        """Whether steps cleared their gradients, as a hook may, when this was last checked."""

    def pass_begins(self, results: Any) -> None:
        """Check the gradient before a backward pass of `results`."""
        if self.root.calls_under_way.stack():
            self.give_up()  # a closure: only the optimizer knows how it uses the gradients
        parameter = self._parameter()
        gradient: Any = getattr(parameter, "grad", None)
        became = self._became(gradient, zeros=bool(self._waiting))
        if became == "kept" and self._used:
            if self._may_wait():
                self._clears = not gradient.any()
            became = "cleared" if self._clears else became
        if became != "kept":
            if self._waiting and became == "cleared":
                self._cleared.append(self._waiting)
            self._waiting, self._used, self._adds = [], False, False
            self._see(gradient)
        weights = getattr(parameter, "_version", 0)
        if not (self._waiting or self._cleared):
            self._weights = weights
        elif weights != self._weights:
            self._cleared = []  # the program computed each for other weights, on purpose
        if (self._cleared or self._before) and self._graphs < MAX_GRAPHS:
            self._graphs += 1
            if compat.trains_inputs(results):
                self.give_up()

    def pass_ends(self, done: Pass) -> None:
        """Check the gradient after a backward pass."""
        gradient = getattr(self._parameter(), "grad", None)
        if self._became(gradient) not in ("kept", "none"):
            self._waiting.append(done)
            self._used, self._adds = False, self._used or self._adds
            self._see(gradient)

    def step_ends(self, call: Call) -> None:
        """Check the gradient after a step, or after a step that a scaler skipped."""
        if self._ended or call.parent is not None or not _passes.watched:
            return
        if get_ident() in _passes.under_way:  # the hook of a gradient calls `step`
            self.give_up()
        gradient, used = getattr(self._parameter(), "grad", None), self._waiting
        became = self._became(gradient)
        if used:
            if became in ("kept", "written"):
                self._groups[len(used)] += 1
                self._added += self._adds
                self._paths.add(used[-1].path)
            for each in used:
                each.used = True
        if self._before or self._cleared:
            self._resolve(used[-1].path if used and became == "kept" else None, gradient)
        self._steps += 1
        if gradient is None and self._steps <= FIRST_STEPS:
            gradient = self._choose()
        elif self._steps > FIRST_STEPS and self._is_fine():
            self.rest(for_good=True)
        self._waiting, self._used, self._adds = [], True, False
        self._see(gradient)

    def give_up(self) -> None:
        """Report nothing for this optimizer."""
        self._groups.clear()
        self._added = 0
        self.rest(for_good=True)

    def rest(self, *, for_good: bool = False) -> None:
        """Stop the checks until the next recording, or for good."""
        self._ended = for_good
        self._parameter = self._gradient = _no_gradient
        if self in _passes.monitors:
            _passes.monitors.remove(self)

    def evidence(self) -> Iterator[Evidence]:
        """Evidence of gradients added to used ones, or never used."""
        if self._added:
            steps = sum(self._groups.values())
            yield GradientsAdded(self._added, steps)
        if self._groups:
            yield from self._left(self._groups.most_common(1)[0][0])

    def _left(self, every: int) -> Iterator[Evidence]:
        """Evidence of unused passes, where most steps use the gradients of `every` passes."""
        groups = [*self._lost, *self._before, *((group, False) for group in self._cleared)]
        groups += [] if _passes.watched else [(self._waiting, False)]
        lost = [
            [each.number for each in group]
            for group, like in groups
            if group
            and not any(each.used for each in group)
            and (like if every == 1 else len(group) < every and group[0].path in self._paths)
        ]
        numbers, steps = list(chain.from_iterable(lost)), self._groups[every]
        if len({*map(len, lost)}) == 1 and (every > 1 or len(numbers) >= steps > 1):
            yield GradientsLeft(
                len(numbers),
                _passes.count if every > 1 else len(numbers) + steps,
                every,
                _passes.paths.line(min(self._paths)),
                tuple(fold((number, 1) for number in numbers)),
            )

    def _see(self, gradient: Any) -> None:
        if gradient is None:
            self._gradient = _no_gradient
        else:
            self._gradient, self._version = ref(gradient), gradient._version
            if self._cleared:
                self._copy = gradient.detach().clone()

    def _became(self, gradient: Any, *, zeros: bool = False) -> str:
        """How the gradient changed: it is `kept`, `cleared`, `written`, `another` or `none`.

        If `zeros`, a gradient that was written to counts as cleared if it is 0 now. `another` is a
        new tensor; `none` means that there was no gradient before either.
        """
        if gradient is None:
            return "none" if self._gradient is _no_gradient else "cleared"
        if gradient is not self._gradient():
            return "another"
        if gradient._version == self._version:
            return "kept"
        return "cleared" if zeros and self._may_wait() and not gradient.any() else "written"

    def _may_wait(self) -> bool:
        """True if the values of a gradient may be read once more."""
        self._waits += 1
        return self._waits <= MAX_WAITS and not compat.is_capturing()

    def _resolve(self, path: int | None, gradient: Any) -> None:
        """Sort the cleared groups after a step, which used a pass of `path`."""
        unused = [each for each in self._before if not any(done.used for done in each[0])]
        self._lost += unused[: MAX_LOST - len(self._lost)]
        if path is not None and self._cleared and self._may_wait():
            # Versions do not show writes to `.data`.
            path = path if (gradient == self._copy).all() else None
        self._before = [(group, group[0].path == path) for group in self._cleared]
        self._cleared, self._copy = [], None

    def _is_fine(self) -> bool:
        return not (self._groups.keys() - {1} or self._added or self._lost)

    def _choose(self) -> Any:
        """Choose a small parameter to check from now on; returns its gradient."""
        alive = self.root.optimizers.alive()
        every = [own for each in alive for own in parameters_of(each.param_groups)]
        found = min(filter(compat.is_dense, every), key=lambda own: own.numel(), default=None)
        if found is None:
            return None
        self._parameter, self.thread = ref(found), get_ident()
        _passes.add(self)
        return found.grad


class _Passes:
    """The backward passes of the program, and the monitors to notify."""

    def __init__(self) -> None:
        self.watched = False
        """Whether a recording runs."""
        self.under_way: set[int] = set()
        """The threads that run a pass."""
        self.count = 0
        """How many passes there were since the recording began."""
        self.monitors: list[GradientMonitor] = []
        self.paths = Paths(lambda code, line: None)
        self._known: dict[tuple[Any, ...], int] = {}

    def watch(self, wanted: bool) -> None:
        """Count the passes from now on, or stop."""
        self.count = 0 if wanted and not self.watched else self.count
        self.watched = wanted
        _BACKWARD.put(wanted)
        for each in [] if wanted else list(self.monitors):
            each.rest()

    def add(self, monitor: GradientMonitor) -> None:
        """Notify this monitor from now on."""
        if monitor not in self.monitors:
            self.monitors.append(monitor)
        if len(self.monitors) > MAX_MONITORS:
            self.monitors[0].give_up()

    @dynamo.left_alone
    def notify(self, callback: str, *given: Any) -> None:
        """Call a method of all monitors of this thread; one that raises is dropped."""
        for each in [own for own in self.monitors if own.thread == get_ident()]:
            try:
                getattr(each, callback)(*given)
            except Exception as error:
                if interrupt_in(error) is not None:
                    raise
                each.give_up()

    def path(self, frame: Any) -> int:
        """The number of the path to a frame, cached by the innermost frames."""
        at, key = frame, []
        for _ in range(4):
            if at is not None:
                key += [at.f_code, at.f_lasti]
                at = at.f_back
        known = self._known.get((*key,))
        if known is None:
            if len(self._known) >= MAX_STACKS:
                self._known = {}
            known = self._known[(*key,)] = self.paths.above(frame)
        return known


_passes = _Passes()
watch = _passes.watch


@dynamo.without_dynamo
def _backward(*given: Any, **named: Any) -> Any:
    thread = get_ident()
    # A pass in another pass, as in checkpointing, is part of it.
    if not _passes.watched or thread in _passes.under_way:
        return _BACKWARD.original(*given, **named)
    _passes.count += 1
    if not _passes.monitors:
        return _BACKWARD.original(*given, **named)
    _passes.under_way.add(thread)
    try:
        done = Pass(_passes.count, _passes.path(sys._getframe(1)))
        _passes.notify("pass_begins", given[0] if given else named.get("tensors"))
        result = _BACKWARD.original(*given, **named)
        _passes.notify("pass_ends", done)
        return result
    finally:
        _passes.under_way.discard(thread)


_BACKWARD = compat.Exchange(compat.autograd, "backward", _backward)
