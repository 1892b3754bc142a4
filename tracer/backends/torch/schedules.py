"""Compare how often the schedules of an optimizer step with the optimizer's own steps.

Nothing is replaced: a schedule counts its steps, and an attribute that it sets on the optimizer
shows that it exists. Counts are read after each step, because the schedule may be gone at the end
of the program.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

from tracer.backends.torch import compat
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.rates import SCHEDULE
from tracer.model.records import Remark

TRIES = 10
"""In how many steps to look for schedules; programs make them before the first step."""
_MADE_FOR = "T_max", "total_steps", "total_iters"


class _Schedule:
    """A schedule, weakly referenced, and its count at the optimizer's steps."""

    def __init__(self, schedule: Any) -> None:
        self.reference = ref(schedule)
        self.name = type(schedule).__name__
        self.made_for = _made_for(schedule)
        self.first = self.last = self.steps = 0
        """Its count after the first and the last step, and the number of steps."""

    def look(self) -> None:
        """Read the count after a step."""
        schedule = self.reference()
        if schedule is not None:
            self.last = schedule._step_count
            self.first = self.first if self.steps else self.last
            self.steps += 1


class Schedules(Collector):
    """The schedules of the optimizers of one recorder."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._found: list[_Schedule] | None = None
        self._tries = TRIES

    def step_ends(self, call: Call) -> None:
        """Read the counts of the schedules."""
        if self._tries and self._found is None:
            self._tries -= 1
            self._find()
        if self._found and call.parent is None:
            for each in self._found:
                each.look()

    def block_begins(self) -> None:
        """Restart the counts."""
        for each in self._found or ():
            each.steps = 0

    def remarks(self) -> Iterator[Remark]:
        """How often each schedule stepped between the steps of the optimizer."""
        for each in self._found or ():
            if each.steps > 1:
                moved = each.last - each.first
                yield Remark(SCHEDULE, each.name, each.made_for, count=moved, of=each.steps)

    def _find(self) -> None:
        """Look for the schedules if one of the optimizers shows that it has one."""
        alive = self.root.optimizers.alive()
        if not any(compat.is_of_scheduler(vars(each).get("step")) for each in alive):
            return
        self._found = []
        with suppress_faults():
            ids = {*map(id, alive)}
            every = [each for each in instances([compat.LRScheduler]) if id(each.optimizer) in ids]
            inside = {id(own) for each in every for own in getattr(each, "_schedulers", ())}
            outer = (each for each in every if id(each) not in inside)
            self._found = [_Schedule(each) for each in outer if hasattr(each, "_step_count")]


def _made_for(schedule: Any) -> str:
    """The number of steps a schedule was made for; empty if unknown."""
    own = vars(schedule)
    found: Iterable[Any] = (own.get(name) for name in _MADE_FOR)
    for each in own.get("lr_lambdas", ()):  # transformers makes `functools.partial` objects
        found = (*found, getattr(each, "keywords", {}).get("num_training_steps"))
    return next((str(each) for each in found if type(each) is int), "")
