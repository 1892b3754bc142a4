"""From what counters say to the blocks of a trace. No framework, no state, no locks.

What was counted changes form twice here:

- `settle`: of all steps of a replica those stay that came to an end, numbered from 1 without a gap.
- `blocks_of` and `calls_of`: sites that differ in their variable only become one record of the
  trace, with a note where something is not known. `tracer.core.effects` has it for effects.

A step that began and did not end may still run, may have been ended by an error, or may have lost
its detail; which of these it was is decided in `settle` alone.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracer.core.call_paths import UNKNOWN
from tracer.core.counters import Counted, CountedBlock, Source
from tracer.core.log import Reading
from tracer.core.sites import Site
from tracer.core.stamps import APPLYING, WITHIN
from tracer.model.records import Block, Calls, Entry
from tracer.model.runs import Run, fold, join
from tracer.model.timeline import segments, union


class Ended(NamedTuple):
    """What was counted on a replica, its steps those that came to an end, numbered from 1."""

    steps: int
    blocks: Sequence[tuple[CountedBlock, Reading]]
    raised: Sequence[int] = ()
    """The steps of which something ran although they were ended by an error."""
    stopped: int = 0
    """How many more steps an error ended, of which nothing that is counted ran."""
    lost: tuple[int, int] | None = None
    """The first and the last of the steps of which detail was lost."""
    effects: Sequence[tuple[Source, Reading]] = ()
    torn: int = 0
    """How many steps an error of TensorFlow ended in eager mode, perhaps in a function."""


_OWN = 1 << 40
"""What a step's own block weighs beside what runs in it, which is less often."""


def settle(begun: Counted) -> Ended:
    """Leave out the steps that have not ended, and number the others from 1 without a gap.

    A step takes its number when it begins. It is missing among those that ended if it is still
    under way, if an error ended it, or if the detail of the block that it ran was lost.
    """
    return _settled(begun)._replace(torn=len(begun.torn))


def _settled(begun: Counted) -> Ended:
    hollow = set(begun.empty)
    if hollow:
        hollow -= _ran_in((run for run, _ in _inside(begun.blocks.values())), sorted(hollow))
    blocks = [_without_steps(block, hollow) for block in begun.blocks.values()]
    own = [(run, _OWN) for key, reading in blocks if key.step for run in reading.runs.get(0, ())]
    missing = _missing(own, _inside(blocks), begun.steps)
    lost = any(reading.lost for _, reading in blocks)
    effects = list(begun.effects.items())
    if not missing:
        span = (1, begun.steps) if lost else None
        return Ended(begun.steps, blocks, lost=span, effects=effects)
    short = [index for index, (key, reading) in enumerate(blocks) if key.step and reading.lost]
    known = {*begun.under_way, *hollow}
    if short:
        free = _without([(first, last) for first, last, _ in missing], known)
        if len(short) == 1:
            key, reading = blocks[short[0]]
            ran = [Run(first, 1, last - first + 1) for first, last in free]
            if sum(run.count for run in ran) == reading.lost:
                runs = union([*reading.runs.get(0, ()), *ran])
                blocks[short[0]] = key, reading._replace(runs={**reading.runs, 0: runs}, lost=0)
                return _settled(begun._replace(blocks=dict(enumerate(blocks))))
        gone = [(number, number) for number in sorted(known)]
        span = (free[0][0], free[-1][1]) if free else (1, begun.steps)
        return _numbered(begun.steps, blocks, gone, Ended(0, (), lost=span, effects=effects))
    last_ended = max((run.last for run, _ in own), default=0)
    raised: list[int] = []
    gone, stopped = [], 0
    for first, last, count in missing:
        for low, high in _without([(first, last)], known):
            if not begun.calm and low > last_ended:
                gone.append((low, high))
            elif count:
                raised += range(low, high + 1)
            else:
                gone.append((low, high))
                stopped += high - low + 1
        gone += [(number, number) for number in sorted(known) if first <= number <= last]
    gone.sort()
    lost_in = (1, begun.steps) if lost else None
    ended = Ended(0, (), raised, stopped, lost_in, effects)
    return _numbered(begun.steps, blocks, gone, ended)


