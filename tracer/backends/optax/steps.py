"""One call of `update` is one block: its arguments, its results, and the outcome of the updates."""

import sys
from collections.abc import Sequence
from typing import Any

import jax

from tracer.backends.jax.blocks import JaxBlocks
from tracer.backends.jax.values import NO_RATE
from tracer.backends.optax import outcome
from tracer.backends.optax.inside import under_way
from tracer.backends.optax.leaves import Leaves, Pairs
from tracer.backends.optax.updates import TracedUpdate
from tracer.core import calls
from tracer.core.optimizers import Binding
from tracer.kinds import KINDS, OPTAX

(_LEAF,), (_STEP,) = next((e.apply_methods, e.step_methods) for e in KINDS if e.name == OPTAX)
_ARGUMENTS = ("updates", "state", "params")
_CHANGED = (
    "a transformation around set_to_zero may change the leaves that it sets to zero: their updates "
    "are counted"
)


class Step(calls.Step):
    """One call of `update`; errors in the tracer never reach the program."""

    __slots__ = ("counts", "given", "index", "rate", "update", "wanted")

    def __init__(
        self,
        update: TracedUpdate,
        binding: Binding,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self.update, self.index = update, binding.index
        self.counts: tuple[jax.Array, jax.Array] | None = None
        self.recorder, self.wanted, self.rate = None, None, NO_RATE
        self.given = {**kwargs, **dict(zip(_ARGUMENTS, args, strict=False))}
        try:
            binding.recorder.open(self, self.index, _STEP, sys._getframe(2))
            self.python = sys._getframe(1)
            if "updates" in self.given:  # else they have another name
                self.wanted = self._pairs(self.given["updates"])
            list(self.recorder.requests(self, self.index, _STEP, self.wanted or ()))
        except Exception as error:
            binding.recorder.fault(error)

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.python = None
        if self.recorder is None or self.recorder.broken:
            return
        try:
            if error is None:
                self._note(self.result)
            self.recorder.close(self, error is not None, error)
        except Exception as fault:
            self.recorder.fault(fault)

    def _pairs(self, values: object) -> Pairs | None:
        """Each value with its leaf: of the parameters, or else of the gradients.

        A custom `update` may use other argument names; then the values name the leaves.
        """
        variables = self.recorder.variables
        assert isinstance(variables, Leaves)
        trees = self.given.get("params"), self.given.get("updates"), values
        return variables.pairs(values, next((each for each in trees if each is not None), None))

    def _note(self, result: object) -> None:
        """Note the returned updates, and their outcome if it is known."""
        recorder = self.recorder
        if not (isinstance(result, tuple | list) and len(result) == 2):
            recorder.note("update did not return updates and a state: its updates are unknown")
            return
        updates, state = result
        pairs = self._pairs(updates)
        if pairs is None:
            pairs = recorder.variables.pairs(updates, updates)
        if self.wanted is None:  # `lookahead` updates other leaves than it gets gradients for
            list(recorder.requests(self, self.index, _STEP, pairs or ()))
        pairs = [pair for pair in pairs if pair[0] is not None]
        zeroed = [pair for pair in pairs if outcome.is_zero(pair[0])]
        if not under_way.names <= {leaf.name for _, leaf in zeroed}:
            recorder.note(_CHANGED)
        self.sites += recorder.sites_of(self, self.index, _LEAF, "zeroed", zeroed)
        updated = [pair for pair in pairs if not outcome.is_zero(pair[0])]
        sites = recorder.sites_of(self, self.index, _LEAF, "update", updated)
        self.sites += sites
        self.counts = outcome.counts_in(self.given.get("state"), state)
        self.rate = outcome.rate_in(self.update.given, state)
        every = jax.tree.leaves((self.given.get("updates"), updates, state))
        self.result = [each for each in every if isinstance(each, jax.core.Tracer)]
        unknown: list[str] = []
        came = outcome.of_step(self.given.get("state"), state, updates, unknown)
        if outcome.is_in_multi_steps():
            unknown.append("MultiSteps around it")
        for each in unknown:
            recorder.note(
                f"{each} discards the updates of some steps, but it is unknown which: the updates "
                "of all steps are counted"
            )
        if came is not None:
            self.site_notes += [(came, site) for site in sites]


class OptaxBlocks(JaxBlocks):
    """The blocks of one transformation; thread-safe."""

    new_effects = None
    no_effects = (
        "effects are unknown with optax: a transformation never sees the new weights, and "
        "reading the updates in a compiled program could change how XLA rounds the weights"
    )

    def steps_so_far(self, call: Any) -> tuple[jax.Array | int, jax.Array | int, None]:
        """The step count in the state before and after the step; -1 if it has none."""
        return (*(call.counts or (-1, -1)), None)

    def rate_of(self, call: Any) -> jax.Array | int:
        """The bits of the learning rate in the state, if it has one."""
        return call.rate

    def auxiliary(self, call: calls.Call) -> Sequence[jax.Array]:
        """The arguments and results of `update`, which make a `vmap` visible."""
        return call.result or ()
