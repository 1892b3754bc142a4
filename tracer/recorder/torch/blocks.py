"""Closes blocks of Keras on PyTorch, and compares the variables if effects are asked for."""

from tracer.recorder import host
from tracer.recorder.torch.effects import Effects


class Blocks(host.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    def compare(self, wanted: bool) -> bool:
        """Compare the variables of each step, or no more; returns whether that is new."""
        return self.counters.compare(wanted, lambda: Effects(self._note))
