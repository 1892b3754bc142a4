"""Close blocks of optax: each call of `update` is one block, with one op in the program."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tracer.backends.jax import blocks, late_wrap
from tracer.core.backend import Stepped
from tracer.core.calls import Call
from tracer.core.late_wrap import Late


class OptaxBlocks(blocks.JaxBlocks):
    """The blocks of one transformation; thread-safe."""

    new_effects = None
    no_effects = (
        "effects are unknown with optax: a transformation never sees the new weights, and "
        "reading the updates in a compiled program could change how XLA rounds the weights"
    )

    def steps_so_far(self, call: Any) -> tuple[Any, Any, Any]:
        """The step count in the state before and after the step; -1 if it has none."""
        return (*(call.counts or (-1, -1)), None)

    def seen(self, call: Any, compared: Any) -> list[Any]:
        """The learning rate in the state, if any."""
        return [] if call.rate is None else [call.rate]

    def auxiliary(self, call: Call) -> Sequence[Any]:
        """The arguments and results of `update`, which make a `vmap` visible."""
        return call.result or ()

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes on executions that ops could not count; no step count to compare with exists."""
        return super().missed(())


class OptaxStaleFunctions(late_wrap.JaxStaleFunctions):
    """The functions that were traced with a transformation before it was wrapped.

    They use the original transformation. Traced again, they may look up the traced copy.
    """

    def find(self, late: Late, retrace: bool) -> None:
        """Drop the traces of the functions that use the original transformation."""
        super().find(late._replace(optimizer=late.optimizer.sought), retrace)
