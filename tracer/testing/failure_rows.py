"""The tables of a failure: the rows in which a trace differs from what is expected of it."""

import functools
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from tracer.layout import Column, Row, Table, shown
from tracer.model.dialects import dialect_of
from tracer.model.effects import OBSERVATIONS
from tracer.model.labels import replica_ids, steps_label
from tracer.model.measures import ineffective, missing, requests, updates
from tracer.model.selection import Selection
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Steps, Values
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.testing.expected import Claim, Target, Wanted, of_kinds

WIDTH = 76  # pytest indents a message by 4
MAX_NAMES = 3
"""The most names in a sentence."""

_MAX_ROWS = 30
Span = tuple[int, int]
"""The first and the last of some steps in a row."""
_Key = tuple[list[int | None], int]
"""Variables that got the same, and a replica."""


class _Counts(NamedTuple):
    """What each step did to a variable."""

    dense: int
    sparse: int
    none: int
    """Gradients that were `None`."""
    requested: int
    """Gradients that were not."""
    vain: int = 0
    """Executions that assigned nothing."""

    @property
    def executed(self) -> bool:
        return bool(self.dense or self.sparse)


class _Row(NamedTuple):
    """What some steps did to one variable, or to all of them alike, on some replicas."""

    first: int
    order: int
    name: str
    spans: tuple[Span, ...]
    counts: _Counts
    note: str


class Differences(NamedTuple):
    """Where the counts of a trace are not as wanted."""

    rows: dict[_Row, dict[int, None]]
    """Each row with its replicas."""
    unapplied: set[Span]
    """The steps in which too little ran because no gradient was applied."""
    short: bool
    """Whether anything ran less often than it should."""


class _Wrong(NamedTuple):
    """Steps that count the same, and not what is wanted."""

    spans: tuple[Span, ...]
    counts: Sequence[_Counts]
    """What they did to each group of variables on each replica."""
    short: bool
    """Whether a count is too small."""
    unapplied: bool
    """Whether gradients came and none was applied."""


def differences(claim: Claim) -> Differences:
    """What each variable got, on each replica, in the steps in which a count is not as wanted."""
    rows: dict[_Row, dict[int, None]] = {}
    unapplied: set[Span] = set()
    short = False
    for summary in claim.summaries:
        of = f"{shown(summary.optimizers[0].name)}: " if len(claim.summaries) > 1 else ""
        for judged in claim.replicas(summary):
            replicas = summary.replicas if judged is None else (judged,)
            keys = [(g, on) for g in _groups(summary, claim.selection) for on in replicas]
            wrong, usual = _wrong_steps(claim, summary, judged, keys)
            short = short or any(each.short for each in wrong)
            unapplied |= {span for e in wrong if e.short and e.unapplied for span in e.spans}
            for row, replica in _rows(claim, summary, keys, wrong, usual):
                rows.setdefault(row._replace(name=of + row.name), {})[replica] = None
    return Differences(rows, unapplied, short)


def _wrong_steps(
    claim: Claim, summary: Summary, replica: int | None, keys: Sequence[_Key]
) -> tuple[list[_Wrong], list[_Counts | None]]:
    """The steps with a wrong count, by what they count; and what is usual in the other steps.

    All steps are wrong if what is wrong is their sum.
    """
    selection, failed, per_step = claim.selection, claim.failed, claim.expected.per_step
    measures = [of_kinds(selection, wanted.kinds) for wanted in failed]
    totals = tuple(summary.total(measure, replica) for measure in measures)
    ran = [
        selection,
        *(replace(each, variables=selection.variables) for each in (requests, ineffective)),
    ]
    of_keys = [measure for key in keys for measure in _measures(selection, *key)]
    timeline = summary.timeline(*measures, *ran, *of_keys, replica=replica)
    lost, width, size = summary.unplaced(selection), len(failed) + 3, len(_Counts._fields)

    @functools.cache
    def is_wrong(values: Values) -> bool:
        executed, requested, _ = values[width - 3 : width]
        if lost and not executed and not requested:
            return False  # the step may be one of those of which the detail is lost
        return not (per_step and _hold(failed, values))

    def counts(values: Values) -> list[_Counts]:
        return [_Counts(*values[at : at + size]) for at in range(width, len(values), size)]

    spans_by_values: dict[Values, list[Span]] = {}
    for first, last, values in timeline.spans(is_wrong):
        spans_by_values.setdefault(values, []).append((first, last))
    wrong = []
    for values, spans in spans_by_values.items():
        executed, requested, idle = values[width - 3 : width]
        short = _short(failed, values if per_step else totals)
        unapplied = bool(requested and not executed and not idle)
        wrong.append(_Wrong(tuple(spans), counts(values), short, unapplied))
    good = [values for values in timeline.spread if per_step and not is_wrong(values)]
    most = max(good, key=lambda values: timeline.spread[values], default=None)
    return wrong, [None] * len(keys) if most is None else [*counts(most)]


