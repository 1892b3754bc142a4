"""The answers for `torch.optim`: see `tracer.core.backend.Backend`."""

from typing import Any

from tracer.backends.torch.blocks import Blocks
from tracer.backends.torch.keras_backend import TorchBackend
from tracer.backends.torch.parameters import Parameters
from tracer.backends.torch.passed import FreezeMonitor
from tracer.core import backend


class TorchOptimBackend(TorchBackend):
    """PyTorch's own optimizers."""

    packages = ("torch", "lightning", "accelerate", "transformers")
    new_variables = Parameters
    new_blocks = Blocks
    collectors = (FreezeMonitor,)
    locate = backend.Backend.locate  # a hook asks once where a step is

    def iterations_of(self, optimizer: Any) -> None:
        """None: it has no count of its steps but for each parameter."""

    def rate_of(self, optimizer: Any) -> Any:
        """The learning rate of its first group."""
        groups = object.__getattribute__(optimizer, "__dict__").get("param_groups")
        return groups[0].get("lr") if isinstance(groups, list) and groups else None

    def slots_of(self, optimizer: Any) -> int | None:
        """How many tensors it keeps for its parameters."""
        states = object.__getattribute__(optimizer, "__dict__").get("state")
        if not isinstance(states, dict):
            return None
        kept = (each for state in states.values() for each in state.items())
        return len([name for name, value in kept if name != "step" and value is not None])