def _inside(blocks: Iterable[tuple[CountedBlock, Reading]]) -> list[tuple[Run, int]]:
    """What ran as a part of a step."""
    return [
        (run, 1)
        for key, reading in blocks
        for flags, runs in reading.runs.items()
        for run in runs
        if flags or not key.step
    ]


def _ran_in(runs: Iterable[Run], numbers: Sequence[int]) -> set[int]:
    """Those of the numbers, which rise, that are in one of the runs."""
    found: set[int] = set()
    for run in runs:
        near = numbers[bisect_left(numbers, run.first) : bisect_right(numbers, run.last)]
        found.update(number for number in near if (number - run.first) % run.stride == 0)
    return found


def _without_steps(
    block: tuple[CountedBlock, Reading], numbers: Collection[int]
) -> tuple[CountedBlock, Reading]:
    """A block without some of the steps that it was."""
    key, reading = block
    if not (numbers and key.step and 0 in reading.runs):
        return block
    left = [
        kept
        for run in reading.runs[0]
        for first, last in _without([(run.first, run.last)], numbers)
        if (kept := run.only(range(first, last + 1))) is not None
    ]
    return key, reading._replace(runs={**reading.runs, 0: left})


def _missing(
    own: Sequence[tuple[Run, int]], inside: Sequence[tuple[Run, int]], steps: int
) -> list[tuple[int, int, int]]:
    """The steps of which no block of their own ended: `(first, last, what else ran in each)`.

    No two blocks of their own have one number, so where as many ended as the last one says, all
    before it did. To find the others each step of each run is looked at.
    """
    ended = sum(run.total for run, _ in own)
    if ended == steps:
        return []
    if ended == max((run.last for run, _ in own), default=0):
        later = [
            (later_run, weight)
            for run, weight in inside
            if (later_run := run.only(range(ended + 1, steps + 1)))
        ]
        parts = segments(later, steps)
        return [
            (max(first, ended + 1), last, count) for first, last, count in parts if last > ended
        ]
    parts = segments([*own, *inside], steps)
    return [(first, last, count) for first, last, count in parts if count < _OWN]


def _without(spans: Sequence[tuple[int, int]], numbers: Collection[int]) -> list[tuple[int, int]]:
    """The spans, first and last, without some numbers."""
    left: list[tuple[int, int]] = []
    for first, last in spans:
        for number in sorted(each for each in numbers if first <= each <= last):
            if number > first:
                left.append((first, number - 1))
            first = number + 1
        if first <= last:
            left.append((first, last))
    return left


def _numbered(
    steps: int,
    blocks: Sequence[tuple[CountedBlock, Reading]],
    gone: Sequence[tuple[int, int]],
    ended: Ended,
) -> Ended:
    """`ended` with what ran, without the steps `gone`, which are spans in rising order."""
    if not gone:
        return ended._replace(steps=steps, blocks=blocks)
    kept, number, shift = [], 1, 0  # spans that stay, with how far they move
    for first, last in gone:
        if number < first:
            kept.append((number, first - 1, shift))
        number, shift = last + 1, shift + last - first + 1
    kept.append((number, max(steps, number), shift))
    starts = [first for first, _, _ in kept]

    def moved(run: Run) -> Iterator[Run]:
        index = max(0, bisect_right(starts, run.first) - 1)
        for first, last, by in kept[index:]:
            if first > run.last:
                return
            kept_run = run.only(range(first, last + 1))
            if kept_run is not None:
                yield kept_run.moved(-by)

    def read(reading: Reading) -> Reading:
        runs = {
            flags: join(moved_run for run in kept_runs for moved_run in moved(run))
            for flags, kept_runs in reading.runs.items()
        }
        return reading._replace(
            runs={flags: kept_runs for flags, kept_runs in runs.items() if kept_runs}
        )

    raised = [number for each in ended.raised for number in _places(moved, each)]
    span = ended.lost
    if span is not None:
        span = (min(span[0], steps - shift) or 1, max(1, span[1] - shift))
    return ended._replace(
        steps=steps - shift,
        blocks=[(key, read(reading)) for key, reading in blocks],
        raised=raised,
        lost=span,
        effects=[(key, read(reading)) for key, reading in ended.effects],
    )