def _hold(wanted: Iterable[Wanted], values: Values) -> bool:
    return all(each.holds(count) for each, count in zip(wanted, values, strict=False))


def _short(wanted: Iterable[Wanted], values: Values) -> bool:
    return any(count < (each.low or 0) for each, count in zip(wanted, values, strict=False))


def _rows(
    claim: Claim,
    summary: Summary,
    keys: Sequence[_Key],
    wrong: Sequence[_Wrong],
    usual: Sequence[_Counts | None],
) -> Iterator[tuple[_Row, int]]:
    """The rows, each with its replica: one for all steps that did the same to a variable.

    One stands for each variable in the steps in which none of their gradients was applied.
    """
    selection, per_step = claim.selection, claim.expected.per_step
    together = functools.cache(_together)  # many variables have the same steps
    for number, (variables, replica) in enumerate(keys):
        spans_by_counts: dict[tuple[bool, _Counts], list[tuple[Span, ...]]] = {}
        for each in wrong:
            counts = each.counts[number]
            none_applied = each.unapplied and selection.variables is None
            differs = none_applied or counts != usual[number]
            if differs and (each.short or per_step or counts.executed):
                key = none_applied, _Counts(0, 0, 0, 1) if none_applied else counts
                spans_by_counts.setdefault(key, []).append(each.spans)
        for (none_applied, counts), parts in spans_by_counts.items():
            spans, note = together(tuple(parts)), _note(counts, selection)
            for index in [None] if none_applied else variables:
                name = f"each {summary.dialect.variable}" if none_applied else _name(claim, index)
                order = -1 if index is None else index
                yield _Row(spans[0][0], order, name, spans, counts, note), replica


def _together(parts: Sequence[tuple[Span, ...]]) -> tuple[Span, ...]:
    """The spans in their order, neighbours as one."""
    if len(parts) == 1:
        return parts[0]
    found: list[Span] = []
    for first, last in heapq.merge(*parts):
        if found and found[-1][1] == first - 1:
            first = found.pop()[0]
        found.append((first, last))
    return tuple(found)


def _groups(summary: Summary, selection: Selection) -> list[list[int | None]]:
    """The variables that are meant, those together that got the same in every step.

    A step method has no variables: None stands for it.
    """
    only = selection.variables
    groups: list[tuple[list[int | None], bool]] = [
        ([i for i in pattern.variables if only is None or i in only], pattern.has(selection))
        for pattern in summary.patterns
        if any(map(pattern.has, (selection, missing, requests, ineffective)))
    ]
    without = only is None and any(
        selection.holds(entry) and not entry.variables
        for block in summary.blocks
        for entry in block.entries
    )
    executed_only = selection.methods is not None and (
        without or any(executed for variables, executed in groups if variables)
    )
    kept = [v for v, executed in groups if v and (executed or not executed_only)]
    return [*kept, [None]] if without else kept


def _measures(
    selection: Selection, variables: Sequence[int | None], replica: int
) -> Iterator[Selection]:
    """The measures of `_Counts`, of a group of variables on a replica."""
    dense, sparse = of_kinds(selection, {"dense"}), of_kinds(selection, {"sparse"})
    measures = [dense, sparse, missing, requests, ineffective]
    first = variables[0]
    if first is None:
        measures = [selection, *[Selection(roles=frozenset())] * 4]
    only = None if first is None else frozenset({first})
    return (replace(each, variables=only, replicas=frozenset({replica})) for each in measures)


