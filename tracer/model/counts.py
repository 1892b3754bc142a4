"""Implements `Counts`: how often, by what and in which steps the blocks of a trace ran.

A measure is what one execution of a block counts; most are a `Selection` of entries, which
`select_entries` makes from filters by name. Traces, reports, assertions and checks count with them.
No TensorFlow.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from typing import Any, Literal

from msgspec import structs

from tracer.errors import UnknownName, is_mistake, unknown_name
from tracer.model.names import Objects, named, optimizers_meant, variables_meant
from tracer.model.records import (
    OBSERVATIONS,
    Block,
    Entry,
    Kind,
    Role,
    TraceData,
)
from tracer.model.timeline import Run, Timeline, Values, added, fold

__tracebackhide__ = is_mistake

KINDS: tuple[Kind, ...] = ("dense", "sparse", "none")
What = Literal[
    "updates",
    "executions",
    "discarded",
    "calls",
    "requests",
    "compared",
    "unchanged",
    "not_finite",
]
"""The counts of a trace."""
EXECUTIONS: frozenset[Role] = frozenset({"step", "update", "discarded", "zeroed", "apply"})
ROLES: dict[str, frozenset[Role]] = {
    "updates": frozenset({"update"}),
    "executions": EXECUTIONS,
    "discarded": frozenset({"discarded"}),
    "requests": frozenset({"request"}),
    "calls": frozenset({"call"}),
    **{each: frozenset({each}) for each in OBSERVATIONS},
}
"""The roles of the entries of each count."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selects entries by sets of indices; None selects all."""

    roles: frozenset[Role] | None = None
    kinds: frozenset[Kind | None] | None = None
    methods: frozenset[int] | None = None
    variables: frozenset[int] | None = None
    replicas: frozenset[int] | None = None
    optimizers: frozenset[int] | None = None

    def holds(self, entry: Entry) -> bool:
        """Whether an entry is selected, for its selected variables."""
        return (
            (self.roles is None or entry.role in self.roles)
            and (self.kinds is None or entry.kind in self.kinds)
            and (self.methods is None or entry.method in self.methods)
            and (self.optimizers is None or entry.optimizer in self.optimizers)
        )

    def on(self, replicas: Iterable[int]) -> "Selection":
        """The same entries, on these replicas only."""
        return replace(self, replicas=frozenset(replicas))

    def entries(self, block: Block) -> Iterable[Entry]:
        """The selected entries of a block."""
        is_on = self.replicas is None or block.replica in self.replicas
        return filter(self.holds, block.entries) if is_on else ()

    def kept(self, variables: tuple[int, ...]) -> tuple[int, ...]:
        """The selected ones of these variables."""
        if self.variables is None:
            return variables
        return tuple(index for index in variables if index in self.variables)

    def times(self, entry: Entry) -> int:
        """How often `entry` counts in one execution of its block, for the selected variables."""
        least = int(self.variables is None)  # the execution of a step has no variable
        return entry.times * max(least, len(self.kept(entry.variables)))

    def __call__(self, block: Block) -> int:
        """The count of one execution of `block`."""
        return sum(map(self.times, self.entries(block)))


def unknown_effects(data: TraceData) -> list[str]:
    """The notes on unknown effects: no other count depends on these."""
    return [str(note) for note in data.notes if note.kind == "effects"]


def require_effects(data: TraceData, what: object, steps: int) -> None:
    """Raise `tracer.UnknownName` if steps ran and their effects are unknown.

    Usually effects were not requested; or nothing could be compared, as a note says.
    """
    if steps and not data.effects:
        whys = [f"nothing was compared: {note}" for note in unknown_effects(data)] or [
            "the trace has no effects; ask for them with tracer.wrap(optimizer, effects=True), "
            "tracer.record(effects=True) or tracer run --effects"
        ]
        raise UnknownName(f"cannot count {str(what)!r}: {whys[0]}")


