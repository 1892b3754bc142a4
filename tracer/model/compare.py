"""What is different between two traces, in all or each execution; what is the same: `matching`.

`differences` are for people: steps, variables, step runs and methods in all. `executions` are for
snapshots, which compare each method on each variable. No TensorFlow.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from tracer.model import callers, measures
from tracer.model.labels import replica_names, replica_noun, steps_label
from tracer.model.matching import Pair, class_name, kind, matched, short_class
from tracer.model.records import Block, Entry, Line, Observation, Role, Variable
from tracer.model.runs import Run
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Timeline, Values
from tracer.model.trace import Trace
from tracer.model.wording import some

T = TypeVar("T")

_FEW = 3
"""The stretches of steps that are named for a variable."""


@dataclass(frozen=True)
class Change:
    """A count that is not the same, with where it differs; None where there is no such thing."""

    name: str
    before: int | None
    after: int | None
    where: str = ""

    def __bool__(self) -> bool:
        return self.before != self.after or bool(self.where)


@dataclass
class Difference:
    """How two optimizers' traces differ; without a change in it they count the same.

    Which lines the updates come from is told, too, and is no difference.
    """

    title: str
    same: list[str] = field(default_factory=list)
    """What is the same, in words: `8 steps`, `4 updates a step`."""
    only: list[str] = field(default_factory=list)
    """What is there in one of the two only, in words."""
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[str] = field(default_factory=list)
    """Variables of one name that have another shape, in words; that is no difference in counts."""
    steps: list[Change] = field(default_factory=list)
    """By replica."""
    variables: list[Change] = field(default_factory=list)
    unchanged: list[Change] = field(default_factory=list)
    """After how many steps each variable was what it had been, if both traces know that."""
    not_finite: list[Change] = field(default_factory=list)
    """After how many it held inf or NaN."""
    runs: list[Change] = field(default_factory=list)
    """Updates in steps, equal neighbours together."""
    methods: list[Change] = field(default_factory=list)
    callers: list[Change] = field(default_factory=list)
    """Updates by the lines of the program that lead to them, where they come from other ones."""
    shifted: list[tuple[str, str]] = field(default_factory=list)
    """Lines of the program that have another number, and lead to the same."""
    several: str = ""
    """What is counted in a step is that of several of these together: replicas, or ranks."""
    noun: str = "variable"
    """What the users of the optimizer call what it updates."""

    def __bool__(self) -> bool:
        effects = self.unchanged or self.not_finite
        return any((self.only, self.steps, self.variables, effects, self.runs, self.methods))


def differences(before: Trace, after: Trace) -> list[Difference]:
    """How each optimizer of the one trace differs from that of the other: see `matched`."""
    pairs, only_before, only_after = matched(before, after)
    return [*map(_difference, pairs), *_alone(only_before, "first"), *_alone(only_after, "second")]


def executions(before: Trace, after: Trace) -> list[Difference]:
    """What was not executed equally often in the same steps, as `methods` of each optimizer.

    It is each method on each variable, by kind and replica. Python calls do not count, nor how the
    work was spread over graphs.
    """
    pairs, *alone = matched(before, after)
    several = len(pairs) + sum(map(len, alone)) > 1
    found = [
        Difference(
            _title(pair),
            only=list(_classes(pair, short_class)) if several else [],
            renamed=pair.renamed,
            reshaped=_reshaped(pair),
            methods=list(_executions(pair)),
        )
        for pair in pairs
    ]
    only_before, only_after = (
        [each for each in those if any(block.total for block in each.blocks)] for those in alone
    )
    return [*found, *_alone(only_before, "first"), *_alone(only_after, "second")]


def _alone(those: Iterable[Summary], which: str) -> Iterator[Difference]:
    for single in those:
        only = f"the optimizer {class_name(single)} is only in the {which} trace"
        yield Difference(single.optimizers[0].name, only=[only])


def _several(summary: Summary) -> str:
    return f"{replica_noun(summary.trace)}s" if len(summary.replicas) > 1 else ""


def _difference(pair: Pair) -> Difference:
    before, after = pair.before, pair.after
    calls, shifted = _callers(before, after)
    steps, variables = list(_steps(before, after)), list(_variables(pair))
    return Difference(
        _title(pair),
        same=list(_same(pair, steps, variables)),
        only=list(_only(pair)),
        renamed=pair.renamed,
        reshaped=_reshaped(pair),
        steps=steps,
        variables=variables,
        unchanged=list(_effects(pair, "unchanged")),
        not_finite=list(_effects(pair, "not_finite")),
        runs=list(_runs(before, after)),
        methods=list(_methods(before, after)),
        callers=calls,
        shifted=shifted,
        several=_several(before) or _several(after),
        noun=before.dialect.variable,
    )


def _title(pair: Pair) -> str:
    return " and ".join(
        dict.fromkeys(each.optimizers[0].name for each in (pair.before, pair.after))
    )


def _same(pair: Pair, steps: Sequence[Change], variables: Sequence[Change]) -> Iterator[str]:
    before, after = pair.before, pair.after
    if not (before.trace.complete and after.trace.complete):
        return
    several = len(after.replicas) > 1
    each = f" on each {replica_noun(after.trace)}" if several else ""
    if not steps and after.steps:
        yield some(after.steps, "step") + (each if len({*after.steps_on.values()}) == 1 else "")
    a_step = {
        count
        for summary in (before, after)
        for replica in summary.replicas
        for (count,) in summary.spread(measures.updates, replica=replica)
    }
    if len(a_step) == 1 and a_step != {0}:
        yield f"{some(a_step.pop(), 'update')} a step{each}"
    number = len(pair.variables) - len(variables)
    if number:
        of = "" if number == len(pair.variables) else f"{number:,} of "
        yield f"the updates of {of}{some(len(pair.variables), after.dialect.variable)}"


def _reshaped(pair: Pair) -> list[str]:
    before, after = pair.before.trace.variables, pair.after.trace.variables
    return [
        f"{before[mine].name} is {list(before[mine].shape)} in the first and "
        f"{list(after[other].shape)} in the second"
        for mine, other in pair.reshaped
    ]


def _only(pair: Pair) -> Iterator[str]:
    before, after = pair.before, pair.after
    yield from _classes(pair, class_name)
    for index in pair.only_before:
        yield f"{before.trace.variables[index].name} is only in the first trace"
    for index in pair.only_after:
        yield f"{after.trace.variables[index].name} is only in the second trace"


def _classes(pair: Pair, name: Callable[[Summary], str]) -> Iterator[str]:
    before, after = name(pair.before), name(pair.after)
    if before != after:
        yield f"the class is {before} in the first and {after} in the second"


def _steps(before: Summary, after: Summary) -> Iterator[Change]:
    if not (_several(before) or _several(after)):
        yield from _changed({"in all": before.steps}, {"in all": after.steps})
        return
    counts = []
    for mine, other in ((before, after), (after, before)):
        names = replica_names(mine.trace, other.trace)
        counts.append({names[index]: mine.steps_on[index] for index in mine.replicas})
    yield from _changed(*counts)


def _changed(before: dict[str, int], after: dict[str, int]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Change(name, before.get(name), after.get(name))


def _variables(pair: Pair) -> Iterator[Change]:
    before, after = pair.before, pair.after

    def compared(mine: Pattern, its: Pattern) -> Iterator[Change]:
        totals = mine.total(measures.updates), its.total(measures.updates)
        yield Change("", *totals, _where(before, _updates(mine), after, _updates(its)))

    yield from _by_variable(pair, compared)


_Weighted = list[tuple[Run, int]]


def _updates(pattern: Pattern) -> tuple[_Weighted, _Weighted]:
    """The dense and the sparse updates of each of the variables."""
    return pattern.runs(measures.dense), pattern.runs(measures.sparse)


def _effects(pair: Pair, what: Observation) -> Iterator[Change]:
    """After which steps `what` was seen of each variable; nothing if a trace does not know it."""
    before, after = pair.before, pair.after
    if not (before.effects and after.effects):
        return

    def compared(mine: Pattern, its: Pattern) -> Iterator[Change]:
        ours, theirs = (
            [(run, 1) for effect in each.effects if effect.what == what for run in effect.runs]
            for each in (mine, its)
        )
        where = _where(before, (ours, []), after, (theirs, []))
        yield Change("", mine.observed(what), its.observed(what), where)

    yield from _by_variable(pair, compared)


def _by_variable(
    pair: Pair, compared: Callable[[Pattern, Pattern], Iterable[Change]]
) -> Iterator[Change]:
    """What differs of the variables in both; it asks once for all of two patterns."""
    of_before, of_after = _pattern_of(pair.before), _pattern_of(pair.after)
    known: dict[tuple[int, int], list[Change]] = {}
    for index, other in pair.variables:
        mine, its = of_before[index], of_after[other]
        key = (id(mine), id(its))
        if key not in known:
            known[key] = [each for each in compared(mine, its) if each]
        yield from _named(pair.after.trace.variables[other], known[key])


def _pattern_of(summary: Summary) -> dict[int, Pattern]:
    return {index: pattern for pattern in summary.patterns for index in pattern.variables}


def _named(variable: Variable, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes of what was compared, as those of the variable."""
    for change in changes:
        yield replace(change, name=", ".join(filter(None, (variable.name, change.name))))


