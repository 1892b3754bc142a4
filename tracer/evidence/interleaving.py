"""Which optimizer of the process steps after which: each has a new turn when another one had one.

So it is known whether two optimizers step in turns, or one after the other has ended. A turn takes
two numbers, however many steps it has. Steps in a graph of a `Session` have none.
"""

from itertools import count

from msgspec.structs import replace

from tracer.core.collectors import Collector
from tracer.model.records import Optimizer

_numbers = count(1)


class Interleaving(Collector):
    """The turns of one root optimizer."""

    first = last = 0

    def turn_begins(self) -> None:
        """It steps, after another one did."""
        self.last = next(_numbers)
        self.first = self.first or self.last

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """With the first and the last turn of a root."""
        return replace(record, turns=(self.first, self.last)) if index == record.root else record
