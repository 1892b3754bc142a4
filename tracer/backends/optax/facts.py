"""Gathers the facts about a transformation: its learning rate, weight decay, and own step count.

Nothing is called that belongs to the program: a schedule of its own is only named. The values of
optax's schedules are computed when a trace is read, from the count in the state.
"""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import jax

from tracer.backends.jax import compat, values
from tracer.backends.jax.blocks import AGAIN
from tracer.backends.optax.inside import is_of_optax, rates_in, under_way
from tracer.core.backend import Root
from tracer.core.collectors import Collector
from tracer.core.reachable import maker_of
from tracer.errors import suppress_faults
from tracer.model.evidence import Evidence, Iterations, StateRenewed
from tracer.model.records import Rate, RateRun


class Facts(Collector):
    """The facts about one transformation."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self._decays: list[tuple[float, tuple[int, ...]]] = []
        """Each constant weight decay, with the indices of the leaves that decay."""
        self._schedule = ""
        """The text of the rate's schedule, if the rate has one."""
        self._past = 0
        """The number of steps before the last baseline."""
        self._rates: list[Any] = []
        """As `rates_in` finds them."""
        self._ends: tuple[jax.Array, ...] = ()
        """The count in the state of the first eager step, and the one that the last step returned.

        They are arrays, which are read with the trace: a step does not wait for its results.
        """
        self._renewed = True
        """Whether each eager step got the first count, and other parameters than the one before.

        Steps that try several candidates get the same parameters.
        """
        self._leaf: Callable[[], object] = object  # never the leaf of a step
        """A weak reference to the first parameter of the last eager step."""

    def first_step_ends(self, call: Any) -> None:
        """Look inside the transformation, now that it is known which leaves decay."""
        with suppress_faults():
            self._rates = rates_in(call.update.given)
            if any(map(callable, self._rates)):
                parts = [each for each in self._rates if callable(each) or (each or 0) > 0]
                texts = (maker_of(each) if callable(each) else str(each) for each in parts)
                self._schedule = " and ".join(dict.fromkeys(texts))
            index = self.root.variables.index
            leaves = {leaf.name: index(leaf, None) for _, leaf in call.wanted or ()}
            for decay, names in under_way.decays.items():
                self._decays.append(
                    (decay, tuple(leaves[name] for name in leaves if name in names))
                )

    def step_ends(self, call: Any) -> None:
        """Keep the counts in the states of an eager step."""
        before, after = map(values.array_of, call.counts or (None, None))
        if before is not None and after is not None:
            first = self._ends[0] if self._ends else before
            leaf = next(iter(jax.tree.leaves(call.given.get("params"))), None)
            self._renewed &= before is first and self._leaf() is not leaf
            self._leaf = ref(leaf) if isinstance(leaf, jax.Array) else object
            self._ends = first, after

    def block_begins(self) -> None:
        """Begin another run: none is in two traces."""
        self._past = self.root.step_count()

    def evidence(self) -> Iterator[Evidence]:
        """The step count in the state, at the first step and after the last one."""
        (begin, end), steps = self._counts(), self.root.step_count()
        if begin < 0 or self._past:
            return
        in_python = not self.root.blocks.counters.progress
        if in_python and self._renewed and end - begin == 1 and steps >= AGAIN:
            yield StateRenewed(steps)
        if end - begin in (0, 1, steps):  # else some steps did not pass on their state
            yield Iterations(begin, end)

    def rates(self) -> Iterator[Rate]:
        """The constant decays, and the rate if it is known."""
        steps, root = self.root.step_count(), self.root.optimizers.root
        for number, (decay, leaves) in enumerate(self._decays if steps else ()):
            yield Rate(root, "decay", number, leaves, (RateRun(1, steps, decay, decay),))
        runs = tuple(self._runs(steps))
        if runs or (self._schedule and not self.root.blocks.counters.rates):  # else it is reported
            every = tuple(range(len(self.root.variables.plain)))
            yield Rate(root, "rate", 0, every, runs, schedule=self._schedule)

    def _runs(self, steps: int) -> Iterator[RateRun]:
        """The values of the rate, if known: one number, or those of a schedule of optax.

        Those of a schedule are unknown after a baseline.
        """
        begin, end = self._counts()
        match self._rates if steps else []:
            case [float(rate)] if rate >= 0:
                yield RateRun(1, steps, rate, rate)
            case [schedule] if callable(schedule) and is_of_optax(schedule):
                is_free = compat.is_plain() and not compat.is_called_by_program()
                if begin >= 0 and is_free and not self._past:
                    with suppress_faults():
                        first, last = map(float, map(schedule, (begin, max(begin, end - 1))))
                        yield RateRun(1, steps, first, last, 1 + (first != last))

    def _counts(self) -> tuple[int, int]:
        """Where the count in the state began and ended; -1 if it is unknown."""
        known = [(each.first, each.last) for each in self.root.blocks.counters.progress.values()]
        if self._ends and not any(each.is_deleted() for each in self._ends):
            known.append((int(self._ends[0]), int(self._ends[1])))
        begin = min((first for first, _ in known), default=-1)
        return begin, max((last for _, last in known), default=-1)
