"""Count in graphs as well: each replica gets a ledger when a graph first needs one.

Python numbers the steps until a replica has its ledger, which continues the numbers.
"""

from collections.abc import Mapping, Sequence

from tracer.backends.tensorflow.ledger import Ledger
from tracer.core.counters import CountedBlock, Counters
from tracer.core.log import Reading

_FULL = 1 / 8
"""A journal fuller than this is drained: it must have room until the next look."""
CALLS = 512
"""After how many calls of functions without loops to look: each writes one row to a journal."""


class LedgerCounters(Counters):
    """The counters of one root optimizer, with a ledger for each replica that runs graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers: dict[int, Ledger] = {}
        self.calls = 0
        """The calls of functions since the last look."""
        self.repeats = False
        """Whether one call of a function may write several rows to a journal."""

    def ledger(self, replica: int, device: str) -> Ledger:
        """The ledger of a replica; created on `device` if there is none."""
        with self.lock:
            ledger = self.ledgers.get(replica)
            if ledger is None:
                self.in_programs = True
                ledger = self.ledgers[replica] = Ledger(device, self.clocks[replica].begun())
                self.clocks[replica] = ledger.clock
            return ledger

    def called(self) -> None:
        """Drain the journals that are getting full; called when functions with counters are called.

        No journal may overflow between two looks, and training must not wait. Without loops, some
        hundred calls are few rows. With loops, each call looks.
        """
        self.calls += 1
        if (self.repeats or self.calls >= CALLS) and self.lock.acquire(blocking=False):
            try:
                for ledger in list(self.ledgers.values()):
                    ledger.look(_FULL)
                self.calls = 0
            finally:
                self.lock.release()

    def _read_programs(
        self, last: Mapping[int, int]
    ) -> Mapping[int, Sequence[tuple[CountedBlock, Reading]]]:
        return {replica: ledger.read(last[replica]) for replica, ledger in self.ledgers.items()}
