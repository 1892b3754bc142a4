"""Counts the steps of `torch.optim`, also those of which only the device knows what they did.

A fused optimizer under a `GradScaler` skips its work in the kernel. Whether it did is a number on
the device, and to read it would have the program wait. So such a step waits to be counted, and all
that come after it, until a trace is read or very many wait. The same is so of what was seen of
parameters on a device, where effects are asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tracer.backends.torch import compat
from tracer.backends.torch.effects import Effects
from tracer.backends.torch.under_way import Step, drop_raised
from tracer.core import backend
from tracer.core.backend import Stepped
from tracer.core.calls import Frame
from tracer.core.counters import CountedBlock, Counters, Counts
from tracer.core.stamps import UNIT

MOST = 4096
"""How many steps wait at most; then they are counted, and the program waits once."""


PROGRAM = "torch.compile"
"""What stands for the name of a function, where `torch.compile` made a program of a step."""


class _Counters(Counters):
    """The counters of one root optimizer."""

    def __init__(self, blocks: "Blocks") -> None:
        super().__init__()
        self._blocks = blocks

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica, after the steps that wait or raised."""
        drop_raised()
        self._blocks.settle()
        return super().read(under_way, calm)


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self.counters = _Counters(self)
        self._waiting: list[tuple[CountedBlock, Step]] = []
        self._programs: dict[CountedBlock, set[int]] = defaultdict(set)

    def close(self, frame: Frame, failed: bool) -> None:
        """A step has ended, which is `frame.result`: count it."""
        step: Step = frame.result
        function = "" if step.program is None else PROGRAM
        block = CountedBlock(frame.replica, function, True, tuple(frame.sites), frame.path)
        is_known = step.skipped is None and not step.unsure
        with self.counters.lock:
            if step.program is not None:
                self._programs[block].add(step.program)
                self.counters.session_graphs[block] = len(self._programs[block])
            if is_known and not self._waiting and (step.seen is None or step.seen.is_there):
                self._count(block, step)
                return
            self._waiting.append((block, step))
            if len(self._waiting) > MOST:
                self.settle()

    def compare(self, wanted: bool) -> bool:
        """Compare the parameters of each step, or no more; returns whether that is new."""
        with self.counters.lock:
            self.settle()  # the steps so far, of which the other was wanted, have their numbers
            return super().compare(wanted)

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Say of one that has a `step` of its own, and never called the hooks, that it has."""
        for each in optimizers:
            own = vars(each.optimizer).get("step")
            if own is not None and not compat.is_of_scheduler(own) and not self.counters.steps():
                yield (
                    f"{each.name}: step was set on the optimizer itself, and does not call that of "
                    "its class: its calls are not seen"
                )

    def settle(self) -> None:
        """Count the steps that wait; this waits for the device."""
        with self.counters.lock:
            waiting, self._waiting = self._waiting, []
            for block, step in waiting:
                self._count(block, step)

    def _count(self, block: CountedBlock, step: Step) -> None:
        """Count a step now; the lock is held."""
        skips = step.skipped is not None and bool(float(step.skipped))
        for each in step.unsure:
            if not bool(each.is_same):
                block = block._replace(sites=(*block.sites, each.site))
            elif each.note and not skips:
                self._note(each.note)
        if skips:
            kept = [n for n in block.sites if self._sites.sites[n].role != "update"]
            block = block._replace(sites=tuple(kept))
        stamp = UNIT * self.counters.take_number(block.replica)
        self.counters.log(block, stamp)
        if step.seen is not None and self.counters.compared is not None:
            self.counters.compared.log(block.replica, step.seen.sources(), stamp)
