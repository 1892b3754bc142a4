"""Gathers the facts about a transformation: its learning rate, weight decay, and own step count.

Nothing is called that belongs to the program: a schedule of its own is only named. The values of
optax's schedules are computed when a trace is read, from the count in the state.
"""

from collections.abc import Iterator
from typing import Any

import jax

from tracer.backends.jax import compat, values
from tracer.backends.jax.blocks import AGAIN
from tracer.backends.jax.programs import Progress
from tracer.backends.jax.rates import Rates
from tracer.backends.optax.inside import is_of_optax, rates_in, under_way
from tracer.core.interrupts import suppress_faults
from tracer.core.reachable import as_call
from tracer.model.evidence import Evidence, Iterations, StateRenewed
from tracer.model.records import Rate, RateRun


class Facts(Rates):
    """The facts about one transformation."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._rates: list[Any] = []
        """As `rates_in` finds them."""
        self._values: Any = None
        """The only schedule, compiled, if it is one of optax."""
        self._begin_again()

    def _begin_again(self) -> None:
        self._first: Any = None
        """The count in the state of the first eager step."""
        self._last: Any = None
        """The count that the last eager step returned."""
        self._steps = 0
        self._same = True
        """Whether each eager step got the first count."""

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
        """Compare the count in the state with that of the previous eager step."""
        before, after = map(values.array_of, call.counts or (None, None))
        if before is None or after is None:
            return
        self._first = before if self._first is None else self._first
        self._same &= before is self._first
        self._last, self._steps = after, self._steps + 1

    def block_begins(self) -> None:
        """Begin new runs, and count from the next state on."""
        super().block_begins()
        self.root.blocks.counters.progress.clear()
        self._begin_again()

    def evidence(self) -> Iterator[Evidence]:
        """The step count in the state, if it is that of all steps, or if it never moved on."""
        steps, known = self.root.blocks.begun(), self._progress()
        if known is None or self.past:
            return
        moved, in_python = known.last - known.first, not self.root.blocks.counters.progress
        renewed = in_python and moved == 1 and known.moved == steps >= AGAIN
        if renewed:
            yield StateRenewed(steps)
        if renewed or moved == 0 or moved == known.moved == steps:
            yield Iterations(known.first, known.last)

    def rates(self) -> Iterator[Rate]:
        """The decays, and the rate: its values, or the text of its schedules."""
        schedule = ""
        if any(map(callable, self._rates)):
            parts = [each for each in self._rates if callable(each) or (each or 0) > 0]
            texts = (as_call(each) if callable(each) else str(each) for each in parts)
            schedule = " and ".join(dict.fromkeys(texts))
        yield from self.records((*self.runs, *self.of_steps()), self.decays, schedule)

    def of_steps(self) -> Iterator[RateRun]:
        """The values of the rate since the last baseline, if known."""
        steps = self.root.blocks.begun() - self.past
        known, reported = self._progress(), [*super().of_steps()]
        match self._rates:
            case [float(rate)] if rate >= 0 and steps:
                yield RateRun(self.past + 1, steps, rate, rate)
            case [_] if reported:
                yield from reported
            case [_] if self._values is not None and known is not None and steps:
                if compat.is_plain() and not compat.is_called_by_program():
                    with suppress_faults():
                        at = known.first, max(known.first, known.last - 1)
                        first, last = (float(self._values(each)) for each in at)
                        yield RateRun(self.past + 1, steps, first, last, 1 + (first != last))

    def _progress(self) -> Progress | None:
        """Where the count in the state began and ended, and the sum of the moves of all steps."""
        known = [each for each in self.root.blocks.counters.progress.values() if each.last >= 0]
        if self._last is not None and not (self._first.is_deleted() or self._last.is_deleted()):
            first, last = int(self._first), int(self._last)
            known.append(Progress(first, last, self._steps if self._same else last - first))
        if not known:
            return None
        first, last = min(each.first for each in known), max(each.last for each in known)
        return Progress(first, last, max(each.moved for each in known))