def counted(data: TraceData) -> Iterator[Block]:
    """The blocks of a trace, then its Python calls and effects."""
    return chain(data.blocks, data.calls, data.effects)


def select_entries(
    data: TraceData,
    objects: Objects,
    what: What,
    kind: Kind | None = None,
    variable: object = None,
    replica: int | None = None,
    worker: str | None = None,
    optimizer: str | None = None,
    method: str | None = None,
) -> Selection:
    """Return the entries of `what` that pass the filters: see `tracer.Trace`.

    Raises `tracer.UnknownName`, with similar names, for a name that the trace lacks.
    """
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)

    optimizers = None if optimizer is None else optimizers_meant(optimizer, data.optimizers)
    if optimizers and what in OBSERVATIONS:  # effects belong to the root
        optimizers = frozenset(data.optimizers[index].root for index in optimizers)
    workers, ids = [each.worker for each in data.replicas], [each.id for each in data.replicas]
    if replica not in (None, *ids):
        raise unknown_name("replica", replica, sorted(set(ids)))
    replicas = None if worker is None else named("worker", worker, workers)
    if replica is not None:
        of_workers = range(len(ids)) if replicas is None else replicas
        replicas = frozenset(index for index in of_workers if ids[index] == replica)
    return Selection(
        roles=ROLES[what],
        kinds=None if kind is None else frozenset({kind}),
        methods=None if method is None else named("method", method, [e.name for e in data.methods]),
        variables=None if variable is None else variables_meant(variable, data.variables, objects),
        replicas=replicas,
        optimizers=optimizers,
    )


def rising(step: int | range) -> range:
    """Return the steps as an ascending range.

    Raises `tracer.UnknownName` for steps before 1: counting from 0 would give wrong counts.
    """
    if isinstance(step, bool) or not isinstance(step, int | range):
        raise TypeError(f"step must be an int or a range, not {step!r}")
    steps = range(step, step + 1) if isinstance(step, int) else step
    rising = steps if steps.step > 0 else steps[::-1]
    if rising and rising[0] < 1:
        raise UnknownName(f"no step {rising[0]}: steps are numbered from 1")
    return rising


# Measures: what one execution of a block counts.

Measure = Callable[[Block], int]
"""Returns the count of one execution of a block."""


def counting(
    roles: Iterable[Role],
    kinds: Iterable[Kind | None] | None = ("dense", "sparse"),
    methods: Iterable[int] | None = None,
    variable: int | None = None,
    optimizer: int | None = None,
) -> Selection:
    """Make a measure of entries by roles, kinds, methods and so on (None for all)."""
    return Selection(
        roles=frozenset(roles),
        kinds=None if kinds is None else frozenset(kinds),
        methods=None if methods is None else frozenset(methods),
        variables=None if variable is None else frozenset({variable}),
        optimizers=None if optimizer is None else frozenset({optimizer}),
    )


updates = counting(["update"])
"""Counts dense and sparse updates."""
discarded = counting(["discarded"])
"""Counts executions whose result was thrown away."""
zeroed = counting(["zeroed"])
"""Counts updates that `set_to_zero` of optax replaced by 0."""
dense = counting(["update"], ["dense"])
"""Counts dense updates."""
sparse = counting(["update"], ["sparse"])
"""Counts sparse updates."""
requests = counting(["request"])
"""Counts the gradients passed to the outermost `apply_gradients` that were not `None`."""
missing = counting(["request"], ["none"])
"""Counts the gradients passed to the outermost `apply_gradients` that were `None`."""


def steps(block: Block) -> int:
    """Counts steps: executions of the outermost step method, not of those inside it."""
    return int(block.step)


effects = tuple(counting([each], None) for each in OBSERVATIONS)
"""Count the variables that were compared, unchanged and not finite."""


def of_methods(methods: Iterable[int]) -> Selection:
    """Make a measure of the executions of the methods with these indices."""
    return counting(EXECUTIONS, None, methods)


# What blocks count.


