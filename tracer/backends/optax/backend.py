"""What counting needs of optax: see `tracer.core.backend.Backend`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tracer.backends.jax.backend import ArrayBackend
from tracer.backends.jax.blocks import current_place, is_distributed
from tracer.backends.optax import makers, outcome, updates
from tracer.backends.optax.facts import Facts
from tracer.backends.optax.inside import label
from tracer.backends.optax.leaves import Leaf, Leaves
from tracer.backends.optax.steps import OptaxBlocks, Step
from tracer.core.calls import Call, CallsUnderWay, start_call
from tracer.core.optimizers import Binding
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.model.records import Variable

__tracebackhide__ = is_mistake

_NOT_WRAPPED = (
    "optax is imported, but only transformations that were made during the recording, each by a "
    "function that defines its update, are counted: for others, use tx = tracer.wrap(tx)"
)
_UNWRAPPED = (
    "a transformation was unwrapped in a block of `record`: its updates are not counted until it "
    "is wrapped again or the block ends"
)


class OptaxBackend(ArrayBackend):
    """optax, whose transformations are called in programs of JAX."""

    packages = ("jax", "optax", "flax", "equinox")
    new_variables = Leaves
    new_blocks = OptaxBlocks
    new_step = Step
    collectors = (Facts,)
    nests = False
    unwrapped_note = _UNWRAPPED
    unused_note = _NOT_WRAPPED
    to_wrap = staticmethod(updates.traced)
    living = staticmethod(updates.living)

    def standing_for(self, given: object) -> object:
        """The `update` of a traced transformation."""
        update = updates.standing_for(given)
        if type(update) is not updates.TracedUpdate:
            raise UnsupportedOptimizer(
                f"this optax transformation ({label(given)}) is not traced: train with the result "
                "of tracer.wrap(tx)"
            )
        return update

    def unwrapped(self, given: Any) -> Any:
        """The original transformation; one that was made in a recording is seen as before."""
        return given if given.update.maker else given.update.given

    def introduce(self, traced: Binding) -> None:
        outcome.watch()
        updates.introduce(traced)

    def attach(self, optimizer: object, binding: Binding, *, making: bool = False) -> None:
        """Count the calls of an `update`, which sees them itself."""
        binding.observer = self

    def detach(self, optimizer: object, binding: Binding) -> None:
        binding.observer = None

    def unused(self) -> list[updates.TracedUpdate]:
        return list(updates.unused.values())

    def listen(self, made: Callable[..., None] | None) -> None:
        """Observe what is made."""
        if made is None:
            makers.put_back()
        else:
            makers.exchange(partial(made, making=True))

    def locate(self, call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
        """Set the place of a new call, without a parent: optax has no recursive transformation."""
        return start_call(call, current_place(), 0, None, distributed=is_distributed())

    def row(self, variable: Leaf) -> Variable:
        return Variable(variable.name, variable.shape, variable.dtype)
