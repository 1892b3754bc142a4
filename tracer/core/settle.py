"""Turns counts into the blocks and graphs of a trace. No framework, no state, no locks.

- `settle` keeps the ended steps of a replica, numbered from 1 without gaps.
- `blocks_of`, `calls_of` and `effects_of` combine sites, or observations, that differ only in the
  variable into one record, and note what is not known; `graphs_of` adds up the tracings of a graph.

A step that began and did not end may still run, may have raised, or may have lost its detail;
`settle` alone decides which.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from tracer.core.calls import Site
from tracer.core.counters import APPLYING, WITHIN, Counted, CountedBlock, Reading, Source
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.model.records import Block, Entry, Graph, Observation
from tracer.model.timeline import Run, Timeline, join, union
from tracer.words import some


class Ended(NamedTuple):
    """The counts of a replica in the steps that ended, numbered from 1."""

    steps: int
    blocks: Sequence[tuple[CountedBlock, Reading]]
    stopped: int = 0
    """How many more steps an error ended; what they ran before does not count."""
    lost: tuple[int, int] | None = None
    """The first and the last step whose detail was lost."""
    effects: Sequence[tuple[Source, Reading]] = ()


_Span = tuple[int, int]
"""The first and the last of consecutive steps."""


def settle(counted: Counted) -> Ended:
    """Drop the steps that have not ended, and number the others from 1 without gaps.

    A step takes its number when it begins. If its own block has not ended, one of these holds:

    - Python knows that the step is under way.
    - The row of its block was lost. If no other block lacks steps, and it lacks as many as have no
      block, these steps are its own; else nothing is concluded from missing rows.
    - The step may still be under way in a program, because it is later than all ended steps.
    - An error ended the step, and nothing that it ran counts.
    """
    blocks = list(counted.blocks.values())
    own = [run for key, reading in blocks if key.step for run in reading.runs.get(0, ())]
    running = [
        number for number in counted.under_way if not any(number in run.steps for run in own)
    ]
    missing = _missing([*own, *(Run(number, 1, 1) for number in running)], counted.steps)
    short = [place for place, (key, reading) in enumerate(blocks) if key.step and reading.lost]
    unknown = None
    if short:
        key, reading = blocks[short[0]]
        runs = [Run(first, 1, last - first + 1) for first, last in missing]
        if len(short) == 1 and sum(run.total for run in runs) == reading.lost:
            found = union([*reading.runs.get(0, ()), *runs])
            blocks[short[0]] = key, reading._replace(runs={**reading.runs, 0: found}, lost=0)
        elif missing:
            unknown = missing[0][0], missing[-1][1]
        missing = []  # nothing else is concluded from missing rows
    if any(reading.lost for _, reading in blocks):
        unknown = unknown or (1, counted.steps)
    last_ended = max((run.last for run in own), default=0)
    stopped = [span for span in missing if counted.calm or span[0] <= last_ended]
    number = sum(last - first + 1 for first, last in stopped)
    ended = Ended(counted.steps, blocks, number, unknown, list((counted.effects or {}).items()))
    return _renumbered(ended, sorted([*missing, *((number, number) for number in running)]))


def _missing(own: Sequence[Run], steps: int) -> list[_Span]:
    """The spans of steps that are in none of these runs.

    Steps have distinct numbers. So if as many have ended as the last number says, all before it
    have. Otherwise each step of each run is examined.
    """
    ended = sum(run.total for run in own)
    if ended == max((run.last for run in own), default=0):
        return [(ended + 1, steps)] if ended < steps else []
    runs = [(run, (1,)) for run in own]
    return [(low, high) for low, high, (ran,) in Timeline(runs, steps, 1).spans() if not ran]


def _renumbered(ended: Ended, gone: Sequence[_Span]) -> Ended:
    """Remove the steps `gone` (sorted spans) and renumber the others."""
    if not gone:
        return ended
    kept: list[tuple[int, int, int]] = []  # spans that stay, with their shift
    number, shift = 1, 0
    for first, last in gone:
        if number < first:
            kept.append((number, first - 1, shift))
        number, shift = last + 1, shift + last - first + 1
    kept.append((number, max(ended.steps, number), shift))

    def moved(run: Run) -> Iterator[Run]:
        nearest = max(0, bisect_right(kept, run.first, key=itemgetter(0)) - 1)
        for first, last, by in kept[nearest:]:
            if first > run.last:
                return
            part = run.intersect(range(first, last + 1), -by)
            if part is not None:
                yield part

    def read(reading: Reading) -> Reading:
        every = {
            flags: join(part for run in runs for part in moved(run))
            for flags, runs in reading.runs.items()
        }
        return reading._replace(runs={flags: runs for flags, runs in every.items() if runs})

    lost = ended.lost
    if lost is not None:
        lost = min(lost[0], ended.steps - shift) or 1, max(1, lost[1] - shift)
    return ended._replace(
        steps=ended.steps - shift,
        blocks=[(key, read(reading)) for key, reading in ended.blocks],
        lost=lost,
        effects=[(key, read(reading)) for key, reading in ended.effects],
    )


def blocks_of(
    root: int,
    sites: Sequence[Site],
    replicas: Mapping[int, Ended],
    methods: Mapping[str, int],
    indices: Mapping[int, int],
) -> tuple[list[Block], list[str]]:
    """Return the blocks of a trace, and notes for replicas where something is not known.

    `sites` maps the site numbers of blocks; `replicas` has the counts of each replica; `methods`
    and `indices` map methods and replicas to their indices in the trace.
    """
    blocks: list[Block] = []
    notes: list[str] = []
    for replica, ended in sorted(replicas.items()):
        index = indices[replica]
        free = ended.steps
        for key, reading in ended.blocks:
            free -= sum(run.total for run in reading.runs.get(0, ()) if key.step)
        mine: list[Block] = []
        for key, reading in ended.blocks:
            own = min(reading.lost, max(0, free)) if key.step else 0
            free -= own
            ran = tuple(sites[number] for number in key.sites)
            mine += _blocks(root, index, key, ran, reading, own, methods)
        if ended.lost is not None and free > 0:  # steps whose own blocks are all lost
            mine.append(Block(root, index, "graph", "", True, (), free, ()))
        blocks += mine
        if any(block.step_unknown for block in mine if not block.outside) and ended.lost:
            first, last = ended.lost
            notes.append(
                f"on replica {replica}, details of some steps from {first} to {last} were lost (a "
                "function ran more steps in one call than are kept): the totals are exact, but the "
                "step of some updates is unknown"
            )
        if ended.stopped:
            notes.append(
                f"on replica {replica}, {some(ended.stopped, 'step')} ended with an error: updates "
                "before the error are not counted"
            )
    return blocks, notes


def _blocks(
    root: int,
    replica: int,
    key: CountedBlock,
    sites: Sequence[Site],
    reading: Reading,
    lost_steps: int,
    methods: Mapping[str, int],
) -> Iterator[Block]:
    """Divide the counts of a block by how it ran: as a step, in a step, in no step.

    What was lost ran as the rest did.
    """
    lost = {0: lost_steps} if lost_steps else {}
    if reading.lost > lost_steps:
        placed = [flags for flags in reading.runs if flags or not key.step]
        lost[max(placed, default=WITHIN)] = reading.lost - lost_steps
    parts = [(flags, True) for flags in sorted({*reading.runs, *lost})]
    parts += [(flags, False) for flags in sorted(reading.outside)]
    for flags, inside in parts or [(0 if key.step else WITHIN, True)]:
        runs = tuple(reading.runs.get(flags, ())) if inside else ()
        ran = _as_ran(sites, key.step and not flags, flags)
        placed_total = sum(run.total for run in runs) + lost.get(flags, 0)
        yield Block(
            root=root,
            replica=replica,
            context="graph" if key.function else "eager",
            function=key.function,
            step=key.step and inside and not flags,
            entries=tuple(
                Entry(site.optimizer, methods[site.method], site.role, site.kind, variables, count)
                for site, variables, count in _put_together(Counter(ran).items())
            ),
            total=placed_total if inside else reading.outside[flags],
            runs=runs,
            outside=not inside,
            path=key.path,
        )


def _as_ran(sites: Iterable[Site], own_step: bool, flags: int) -> Iterator[Site]:
    """Yield the sites with their roles as executed: inside another step, or by an apply method.

    Only the outermost step gets requests, and only an outermost execution is an update.
    """
    for site in sites:
        if site.role == "request" and not own_step:
            continue
        if site.role in ("update", "discarded") and flags & APPLYING:
            yield site._replace(role="apply")
        else:
            yield site


def calls_of(
    root: int,
    calls: Mapping[tuple[Site, int | None], Sequence[int]],
    methods: Mapping[str, int],
    replicas: Mapping[int, int],
) -> Iterator[Block]:
    """Yield the call counts of a trace, from the counts of each site and path.

    Variables with equal counts share a block.
    """
    counts: Counter[tuple[Site, int | None, str]] = Counter()
    for (site, path), numbers in calls.items():
        if site.role != "request":
            for context, number in zip(("eager", "tracing"), numbers, strict=True):
                counts[site._replace(role="step"), path, context] += number  # inner calls, too
    rows = ((*key, number) for key, number in counts.items())
    for site, variables, path, context, number in _put_together(rows):
        entry = Entry(site.optimizer, methods[site.method], "call", site.kind, variables)
        place = root, replicas[site.replica], context
        yield Block(*place, "", False, (entry,), number, (), path=path)


def _put_together(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Combine rows that differ only in the variable of their site, the first column.

    Yields one of the sites, the variables, and the other columns.
    """
    groups: dict[tuple[Any, ...], tuple[Site, list[int]]] = {}
    for site, *others in rows:
        key = site.optimizer, site.method, site.role, site.kind, site.replica, *others
        group = groups.get(key)
        if group is None:
            group = groups[key] = site, []
        if site.variable is not None:
            group[1].append(site.variable)
    for key, (site, variables) in groups.items():
        yield site, tuple(sorted(variables)), *key[5:]


