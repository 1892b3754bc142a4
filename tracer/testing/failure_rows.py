"""The rows in which a trace differs from what a test expects, and the expectation itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracer.model.records import Block, Kind, Role, contribution
from tracer.model.tally import Measure, Tally, Values
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.reporters.layout import Column, Row, Table, shown

WIDTH = 76  # pytest indents a message by 4
_MOST_ROWS = 30
_ANY: tuple[Kind | None, ...] = ("dense", "sparse", "none", None)
Span = tuple[int, int]
"""The first and the last of some steps in a row."""
_Counts = tuple[int, int, int, int]
"""Of one variable: dense and sparse executions, gradients that were `None`, other gradients."""


class Wanted(NamedTuple):
    """A count that is expected; `low` and `high` are equal if it must be exact."""

    what: str
    low: int | None
    high: int | None
    kinds: tuple[Kind | None, ...] = ("dense", "sparse")

    def holds(self, count: int) -> bool:
        """Whether `count` is within the limits; both limits are."""
        return (self.low is None or count >= self.low) and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:,}"
        if self.low is None:
            return f"at most {self.high:,}"
        return f"at least {self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Scope:
    """The executions that are meant: of some roles, methods and variables; None for all."""

    roles: frozenset[Role]
    methods: frozenset[int] | None = None
    variables: frozenset[int] | None = None

    def holds(self, role: Role, method: int) -> bool:
        """Whether an entry with this role and method is meant."""
        return role in self.roles and (self.methods is None or method in self.methods)

    def measure(
        self,
        kinds: Sequence[Kind | None] = _ANY,
        variables: frozenset[int] | None = None,
        replica: int | None = None,
    ) -> Measure:
        """A measure of the executions that are meant, or of those of some `variables` only."""
        only = self.variables if variables is None else variables

        def measure(block: Block) -> int:
            if replica is not None and block.replica != replica:
                return 0
            return sum(
                contribution(entry, only)
                for entry in block.entries
                if entry.kind in kinds and self.holds(entry.role, entry.method)
            )

        return measure


@dataclass(frozen=True)
class Expected:
    """What a test expects of the executions in `scope`: each count in `wanted`."""

    scope: Scope
    wanted: tuple[Wanted, ...]
    per_step: bool = False
    per_replica: bool = False

    @property
    def where(self) -> str:
        """` in each step on each replica`, as far as it is expected there."""
        return " in each step" * self.per_step + " on each replica" * self.per_replica


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
        self, trace: Trace, found: Sequence[Tally], expected: Expected, failed: Sequence[Wanted]
    ) -> None:
        self._trace, self._found, self._expected, self._failed = trace, found, expected, failed
        self.rows: dict[_Row, list[int]] = {}
        """Each row with its replicas."""
        self.unapplied: set[Span] = set()
        """The steps in which gradients were handed over and none of them was applied."""
        self.short = False
        """Whether anything ran less often than it should."""
        for each in found:
            for replica in places(each, expected.per_replica):
                self._collect(each, replica)

    def _collect(self, found: Tally, replica: int | None) -> None:
        """The rows of one optimizer, on one replica or on all of them."""
        scope, per_step, failed = self._expected.scope, self._expected.per_step, self._failed
        measures = [scope.measure(wanted.kinds) for wanted in failed]
        totals = tuple(found.total(measure, replica) for measure in measures)
        groups = _groups(found, scope)
        on = found.replicas if replica is None else (replica,)
        for variables in groups:
            for each in on:
                measures += _four(scope, variables[0], each)
        parts = parts_of(found, replica, measures)
        good = [values for values in parts if per_step and _hold(failed, values)]
        usual = max(good, key=lambda values: length(parts[values]), default=())
        for values, spans in parts.items():
            fours = [_four_of(values, at) for at in range(len(failed), len(values), 4)]
            executed = any(dense or sparse for dense, sparse, _, _ in fours)
            requested = any(four[3] for four in fours)
            unknown = not executed and not requested and found.unplaced(scope.measure())
            if values in good or unknown:
                continue
            short = _short(failed, values if per_step else totals)
            self.short = self.short or short
            if short and requested and not executed:
                self.unapplied.update(spans)
            for number, variables in enumerate(groups):
                for index, each in enumerate(on):
                    at = number * len(on) + index
                    four = fours[at]
                    differs = not usual or four != _four_of(usual, len(failed) + 4 * at)
                    if differs and (short or per_step or any(four[:2])):
                        alike = requested and not executed and scope.variables is None
                        names = [None] if alike and None not in variables else variables
                        self._add(found, names, spans, four, each, alike)

    def _add(
        self,
        found: Tally,
        variables: Sequence[int | None],
        spans: Sequence[Span],
        counts: _Counts,
        replica: int,
        alike: bool,
    ) -> None:
        several = len(self._found) > 1
        optimizer = f"{shown(found.optimizers[0].name)}: " * several
        for variable in variables:
            name = "each variable" if alike else self._name(variable)
            order = -1 if variable is None else variable
            if alike:
                counts = 0, 0, 0, 1
            row = _Row(
                spans[0][0], order, optimizer + name, tuple(spans), counts, self._note(counts)
            )
            on = self.rows.setdefault(row, [])
            if replica not in on:
                on.append(replica)

    def _name(self, variable: int | None) -> str:
        if variable is not None:
            return shown(self._trace.variables[variable].name) or "''"
        methods = self._expected.scope.methods or ()
        return ", ".join(shown(self._trace.methods[index].name) for index in sorted(methods))

    def _note(self, counts: _Counts) -> str:
        dense, sparse, none, requested = counts
        if none:
            return "no gradient"
        if dense or sparse or self._expected.scope.methods is not None:
            return ""
        return "not applied" if requested else "not handed over"

    def table(self) -> list[str]:
        """The rows as lines of text."""
        scope, in_all = self._expected.scope, not self._expected.per_step
        methods = [self._trace.methods[index] for index in scope.methods or ()]
        by_method = any(each.role == "step" for each in methods)
        replicas = len(self._trace.replicas) > 1
        columns = [Column("each of steps", left=True)]
        columns += [Column("replica", left=True)] * replicas
        columns += [Column("executions")] if by_method else [Column("dense"), Column("sparse")]
        columns += [Column("in all")] * in_all
        table = Table("method" if by_method else "variable", columns)
        rows = []
        for row, on in sorted(self.rows.items()):
            dense, sparse, *_ = row.counts
            cells = [label(row.spans, 3), *[_ids(self._trace, on)] * replicas, f"{dense:,}"]
            cells += [f"{sparse:,}"] * (not by_method)
            cells += [f"{(dense + sparse) * length(row.spans) * len(on):,}"] * in_all
            rows.append(Row(row.name, tuple(cells), row.note))
        for each in self._found:
            counts = [each.outside(scope.measure([kind])) for kind in ("dense", "sparse")]
            if any(counts):
                cells = ["-", *["-"] * replicas, *(f"{count:,}" for count in counts)]
                cells += [f"{sum(counts):,}"] * in_all
                rows.append(Row("outside any step", tuple(cells), "a direct call"))
        return as_lines(table, rows)


def _groups(found: Tally, scope: Scope) -> list[list[int | None]]:
    """The variables that are meant, those that were treated alike everywhere together.

    A step method has no variables: None stands for it.
    """
    weights: dict[int | None, dict[tuple[int, Role, Kind | None], int]] = {}
    meant: set[int | None] = set()
    for number, block in enumerate(found.blocks):
        for entry in block.entries:
            executed = scope.holds(entry.role, entry.method)
            if not executed and entry.role != "request":
                continue
            names: Iterable[int | None] = entry.variables
            if executed and not entry.variables and scope.variables is None:
                names = (None,)
            for variable in names:
                if variable is None or scope.variables is None or variable in scope.variables:
                    role: Role = "update" if executed else "request"
                    known = weights.setdefault(variable, {})
                    key = number, role, entry.kind
                    known[key] = known.get(key, 0) + entry.times
                    if executed:
                        meant.add(variable)
    groups: dict[frozenset[tuple[tuple[int, Role, Kind | None], int]], list[int | None]] = {}
    for variable, known in weights.items():
        if variable in meant or scope.methods is None or not meant:
            groups.setdefault(frozenset(known.items()), []).append(variable)
    return list(groups.values())


def _four(scope: Scope, variable: int | None, replica: int) -> list[Measure]:
    """Measures of one variable: its dense and sparse executions, its `None` and other gradients."""
    if variable is None:
        nothing = Scope(frozenset()).measure()
        return [scope.measure(replica=replica), nothing, nothing, nothing]
    only = frozenset({variable})
    requests = Scope(frozenset({"request"}))
    return [
        scope.measure(["dense"], only, replica),
        scope.measure(["sparse"], only, replica),
        requests.measure(["none"], only, replica),
        requests.measure(["dense", "sparse"], only, replica),
    ]


def _four_of(values: Values, at: int) -> _Counts:
    dense, sparse, none, requested = values[at : at + 4]
    return dense, sparse, none, requested


def _hold(wanted: Iterable[Wanted], values: Values) -> bool:
    return all(each.holds(count) for each, count in zip(wanted, values, strict=False))


def _short(wanted: Iterable[Wanted], values: Values) -> bool:
    return any(count < (each.low or 0) for each, count in zip(wanted, values, strict=False))


def _ids(trace: Trace, replicas: Sequence[int]) -> str:
    """`0, 1`, or `all 8`."""
    if len(replicas) > 3 and len(replicas) == len(trace.replicas):
        return f"all {len(replicas):,}"
    several = len(trace.workers) > 1
    names = [f"{trace.replicas[i].worker}/" * several + str(trace.replicas[i].id) for i in replicas]
    return shown(listed(names, 3))


def parts_of(
    found: Tally, replica: int | None, measures: Sequence[Measure]
) -> dict[Values, list[Span]]:
    """The steps, by what each of them counts."""
    parts: dict[Values, list[Span]] = {}
    for stretch in found.stretches(*measures, replica=replica):
        begin = stretch.first
        for length, values in stretch.cycle * stretch.turns:
            spans = parts.setdefault(values, [])
            first = spans.pop()[0] if spans and spans[-1][1] == begin - 1 else begin
            begin += length
            spans.append((first, begin - 1))
    return parts


def places(found: Tally, per_replica: bool) -> Sequence[int | None]:
    return found.replicas if per_replica else (None,)


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
