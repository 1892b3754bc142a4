"""Find out what becomes of the states and gradients of `update`, for the findings.

What the program does with its results is not visible. But a transformation that passes a gradient
on returns the same object; a gradient that is always 0 is a constant in the traced program; and a
state that is passed again is the same object, or was made by `init`.
"""

import sys
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any
from weakref import ref

import jax
import numpy as np

from tracer.backends.jax import arrays, compat
from tracer.backends.optax.inside import freezes, makes_steps, under_way
from tracer.core.backend import ENOUGH, SMALL
from tracer.core.collectors import Collector
from tracer.model.records import Remark
from tracer.model.words import listed, some

PASSED_ON = "gradient-passed-on"
ALWAYS_ZERO = "gradient-always-zero"
RENEWED = "optimizer-renewed"
STOPPED = "moved-without-gradient"  # as in `tracer.model.rates`
_LOOKS = 3  # in how many eager steps to check the gradients
_AGAIN = 5  # as in `tracer.backends.jax.blocks`
_MAX_NAMES = 5


class States(Collector):
    """The arguments and results of each transformation."""

    _latest: "tuple[ref[States], list[ref[Any]]] | None" = None
    """The last collector that checked gradients, and these gradients."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._looks = 0
        self._passed: set[str] = set()
        self._changed: set[str] = set()
        self._alone = True
        """Whether no other transformation got the same gradients, to update other leaves."""
        self._zero: dict[str, None] | None = {}
        """The leaves whose gradients were all 0; None once a gradient was not 0."""
        self._stopped: set[str] | None = None
        """The leaves with a gradient of constant 0 in each program, but another update."""
        self._given: ref[Any] | None = None
        self._params: ref[Any] | None = None
        self._again: int | None = 0
        """How many steps got the same state for other parameters; None once a step got another
        state, or the same parameters again, as several candidates do.
        """
        self._beginnings: Beginnings | None = None

    def step_traced(self, call: Any) -> None:
        """Check the gradients in a program."""
        self._beginnings = call.update.beginnings
        self._look(call)

    def step_ends(self, call: Any) -> None:
        """Check the gradients of the first eager steps, and each state."""
        self._beginnings = call.update.beginnings
        if self._looks < _LOOKS or self._zero:
            self._looks += 1
            self._look(call)
        if self._again is not None and call.returned is not None:
            params = _first_array(call.given.get("params"))
            self._look_at_state(_first_array(call.given.get("state")), params, call.returned[1])
        if self._beginnings is not None:
            self._beginnings.used(call.given.get("state"))

    def _look(self, call: Any) -> None:
        if call.returned is None or call.wanted is None:
            return
        gradients = {id(leaf): value for value, leaf in call.wanted if _is_weight(value)}
        zeros = {key for key, value in gradients.items() if _is_zero(value)}
        if self._zero is not None:
            every = {leaf.name: None for value, leaf in call.wanted if id(leaf) in zeros}
            self._zero = {**self._zero, **every} if gradients.keys() == zeros else None
        stopped = _constant_zeros(call.wanted) - _constant_zeros(call.returned[0])
        stopped = set() if freezes(call.update.given) else stopped
        self._stopped = stopped if self._stopped is None else self._stopped & stopped
        if not makes_steps(call.update.given):
            return
        self._look_at_another(gradients.values())
        passed = {*map(id, gradients.values())}
        for given, made in under_way.prepared:
            pairs = zip(jax.tree.leaves(given), jax.tree.leaves(made), strict=False)
            passed |= {id(new) for old, new in pairs if id(old) in passed}
        for value, leaf in call.returned[0]:
            if id(leaf) in gradients and id(leaf) not in zeros:
                (self._passed if id(value) in passed else self._changed).add(leaf.name)

    def _look_at_another(self, gradients: Collection[Any]) -> None:
        latest, States._latest = States._latest, (ref(self), [ref(each) for each in gradients])
        another = latest and latest[0]()
        if latest and another and another is not self:
            known = {id(each) for each in (each() for each in latest[1]) if each is not None}
            if any(id(each) in known for each in gradients):
                self._alone = another._alone = False

    def _look_at_state(self, given: Any, params: Any, after: Any) -> None:
        moved = given is None or _first_array(after) is given
        is_candidate = params is not None and self._params is not None and self._params() is params
        if moved or is_candidate or (self._given is not None and self._given() is not given):
            self._again = None
        else:
            self._given, self._again = ref(given), (self._again or 0) + 1
            self._params = None if params is None else ref(params)

    def remarks(self) -> Iterator[Remark]:
        """Remarks on the gradients and the states."""
        passed = sorted(self._passed - self._changed)
        if self._alone and passed and self._changed:
            of = len(passed) + len(self._changed)
            yield Remark(PASSED_ON, "update", variables=tuple(passed), count=len(passed), of=of)
        if self._zero:
            detail = "in eager mode" if self._looks else ""
            names = tuple(self._zero)
            yield Remark(ALWAYS_ZERO, "update", detail, variables=names, of=len(names))
        if self._stopped:
            yield Remark(STOPPED, "update", variables=tuple(sorted(self._stopped)))
        if self._again is not None and self._again >= _AGAIN:
            yield Remark(RENEWED, "", some(self._again, "step"))
        known = self._beginnings
        progress = list(self.root.blocks.counters.progress.values())
        if known is not None and len(known.after) > 1:
            # Otherwise `init` made only a template, as for a checkpoint, and steps continued
            # elsewhere.
            longest = max(last - first for first, last in pairwise([0, *known.after]))
            if any(each.last - each.first > longest for each in progress):
                return
            after = listed([f"{each:,}" for each in known.after], _MAX_NAMES)
            yield Remark(RENEWED, "init", after, known.where, count=len(known.after))


class Beginnings:
    """When `init` made a new state for weights that had been trained meanwhile.

    New weights start like the first ones: a bias is 0 again. So this is certain only if some of the
    first weights held a single number, and none of them holds it later, or another number that was
    written by hand, as in one of several initial guesses.
    """

    def __init__(self) -> None:
        self.after: list[int] = []
        """The numbers of steps before each new state."""
        self.where = ""
        """The line of the last call of `init`."""
        self._fresh: dict[int, float] | None = None
        self._sure = True
        self._made: ref[Any] | None = None
        """The first array of the latest new state, until an eager step gets a state."""

    def used(self, state: Any) -> None:
        """Check whether an eager step gets the new state, or `init` only made a template."""
        made, self._made = self._made, None
        if made is not None and self.after and made() is not _first_array(state):
            self.after.pop()

    def add(self, params: Any, state: Any, steps: int, line: str) -> None:
        """Note a new state for `params`, made in this line after this many steps."""
        made = _first_array(state)
        self._made = None if made is None else ref(made)
        no_state = not jax.tree.leaves(state)
        if no_state or not self._sure or (steps and self.after and steps == self.after[-1]):
            return
        small = list(_small(params))
        if self._fresh is None or not steps:
            self._fresh = {number: value for number, value in small if value is not None}
            self._sure = bool(self._fresh)
        elif any(_is_written(value) or value == self._fresh.get(at, np.nan) for at, value in small):
            self._sure, self.after = False, []
        elif len(self.after) < 1000:
            self.after.append(steps)
            self.where = line


def _small(params: Any) -> Iterator[tuple[int, float | None]]:
    """The number that each of the first small arrays holds; None if it holds several."""
    leaves = [each for each in jax.tree.leaves(params) if _is_weight(each)]
    for number, leaf in list(enumerate(leaves))[: 4 * ENOUGH]:
        value = arrays.value_of(leaf, SMALL)
        if value is not None:
            lowest = float(value.min())
            alike = lowest == float(value.max()) and (value.size > 1 or lowest in (0.0, 1.0))
            yield number, lowest if alike else None


def _is_written(value: float | None) -> bool:
    """True for a number of up to three digits, which training does not produce."""
    return value is not None and np.float32(f"{value:.3g}") == np.float32(value)


def _first_array(tree: Any) -> Any:
    leaves = (each for each in jax.tree.leaves(tree) if arrays.array_of(each) is not None)
    return next((each for each in leaves if isinstance(each, jax.Array)), None)


def _is_weight(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, np.inexact)


def _constant_zeros(pairs: Any) -> set[str]:
    """The leaves with a constant 0 in a program."""
    traced = ((each, leaf) for each, leaf in pairs if isinstance(each, jax.core.Tracer))
    return {leaf.name for each, leaf in traced if compat.is_constant_zero(each)}


def _is_zero(gradient: Any) -> bool:
    """True if a gradient is known to be 0."""
    if isinstance(gradient, jax.core.Tracer):
        return compat.is_constant_zero(gradient)
    value = arrays.value_of(gradient, sys.maxsize)
    return value is not None and not np.any(value)
