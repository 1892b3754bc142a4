"""Counts the steps of `torch.optim`, also those of which only the device knows what they did.

A fused optimizer under a `GradScaler` skips its work in the kernel. Whether it did is a number on
the device, and to read it would have the program wait. So such a step waits to be counted, and all
that come after it, until a trace is read or very many wait.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tracer.recorder.counters import CountedBlock, Counters, Counts
from tracer.recorder.frames import Frame
from tracer.recorder.host import Blocks as HostBlocks
from tracer.recorder.paths import UNKNOWN
from tracer.recorder.stamps import UNIT

MOST = 4096
"""How many steps wait at most; then they are counted, and the program waits once."""


class _Waiting(NamedTuple):
    """A step that has ended, and what says whether it was skipped; None if it was not."""

    block: CountedBlock
    skipped: Any


class _Counters(Counters[Any, Any]):
    """The counters of one root optimizer."""

    def __init__(self, blocks: "Blocks") -> None:
        super().__init__(lambda device, steps: None)
        self._blocks = blocks

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica, after the steps that wait."""
        self._blocks.settle()
        return super().read(under_way, calm)


class Blocks(HostBlocks):
    """The blocks of one root optimizer; thread-safe."""

    def __init__(self, **of_recorder: Any) -> None:
        """See `tracer.recorder.backend.Backend.new_blocks`."""
        super().__init__(**of_recorder)
        self.counters: Counters[Any, Any] = _Counters(self)
        self._waiting: list[_Waiting] = []

    def close(self, frame: Frame, failed: bool) -> None:
        """A step has ended: count it. `frame.result` says whether it was skipped, if anything."""
        if frame.result is None and not self._waiting:
            super().close(frame, failed)
            return
        if frame.path == UNKNOWN:
            self.find_path(frame, frame.python)
        block = CountedBlock(frame.replica, "", True, tuple(frame.sites), frame.path)
        with self.counters.lock:
            self._waiting.append(_Waiting(block, frame.result))
            if len(self._waiting) > MOST:
                self.settle()

    def settle(self) -> None:
        """Count the steps that wait; this waits for the device."""
        with self.counters.lock:
            waiting, self._waiting = self._waiting, []
            for block, skipped in waiting:
                if skipped is not None and float(skipped):
                    kept = [n for n in block.sites if self._sites.sites[n].role != "update"]
                    block = block._replace(sites=tuple(kept))
                number = self.counters.take_number(block.replica)
                self.counters.log(block, UNIT * number)
