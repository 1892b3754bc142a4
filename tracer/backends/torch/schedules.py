"""Find the learning-rate schedules of an optimizer, by name.

Nothing is replaced: an attribute that a schedule sets on the optimizer shows that it exists.
"""

from collections.abc import Iterator
from typing import Any

from tracer.backends.torch import compat
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import Evidence, Scheduled


class Schedules(Collector):
    """The schedules of the optimizers of one recorder."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._names: list[str] = []

    def first_step_ends(self, call: Call) -> None:
        """Look for schedules: programs make them before the first step."""
        alive = self.root.optimizers.alive()
        if not any(compat.is_of_scheduler(vars(each).get("step")) for each in alive):
            return
        with suppress_faults():
            ids = {*map(id, alive)}
            every = [each for each in instances([compat.LRScheduler]) if id(each.optimizer) in ids]
            inside = {id(own) for each in every for own in getattr(each, "_schedulers", ())}
            outer = [each for each in every if id(each) not in inside]
            self._names = list(dict.fromkeys(type(schedule).__name__ for schedule in outer))

    def evidence(self) -> Iterator[Evidence]:
        """The name of each schedule."""
        return map(Scheduled, self._names)