_Cells = Iterable[tuple[Block, Entry]]


def _executions(pair: Pair) -> Iterator[Change]:
    """The executions of each step method, and of the other methods on each variable."""
    before, after = pair.before, pair.after

    def compared(mine: _Cells, its: _Cells) -> Iterator[Change]:
        works = _works(before, after.trace, mine), _works(after, before.trace, its)
        for work in dict.fromkeys((*works[0], *works[1])):
            ours, theirs = (each.get(work, []) for each in works)
            total, total_after = (
                sum(block.total * times for block, times in each) for each in (ours, theirs)
            )
            runs, runs_after = (
                [(run, times) for block, times in each for run in block.runs]
                for each in (ours, theirs)
            )
            where = _where(before, (runs, []), after, (runs_after, []))
            yield Change(work, total, total_after, where)

    yield from filter(None, compared(_of_step_methods(before), _of_step_methods(after)))
    yield from _by_variable(pair, lambda mine, its: compared(mine.cells, its.cells))
    of_before, of_after = _pattern_of(before), _pattern_of(after)
    for index in pair.only_before:
        yield from _named(before.trace.variables[index], compared(of_before[index].cells, ()))
    for index in pair.only_after:
        yield from _named(after.trace.variables[index], compared((), of_after[index].cells))


def _of_step_methods(summary: Summary) -> _Cells:
    return ((block, e) for block in summary.blocks for e in block.entries if not e.variables)


