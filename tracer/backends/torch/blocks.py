"""Count steps on PyTorch, including steps whose updates are known only on the device.

A fused optimizer under a `GradScaler` skips its work in the kernel. Whether it did is a number on
the device, and reading it would make the program wait. So the step and all later ones are queued,
until a trace is read or `MOST` steps are queued. Recorded effects on a device are queued too.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tracer.backends.torch import compat
from tracer.backends.torch.effects import Effects
from tracer.backends.torch.steps import Step
from tracer.core import backend
from tracer.core.backend import Stepped
from tracer.core.calls import Call
from tracer.core.counters import CountedBlock
from tracer.core.interrupts import interrupt_in
from tracer.model.words import some

MOST = 4096
"""How many steps are queued at most; then they are counted, and the program waits once."""

_UNREADABLE = "{} are not counted: whether they updated could not be read from the device ({})"


class _Waiting(NamedTuple):
    """A block that was executed but not counted yet."""

    block: CountedBlock
    seen: Any
    skipped: Any


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._waiting: deque[_Waiting] = deque()

    def log(self, block: CountedBlock, seen: Any, call: Call | None = None) -> None:
        """Count a block now, or queue it until the device's answer is read."""
        skipped = call.skipped if isinstance(call, Step) else None
        with self.counters.lock:
            held_back = seen and getattr(seen, "held_back", ())
            if skipped is None and not (held_back or self._waiting):
                self.log_in_python(block, seen)
                return
            self._waiting.append(_Waiting(block, seen, skipped))
            if len(self._waiting) > MOST:
                self._settle()

    def wait(self) -> None:
        """Count the queued steps, waiting for the device, and note the abandoned ones."""
        for call in self._root.calls_under_way.abandoned_steps():
            call.recorder.abandon(call)
        with self.counters.lock:
            self._settle()

    def compare(self) -> bool:
        """Compare the parameters of each step from now on; returns whether this is new."""
        with self.counters.lock:
            self._settle()  # number the earlier steps, which are not compared
            return super().compare()

    def begun(self) -> int:
        """How many steps have begun, including the queued ones."""
        return self.counters.steps() + len(self._waiting)

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes about optimizers with a `step` attribute of their own, which calls no hooks."""
        for each in optimizers:
            own = vars(each.optimizer).get("step")
            if own is not None and not compat.is_of_scheduler(own) and not self.counters.steps():
                yield (
                    f"{each.name}: the program assigned a step of its own to the optimizer, which "
                    "does not call the step of its class: its calls are not counted"
                )

    def _settle(self) -> None:
        """Count the queued steps; the caller holds the lock.

        A signal handler may run while a step waits for the device: if it raises, the next reading
        continues with this step, and if it reads, it counts all steps.
        """
        while self._waiting:
            first = self._waiting[0]
            try:
                block, seen = self._answered(first)
            except Exception as error:
                if interrupt_in(error) is not None:
                    raise
                self._note(_UNREADABLE.format(some(len(self._waiting), "step"), error))
                self._waiting.clear()
                return
            if self._waiting and self._waiting[0] is first:
                del self._waiting[0]
                self.log_in_python(block, seen)

    def _answered(self, waiting: _Waiting) -> tuple[CountedBlock, Any]:
        """The block of a queued step and its effects, once the device has answered."""
        block, seen, skipped = waiting
        if skipped is not None and bool(float(skipped)):
            sites = self._sites.sites
            left = tuple(number for number in block.sites if sites[number].role != "update")
            block = block._replace(sites=left)
        return block, seen
