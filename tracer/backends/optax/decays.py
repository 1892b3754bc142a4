"""Find the leaves with weight decay, by the masks in a transformation, and constant learning rates.

Read in optax 0.2 (`transforms/_adding.py`, `transforms/_masking.py`): a mask is a tree, or a
function that returns one, which optax calls at each `update`. The function belongs to the program
and may have side effects, so it is never called here. Until the first step ends, a `_Mask` in its
closure cell stores its result.
"""

import functools
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

import jax

from tracer.backends.optax.inside import label, rates_in
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Rate, RateRun

_PASSED_ON = "chain", "with_extra_args_support", "apply_if_finite"
"""The makers that pass the same leaves to all inner transformations."""
_MOST_INSIDE = 20


class Decays(Collector):
    """The weight decays in one transformation."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._known: list[tuple[float, tuple[int, ...]]] = []
        """Each decay, with its leaves."""
        self._rates: list[str | float | None] = []

    def first_step_ends(self, call: Any) -> None:
        """Apply the masks, now that the parameters are known."""
        decays, call.update.decays = call.update.decays, ()
        with suppress_faults():
            self._rates = rates_in(call.update.given)
            parameters = call.given.get("params")
            self._known = [(decay, tuple(self._chosen(parameters, m))) for decay, m in decays]
        for _, mask in decays:
            if isinstance(mask, _Mask):
                mask.cell.cell_contents = mask.original

    def rates(self) -> Iterator[Rate]:
        """The decays, and the rate: a constant, or the text of its schedules."""
        steps, root = self.root.blocks.begun(), self.root.optimizers.root
        for number, (decay, leaves) in enumerate(self._known if steps else ()):
            yield Rate(root, "decay", number, leaves, (RateRun(1, steps, decay, decay),))
        every = tuple(range(len(self.root.variables.plain)))
        match self._rates:
            case [float(rate)] if steps and rate >= 0:
                yield Rate(root, "rate", 0, every, (RateRun(1, steps, rate, rate),))
            case _ if any(type(each) is str for each in self._rates):
                parts = [
                    str(each) for each in self._rates if isinstance(each, str) or (each or 0) > 0
                ]
                text = " and ".join(dict.fromkeys(parts))
                yield Rate(root, "rate", 0, every, (), schedule=text)

    def _chosen(self, parameters: Any, mask: Any) -> Iterator[int]:
        """The leaves of the parameters that the mask selects."""
        shapes = jax.eval_shape(lambda: parameters)
        own = mask.returned if isinstance(mask, _Mask) else mask
        spread = jax.tree.map(lambda m, part: jax.tree.map(lambda _, m=m: m, part), own, shapes)
        every = jax.tree.leaves(spread)
        pairs = self.root.variables.pairs(parameters, parameters) or ()
        for (_, leaf), decays in zip(pairs, every, strict=True):
            if decays:
                yield self.root.variables.index(leaf, None)


class _Mask:
    """Calls a mask function, and stores its last result."""

    def __init__(self, cell: CellType) -> None:
        self.cell, self.original, self.returned = cell, cell.cell_contents, None
        functools.update_wrapper(self, self.original)
        cell.cell_contents = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.returned = self.original(*args, **kwargs)
        return self.returned


def decays_in(update: Any, mask: Any = True, depth: int = 0) -> Iterator[tuple[float, Any]]:
    """Each decay in an `update` of optax that is a number, with its mask.

    A mask around a whole optimizer selects the leaves to train, and is not a mask of its decay.
    """
    update = getattr(update, "original", update)  # of a traced one
    if inner := getattr(getattr(update, "__self__", None), "inner_opt", None):  # of `MultiSteps`
        yield from decays_in(inner.update, mask, depth + 1)
    if not isinstance(update, FunctionType) or depth > _MOST_INSIDE:
        return
    maker = update.__qualname__.partition(".")[0]
    own = dict(zip(update.__code__.co_freevars, update.__closure__ or (), strict=True))
    held = {name: cell.cell_contents for name, cell in own.items()}
    if maker == "add_decayed_weights" and isinstance(held.get("weight_decay"), float):
        yield held["weight_decay"], mask
    elif maker == "masked":
        mask = held["mask"]
        if label(held["inner"]) == "add_decayed_weights":
            if callable(mask) and not isinstance(mask, _Mask) and jax.tree_util.all_leaves([mask]):
                mask = _Mask(own["mask"])
            yield from decays_in(held["inner"].update, mask, depth + 1)
    elif maker in _PASSED_ON:
        for each in held.values():
            for part in each if type(each) in (tuple, list) else (each,):
                yield from decays_in(getattr(part, "update", part), mask, depth + 1)