def graphs_of(
    root: int,
    now: Sequence[Graph],
    before: Sequence[Graph],
    past: Mapping[int, int],
    replicas: Mapping[int, int],
) -> Iterator[Graph]:
    """Yield the graphs of a trace: the figures of all tracings `now`, minus those `before`.

    Tracings of one function and signature on a replica are one graph. `past` has the steps of each
    replica before.
    """
    new = [
        replace(graph, tracings=0, idle=0, failed=0, steps=graph.steps - old.steps)
        for graph, old in zip(now, before, strict=False)
    ]
    alike: dict[tuple[str, str, int], list[Graph]] = {}
    for graph in (*new, *now[len(before) :]):
        if graph.tracings or graph.steps:
            key = graph.function, graph.signature, graph.replica
            alike.setdefault(key, []).append(graph)
    for (*_, replica), same in alike.items():
        yield replace(
            same[0],
            root=root,
            replica=replicas[replica],
            tracings=sum(graph.tracings for graph in same),
            idle=sum(graph.idle for graph in same),
            steps=sum(graph.steps for graph in same),
            after=max(0, min(graph.after for graph in same) - past.get(replica, 0)),
            failed=sum(graph.failed for graph in same),
        )


def effects_of(
    root: int, replicas: Mapping[int, Ended], indices: Mapping[int, int]
) -> Iterator[Block]:
    """Yield the effects of a trace; variables with the same effects share a block."""
    for replica, ended in sorted(replicas.items()):
        seen: dict[tuple[Observation, int], list[Reading]] = defaultdict(list)
        for source, reading in ended.effects:
            for variable in source.variables:
                seen[source.what, variable].append(reading)
        alike: dict[tuple[Observation, int, tuple[Run, ...]], list[int]] = defaultdict(list)
        for (what, variable), readings in seen.items():
            runs = readings[0].runs.get(0, ())
            if len(readings) > 1:
                runs = union(run for each in readings for run in each.runs.get(0, ()))
            total = sum(run.total for run in runs) + sum(each.lost for each in readings)
            alike[what, total, tuple(runs)].append(variable)
        for (what, total, steps), same in alike.items():
            entry = Entry(root, 0, what, None, tuple(sorted(same)))
            yield Block(root, indices[replica], "eager", "", False, (entry,), total, steps)


def not_compared(counted: Counted) -> int:
    """How many ended steps compared no variable, as far as is known by step; 0 without effects."""
    if counted.effects is None:
        return 0
    blocks = counted.blocks.values()
    own = [each for key, each in blocks if key.step and key.function != SESSION_GRAPH]
    ended = sum(each.lost + sum(run.total for run in each.runs.get(0, ())) for each in own)
    compared = union(
        run
        for source, reading in counted.effects.items()
        if source.what == "compared" and source.variables
        for run in reading.runs.get(0, ())
    )
    return max(0, ended - sum(run.count for run in compared))