def _places(moved: Callable[[Run], Iterator[Run]], number: int) -> Iterator[int]:
    return (run.first for run in moved(Run(number, 1, 1)))


def blocks_of(
    root: int,
    sites: Sequence[Site],
    replicas: Mapping[int, Ended],
    methods: Mapping[str, int],
    indices: Mapping[int, int],
    nested: bool = False,
) -> tuple[list[Block], list[str]]:
    """The blocks of a trace, and a note for each replica where something is not known.

    `sites` are those of the numbers that blocks have; `replicas` has what was counted on each;
    `methods` and `indices`, of the replicas, are the indices in the trace. `nested` says that an
    apply method called functions with blocks in them: then lost executions may be parts of an
    update, and count as no update of their own.
    """
    blocks: list[Block] = []
    notes: list[str] = []
    for replica, ended in sorted(replicas.items()):
        index = indices[replica]
        free = ended.steps - len(ended.raised)
        for key, reading in ended.blocks:
            free -= sum(run.total for run in reading.runs.get(0, ()) if key.step)
        mine: list[Block] = []
        for key, reading in ended.blocks:
            own = min(reading.lost, max(0, free)) if key.step else 0
            free -= own
            ran = tuple(sites[number] for number in key.sites)
            mine += _blocks(root, index, key, ran, reading, own, methods, nested)
        if ended.raised:
            runs = fold((number, 1) for number in ended.raised)
            mine.append(_empty_steps(root, index, len(ended.raised), runs))
        if ended.lost is not None and free > 0:
            mine.append(_empty_steps(root, index, free, []))
        blocks += mine
        if any(block.step_unknown for block in mine if not block.outside) and ended.lost:
            notes.append(_lost(replica, ended.lost, nested and _lost_update(ended.blocks, sites)))
        if ended.stopped or ended.raised:
            notes.append(_stopped(replica, ended.stopped + len(ended.raised)))
        if ended.torn:
            notes.append(_torn(replica, ended.torn))
    return blocks, notes


def _blocks(
    root: int,
    replica: int,
    key: CountedBlock,
    sites: Sequence[Site],
    reading: Reading,
    lost_steps: int,
    methods: Mapping[str, int],
    nested: bool,
) -> Iterator[Block]:
    """What a counter says, apart by how its block ran: as a step, in one, in none."""
    graphs, idle = reading.graphs, reading.idle
    lost = {0: lost_steps} if lost_steps else {}
    if reading.lost > lost_steps:
        placed = [flags for flags in reading.runs if flags or not key.step]
        likely = placed[0] if placed else WITHIN
        lost[WITHIN | APPLYING if nested else likely] = reading.lost - lost_steps
    parts = [(flags, True) for flags in sorted({*reading.runs, *lost})]
    parts += [(flags, False) for flags in sorted(reading.outside)]
    for flags, inside in parts or [(0 if key.step else WITHIN, True)]:
        runs = tuple(reading.runs.get(flags, ())) if inside else ()
        placed_total = sum(run.total for run in runs) + lost.get(flags, 0)
        yield Block(
            root=root,
            replica=replica,
            context="graph" if key.function else "eager",
            function=key.function,
            step=key.step and inside and not flags,
            entries=_entries(_as_ran(sites, key.step and not flags, flags), methods),
            total=placed_total if inside else reading.outside[flags],
            runs=runs,
            graphs=graphs,
            idle=idle,
            outside=not inside,
            path=None if key.path == UNKNOWN else key.path,
        )
        graphs = idle = 0


