"""Gathers the learning rate and the weight decay of steps in programs, as their ops report them."""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from tracer.backends.jax.blocks import innermost
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Rate, RateRun


class Rates(Collector):
    """The rate of one root optimizer; new runs begin at each baseline."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.decays: list[tuple[float, tuple[int, ...]]] = []
        """Each constant weight decay, with the indices of the variables that decay."""
        self.past = 0
        """The number of steps before the last baseline."""
        self.runs: list[RateRun] = []
        """The values of the rate before it."""

    def first_step_ends(self, call: Any) -> None:
        """Find the weight decay, which is a constant of programs."""
        backend, index = self.root.backend, self.root.variables.index
        with suppress_faults():
            optimizers = self.root.optimizers
            optimizer = innermost(optimizers.all[optimizers.root].optimizer())
            found = [held and held() for held in self.root.variables.objects]
            variables = [each for each in found if each is not None]
            for (_, decay), (_, decaying) in zip(
                backend.rates_of(optimizer), backend.groups_of(optimizer, variables), strict=True
            ):
                if isinstance(decay, float) and decay:
                    self.decays.append((decay, tuple(index(each, None) for each in decaying)))

    def block_begins(self) -> None:
        """Begin new runs, so that no run is in two traces."""
        self.runs += self.of_steps()
        self.past = self.root.blocks.begun()
        self.root.blocks.counters.rates.clear()

    def rates(self) -> Iterator[Rate]:
        """The rate if each step reported it, and the decays if any step is in a program."""
        compiled = self.root.blocks.counters.in_programs
        yield from self.records((*self.runs, *self.of_steps()), self.decays if compiled else ())

    def records(
        self, runs: tuple[RateRun, ...], decays: Iterable[Any], schedule: str = ""
    ) -> Iterator[Rate]:
        """The records of a rate and of constant decays."""
        steps, root = self.root.blocks.begun(), self.root.optimizers.root
        for number, (decay, variables) in enumerate(decays if steps else ()):
            yield Rate(root, "decay", number, variables, (RateRun(1, steps, decay, decay),))
        if runs or schedule:
            every = tuple(range(len(self.root.variables.plain)))
            yield Rate(root, "rate", 0, every, runs, schedule=schedule)

    def of_steps(self) -> Iterator[RateRun]:
        """The rate since the last baseline, if each step reported it, the same on all replicas."""
        steps = self.root.blocks.begun() - self.past
        known = {*self.root.blocks.counters.rates.values()}
        for first, last, values, of in known if len(known) == 1 else ():
            if of == steps and isfinite(first) and isfinite(last):
                yield RateRun(self.past + 1, steps, first, last, values)
