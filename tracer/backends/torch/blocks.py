"""Counts steps on PyTorch, also those of which only the device knows what they did.

A fused optimizer under a `GradScaler` skips its work in the kernel. Whether it did is a number on
the device, and to read it would have the program wait. So such a step waits to be counted, and all
that come after it, until a trace is read or very many wait. The same is so of what was seen of
parameters on a device, where effects are asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tracer.backends.torch import compat
from tracer.backends.torch.effects import Effects
from tracer.backends.torch.programs import Program
from tracer.backends.torch.steps import Step, Unsure, abandoned
from tracer.core import backend
from tracer.core.backend import Stepped
from tracer.core.calls import Frame
from tracer.core.counters import CountedBlock

MOST = 4096
"""How many steps wait at most; then they are counted, and the program waits once."""


class _Waiting(NamedTuple):
    """A block that was executed and is not counted yet."""

    block: CountedBlock
    seen: Any
    skipped: Any = None
    unsure: Sequence[Unsure] = ()

    @property
    def is_known(self) -> bool:
        """Whether it can be counted without waiting for a device."""
        held_back = getattr(self.seen, "held_back", ())
        return self.skipped is None and not self.unsure and not held_back


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._waiting: list[_Waiting] = []
        self._programs: dict[CountedBlock, set[Program]] = defaultdict(set)

    def log(self, block: CountedBlock, seen: Any, frame: Frame | None = None) -> None:
        """Count a block now, or when the device has said what it did."""
        waiting = _Waiting(block, seen)
        with self.counters.lock:
            if isinstance(frame, Step):
                waiting = waiting._replace(skipped=frame.skipped, unsure=frame.unsure)
                if frame.program is not None:
                    self._programs[block].add(frame.program)
                    self.counters.session_graphs[block] = len(self._programs[block])
            if waiting.is_known and not self._waiting:
                super().log(block, seen)
                return
            self._waiting.append(waiting)
            if len(self._waiting) > MOST:
                self._settle()

    def wait(self) -> None:
        """Count the steps that wait; this waits for the device. Note those that were abandoned."""
        for frame in abandoned(list(self._root.calls_under_way.steps)):
            frame.recorder.abandon(frame)
        with self.counters.lock:
            self._settle()

    def compare(self, wanted: bool) -> bool:
        """Compare the parameters of each step, or no more; returns whether that is new."""
        with self.counters.lock:
            self._settle()  # the steps so far, of which the other was wanted, have their numbers
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

    def _note_unhanded(self, frame: Frame) -> None:
        if not frame.function and not isinstance(frame, Step):  # these say it themselves
            super()._note_unhanded(frame)

    def _settle(self) -> None:
        """Count the steps that wait; the lock is held."""
        waiting, self._waiting = self._waiting, []
        for block, seen, skipped, unsure in waiting:
            sites = list(block.sites)
            for each in unsure:
                same = bool(each.is_same)
                each.learn(same)
                sites += [] if same else [each.site]
            if skipped is not None and bool(float(skipped)):
                sites = [each for each in sites if self._sites.sites[each].role != "update"]
            super().log(block._replace(sites=tuple(sites)), seen)
