"""Find the learning-rate schedules of an optimizer, by name, and its own count of steps.

Nothing is replaced: an attribute that a schedule sets on the optimizer shows that it exists. An
optimizer counts the steps of each parameter, if at all, and `load_state_dict` sets these counts.
"""

from collections.abc import Iterator
from typing import Any

from tracer.backends.torch import compat
from tracer.backends.torch.effects import is_held_back
from tracer.backends.torch.parameters import parameters_of
from tracer.core.calls import Call
from tracer.core.collectors import Collector, Since
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import Evidence, Iterations, Scheduled
from tracer.model.facts import MOST


class Schedules(Collector):
    """The schedules of the optimizers of one recorder."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._names: list[str] = []
        self._begins: dict[int, int] = {}
        """The optimizer's own count of steps, unless 0, after so many steps: traces begin there."""
        self._counts: list[Any] = []
        """The counts in tensors, which steps increment: the optimizer may be gone when read."""
        self._states: list[tuple[int, int]] = []
        """Which states have these counts, and of how many parameters."""

    def first_step_ends(self, call: Call) -> None:
        """Look for schedules: programs make them before the first step."""
        self._find()
        self._begin(0, self._count(of_gradients=True) - 1)

    def step_ends(self, call: Call) -> None:
        """Keep the counts that did not begin with 0."""
        if self._begins and call.parent is None:
            with suppress_faults():
                alive = self.root.optimizers.alive()
                states = [(id(each.state), len(each.state)) for each in alive]
                if states != self._states:
                    self._states, self._counts = states, [*filter(_is_tensor, self._all_counts())]

    def block_begins(self) -> None:
        """Read the optimizer's own count: the block begins with it."""
        if begun := self.root.blocks.begun():
            self._begin(begun, self._count())

    def evidence(self) -> Iterator[Evidence | Since]:
        """The name of each schedule, and an own count that did not begin with 0."""
        if self._begins and (end := self._count()):
            for steps, begin in self._begins.items():
                yield Since(steps, Iterations(begin, end))
        if not self._names:
            self._find()
        for name in self._names:
            yield Scheduled(name)

    def _begin(self, steps: int, count: int) -> None:
        if count > 0:
            kept = [*self._begins.items()][1 - MOST :]
            self._begins = dict([*kept, (steps, count)])

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

    def _count(self, *, of_gradients: bool = False) -> int:
        """The most steps of a parameter, or of one that has a gradient; 0 if unknown."""
        counts = [0]
        with suppress_faults():
            every = self._all_counts(of_gradients) if self.root.optimizers.alive() else self._counts
            counts += [int(each) for each in every if not (_is_tensor(each) and is_held_back(each))]
        return max(counts)

    def _all_counts(self, of_gradients: bool = False) -> Iterator[Any]:
        """The count of each parameter, or of each that has a gradient."""
        for optimizer in self.root.optimizers.alive():
            for own in parameters_of(optimizer.param_groups):
                if own.grad is not None or not of_gradients:
                    yield optimizer.state.get(own, {}).get("step", 0)


def _is_tensor(count: Any) -> bool:
    return hasattr(count, "device")
