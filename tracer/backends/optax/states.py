"""What becomes of the state and the gradients that `update` is given, for the findings.

What the program does with both afterwards nobody sees. But a transformation that passes a gradient
on returns the very same object; a gradient that cannot be anything but 0 is a constant in the
program that JAX traces; and a state that is given again is the same object, or is made by `init`.
"""

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
_LOOKS = 3  # steps in eager mode at which the gradients are looked at
_AGAIN = 5  # as in `tracer.backends.jax.blocks`
_MAX_NAMES = 5


class States(Collector):
    """What each transformation is given, and what it gives back."""

    _latest: "tuple[ref[States], list[ref[Any]]] | None" = None
    """Who looked last at gradients, and at which."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._looks = 0
        self._passed: set[str] = set()
        self._changed: set[str] = set()
        self._alone = True
        """Whether no other transformation was given the same gradients, to update the others."""
        self._zero: dict[str, None] | None = {}
        """The leaves whose gradients were all 0; None as soon as one was not."""
        self._stopped: set[str] | None = None
        """The leaves whose gradient is a constant 0 in each program, and whose update is not."""
        self._given: ref[Any] | None = None
        self._params: ref[Any] | None = None
        self._again: int | None = 0
        """How many steps were given the same state for other parameters; None as soon as one was
        given another state, or the same parameters again, as each of several candidates is."""
        self._beginnings: Beginnings | None = None

    def step_traced(self, call: Any) -> None:
        """Look at the gradients in a program."""
        self._beginnings = call.update.beginnings
        self._look(call)

    def step_ends(self, call: Any) -> None:
        """Look at the gradients of the first steps in eager mode, and at each state."""
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
        """What was found."""
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
            # Else it made a template only, as for a checkpoint, and the steps went on with another.
            longest = max(last - first for first, last in pairwise([0, *known.after]))
            if any(each.last - each.first > longest for each in progress):
                return
            after = listed([f"{each:,}" for each in known.after], _MAX_NAMES)
            yield Remark(RENEWED, "init", after, known.where, count=len(known.after))


class Beginnings:
    """When `init` made a state again, for weights that had been trained meanwhile.

    New weights are made as the first ones were: a bias is 0 again. So it is sure only where some of
    the first weights held one number, and none of them holds that later, or another that somebody
    wrote, as one of several guesses to begin from.
    """

    def __init__(self) -> None:
        self.after: list[int] = []
        """After how many steps."""
        self.where = ""
        """The line that called `init` last."""
        self._fresh: dict[int, float] | None = None
        self._sure = True
        self._made: ref[Any] | None = None
        """The first array of what `init` made last, until a step in eager mode is given a state."""

    def used(self, state: Any) -> None:
        """A step in eager mode is given this state: does `init` make templates?"""
        made, self._made = self._made, None
        if made is not None and self.after and made() is not _first_array(state):
            self.after.pop()

    def add(self, params: Any, state: Any, steps: int, line: str) -> None:
        """`init` made a state for these in that line, after so many steps of the transformation."""
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
    """The number that the first small arrays hold; None of those that hold several."""
    leaves = [each for each in jax.tree.leaves(params) if _is_weight(each)]
    for number, leaf in list(enumerate(leaves))[: 4 * ENOUGH]:
        value = arrays.value_of(leaf, SMALL)
        if value is not None:
            lowest = float(value.min())
            alike = lowest == float(value.max()) and (value.size > 1 or lowest in (0.0, 1.0))
            yield number, lowest if alike else None


def _is_written(value: float | None) -> bool:
    """Whether it has three digits, and so is no weight that was trained."""
    return value is not None and np.float32(f"{value:.3g}") == np.float32(value)


def _first_array(tree: Any) -> Any:
    leaves = (each for each in jax.tree.leaves(tree) if arrays.array_of(each) is not None)
    return next((each for each in leaves if isinstance(each, jax.Array)), None)


def _is_weight(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, np.inexact)


def _constant_zeros(pairs: Any) -> set[str]:
    """The leaves for which a program has a constant 0."""
    traced = ((each, leaf) for each, leaf in pairs if isinstance(each, jax.core.Tracer))
    return {leaf.name for each, leaf in traced if compat.is_constant_zero(each)}


def _is_zero(gradient: Any) -> bool:
    """Whether a gradient is 0, as far as that is known now."""
    if isinstance(gradient, jax.core.Tracer):
        return compat.is_constant_zero(gradient)
    return arrays.array_of(gradient) is not None and not np.any(np.asarray(gradient))