def _works(summary: Summary, other: Trace, cells: _Cells) -> dict[str, list[tuple[Block, int]]]:
    """What ran by method, kind and replica: `update_step (dense), replica 1`."""
    trace = summary.trace
    several = len(trace.replicas) > 1 or len(other.replicas) > 1
    names = [f", {name}" * several for name in replica_names(trace, other)]
    works: dict[str, list[tuple[Block, int]]] = {}
    for block, entry in cells:
        if entry.role != "request" and block.total:
            kind = f" ({entry.kind})" if entry.kind else ""
            work = f"{trace.methods[entry.method].name}{kind}{names[block.replica]}"
            works.setdefault(work, []).append((block, entry.times))
    return works


class _Step(NamedTuple):
    """The updates in one step of each trace."""

    dense_before: int = 0
    sparse_before: int = 0
    dense_after: int = 0
    sparse_after: int = 0

    @property
    def before(self) -> int:
        return self.dense_before + self.sparse_before

    @property
    def after(self) -> int:
        return self.dense_after + self.sparse_after


def _where(
    before: Summary,
    mine: tuple[_Weighted, _Weighted],
    after: Summary,
    its: tuple[_Weighted, _Weighted],
) -> str:
    return "" if mine == its else _some(list(_differing(before, mine, after, its)))


def _differing(
    before: Summary,
    mine: tuple[_Weighted, _Weighted],
    after: Summary,
    its: tuple[_Weighted, _Weighted],
) -> Iterator[Change]:
    """The steps in which dense or sparse updates differ."""
    weighted: list[tuple[Run, Values]] = [
        (run, tuple(times * (place == each) for each in range(4)))
        for place, runs in enumerate((*mine, *its))
        for run, times in runs
    ]
    timeline = Timeline.of(weighted, max(before.steps, after.steps), len(_Step._fields))
    yield from _differing_in(timeline, before.steps, after.steps)


def _differing_in(timeline: Timeline, steps_before: int, steps_after: int) -> Iterator[Change]:
    for steps, counts in timeline.parts():
        step = _Step(*counts)
        if step[:2] != step[2:]:
            kinds = ""
            if step.before == step.after:
                kinds = (
                    f"dense {step.dense_before} to {step.dense_after}, "
                    f"sparse {step.sparse_before} to {step.sparse_after}"
                )
            count_before = None if steps.first > steps_before else step.before
            count_after = None if steps.first > steps_after else step.after
            yield Change(steps_label(steps), count_before, count_after, kinds)


def _some(changes: Sequence[Change]) -> str:
    parts = [_words(each) for each in changes[:_FEW]]
    rest = len(changes) - len(parts)
    return "; ".join([*parts, f"and {rest} more"] if rest else parts)


def _words(change: Change) -> str:
    """`0 to 2 in step 33`; `2 in steps 34-60, which only the first trace has`."""
    steps = f"in {'step' if change.name.replace(',', '').isdecimal() else 'steps'} {change.name}"
    if change.after is None:
        return f"{change.before:,} {steps}, which only the first trace has"
    if change.before is None:
        return f"{change.after:,} {steps}, which only the second trace has"
    return f"{change.where or f'{change.before:,} to {change.after:,}'} {steps}"


def _runs(before: Summary, after: Summary) -> Iterator[Change]:
    return _differing(before, _all_updates(before), after, _all_updates(after))


