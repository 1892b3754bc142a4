"""Closes blocks of optax: one call of `update` is one block, with one op in the program."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tracer.backends.jax import blocks, late_wrap
from tracer.core.backend import Stepped
from tracer.core.calls import Call
from tracer.kinds import OptimizerKind
from tracer.model.records import Remark
from tracer.model.words import listed

_MAX_NAMES = 5


class OptaxBlocks(blocks.JaxBlocks):
    """The blocks of one transformation; thread-safe."""

    new_effects = None
    no_effects = (
        "effects are not known with optax: a transformation never sees the weights after it, and "
        "to look at the updates in a program could change how XLA rounds the weights"
    )
    steps_models = True

    def steps_so_far(self, call: Any) -> tuple[Any, Any, Any]:
        """The count in the state that was returned, and that before it."""
        return (0, 0, None) if call.count is None else (call.count - 1, call.count, None)

    def remarks(self) -> tuple[Remark, ...]:
        """The same as of JAX, and that steps were kept that are not finite."""
        steps = [f"{each:,}" for each in self.counters.let_through]
        shown = listed(steps, _MAX_NAMES)
        remark = Remark("not-finite-kept", "apply_if_finite", shown, count=len(steps))
        return (*super().remarks(), *([remark] if steps else []))

    def auxiliary(self, call: Call) -> Sequence[Any]:
        """What `update` was given and returned: if a `vmap` is around, it has the members."""
        return call.result or ()

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """What the op could not count: there is no count of steps to compare with."""
        return super().missed(())


class OptaxStaleFunctions(late_wrap.JaxStaleFunctions):
    """The functions that were traced with a transformation before it was wrapped.

    They have what was wrapped. Traced again, they find what `wrap` gave back, if they look it up.
    """

    def find_and_watch(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Let the functions that use what was wrapped be traced again."""
        super().find_and_watch(index, optimizer.sought, kind, name, own, retrace)
