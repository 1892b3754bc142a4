"""Find the learning-rate schedules of an optimizer, by name, and where its own count began.

Nothing is replaced: an attribute that a schedule sets on the optimizer shows that it exists. An
optimizer counts the steps of each parameter, if at all, and `load_state_dict` sets these counts.
"""

from collections.abc import Iterator
from typing import Any

from tracer.backends.torch import compat
from tracer.backends.torch.effects import is_held_back
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import Evidence, Iterations, Scheduled


class Schedules(Collector):
    """The schedules of the optimizers of one recorder."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._names: list[str] = []
        self._begin = 0
        """The optimizer's own count before its first step."""

    def first_step_ends(self, call: Call) -> None:
        """Look for schedules: programs make them before the first step."""
        self._begin = self._count() - 1
        self._find()

    def block_begins(self) -> None:
        """Say nothing of the own count of a block that begins later."""
        self._begin = 0

    def _find(self) -> None:
        """Look for the schedules if one of the optimizers shows that it has one."""
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
        """The name of each schedule, and the own count if it did not begin with 0."""
        if not self._names:
            self._find()
        yield from map(Scheduled, self._names)
        if self._begin > 0 and (end := self._count()):
            yield Iterations(self._begin, end)

    def _count(self) -> int:
        """The most steps that the living optimizers counted for a parameter; 0 if unknown.

        The first step counts only parameters with a gradient.
        """
        every = [pair for each in self.root.optimizers.alive() for pair in each.state.items()]
        moved = [e for own, e in every if self._begin or getattr(own, "grad", None) is not None]
        counts = [state.get("step", 0) for state in moved if isinstance(state, dict)]
        known = [own for own in counts if not (hasattr(own, "device") and is_held_back(own))]
        return max(map(int, known), default=0)