def _all_updates(summary: Summary) -> tuple[_Weighted, _Weighted]:
    """The dense and the sparse updates of all variables in steps."""
    inside = [block for block in summary.blocks if not block.outside]
    dense, sparse = (
        [(run, times) for block in inside if (times := measure(block)) for run in block.runs]
        for measure in (measures.dense, measures.sparse)
    )
    return dense, sparse


def _methods(before: Summary, after: Summary) -> Iterator[Change]:
    """The counts of each method; of two kinds of optimizers those that update count together."""
    labels = _by_role(before, after) if kind(before) != kind(after) else {}
    yield from _changed(_method_counts(before, labels), _method_counts(after, labels))


def _by_role(before: Summary, after: Summary) -> dict[str, str]:
    """One label for the methods that update and that one kind alone has.

    A step method that one kind alone has is part of the other one: it is left out, with no label.
    """
    mine, its = _methods_of("update", before), _methods_of("update", after)
    own = mine - its, its - mine
    label = " = ".join(", ".join(sorted(names)) for names in own)
    labels = dict.fromkeys(own[0] | own[1], label) if all(own) else {}
    return labels | dict.fromkeys(_methods_of("step", before) ^ _methods_of("step", after), "")


def _methods_of(role: Role, summary: Summary) -> set[str]:
    methods = {e.method for block in summary.blocks for e in block.entries if e.role == role}
    return {summary.trace.methods[index].name for index in methods}


def _method_counts(summary: Summary, labels: Mapping[str, str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for index in summary.methods:
        name = summary.trace.methods[index].name
        label = labels.get(name, name)
        if not label:
            continue
        eager, tracing = summary.calls(index)
        counts[f"{label}: executions"] += summary.total(measures.of_methods([index]))
        counts[f"{label}: eager calls"] += eager
        counts[f"{label}: calls while tracing"] += tracing
    return counts


Path = tuple[Line, ...]
"""The lines of the program on a path; none for one that is not known."""


def _callers(before: Summary, after: Summary) -> tuple[list[Change], list[tuple[str, str]]]:
    """The lines that lead to other updates than before, and those that have moved.

    Nothing if a trace knows no callers.
    """
    if not (before.trace.data.paths and after.trace.data.paths):
        return [], []
    counts, counts_after = _updates_by_path(before), _updates_by_path(after)
    changed = [
        path
        for path in dict.fromkeys((*counts, *counts_after))
        if counts.get(path) != counts_after.get(path)
    ]
    shifted: dict[tuple[str, str], None] = {}
    rest: list[Path] = []
    for paths in _by_functions(changed).values():
        gone = [path for path in paths if path in counts]
        come = [path for path in paths if path in counts_after]
        if [counts[path] for path in gone] == [counts_after[path] for path in come]:
            for old, new in zip(gone, come, strict=True):
                for line, other in zip(old, new, strict=True):
                    if line != other:
                        shifted[callers.label(line), callers.label(other)] = None
        else:
            rest += paths
    begin, end = _shared(rest), _shared([path[::-1] for path in rest])
    changes = [
        Change(_inner(path, begin, end), counts.get(path), counts_after.get(path)) for path in rest
    ]
    return changes, list(shifted)


def _updates_by_path(summary: Summary) -> dict[Path, int]:
    """The updates by the lines of the program that lead to them, in the order of the lines."""
    data = summary.trace.data
    counts: Counter[Path] = Counter()
    for block in summary.by_path():
        if number := measures.updates(block) * block.total:
            path = () if block.path is None else data.paths[block.path]
            counts[tuple(line for index in path if (line := data.lines[index]).file)] += number
    return {path: counts[path] for path in sorted(counts, key=_place)}


def _place(path: Path) -> tuple[tuple[str, int], ...]:
    return tuple((line.file, line.number) for line in path)


def _by_functions(paths: Iterable[Path]) -> dict[tuple[tuple[str, str], ...], list[Path]]:
    """The paths, those together that differ in the numbers of their lines alone."""
    alike: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for path in paths:
        alike.setdefault(tuple((line.file, line.function) for line in path), []).append(path)
    return alike


def _inner(path: Path, begin: int, end: int) -> str:
    """A path without so many lines at its begin and end, unless nothing is left."""
    if not path:
        return callers.label(callers.UNKNOWN)
    lines = path[begin : max(begin + 1, len(path) - end)] or path[-1:]
    return " > ".join(map(callers.label, lines))


def _shared(paths: Sequence[Path]) -> int:
    """With how many lines all paths that are known begin, if there are several."""
    several = [path for path in paths if path]
    number = 0
    for lines in zip(*several, strict=False):
        if len(several) == 1 or len(set(lines)) > 1:
            break
        number += 1
    return number