def _as_ran(sites: Iterable[Site], own_step: bool, flags: int) -> Iterator[Site]:
    """The sites as they were executed: what another step asked for, or an apply method called.

    Gradients are handed to the outermost step only, and an update is an outermost execution.
    """
    for site in sites:
        if site.role == "request" and not own_step:
            continue
        if site.role in ("update", "vain", "discarded") and flags & APPLYING:
            yield site._replace(role="apply")
        else:
            yield site


def _empty_steps(root: int, replica: int, total: int, runs: Sequence[Run]) -> Block:
    """Steps of which only parts are known, which have blocks of their own."""
    return Block(root, replica, "graph", "", True, (), total, tuple(runs))


def calls_of(
    calls: Mapping[tuple[Site, int | None], Sequence[int]],
    methods: Mapping[str, int],
    replicas: Mapping[int, int],
) -> list[Calls]:
    """The call counts of a trace, from those of each site by each path.

    Variables with equal counts share a record.
    """
    counts: dict[tuple[Site, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for (site, path), (eager, tracing) in calls.items():
        if site.role != "request":
            # An outer and an inner call count alike.
            count = counts[site._replace(role="step"), path]
            count[0] += eager
            count[1] += tracing
    rows = ((site, path, *numbers) for (site, path), numbers in counts.items())
    return [
        Calls(
            site.optimizer,
            methods[site.method],
            site.kind,
            replicas[site.replica],
            variables,
            eager,
            tracing,
            path,
        )
        for site, variables, path, eager, tracing in _put_together(rows)
    ]


def _entries(sites: Iterable[Site], methods: Mapping[str, int]) -> tuple[Entry, ...]:
    """Sites that differ in their variable only become one entry."""
    return tuple(
        Entry(site.optimizer, methods[site.method], site.role, site.kind, variables, count)
        for site, variables, count in _put_together(Counter(sites).items())
    )


def _put_together(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """One row for those that differ only in the variable of their site, which comes first.

    After the site it has the variables.
    """
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for site, *others in rows:
        group = groups[(site._replace(variable=None), *others)]
        if site.variable is not None:
            group.append(site.variable)
    for (site, *others), variables in groups.items():
        yield site, tuple(sorted(variables)), *others


def _lost_update(blocks: Iterable[tuple[CountedBlock, Reading]], sites: Sequence[Site]) -> bool:
    """Whether it is lost when blocks ran that hold updates."""
    return any(
        reading.lost and any(sites[number].role == "update" for number in key.sites)
        for key, reading in blocks
    )


def _lost(replica: int, steps: tuple[int, int], role_unknown: bool) -> str:
    first, last = steps
    which = f"some steps from {first} to {last}"
    unknown = "which of these steps some updates were in is not known"
    if first == last:
        which, unknown = f"step {first}", "which updates were in this step is not known"
    exact = "the totals are exact, but"
    if role_unknown:
        exact = "the executions are exact, but whether some of them were updates of their own, and"
    return (
        f"on replica {replica} the detail of {which} was lost: {exact} {unknown} "
        "(several threads ran one function, or the steps changed too often between two readings)"
    )


def _stopped(replica: int, steps: int) -> str:
    were = "step began in a graph and was" if steps == 1 else "steps began in a graph and were"
    return (
        f"on replica {replica} {steps:,} {were} ended by an error: what had been updated by then "
        "is not counted, or not all of it"
    )


def _torn(replica: int, steps: int) -> str:
    were = (
        "step in eager mode called a function and was"
        if steps == 1
        else ("steps in eager mode called functions and were")
    )
    return (
        f"on replica {replica} {steps:,} {were} ended by an error of TensorFlow: if that was in a "
        "function, what it had updated by then is not counted, or not all of it"
    )
