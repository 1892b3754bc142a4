"""What is expected of a run, and why a trace is not as expected.

The assertions make expectations of their arguments, and `tracer check` of a text. An expectation
knows no objects of a program: only names, and rows of a trace. A failure has the counts that
differ, the report's rows of what was counted, and the findings on them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tracer.findings.rule import findings_on
from tracer.kinds import KINDS
from tracer.layout import paragraph, shown
from tracer.model.counts import ROLES, Selection, counting, require_effects, updates
from tracer.model.names import variables_meant, with_namesakes
from tracer.model.phrases import steps_label
from tracer.model.records import OBSERVATIONS, Kind
from tracer.model.timeline import Timeline
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import listed, some, span
from tracer.reporters import columns
from tracer.reporters.columns import Row, Table

WIDTH = 76  # pytest indents a message by 4
_MAX_NAMES = 3  # of replicas or stretches of steps
_MAX_ROWS = 12

Quantity = Literal["updates", "executions", "calls", "steps", "unchanged", "not_finite"]
"""The quantities that can be expected of a run."""

METHODS: dict[str, set[str]] = {}
"""The methods that `tracer` counts, each with its roles, for all kinds of optimizer."""
for _kind in KINDS:
    for _step in _kind.step_methods:
        METHODS.setdefault(_step, set()).add("step")
    for _method in _kind.apply_methods:
        METHODS.setdefault(_method.name, set()).add("apply")


@dataclass(frozen=True)
class Expectation:
    """An expected count: of a whole run or, with `per_step`, of each step on each replica.

    Raises `TypeError` or `ValueError` for limits that no count can have.
    """

    what: Quantity
    low: int | None
    high: int | None
    """Inclusive limits; equal if the count is exact, None if there is none."""
    kind: Kind | None = None
    method: str | None = None
    names: tuple[str, ...] = ()
    """Names and globs of the variables that count; empty for all."""
    rows: frozenset[int] | None = None
    """The indices of these variables in the trace, if known."""
    per_step: bool = False
    text: str = ""
    """The expression of `tracer check`; empty for an assertion."""

    def __post_init__(self) -> None:
        for number in (self.low, self.high):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{self.noun}: a count is an int, not {number!r}")
        low = self.low or 0
        if low < 0 or (self.high is not None and self.high < low):
            raise ValueError(f"{self.noun}: no count is {self.limits}")

    @property
    def noun(self) -> str:
        """`dense updates of encoder/*`, `executions of update_step on dense/kernel`."""
        kind = f"{self.kind} " if self.kind else ""
        method = f" of {self.method}" if self.method else ""
        of = f" {'on' if self.method else 'of'} {listed(self.names, 3)}" if self.names else ""
        return f"{kind}{self.what.replace('_', ' ')}{method}{of}"

    @property
    def limits(self) -> str:
        """`at least 4 in each step`."""
        if self.low is None:
            text = f"at most {self.high:,}"
        elif self.high is None:
            text = f"at least {self.low:,}"
        else:
            text = span((self.low, self.high))
        return f"{text} in each step" if self.per_step else text

    def holds(self, count: int) -> bool:
        """True if `count` is within the limits."""
        return (self.low or 0) <= count and (self.high is None or count <= self.high)


def runs_for_all(trace: Trace, method: str | None) -> bool:
    """True for a step method, which runs once for all variables."""
    roles: set[str] = {each.role for each in trace.methods if each.name == method}
    return (roles or METHODS.get(method or "", set())) == {"step"}


# How the counts differ.


class Difference(NamedTuple):
    """How the counts differ from an expectation."""

    got: str
    """`got 3 in each of 8 steps`."""
    summaries: Sequence[Summary]
    """The optimizers concerned."""
    measure: Selection


def difference(trace: Trace, expected: Expectation) -> Difference | None:
    """How the trace differs from an expectation; None if it does not.

    Raises `tracer.UnknownName` for a variable that the trace does not have, and for effects if it
    has none.
    """
    measure, summaries = _selection(trace, expected), summaries_of(trace)
    asked = measure.variables or frozenset()
    summaries = [each for each in summaries if not asked.isdisjoint(each.variables)] or summaries
    ran = any(summary.steps for summary in summaries)
    if expected.what in OBSERVATIONS:
        require_effects(trace.data, expected.what, trace.steps)
        unseen = [summary for summary in summaries if _is_unseen(summary)]
        if unseen:
            return Difference("but nothing was compared in some steps", unseen, measure)
    if not expected.per_step:
        total = trace.steps if expected.what == "steps" else trace.counts.total(measure)
        how = _in_steps(summaries, measure, total) if expected.what in ROLES else ""
        got = f"got {total:,}{how if ran or not trace.complete else ', and no step ran'}"
        return None if expected.holds(total) else Difference(got, summaries, measure)
    said, wrong = defaultdict[str, list[str]](list), []
    for summary in summaries:
        for replica in summary.replicas:
            got = _wrong(summary, replica, measure, expected)
            said[got].append(_name(summary, replica, len(summaries)))
            wrong += [summary] if got and summary not in wrong else []
    names = {got: f" ({listed(own, _MAX_NAMES)})" for got, own in said.items()}
    texts = [f"{got}{names[got] if len(said) > 1 else ''}" for got in said if got]
    if not ran:
        return Difference("but no step ran", summaries, measure)
    return Difference("; ".join(texts), wrong, measure) if texts else None


def _selection(trace: Trace, expected: Expectation) -> Selection:
    """The entries of the trace that count; none for a method that was never called."""
    rows, methods = expected.rows, None
    if expected.names and rows is None:
        meant = (variables_meant(name, trace.variables, None) for name in expected.names)
        rows = with_namesakes(frozenset[int]().union(*meant), trace.variables)
    if expected.method is not None:
        named = (i for i, method in enumerate(trace.methods) if method.name == expected.method)
        methods = frozenset(named)
    kinds = None if expected.kind is None else frozenset({expected.kind})
    return Selection(roles=ROLES.get(expected.what), kinds=kinds, methods=methods, variables=rows)


def _is_unseen(summary: Summary) -> bool:
    """Whether it made updates in steps whose effects are not known."""
    compared = counting(["compared"], None)
    return any(
        made and not seen
        for replica in summary.replicas
        for made, seen in summary.spread(updates, compared, replica=replica)
    )


def _in_steps(summaries: Sequence[Summary], measure: Selection, total: int) -> str:
    """`: 3 in each of 8 steps`, if steps of one optimizer made the total."""
    if len(summaries) != 1 or not total:
        return ""
    timeline = summaries[0].timeline(measure)
    known = sum(count * number for (count,), number in timeline.spread.items()) == total
    return f": {_spread(timeline, lambda count: count > 0)}" if known else ""


def _wrong(summary: Summary, replica: int, measure: Selection, expected: Expectation) -> str:
    """What wrong steps did on a replica; empty if none did."""
    if not summary.steps_on[replica]:
        return "but no step ran"
    outside = summary.outside(replace(measure, replicas=frozenset({replica})))
    timeline = summary.timeline(measure, replica=replica)
    texts = [f"{outside:,} outside any step"] if outside else []
    texts.append(_spread(timeline, lambda count: not expected.holds(count)))
    return f"got {' and '.join(filter(None, texts))}" if any(texts) else ""


def _spread(timeline: Timeline, is_meant: Callable[[int], bool]) -> str:
    """`2 to 3 in 5 of 12 steps (1-3, 7, ...)`: the steps with such counts; empty if none."""
    meant = {values for values in timeline.spread if is_meant(values[0])}
    number, steps = sum(timeline.spread[values] for values in meant), timeline.spread.total()
    counts = [count for (count,) in meant]
    if not counts:
        return ""
    labels = [steps_label(steps) for steps, values in timeline.parts() if values in meant]
    spans = ", ".join(labels[:_MAX_NAMES]) + (", ..." if len(labels) > _MAX_NAMES else "")
    where = (
        f"{'each of ' if steps > 1 else ''}{some(steps, 'step')}"
        if number == steps
        else f"{number:,} of {steps:,} steps ({spans})"
    )
    return f"{span((min(counts), max(counts)))} in {where}"


def _name(summary: Summary, replica: int, optimizers: int) -> str:
    """`adam#2 on replica 1`; without the optimizer or the replica if there is only one."""
    names = [summary.optimizers[0].name] if optimizers > 1 else []
    if len(summary.trace.replicas) > 1:
        names.append(summary.trace.replicas[replica].label)
    return shown(" on ".join(names))


# Why the trace is not as expected.


def failure(trace: Trace, expected: Sequence[Expectation], *, partial: bool = False) -> str:
    """Why the trace is not as expected; empty if it is. The expectations are of the same variables.

    An incomplete trace is never as expected; with `partial`, its counts are judged all the same.

    Raises `tracer.UnknownName` for a variable that the trace does not have, and for effects if it
    has none.
    """
    judged = {each: wrong for each in expected if (wrong := difference(trace, each))}
    if not judged:
        return "" if partial else incomplete(trace, expected)
    heads = [_head(each, wrong.got) for each, wrong in judged.items()]
    concerned = (summary for wrong in judged.values() for summary in wrong.summaries)
    first, wrong = next(iter(judged.items()))
    tables = [(own, _rows(own, first, wrong.measure)) for own in dict.fromkeys(concerned)]
    return _text(trace, heads, tables, notes=not partial)


def never_updated(trace: Trace, variables: Sequence[tuple[str, int | None]]) -> str:
    """Which of these variables were never updated, and why; empty if each of them was.

    Each has its name and its index in the trace, None if the trace does not have it.
    """
    summaries = summaries_of(trace)
    updated = frozenset[int]().union(*(summary.updated for summary in summaries))
    rows = frozenset[int]().union(*(summary.variables for summary in summaries))
    sharded = {index for index, each in enumerate(trace.variables) if each.shards > 1}
    on_others = sharded - rows  # ranks
    missed = [each for each in variables if each[1] not in updated | on_others]
    if not missed:
        return incomplete(trace, [Expectation("updates", 1, None)])
    why = "not passed to the optimizer" if any(own.steps for own in summaries) else "no step ran"
    why = why if trace.complete else "not seen"
    others = [
        Row({"variable": name, "updates": 0, "dense": 0, "sparse": 0}, why)
        for name, index in missed
        if index not in rows
    ]
    of_all = f"at least 1 of each of {some(len(variables), 'variable')}"
    head = f"updates: expected {of_all}, got none for {len(missed):,} of them"
    asked: dict[columns.By, frozenset[int]]
    asked = {"variable": frozenset(index for _, index in missed if index is not None)}
    tables = []
    for summary in summaries:
        table = columns.table(summary, "variable", columns.Part(rows=asked))
        tables.append((summary, table._replace(rows=[*table.rows, *others])))
        others = []
    return _text(trace, [head if tables else f"{head}: {why}"], tables)


def unknown(trace: Trace, expected: Iterable[Expectation], why: str, instead: str = "") -> str:
    """A text that the counts cannot be judged, why, and what the trace has instead."""
    lines = ["", *(line.plain for line in paragraph(shown(instead), WIDTH))] if instead else []
    return "\n".join([_text(trace, [_head(each, f"but {why}") for each in expected]), *lines])


def incomplete(trace: Trace, expected: Iterable[Expectation]) -> str:
    """Why an incomplete trace is not as expected; empty for a complete one."""
    heads = [_head(each, "but the trace is incomplete") for each in expected]
    return "" if trace.complete else _text(trace, heads or ["what was not seen cannot be asserted"])


def _head(expected: Expectation, got: str) -> str:
    return f"{expected.noun}: expected {expected.limits}, {got}"


def _rows(summary: Summary, expected: Expectation, measure: Selection) -> Table:
    """The report's rows of what is expected: of the method, or of the variables that count."""
    of_method = expected.what == "calls" or runs_for_all(summary.trace, expected.method)
    by: columns.By = "method" if of_method or measure.methods == frozenset() else "variable"
    asked: dict[columns.By, frozenset[int]]
    asked = {} if measure.variables is None else {by: measure.variables}
    table = columns.table(summary, by, columns.Part(rows=asked))
    rows = [row for row in table.rows if row.values.get("method") == expected.method] or table.rows
    if expected.what == "steps":
        rows = []
    elif expected.high == 0:
        counted = expected.kind or expected.what
        rows = [row for row in rows if row.values.get(counted, True)]
    if len(rows) > _MAX_ROWS:
        rows = [row for row in rows if row.note] or rows
    rows = sorted(rows, key=lambda row: not row.note)  # the odd ones first
    return table._replace(rows=rows, below=())


def _text(
    trace: Trace,
    heads: Iterable[str],
    tables: Iterable[tuple[Summary, Table]] = (),
    *,
    notes: bool = True,
) -> str:
    """The wrong counts, the notes of an incomplete trace, the rows, and the findings on them."""
    lines, found = list(heads), list[str]()
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    for summary, table in tables:
        several = [f"{shown(summary.optimizers[0].name)}:"] if len(summaries_of(trace)) > 1 else []
        drawn = columns.drawn(table, WIDTH, _MAX_ROWS) if table.rows else []
        lines += ["", *several, *(line.plain for line in drawn)] if drawn else []
        names = {row.values.get("variable") for row in table.rows}
        for finding in findings_on(trace, summary.root):
            if {None} >= names or not finding.variables or not names.isdisjoint(finding.variables):
                found.append(f"{finding.severity}[{finding.code}]: {finding.text} {finding.advice}")
    return "\n".join(lines + (_items("Findings:", dict.fromkeys(found)) if found else []))


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