def _name(claim: Claim, index: int | None) -> str:
    if index is not None:
        return shown(claim.trace.variables[index].name) or "''"
    methods = claim.selection.methods or ()
    return ", ".join(shown(claim.trace.methods[each].name) for each in sorted(methods))


def _note(counts: _Counts, selection: Selection) -> str:
    if counts.none:
        return "no gradient"
    if counts.executed or selection.methods is not None:
        return ""
    if counts.vain:
        return "nothing was assigned"
    return "not applied" if counts.requested else "not handed over"


def table_of_work(claim: Claim, rows: Mapping[_Row, Iterable[int]]) -> list[str]:
    """The rows that differ, and what ran outside any step."""
    trace, selection = claim.trace, claim.selection
    methods = [trace.methods[index] for index in selection.methods or ()]
    by_method = any(method.role == "step" for method in methods)
    several, in_all = len(trace.replicas) > 1, not claim.expected.per_step
    columns = [Column("per step", left=True)]
    if several:
        columns.append(Column("replica", left=True))
    columns += [Column("executions")] if by_method else [Column("dense"), Column("sparse")]
    if in_all:
        columns.append(Column("in all"))
    lines = []
    for row in sorted(rows):
        replicas = list(rows[row])
        cells = [label(row.spans, 3)]
        if several:
            cells.append(_ids(trace, replicas))
        counts = row.counts[: 1 if by_method else 2]
        cells += [f"{count:,}" for count in counts]
        if in_all:
            cells.append(f"{sum(row.counts[:2]) * length(row.spans) * len(replicas):,}")
        lines.append(Row(row.name, tuple(cells), row.note))
    for summary in claim.summaries:
        outside = [summary.outside(of_kinds(selection, {kind})) for kind in ("dense", "sparse")]
        if any(outside):
            cells = ["-"] * (1 + several) + [f"{count:,}" for count in outside]
            cells += [f"{sum(outside):,}"] * in_all
            lines.append(Row("outside any step", tuple(cells), "a direct call"))
    return as_lines("method" if by_method else dialect_of(trace).variable, columns, lines)


def table_of_effects(claim: Claim) -> list[str]:
    """What was seen of each variable, and after which steps what is expected otherwise."""
    rows: list[tuple[int, Row]] = []
    only = claim.selection.variables
    what = [each for each in OBSERVATIONS if each == claim.expected.what]
    for pattern in (pattern for summary in claim.summaries for pattern in summary.patterns):
        cells = tuple(f"{pattern.observed(each):,}" for each in OBSERVATIONS)
        spans = [each[:2] for each in pattern.timeline(observations=what).spans()]
        noun = "step" if length(spans) == 1 else "steps"
        note = f"in {noun} {label(spans, 3)}" if spans else ""
        for index in pattern.variables if pattern.observed("compared") else ():
            if only is None or index in only:
                rows.append((index, Row(_name(claim, index), cells, note)))
    columns = [Column("compared"), Column("unchanged"), Column("not finite")]
    return as_lines("variable", columns, [row for _, row in sorted(rows, key=itemgetter(0))])


def table_of_calls(calls: Mapping[str, Mapping[str, int]]) -> list[str]:
    """How often what was called."""
    rows = [
        Row(shown(name), (f"{row['eager']:,}", f"{row['tracing']:,}"))
        for name, row in calls.items()
    ]
    return as_lines("calls of", [Column("eager"), Column("tracing")], rows)


def rows_of_missed(claim: Claim, targets: Iterable[Target]) -> list[tuple[str, Row]]:
    """The variables that were not updated, or not changed, with what each got instead."""
    known: dict[int | None, list[Pattern]] = {}
    for pattern in (pattern for summary in claim.summaries for pattern in summary.patterns):
        for variable in pattern.variables:  # of several patterns if several optimizers had it
            known.setdefault(variable, []).append(pattern)
    missed = []
    for name, index in targets:
        patterns = known.get(index, [])
        if claim.expected.what == "changes":
            shape = () if index is None else claim.trace.variables[index].shape
            note = "" if 0 in shape else _why_not_changed(claim.trace, patterns)
            totals = [_total(patterns, updates)]
            totals += [sum(p.observed(each) for p in patterns) for each in OBSERVATIONS[:2]]
        else:
            note = "" if _total(patterns, updates) else _why_not_updated(claim.trace, patterns)
            totals = [_total(patterns, each) for each in (requests, missing)]
        if note:
            cells = tuple(f"{total:,}" for total in totals)
            missed.append((name, Row(shown(name) or "''", cells, note)))
    return missed


