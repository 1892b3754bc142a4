"""Count steps on PyTorch."""

from collections.abc import Iterable, Iterator

from tracer.backends.torch import compat
from tracer.backends.torch.effects import Effects
from tracer.core import backend
from tracer.core.backend import Stepped


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def wait(self) -> None:
        """Note the abandoned steps."""
        for call in self._root.calls_under_way.abandoned_steps():
            call.recorder.abandon(call)

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes about optimizers with a `step` attribute of their own, which calls no hooks."""
        for each in optimizers:
            own = vars(each.optimizer).get("step")
            if own is not None and not compat.is_of_scheduler(own) and not self.counters.steps():
                yield (
                    f"{each.name}: the program assigned a step of its own to the optimizer, which "
                    "does not call the step of its class: its calls are not counted"
                )
