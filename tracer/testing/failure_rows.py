"""The rows in which a trace differs from what is expected of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.model.dialects import dialect_of
from tracer.model.labels import replica_ids
from tracer.model.measures import Measure
from tracer.model.records import Kind
from tracer.model.selection import REQUESTS, Selection
from tracer.model.summary import Summary
from tracer.model.timeline import Values
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.reporters.layout import Column, Row, Table, shown
from tracer.testing.expected import Expected, Wanted

WIDTH = 76  # pytest indents a message by 4
MOST_NAMES = 3
"""So many names are listed in a sentence."""

_MOST_ROWS = 30
Span = tuple[int, int]
"""The first and the last of some steps in a row."""


class _Counts(NamedTuple):
    """What one variable got."""

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


class _Treated(NamedTuple):
    """What each variable of a group got on a replica."""

    variables: Sequence[int | None]
    replica: int
    counts: _Counts


def measure_of(
    selection: Selection,
    kinds: Iterable[Kind | None] | None = None,
    variables: frozenset[int] | None = None,
    replica: int | None = None,
) -> Measure:
    """A measure of what is selected, or of some kinds, variables or a replica of it only."""
    if kinds is not None:
        selection = replace(selection, kinds=frozenset(kinds))
    if variables is not None:
        selection = replace(selection, variables=variables)
    if replica is not None:
        selection = replace(selection, replicas=frozenset({replica}))
    return selection.count


class _Row(NamedTuple):
    """What some steps did to one variable, or to all of them alike, on some replicas."""

    first: int
    order: int
    name: str
    spans: tuple[Span, ...]
    counts: _Counts
    note: str


class Rows:
    """The rows that differ: by variable, steps and replica, with what each variable got there."""

    def __init__(
        self,
        trace: Trace,
        summaries: Sequence[Summary],
        expected: Expected,
        selection: Selection,
        failed: Sequence[Wanted],
    ) -> None:
        self._trace, self._summaries, self._selection = trace, summaries, selection
        self._per_step, self._failed = expected.per_step, failed
        self.rows: dict[_Row, list[int]] = {}
        """Each row with its replicas."""
        self.unapplied: set[Span] = set()
        """The steps in which gradients were handed over and none of them was applied."""
        self.short = False
        """Whether anything ran less often than it should."""
        for summary in summaries:
            for replica in replicas_to_judge(summary, expected.per_replica):
                self._collect(summary, replica)

    def _collect(self, summary: Summary, replica: int | None) -> None:
        """The rows of one optimizer, on one replica or on all of them."""
        selection, per_step, failed = self._selection, self._per_step, self._failed
        measures = [measure_of(selection, wanted.kinds) for wanted in failed]
        totals = tuple(summary.total(measure, replica) for measure in measures)
        replicas = summary.replicas if replica is None else (replica,)
        keys = [(group, index) for group in _groups(summary, selection) for index in replicas]
        for group, index in keys:
            measures += _counts_of(selection, group[0], index)
        spans_by_values = spans_of(summary, replica, measures)
        good = [values for values in spans_by_values if per_step and _hold(failed, values)]
        usual = max(good, key=lambda values: length(spans_by_values[values]), default=None)
        usually = usual and _treated(keys, usual[len(failed) :])
        for values, spans in spans_by_values.items():
            treated = _treated(keys, values[len(failed) :])
            executed = any(variables_alike.counts.executed for variables_alike in treated)
            requested = any(variables_alike.counts.requested for variables_alike in treated)
            unknown = not executed and not requested and summary.unplaced(selection.count)
            if values in good or unknown:
                continue
            short = _short(failed, values if per_step else totals)
            self.short = self.short or short
            tried = executed or any(each.counts.vain for each in treated)
            if short and requested and not tried:
                self.unapplied.update(spans)
            none_applied = requested and not tried and selection.variables is None
            for number, variables_alike in enumerate(treated):
                differs = not usually or variables_alike != usually[number]
                if differs and (short or per_step or variables_alike.counts.executed):
                    self._add(summary, variables_alike, spans, none_applied)

    def _add(
        self, summary: Summary, treated: _Treated, spans: Sequence[Span], none_applied: bool
    ) -> None:
        """Add a row for each variable, or one for all if none of their gradients was applied."""
        several = len(self._summaries) > 1
        optimizer = f"{shown(summary.optimizers[0].name)}: " if several else ""
        variables, counts = treated.variables, treated.counts
        if none_applied:
            variables, counts = [None], _Counts(0, 0, 0, 1)
        for variable in variables:
            noun = summary.dialect.variable
            name = f"each {noun}" if none_applied else self._name(variable)
            order = -1 if variable is None else variable
            row = _Row(
                spans[0][0], order, optimizer + name, tuple(spans), counts, self._note(counts)
            )
            replicas = self.rows.setdefault(row, [])
            if treated.replica not in replicas:
                replicas.append(treated.replica)

    def _name(self, variable: int | None) -> str:
        if variable is not None:
            return shown(self._trace.variables[variable].name) or "''"
        methods = self._selection.methods or ()
        return ", ".join(shown(self._trace.methods[index].name) for index in sorted(methods))

    def _note(self, counts: _Counts) -> str:
        if counts.none:
            return "no gradient"
        if counts.executed or self._selection.methods is not None:
            return ""
        if counts.vain:
            return "nothing was assigned"
        return "not applied" if counts.requested else "not handed over"

    def table(self) -> list[str]:
        """The rows as lines of text."""
        selection, in_all = self._selection, not self._per_step
        methods = [self._trace.methods[index] for index in selection.methods or ()]
        by_method = any(method.role == "step" for method in methods)
        several = len(self._trace.replicas) > 1
        columns = [Column("per step", left=True)]
        if several:
            columns.append(Column("replica", left=True))
        columns += [Column("executions")] if by_method else [Column("dense"), Column("sparse")]
        if in_all:
            columns.append(Column("in all"))
        table = Table("method" if by_method else dialect_of(self._trace).variable, columns)
        rows = []
        for row, replicas in sorted(self.rows.items()):
            dense, sparse, *_ = row.counts
            cells = [label(row.spans, 3)]
            if several:
                cells.append(_ids(self._trace, replicas))
            cells.append(f"{dense:,}")
            if not by_method:
                cells.append(f"{sparse:,}")
            if in_all:
                cells.append(f"{(dense + sparse) * length(row.spans) * len(replicas):,}")
            rows.append(Row(row.name, tuple(cells), row.note))
        for summary in self._summaries:
            counts = [
                summary.outside(measure_of(selection, [kind])) for kind in ("dense", "sparse")
            ]
            if any(counts):
                cells = ["-", "-"] if several else ["-"]
                cells += [f"{count:,}" for count in counts]
                if in_all:
                    cells.append(f"{sum(counts):,}")
                rows.append(Row("outside any step", tuple(cells), "a direct call"))
        return as_lines(table, rows)


def _groups(summary: Summary, selection: Selection) -> list[list[int | None]]:
    """The variables that are meant, those that were treated alike everywhere together.

    A step method has no variables: None stands for it.
    """
    same: dict[tuple[tuple[_Deed, int], ...], list[int | None]] = {}
    for pattern in summary.patterns:
        variables = [
            index
            for index in pattern.variables
            if selection.variables is None or index in selection.variables
        ]
        deeds: Counter[_Deed] = Counter()
        for block, entry in pattern.cells:
            if selection.holds(entry):
                deeds[id(block), "execution", entry.kind or ""] += entry.times
            elif entry.role in ("request", "vain"):
                deeds[id(block), entry.role, entry.kind or ""] += entry.times
        if variables and deeds:
            same.setdefault(tuple(sorted(deeds.items())), []).extend(variables)
    groups = list(same.values())
    executed = [
        variables
        for deeds_of, variables in same.items()
        if any(what == "execution" for (_, what, _), _ in deeds_of)
    ]
    without = selection.variables is None and any(
        selection.holds(entry) and not entry.variables
        for block in summary.blocks
        for entry in block.entries
    )
    if selection.methods is not None and (executed or without):
        groups = executed
    return [*groups, [None]] if without else groups


_Deed = tuple[int, str, str]
"""The id of a block, `execution`, `request` or `vain`, and the kind."""


def _counts_of(selection: Selection, variable: int | None, replica: int) -> list[Measure]:
    """The measures of `_Counts`, of one variable on a replica."""
    if variable is None:
        nothing = Selection(roles=frozenset()).count
        return [measure_of(selection, replica=replica), nothing, nothing, nothing, nothing]
    only = frozenset({variable})
    requests, vain = Selection(roles=REQUESTS), Selection(roles=frozenset({"vain"}))
    return [
        measure_of(selection, ["dense"], only, replica),
        measure_of(selection, ["sparse"], only, replica),
        measure_of(requests, ["none"], only, replica),
        measure_of(requests, ["dense", "sparse"], only, replica),
        measure_of(vain, None, only, replica),
    ]


def _treated(keys: Sequence[tuple[list[int | None], int]], values: Values) -> list[_Treated]:
    """What the groups got on the replicas, from the values of their `_counts_of` in a row."""
    size = len(_Counts._fields)
    return [
        _Treated(group, replica, _Counts(*values[size * number : size * (number + 1)]))
        for number, (group, replica) in enumerate(keys)
    ]


def _hold(wanted: Iterable[Wanted], values: Values) -> bool:
    return all(each.holds(count) for each, count in zip(wanted, values, strict=False))


def _short(wanted: Iterable[Wanted], values: Values) -> bool:
    return any(count < (each.low or 0) for each, count in zip(wanted, values, strict=False))


def _ids(trace: Trace, replicas: Sequence[int]) -> str:
    """`0, 1`, or `all 8`."""
    if len(replicas) > 3 and len(replicas) == len(trace.replicas):
        return f"all {len(replicas):,}"
    ids = replica_ids(trace)
    return shown(listed([ids[index] for index in replicas], 3))


def spans_of(
    summary: Summary,
    replica: int | None,
    measures: Sequence[Measure],
    but: Callable[[Values], bool] = lambda values: False,
) -> dict[Values, list[Span]]:
    """The steps, by what each of them counts, `but` not those that count this."""
    spans_by_values: dict[Values, list[Span]] = {}
    timeline = summary.timeline(*measures, replica=replica)
    for first, last, values in timeline.spans(lambda values: not but(values)):
        spans_by_values.setdefault(values, []).append((first, last))
    return spans_by_values


def replicas_to_judge(summary: Summary, per_replica: bool) -> Sequence[int | None]:
    """Each replica on its own, or None for all of them together."""
    return summary.replicas if per_replica else (None,)


def label(spans: Sequence[Span], most: int | None = None) -> str:
    """The steps as text; equal spans at equal distances are written as a cycle.

    With `most`, no more than this many are named.

    >>> label([(1, 3), (5, 7), (9, 11), (13, 15), (20, 20)])
    '1-3, 5-7 … 13-15, 20'
    >>> label([(1, 1), (4, 4), (9, 12), (20, 22)], most=2)
    '1, 4 and 7 more'
    """
    names: list[str] = []
    lengths: list[int] = []
    at = 0
    while at < len(spans):
        turns = 1
        if at + 1 < len(spans):
            period = spans[at + 1][0] - spans[at][0]
            while at + turns < len(spans) and spans[at + turns] == _moved(
                spans[at], turns * period
            ):
                turns += 1
        if turns > 3:
            some_of_them = [spans[at], spans[at + 1], spans[at + turns - 1]]
            names.append("{}, {} … {}".format(*(_span(each) for each in some_of_them)))
        else:
            turns = 1
            names.append(_span(spans[at]))
        lengths.append(length(spans[at : at + turns]))
        at += turns
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {sum(lengths[most:]):,} more"


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by


def _span(span: Span) -> str:
    first, last = span
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def length(spans: Iterable[Span]) -> int:
    return sum(last - first + 1 for first, last in spans)


def as_lines(table: Table, rows: Sequence[Row]) -> list[str]:
    """The table with these rows, or with the first of them if they are many."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    table.rows += [rows[index] for index in sorted(ranked[:_MOST_ROWS])]  # the odd ones first
    lines = [line.plain for line in table.lines(WIDTH)] if rows else []
    rest = len(rows) - len(table.rows)
    return [*lines, *[f"… and {some(rest, 'more row')}"] * (rest > 0)]


def listed(items: Sequence[str], most: int | None = None, comma: str = ", ") -> str:
    """The items with commas; with `most`, no more than this many are named."""
    if most is None or len(items) <= most:
        return comma.join(items)
    return f"{comma.join(items[:most])} and {len(items) - most:,} more"
