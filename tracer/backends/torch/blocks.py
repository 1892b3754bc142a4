"""Counts steps on PyTorch, also those whose updates only the device knows.

A fused optimizer under a `GradScaler` skips its work in the kernel. Whether it did is a number on
the device, and to read it would have the program wait. So such a step waits to be counted, and all
that come after it, until a trace is read or very many wait. The same is so of what was seen of
parameters on a device, where effects are asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from tracer.backends.torch import compat
from tracer.backends.torch.compiled_steps import Program
from tracer.backends.torch.effects import Effects
from tracer.backends.torch.operators import VALUES
from tracer.backends.torch.steps import Step, Unsure
from tracer.backends.torch.writes import Writes
from tracer.core import backend
from tracer.core.backend import Stepped
from tracer.core.calls import Call
from tracer.core.counters import CountedBlock

MOST = 4096
"""How many steps wait at most; then they are counted, and the program waits once."""


class _Waiting(NamedTuple):
    """A block that was executed and is not counted yet."""

    block: CountedBlock
    seen: Any
    skipped: Any
    unsure: Sequence[Unsure]


_comparing: "WeakSet[Blocks]" = WeakSet()
"""The blocks whose effects are asked for."""


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self.writes: list[Writes] = []
        """Of each optimizer with a step of its own."""
        self._waiting: list[_Waiting] = []
        self._programs: dict[CountedBlock, set[Program]] = defaultdict(set)

    def log(self, block: CountedBlock, seen: Any, call: Call | None = None) -> None:
        """Count a block now, or when the device has said what it did."""
        skipped: Any = None
        unsure: Sequence[Unsure] = ()
        with self.counters.lock:
            if isinstance(call, Step):
                skipped, unsure = call.skipped, call.unsure
                if call.program is not None:
                    self._programs[block].add(call.program)
                    self.counters.session_graphs[block] = len(self._programs[block])
            held_back = seen and getattr(seen, "held_back", ())
            if skipped is None and not (unsure or held_back or self._waiting):
                super().log(block, seen)
                return
            self._waiting.append(_Waiting(block, seen, skipped, unsure))
            if len(self._waiting) > MOST:
                self._settle()

    def wait(self) -> None:
        """Count the steps that wait; this waits for the device. Note those that were abandoned."""
        for call in self._root.calls_under_way.abandoned_steps():
            call.recorder.abandon(call)
        with self.counters.lock:
            self._settle()

    def compare(self, wanted: bool) -> bool:
        """Compare the parameters of each step, or no more; returns whether that is new."""
        with self.counters.lock:
            self._settle()  # number the steps so far under the other setting
            (_comparing.add if wanted else _comparing.discard)(self)
            VALUES.wanted = bool(_comparing)
            return super().compare(wanted)

    def begun(self) -> int:
        """How many steps have begun, those included that wait for the device."""
        return self.counters.steps() + len(self._waiting)

    def doubts(self) -> Iterator[str]:
        """Say what may write past versions."""
        for writes in self.writes:
            yield from writes.notes()

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Say what has a `step` of its own without hooks."""
        for each in optimizers:
            own = vars(each.optimizer).get("step")
            if own is not None and not compat.is_of_scheduler(own) and not self.counters.steps():
                yield (
                    f"{each.name}: step was set on the optimizer itself, and does not call that of "
                    "its class: its calls are not seen"
                )

    def _note_missing_pairs(self, call: Call) -> None:
        if not call.function and not isinstance(call, Step):  # these say it themselves
            super()._note_missing_pairs(call)

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
