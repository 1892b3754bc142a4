"""Puts a trace together from what capture counted. No TensorFlow."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from tracer.model import records
from tracer.model.records import Block, Calls, Entry, Kind, Role, Run


class Site(NamedTuple):
    """What one call of a method does, as far as it is counted."""

    optimizer: int
    method: str
    role: Role
    kind: Kind | None
    variable: int | None
    replica: int


class BlockKey(NamedTuple):
    """What a block is; blocks with equal keys do the same each time they execute."""

    context: Literal["eager", "graph"]
    function: str
    step: bool
    outside: bool
    sites: tuple[Site, ...]


class Reading(NamedTuple):
    """What a counter says: a total, and runs, which are short of the total if detail was lost."""

    total: int
    runs: Sequence[Run]
    graphs: int = 0
    idle: int = 0


def distinct(names: Iterable[str]) -> list[str]:
    """The names, a repeated one with its number: `["a", "a#2"]`."""
    taken: set[str] = set()
    return [free_name(name, taken) for name in names]


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or `name#2` and so on if it is among `taken`, to which what is found is added."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    taken.add(free)
    return free


def since(reading: Reading, before: Reading, steps: int) -> Reading:
    """What of `reading` came after `before`, with the step after `steps` numbered 1."""
    if not before.total and not steps:
        return reading
    later = [run for each in reading.runs if (run := _after(each, steps)) is not None]
    return Reading(
        reading.total - before.total,
        later,
        reading.graphs - before.graphs,
        max(0, reading.idle - before.idle),
    )


def _after(run: Run, steps: int) -> Run | None:
    """The part of `run` after the step `steps`, renumbered."""
    skipped = max(0, (steps - run.first) // run.stride + 1)
    if skipped >= run.count:
        return None
    first = run.first + skipped * run.stride - steps
    count = run.count - skipped
    return Run(first, run.stride if count > 1 else 1, count, run.times)


def blocks_of(
    root: int,
    readings: Mapping[int, tuple[int, Sequence[tuple[BlockKey, Reading]]]],
    methods: Mapping[str, int],
    replicas: Mapping[int, int],
) -> tuple[list[Block], list[str]]:
    """The blocks of a trace, and a note for each replica of which detail was lost.

    `readings` has for each replica its steps and its blocks; `methods` and `replicas` have the
    indices in the trace.
    """
    blocks: list[Block] = []
    notes: list[str] = []
    for replica, (steps, found) in sorted(readings.items()):
        placed = _place_steps(steps, found)
        for key, reading in placed:
            blocks.append(
                Block(
                    root=root,
                    replica=replicas[replica],
                    context=key.context,
                    function=key.function,
                    step=key.step,
                    entries=_entries(key.sites, methods),
                    total=reading.total,
                    runs=() if key.outside else tuple(reading.runs),
                    graphs=reading.graphs,
                    idle=reading.idle,
                    outside=key.outside,
                )
            )
        unplaced = sum(block.unplaced for block in blocks if block.replica == replicas[replica])
        if unplaced - sum(block.total for block in blocks if block.outside):
            notes.append(_lost(replica, steps, placed))
    return blocks, notes


def calls_of(
    calls: Mapping[Site, Sequence[int]], methods: Mapping[str, int], replicas: Mapping[int, int]
) -> list[Calls]:
    """The call counts of a trace; variables with equal counts share a record."""
    counts: dict[Site, list[int]] = defaultdict(lambda: [0, 0])
    for site, (eager, tracing) in calls.items():
        if site.role != "request":
            count = counts[site._replace(role="step")]  # an outer and an inner call count alike
            count[0] += eager
            count[1] += tracing
    groups: dict[tuple[Site, int, int], list[int]] = defaultdict(list)
    for site, (eager, tracing) in counts.items():
        group = groups[site._replace(variable=None), eager, tracing]
        if site.variable is not None:
            group.append(site.variable)
    return [
        Calls(
            site.optimizer,
            methods[site.method],
            site.kind,
            replicas[site.replica],
            tuple(sorted(variables)),
            eager,
            tracing,
        )
        for (site, eager, tracing), variables in groups.items()
    ]


def _entries(sites: Iterable[Site], methods: Mapping[str, int]) -> tuple[Entry, ...]:
    """Sites that differ in their variable only become one entry."""
    times: dict[Site, int] = defaultdict(int)
    for site in sites:
        times[site] += 1
    groups: dict[tuple[Site, int], list[int]] = defaultdict(list)
    for site, count in times.items():
        group = groups[site._replace(variable=None), count]
        if site.variable is not None:
            group.append(site.variable)
    return tuple(
        Entry(site.optimizer, methods[site.method], site.role, site.kind, tuple(sorted(v)), count)
        for (site, count), v in groups.items()
    )


def _place_steps(
    steps: int, found: Sequence[tuple[BlockKey, Reading]]
) -> list[tuple[BlockKey, Reading]]:
    """The readings, with the steps of a block that lost some filled in where they can be proved.

    Each step is the work of exactly one step block. If only one of them is short of steps, it ran
    the steps that no other one has, whatever was lost of it.
    """
    placed = list(found)
    short = [index for index, (key, reading) in enumerate(found) if key.step and _missing(reading)]
    if len(short) == 1:
        (index,) = short
        key, reading = found[index]
        others = [
            (run, 1) for i, (k, r) in enumerate(found) if k.step and i != index for run in r.runs
        ]
        free = [
            Run(first, 1, last - first + 1)
            for first, last, count in records.segments(others, steps)
            if count == 0
        ]
        if sum(run.total for run in free) == reading.total:
            placed[index] = (key, reading._replace(runs=records.join(free)))
    return placed


def _missing(reading: Reading) -> int:
    return reading.total - sum(run.total for run in reading.runs)


def _lost(replica: int, steps: int, placed: Sequence[tuple[BlockKey, Reading]]) -> str:
    covered = [(run, 1) for key, reading in placed if key.step for run in reading.runs]
    gaps = [
        (first, last) for first, last, count in records.segments(covered, steps) if count == 0
    ] or [(1, steps)]
    return (
        f"on replica {replica} the detail of some steps from {gaps[0][0]} to {gaps[-1][1]} was "
        "lost: the totals are exact, but which of these steps some updates were in is not known "
        "(several threads ran one function, or the steps changed too often between two readings)"
    )
