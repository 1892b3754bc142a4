"""Measures: what one execution of a block counts. No TensorFlow."""

from collections.abc import Callable, Iterable

from tracer.model.records import OBSERVATIONS, Block, Kind, Observation
from tracer.model.selection import EXECUTIONS, ROLES, Counted, Selection

Measure = Callable[[Block], int]
"""What one execution of a block counts."""


def counting(
    roles: Iterable[Counted],
    kinds: Iterable[Kind | None] | None = ("dense", "sparse"),
    methods: Iterable[int] | None = None,
    variable: int | None = None,
    optimizer: int | None = None,
) -> Selection:
    """A measure that counts entries of these roles, kinds, methods and so on (None for all)."""
    return Selection(
        roles=frozenset(roles),
        kinds=None if kinds is None else frozenset(kinds),
        methods=None if methods is None else frozenset(methods),
        variables=None if variable is None else frozenset({variable}),
        optimizers=None if optimizer is None else frozenset({optimizer}),
    )


updates = counting(["update"])
"""Counts updates of either kind."""
tries = counting(["update", "vain"])
"""Counts updates, and what should have been one and assigned nothing."""
ineffective = counting(["vain"])
"""Counts those that assigned nothing."""
discarded = counting(["discarded"])
"""Counts executions of which the result was thrown away."""
dense = counting(["update"], ["dense"])
"""Counts dense updates."""
sparse = counting(["update"], ["sparse"])
"""Counts sparse updates."""
requests = counting(["request"])
"""Counts the gradients handed to the outermost `apply_gradients` that were not `None`."""
missing = counting(["request"], ["none"])
"""Counts the gradients handed to the outermost `apply_gradients` that were `None`."""


def steps(block: Block) -> int:
    """Counts steps: executions of the outermost step method, not of those inside it."""
    return int(block.step)


def observing(what: Observation, variables: frozenset[int] | None = None) -> Selection:
    """A measure that counts of how many variables this was seen, of all or of these."""
    return Selection(roles=ROLES[what], variables=variables)


effects = tuple(map(observing, OBSERVATIONS))
"""Count of how many variables each of `OBSERVATIONS` was seen."""


def of_methods(methods: Iterable[int]) -> Selection:
    """A measure that counts the executions of the methods with these indices."""
    return counting(EXECUTIONS, None, methods)
