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
from tracer.backends.jax.rates import Rates
from tracer.backends.optax.inside import is_of_optax, rates_in, under_way
from tracer.core.interrupts import suppress_faults
from tracer.core.reachable import maker_of
from tracer.model.evidence import Evidence, Iterations, StateRenewed
from tracer.model.records import Rate, RateRun

_NO_LEAF: Callable[[], Any] = object  # never the leaf of a step


class Facts(Rates):
    """The facts about one transformation."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._rates: list[Any] = []
        """As `rates_in` finds them."""
        self._values: Any = None
        """The only schedule, compiled, if it is one of optax."""
        self._first: Any = None
        """The count in the state of the first eager step."""
        self._last: Any = None
        """The count that the last eager step returned."""
        self._steps, self._leaf = 0, _NO_LEAF
        """How many eager steps there were, and the first parameter of the last one."""
        self._renewed = True
        """Whether each got the first count, and other parameters than the one before.

        Steps that try several candidates get the same parameters.
        """

    def first_step_ends(self, call: Any) -> None:
        """Look inside the transformation, now that it is known which leaves decay."""
        with suppress_faults():
            self._rates = rates_in(call.update.given)
            schedules = [each for each in self._rates if callable(each)]
            if len(schedules) == 1 and is_of_optax(schedules[0]):
                self._values = jax.jit(schedules[0])
            index = self.root.variables.index
            leaves = {leaf.name: index(leaf, None) for _, leaf in call.wanted or ()}
            for decay, names in under_way.decays.items():
                self.decays.append((decay, tuple(leaves[name] for name in leaves if name in names)))

    def step_ends(self, call: Any) -> None:
        """Remember the count in the state, to read it with the trace."""
        before, after = map(values.array_of, call.counts or (None, None))
        if before is None or after is None:
            return
        leaf = next(iter(jax.tree.leaves(call.given.get("params"))), None)
        self._first = before if self._first is None else self._first
        self._renewed &= before is self._first and self._leaf() is not leaf
        self._leaf = ref(leaf) if isinstance(leaf, jax.Array) else _NO_LEAF
        self._last, self._steps = after, self._steps + 1

    def block_begins(self) -> None:
        """Begin new runs, and count from the next state on."""
        super().block_begins()
        self.root.blocks.counters.progress.clear()
        self._first = self._last = None

    def evidence(self) -> Iterator[Evidence]:
        """The step count in the state, at the first step and after the last one."""
        counts, steps = self._counts(), self.root.blocks.begun()
        if counts is None or self.past:
            return
        moved = counts[1] - counts[0]
        if self._renewed and moved == 1 and self._steps == steps >= AGAIN:
            yield StateRenewed(steps)
        if moved in (0, 1, steps):  # else some steps did not pass on their state
            yield Iterations(*counts)

    def rates(self) -> Iterator[Rate]:
        """The decays, and the rate: its values, or the text of its schedules."""
        schedule = ""
        if any(map(callable, self._rates)):
            parts = [each for each in self._rates if callable(each) or (each or 0) > 0]
            texts = (maker_of(each) if callable(each) else str(each) for each in parts)
            schedule = " and ".join(dict.fromkeys(texts))
        yield from self.records((*self.runs, *self.of_steps()), self.decays, schedule)

    def of_steps(self) -> Iterator[RateRun]:
        """The values of the rate since the last baseline, if known."""
        steps = self.root.blocks.begun() - self.past
        counts, reported = self._counts(), [*super().of_steps()]
        match self._rates:
            case [float(rate)] if rate >= 0 and steps:
                yield RateRun(self.past + 1, steps, rate, rate)
            case [_] if reported:
                yield from reported
            case [_] if self._values is not None and counts is not None and steps:
                if compat.is_plain() and not compat.is_called_by_program():
                    with suppress_faults():
                        at = counts[0], max(counts[0], counts[1] - 1)
                        first, last = (float(self._values(each)) for each in at)
                        yield RateRun(self.past + 1, steps, first, last, 1 + (first != last))

    def _counts(self) -> tuple[int, int] | None:
        """Where the count in the state began and ended, if known."""
        known = [each[:2] for each in self.root.blocks.counters.progress.values()]
        if self._last is not None and not (self._first.is_deleted() or self._last.is_deleted()):
            known.append((int(self._first), int(self._last)))
        begun, ended = zip(*known, strict=True) if known else ((-1,), (-1,))
        return None if min(begun) < 0 else (min(begun), max(ended))