class Counts:
    """What some blocks count, by measures: in all, by any key, and in each step."""

    def __init__(self, counted: Iterable[Block], steps_on: Mapping[int, int]) -> None:
        self.steps_on = steps_on
        """The steps on each replica that made any."""
        self._timelines: dict[object, Timeline] = {}
        self._on: dict[int | None, list[Block]] = {None: list(counted)}
        for block in self._on[None]:
            self._on.setdefault(block.replica, []).append(block)

    @property
    def steps(self) -> int:
        """The steps of the replica with the most steps."""
        return max(self.steps_on.values(), default=0)

    def total(self, measure: Measure, replica: int | None = None) -> int:
        """The count over the whole trace, or on one replica."""
        return sum(block.total * measure(block) for block in self._on.get(replica, ()))

    def by(self, keys: Sequence[str], select: Selection) -> Counter[tuple[Any, ...]]:
        """The count for each combination of keys.

        A key is `variable`, `step`, or a field of the counted blocks or entries; objects are given
        by their indices. Entries in graphs that never ran count 0. By step, executions in unknown
        steps do not count.
        """
        counts = Counter[tuple[object, ...]]()
        for block in self._on[None]:
            ran: Sequence[tuple[int | None, int]] = (
                [(step, run.times) for run in block.runs for step in run.steps]
                if "step" in keys
                else [(None, block.total)]
            )
            for entry in select.entries(block):
                of: Sequence[tuple[int | None, int]] = (
                    [(index, entry.times) for index in select.kept(entry.variables)]
                    if "variable" in keys and entry.variables
                    else [(None, select.times(entry))]
                )
                fields = structs.asdict(block) | structs.asdict(entry)
                for (variable, times), (step, number) in product(of, ran):
                    fields |= {"variable": variable, "step": step}
                    if times:
                        counts[tuple(fields[key] for key in keys)] += times * number
        return counts

    def within(self, steps: range) -> "Counts":
        """The counts in some steps, as far as their executions are known."""
        blocks = []
        for block in self._on[None]:
            bounds = range(steps.start, steps.stop)
            inside = [part for run in block.runs if (part := run.intersect(bounds)) is not None]
            if steps.step > 1:
                wanted = ((at, run.times) for run in inside for at in run.steps if at in steps)
                inside = fold(sorted(wanted))
            total = sum(run.total for run in inside)
            blocks.append(structs.replace(block, runs=tuple(inside), total=total))
        return Counts(blocks, self.steps_on)

    def step_unknown(self, measure: Measure) -> int:
        """The part of the total that ran in unknown steps."""
        return sum(number * measure(block) for block, number in self._lost)

    @cached_property
    def _lost(self) -> list[tuple[Block, int]]:
        """The blocks that ran in unknown steps, and how often: each row of a long run asks."""
        lost = ((block, block.step_unknown) for block in self._on[None] if not block.outside)
        return [(block, number) for block, number in lost if number]

    def timeline(self, *measures: Measure, replica: int | None = None) -> Timeline:
        """The counts of each step by each of `measures`, from step 1 on.

        Blocks with the same runs count as one block: replicas mostly do the same in each step.
        """
        weights: dict[tuple[Run, ...], Values] = {}
        for block in self._on.get(replica, ()):
            counts = tuple(measure(block) for measure in measures)
            if any(counts):
                weights[block.runs] = added(weights.get(block.runs, (0,) * len(counts)), counts)
        steps = self.steps if replica is None else self.steps_on.get(replica, 0)
        key = steps, len(measures), frozenset(weights.items())
        if key not in self._timelines:
            weighted = ((run, counts) for runs, counts in weights.items() for run in runs)
            self._timelines[key] = Timeline(weighted, steps, len(measures))
        return self._timelines[key]

    def spread(self, *measures: Measure, replica: int | None = None) -> Counter[Values]:
        """The number of steps with each combination of counts by `measures`."""
        return self.timeline(*measures, replica=replica).spread
