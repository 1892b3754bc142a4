"""Find the learning-rate schedules of an optimizer, by name.

Nothing is replaced: an attribute that a schedule sets on the optimizer shows that it exists.
"""

from collections.abc import Iterator
from typing import Any

from tracer.backends.torch import compat
from tracer.core.calls import Step
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import Evidence, Scheduled


class Schedules(Collector):
    """The schedules of the optimizers of one recorder."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._names: list[str] = []

    def first_step_ends(self, call: Step | None = None) -> None:
        """Look for schedules, which programs make before the first step."""
        alive = self.root.optimizers.alive()
        ids = {id(own) for own in alive if compat.is_of_scheduler(vars(own).get("step"))}
        with suppress_faults():
            every = instances([compat.LRScheduler]) if ids else []
            inside = {id(own) for each in every for own in getattr(each, "_schedulers", ())}
            outer = [each for each in every if id(each) not in inside and id(each.optimizer) in ids]
            self._names = list(dict.fromkeys(type(schedule).__name__ for schedule in outer))

    def evidence(self) -> Iterator[Evidence]:
        """The name of each schedule."""
        if not self._names:
            self.first_step_ends()
        yield from map(Scheduled, self._names)
