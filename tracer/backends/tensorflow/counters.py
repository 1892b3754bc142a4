"""Counts graphs too: one ledger a replica, which is made when a graph needs one.

The numbers of steps are Python's until a replica has its ledger, which goes on with them.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from tracer.backends.tensorflow.ledger import Ledger
from tracer.core.counters import CountedBlock, Counters
from tracer.core.log import Reading

_FULL = 1 / 8
"""How full a journal may be when it is looked at: it must hold what comes until the next look."""
_MOST_CALLS = 64
"""How many calls of functions there are between two looks, at most."""


class LedgerCounters(Counters):
    """The counters of one root optimizer, with a ledger for each replica that runs graphs."""

    quiet_calls: Iterator[bool]
    """An item for each call of a function until the journals are to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers: dict[int, Ledger] = {}
        self._look_after(1)

    def ledger(self, replica: int, device: str) -> Ledger:
        """The ledger of a replica, which is made on `device` if there is none."""
        with self.lock:
            ledger = self.ledgers.get(replica)
            if ledger is None:
                ledger = self.ledgers[replica] = Ledger(
                    device, self._numbers.setdefault(replica, 0)
                )
            self._look_after(1)  # a graph is traced, and may do much
            return ledger

    @property
    def in_programs(self) -> bool:  # type: ignore[override]
        """Whether anything is counted in graphs, that run without Python."""
        return bool(self.ledgers)

    def look(self) -> None:
        """Take out what was counted, where it is much: functions with counters are called.

        No journal may be full before it is read, and training must not wait for it. So this is
        done at each call as long as many rows come with one, else at each 64th.
        """
        if self.lock.acquire(blocking=False):
            try:
                fullest = max(ledger.look(_FULL) for ledger in list(self.ledgers.values()))
                rarer = self._calls_between * 2 if fullest <= _FULL else self._calls_between // 2
                self._look_after(min(rarer, _MOST_CALLS))
            finally:
                self.lock.release()

    def _look_after(self, calls: int) -> None:
        self._calls_between = max(1, calls)
        self.quiet_calls = repeat(False, calls)

    def take_number(self, replica: int) -> int:
        """The number of a step that begins outside of every graph."""
        with self.lock:
            ledger = self.ledgers.get(replica)
            if ledger is None:
                self._numbers[replica] += 1
                return self._numbers[replica]
        return ledger.take_number()

    def next_number(self, replica: int) -> int:
        """The number of the step that begins next."""
        ledger = self.ledgers.get(replica)
        return self._numbers[replica] + 1 if ledger is None else ledger.next_number()

    def _read_programs(self) -> dict[int, tuple[int, Sequence[tuple[CountedBlock, Reading]]]]:
        return {replica: ledger.read() for replica, ledger in self.ledgers.items()}

    def sign(self) -> Any:
        """The same with what the graphs have counted: see `Counters.sign`."""
        sign = super().sign()
        return sign and (sign, [each.sign() for each in self.ledgers.values()])

    def variables(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        with self.lock:
            variables = {
                f"replica_{replica}_{name}": variable
                for replica, ledger in self.ledgers.items()
                for name, variable in ledger.children().items()
            }
            return variables | super().variables()

    def handles(self) -> list[Any]:
        """The handles, one of which each graph with a counter captures."""
        return [handle for ledger in self.ledgers.values() for handle in ledger.handles()]