def table_of_targets(claim: Claim, rows: Sequence[Row]) -> list[str]:
    """What each of the variables got that were missed."""
    changes = claim.expected.what == "changes"
    headers = ["updates", *OBSERVATIONS[:2]] if changes else ["gradients", "None"]
    return as_lines("variable", [Column(each) for each in headers], rows)


def _total(patterns: Iterable[Pattern], measure: Selection) -> int:
    return sum(pattern.total(measure) for pattern in patterns)


def _why_not_changed(trace: Trace, patterns: Sequence[Pattern]) -> str:
    """Why some replica that was handed a variable did not change it; empty if each did."""
    moved: Counter[int] = Counter()
    for pattern in patterns:
        for replica in range(len(trace.replicas)):
            if compared := pattern.observed("compared", replica):
                moved[replica] += compared - pattern.observed("unchanged", replica)
    if not moved:
        return "never handed over"
    still = [replica for replica, number in moved.items() if not number]
    if not still:
        return ""
    on = f" on replica {trace.replicas[still[0]].id}" if any(moved.values()) else ""
    return f"no bit changed{on}" if _total(patterns, updates) else "never updated"


def _why_not_updated(trace: Trace, patterns: Sequence[Pattern]) -> str:
    if _total(patterns, ineffective):
        return "nothing was assigned"
    if _total(patterns, requests):
        return "handed over, never applied"
    if _total(patterns, missing):
        return "no gradient"
    if any(each.entries for each in patterns):
        return "its graph never ran"
    return "never handed to the optimizer" if trace.complete else "not seen"


def _ids(trace: Trace, replicas: Sequence[int]) -> str:
    """`0, 1`, or `all 8`."""
    if len(replicas) > 3 and len(replicas) == len(trace.replicas):
        return f"all {len(replicas):,}"
    ids = replica_ids(trace)
    return shown(listed([ids[index] for index in replicas], 3))


def label(spans: Sequence[Span], most: int | None = None) -> str:
    """The steps as text; equal spans at equal distances are written as a cycle.

    With `most`, no more than this many are named.

    >>> label([(1, 3), (5, 7), (9, 11), (13, 15), (20, 20)])
    '1-3, 5-7 … 13-15, 20'
    >>> label([(1, 1), (4, 4), (9, 12), (20, 22)], most=2)
    '1, 4 and 7 more'
    """
    parts: list[Steps] = []
    at = 0
    while at < len(spans):
        first, last = spans[at]
        period = spans[at + 1][0] - first if at + 1 < len(spans) else 0
        turns = 1
        while at + turns < len(spans) and spans[at + turns][0] == first + turns * period:
            if spans[at + turns][1] != last + turns * period:
                break
            turns += 1
        turns = turns if turns > 3 else 1
        end = last + (turns - 1) * period
        parts.append(Steps(first, end, last - first + 1, period if turns > 1 else None))
        at += turns
    names = [steps_label(each) for each in parts]
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {sum(each.number for each in parts[most:]):,} more"


def length(spans: Iterable[Span]) -> int:
    return sum(last - first + 1 for first, last in spans)


def as_lines(header: str, columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """The table with these rows, or with the first of them if they are many."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    kept = [rows[index] for index in sorted(ranked[:_MAX_ROWS])]  # the odd ones first
    table = Table(header, columns, kept)
    lines = [line.plain for line in table.lines(WIDTH)] if rows else []
    rest = len(rows) - len(kept)
    return [*lines, *[f"… and {some(rest, 'more row')}"] * (rest > 0)]


def listed(items: Sequence[str], most: int | None = None, comma: str = ", ") -> str:
    """The items with commas; with `most`, no more than this many are named."""
    if most is None or len(items) <= most:
        return comma.join(items)
    return f"{comma.join(items[:most])} and {len(items) - most:,} more"
