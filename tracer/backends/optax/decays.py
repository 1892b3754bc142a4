"""Which leaves decay, as the masks in a transformation say it.

Read in optax 0.2 (`transforms/_adding.py`, `transforms/_masking.py`): a mask is a tree, or a
function of one, which optax calls at each `update`. It is called once more here, with shapes.
"""

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import jax

from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Rate, RateRun

_PASSED_ON = "chain", "with_extra_args_support", "apply_if_finite"
"""What calls all that it holds with the same leaves."""
_MOST_INSIDE = 20


class Decays(Collector):
    """The decays in one transformation."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._known: list[tuple[float, tuple[int, ...]]] = []
        """How much, and of which leaves."""

    def first_step_ends(self, call: Any) -> None:
        """Ask the masks: the parameters are known then."""
        with suppress_faults():
            parameters = call.given.get("params")
            self._known = [
                (decay, tuple(self._chosen(parameters, masks)))
                for decay, masks in _decays_in(call.update.original, ())
            ]

    def rates(self) -> Iterator[Rate]:
        """The decays, which stay as they are."""
        steps = self.root.blocks.begun()
        for number, (decay, leaves) in enumerate(self._known if steps else ()):
            yield Rate(
                self.root.optimizers.root,
                "decay",
                number,
                leaves,
                (RateRun(1, steps, decay, decay),),
            )

    def _chosen(self, parameters: Any, masks: Sequence[Any]) -> Iterator[int]:
        """The leaves of the parameters that all of these masks leave in."""
        shapes = jax.eval_shape(lambda: parameters)
        every = [True] * len(jax.tree.leaves(parameters))
        for mask in masks:
            own = mask(shapes) if callable(mask) else mask
            spread = jax.tree.map(lambda m, part: jax.tree.map(lambda _, m=m: m, part), own, shapes)
            flat = jax.tree.leaves(spread)
            every = [bool(a and b) for a, b in zip(every, flat, strict=True)]
        pairs = self.root.variables.pairs(parameters, parameters) or ()
        for (_, leaf), decays in zip(pairs, every, strict=True):
            if decays:
                yield self.root.variables.index(leaf, None)


def _decays_in(
    update: Any, masks: tuple[Any, ...], depth: int = 0
) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """Each decay that is a number in an `update` of optax, with the masks around it."""
    update = getattr(update, "original", update)  # one that is traced
    if not isinstance(update, FunctionType) or depth > _MOST_INSIDE:
        return
    maker = update.__qualname__.partition(".")[0]
    own = dict(zip(update.__code__.co_freevars, update.__closure__ or (), strict=True))
    held = {name: cell.cell_contents for name, cell in own.items()}
    if maker == "add_decayed_weights" and isinstance(held.get("weight_decay"), float):
        yield held["weight_decay"], masks
    elif maker == "masked":
        yield from _decays_in(held["inner"].update, (*masks, held["mask"]), depth + 1)
    elif maker in _PASSED_ON:
        for each in held.values():
            for part in each if type(each) in (tuple, list) else (each,):
                yield from _decays_in(getattr(part, "update", part), masks, depth + 1)
