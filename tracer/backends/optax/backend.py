"""What counting needs of optax: see `tracer.core.backend.Backend`."""

from typing import Any

from tracer.backends.jax.backend import JaxBackend
from tracer.backends.jax.blocks import current_place, is_distributed
from tracer.backends.optax.facts import Facts
from tracer.backends.optax.leaves import Leaf, Leaves
from tracer.backends.optax.steps import OptaxBlocks, Step
from tracer.core.calls import Call, CallsUnderWay, start_call
from tracer.model.records import Variable


class OptaxBackend(JaxBackend):
    """optax, whose transformations are called in programs of JAX."""

    packages = ("jax", "optax", "flax", "equinox")
    new_variables = Leaves
    new_blocks = OptaxBlocks
    new_step = Step
    collectors = (Facts,)

    def locate(self, call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
        """Set the place of a new call, without a parent: optax has no recursive transformation."""
        return start_call(call, current_place(), 0, None, distributed=is_distributed())

    def row(self, variable: Leaf) -> Variable:
        return Variable(variable.name, variable.shape, variable.dtype)

    def device_of(self, variable: Any) -> str:
        """Empty: the program decides where a leaf is."""
        return ""

    def iterations_of(self, optimizer: Any) -> None:
        """None: the step count is in the state, which the program passes."""
