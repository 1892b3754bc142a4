"""What two traces did not execute equally often: each method on each variable, for snapshots.

What is the same in both, `matching` says. Python calls do not count here: for people, `compare` has
what differs in all. No TensorFlow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tracer.model.labels import replica_names
from tracer.model.matching import Pair, matched, short_class, variables_by_name
from tracer.model.names import free_name
from tracer.model.records import Block, Entry, Kind
from tracer.model.runs import Run, segments
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace


class Work(NamedTuple):
    """What executions have in common: a method on a variable, with a kind, on a replica."""

    optimizer: str
    """The class of the optimizer; empty if there is only one."""
    method: str
    variable: str | None
    """The name in the first trace, if it is in both; None for a step method."""
    kind: Kind | None
    replica: str
    """Empty if there is only one."""


class Executed(NamedTuple):
    """How often something was executed."""

    steps: tuple[tuple[int, int, int], ...]
    """First step, last step, and the count in each, where it is not 0."""
    outside: int
    """Outside any step."""


def executions(
    before: Trace, after: Trace
) -> Iterator[tuple[Work, Executed | None, Executed | None]]:
    """What was not executed equally often in the same steps; None where a trace does not have it.

    Python calls do not count, nor how the work was spread over graphs. What belongs together is
    `matched`, and has the names that it has in the first trace.
    """
    pair_of = {id(pair.after): pair for pair in matched(before, after).pairs}
    name_of = {id(each): name for each, name in _optimizer_names(before, after, pair_of.values())}
    counts_before: dict[Work, Executed] = {}
    replicas = _replica_names(before, after)
    for summary in summaries_of(before):
        variables = {index: name for name, index in variables_by_name(summary).items()}
        counts_before.update(_executed(summary, name_of[id(summary)], variables, replicas))
    counts_after: dict[Work, Executed] = {}
    replicas = _replica_names(after, before)
    for summary in summaries_of(after):
        variables = _names_before(summary, pair_of.get(id(summary)))
        counts_after.update(_executed(summary, name_of[id(summary)], variables, replicas))
    for work in dict.fromkeys((*counts_before, *counts_after)):
        executed, executed_after = counts_before.get(work), counts_after.get(work)
        if executed != executed_after:
            yield work, executed, executed_after


def _optimizer_names(
    before: Trace, after: Trace, pairs: Iterable[Pair]
) -> Iterator[tuple[Summary, str]]:
    """What each optimizer is called: by its class, where one of the traces has several.

    The partner of an optimizer of the first trace has its name, if it is of the same class.
    """
    ours, theirs = summaries_of(before), summaries_of(after)
    if max(len(ours), len(theirs)) <= 1:
        yield from ((each, "") for each in (*ours, *theirs))
        return
    partner_of = {id(pair.after): pair.before for pair in pairs}
    taken: set[str] = set()
    names = {id(each): free_name(short_class(each), taken) for each in ours}
    for summary in ours:
        yield summary, names[id(summary)]
    for summary in theirs:
        partner = partner_of.get(id(summary))
        if partner is not None and short_class(partner) == short_class(summary):
            yield summary, names[id(partner)]
        else:
            yield summary, free_name(short_class(summary), taken)


def _names_before(summary: Summary, pair: Pair | None) -> dict[int, str]:
    """The names of variables of the second trace: of those that are in both, those of the first."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    if pair is not None:
        before = pair.before.trace.variables
        names = {other: before[mine].name for mine, other in pair.variables}
        taken = {before[index].name for index in pair.before.variables}
    for index in summary.variables:
        if index not in names:
            names[index] = free_name(summary.trace.variables[index].name, taken)
    return names


def _replica_names(trace: Trace, other: Trace) -> list[str]:
    several = len(trace.replicas) > 1 or len(other.replicas) > 1
    return replica_names(trace, other) if several else [""] * len(trace.replicas)


def _executed(
    summary: Summary, optimizer: str, names: dict[int, str], replicas: Sequence[str]
) -> Iterator[tuple[Work, Executed]]:
    """What was executed, by variable and method."""
    groups: list[tuple[Sequence[int], list[tuple[Block, Entry]]]] = [
        (pattern.variables, list(pattern.cells)) for pattern in summary.patterns
    ]
    without = [(b, entry) for b in summary.blocks for entry in b.entries if not entry.variables]
    groups.append(((-1,), without))
    known: dict[_Weighted, Executed] = {}
    rows: list[tuple[tuple[int, int, str, int], Work, Executed]] = []
    for variables, entries in groups:
        for (method, kind, replica), weighted in _by_work(entries).items():
            if weighted not in known:
                known[weighted] = _placed(weighted, summary.steps)
            for index in variables:
                name = summary.trace.methods[method].name
                work = Work(optimizer, name, names.get(index), kind, replicas[replica])
                rows.append(((index, method, str(kind), replica), work, known[weighted]))
    for _, work, executed in sorted(rows, key=lambda row: row[0]):
        yield work, executed


class _Weighted(NamedTuple):
    """In which steps, and how often outside any."""

    runs: tuple[tuple[Run, int], ...]
    outside: int


def _by_work(
    entries: Iterable[tuple[Block, Entry]],
) -> dict[tuple[int, Kind | None, int], _Weighted]:
    """What was executed by method, kind and replica."""
    runs: dict[tuple[int, Kind | None, int], list[tuple[Run, int]]] = {}
    outside: Counter[tuple[int, Kind | None, int]] = Counter()
    for block, entry in entries:
        if entry.role != "request" and block.total:
            key = (entry.method, entry.kind, block.replica)
            runs.setdefault(key, []).extend((run, entry.times * run.times) for run in block.runs)
            if block.outside:
                outside[key] += block.total * entry.times
    return {key: _Weighted(tuple(weighted), outside[key]) for key, weighted in runs.items()}


def _placed(weighted: _Weighted, steps: int) -> Executed:
    spans = segments(weighted.runs, steps)
    return Executed(tuple(span for span in spans if span[2]), weighted.outside)
