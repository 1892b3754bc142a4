"""Gathers the learning rate and the weight decay of steps in programs, as their ops report them."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from tracer.backends.jax.blocks import innermost
from tracer.core.calls import EAGER
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Rate, RateRun


class Rates(Collector):
    """The rate of one root optimizer; new runs begin at each baseline."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.decays: list[tuple[float, tuple[int, ...]]] = []
        """Each constant weight decay, with the indices of the variables that decay."""
        self.schedule = ""
        """The text of the rate's schedule, if the rate has one."""
        self.past = 0
        """The number of steps before the last baseline."""
        self._runs: list[RateRun] = []
        """The values of the rate before it."""

    def first_step_ends(self, call: Any) -> None:
        """Find the weight decay of a traced step, which is a constant of the program."""
        optimizers, index = self.root.optimizers, self.root.variables.index
        optimizer = innermost(optimizers.all[optimizers.root].optimizer())
        decay = getattr(optimizer, "weight_decay", None)
        if isinstance(decay, float) and decay and call.place is not EAGER:
            with suppress_faults():
                found = [held and held() for held in self.root.variables.objects]
                decaying = [e for e in found if e is not None and optimizer._use_weight_decay(e)]
                self.decays.append((decay, tuple(index(each, None) for each in decaying)))

    def block_begins(self) -> None:
        """Begin new runs, so that no run is in two traces."""
        self._runs += self.of_steps()
        self.past = self.root.step_count()
        self.root.blocks.counters.rates.clear()

    def rates(self) -> Iterator[Rate]:
        """The constant decays, and the rate if it is known."""
        steps, root = self.root.step_count(), self.root.optimizers.root
        for number, (decay, variables) in enumerate(self.decays if steps else ()):
            yield Rate(root, "decay", number, variables, (RateRun(1, steps, decay, decay),))
        runs = (*self._runs, *self.of_steps())
        if runs or self.schedule:
            every = tuple(range(len(self.root.variables.plain)))
            yield Rate(root, "rate", 0, every, runs, schedule=self.schedule)

    def of_steps(self) -> Iterator[RateRun]:
        """The rate since the last baseline, if each step reported it, the same on all replicas."""
        steps = self.root.step_count() - self.past
        known = {*self.root.blocks.counters.rates.values()}
        for first, last, values, of in known if len(known) == 1 else ():
            if of == steps and isfinite(first) and isfinite(last):
                yield RateRun(self.past + 1, steps, first, last, values)
