"""Say why a trace is not as expected: the counts, the rows that differ, the findings on them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracer.check import judge
from tracer.check.expectation import Expectation
from tracer.check.judge import Difference, Row
from tracer.findings.run_rules import causes
from tracer.layout import Column, Row as Line, Table, paragraph, shown
from tracer.model.names import is_meant
from tracer.model.phrases import clause_of, replica_ids, steps_label
from tracer.model.reasons import reason
from tracer.model.summary import Summary, summaries_of
from tracer.model.timeline import Steps
from tracer.model.trace import Trace
from tracer.model.words import dialect_of, first_of, listed, plural, some
from tracer.reporters.answer import answer

WIDTH = 76  # pytest indents a message by 4
_MAX_NAMES = 3  # of replicas, methods or stretches of steps
_MAX_ROWS = 30
_MAX_APART = 8  # variables with a row each


def failure(trace: Trace, expected: Sequence[Expectation], *, partial: bool = False) -> str:
    """Why the trace is not as expected; empty if it is. The expectations are of the same variables.

    An incomplete trace is never as expected; with `partial`, its counts are judged all the same.

    Raises `tracer.UnknownName` for a variable that the trace does not have, and for effects if it
    has none.
    """
    judged = {each: wrong for each in expected if (wrong := judge.difference(trace, each))}
    if not judged:
        return "" if partial else incomplete(trace, expected)
    few = any(wrong.few for wrong in judged.values())
    columns, rows = judge.rows(trace, [*judged], few)
    if few and not any(each.method for each in judged):
        rows += frozen(trace, expected[0].names)
    why = _causes(trace, judged, rows, few)
    heads = [_head(each, wrong.got) for each, wrong in judged.items()]
    return _text(trace, heads, _table(trace, columns, rows), why, notes=not partial)


def never_updated(trace: Trace, variables: Sequence[tuple[str, int | None]]) -> str:
    """Which of these variables were never updated, and why; empty if each of them was.

    Each has its name and its index in the trace, None if the trace does not have it.
    """
    expected, summaries = Expectation("updates", 1, None), summaries_of(trace)
    updated = frozenset[int]().union(*(summary.updated for summary in summaries))
    passed = frozenset(index for summary in summaries for index in summary.variables)
    missed = [(name, index) for name, index in variables if index not in updated]
    elsewhere = {i for i, each in enumerate(trace.variables) if each.shards > 1} - passed
    missed = [each for each in missed if each[1] not in elsewhere]  # on other ranks
    if not missed:
        return incomplete(trace, [expected])
    known = frozenset(index for _, index in missed if index is not None)
    columns, rows = judge.rows(trace, [Expectation("updates", 1, None, rows=known)], True)
    still = {name for row in frozen(trace) for name in row.names}
    ran = any(summary.steps for summary in summaries)
    otherwise = "not passed to the optimizer" if ran else "no step ran"
    otherwise = otherwise if trace.complete else "not seen"
    for name, index in missed:
        if index not in passed:
            rows.append(Row((name,), (0, 0), "frozen" if name in still else otherwise))
    why = _causes(trace, {expected: Difference("", True)}, rows, True)
    each_of = f"at least 1 of each of {some(len(variables), 'variable')}"
    heads = [f"updates: expected {each_of}, got none for {len(missed):,} of them"]
    return _text(trace, heads, _table(trace, columns, rows), why)


def frozen(trace: Trace, names: Sequence[str] = ()) -> list[Row]:
    """The variables of frozen layers, which were not passed: those with these names, or all."""
    layers = trace.objects.frozen() if trace.complete else ()
    every = [name for _, own in layers for name in own]
    patterns = [pattern for name in names for pattern in (name, f"{name}/*")] or ["*"]
    meant = [name for name in every if any(is_meant(pattern, name) for pattern in patterns)]
    return [Row((name,), (0, 0), "frozen") for name in meant]


def unknown(
    trace: Trace,
    expected: Iterable[Expectation],
    why: str,
    instead: str = "",
    rows: Sequence[Row] = (),
) -> str:
    """A text that the counts cannot be judged, why, and what the trace has instead."""
    lines = [line.plain for line in paragraph(shown(instead), WIDTH)] if instead else []
    lines = _table(trace, ["dense", "sparse"], rows) if rows else lines
    return _text(trace, [_head(each, f"but {why}") for each in expected], lines)


def incomplete(trace: Trace, expected: Iterable[Expectation]) -> str:
    """Why an incomplete trace is not as expected; empty for a complete one."""
    heads = [_head(each, "but the trace is incomplete") for each in expected]
    return "" if trace.complete else _text(trace, heads or ["what was not seen cannot be asserted"])


# The likely causes.


def _causes(
    trace: Trace, judged: Mapping[Expectation, Difference], rows: Sequence[Row], few: bool
) -> Iterator[str]:
    """The findings on the rows that differ; without any, the answer of the report."""
    first = next(iter(judged))
    measure = judge.selection_of(trace, first)
    summaries = judge.optimizers_of(trace, measure)
    called = first_of([shown(method.name) for method in trace.methods], _MAX_NAMES)
    if not called and trace.complete and not rows:
        names = [shown(each.optimizers[0].name) for each in summaries]
        was = f"{listed(names, _MAX_NAMES)} {plural(len(names), 'was', 'were')} not used"
        yield f"{was}: did another optimizer train?" if names else "no optimizer was used"
    if called and measure.methods == frozenset():
        yield f"{first.method} was never called; those that were: {called}"
    if not called or measure.methods == frozenset():
        return
    failed: str = first.what
    if first.what in ("updates", "executions"):
        of_steps = judge.runs_for_all(trace, first.method)
        failed = f"{'few' if few else 'many'} {'steps' if of_steps else failed}"
    concerned = {name for row in rows for name in row.names}
    found = False
    for finding in causes(trace, failed, [summary.root for summary in summaries]):
        if not finding.variables or not concerned.isdisjoint(finding.variables):
            found = True
            yield finding.text + (f" {finding.advice}" if finding.severity != "info" else "")
    for expected, wrong in judged.items():
        if hint := _confused(expected, wrong, summaries):
            found = True
            yield hint
    if not found and any(row.note == "not applied" for row in rows):
        clauses = (
            f"the gradients were not applied: {clause_of(reason(each))}" for each in summaries
        )
        yield from dict.fromkeys(clauses)
    elif not found and (first.what == "calls" or not any(each.has_run for each in summaries)):
        yield from answer(trace).split("\n")


def _confused(expected: Expectation, wrong: Difference, summaries: Sequence[Summary]) -> str:
    """A hint if the number of one step was expected of the whole run; else empty."""
    number, steps = expected.low, max(each.steps for each in summaries)
    replicas = max(len(each.replicas) for each in summaries)
    a_step = (wrong.total or 0) / (steps * replicas or 1)
    if not number or number != expected.high or number not in (a_step, a_step * replicas):
        return ""
    on_each = f" on each of {replicas:,} replicas" if replicas > 1 else ""
    per_step = f"{a_step:.0f}/step" if expected.text else "per_step=True"
    return f"that is {a_step:,.0f} in each of {steps:,} steps{on_each}: did you mean {per_step}?"


# The text.


def _head(expected: Expectation, got: str) -> str:
    return f"{expected.noun}: expected {expected.limits}, {got}"


def _table(trace: Trace, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The lines of a table of the rows; at most `_MAX_ROWS` of them, those with notes first."""
    ids, noun = replica_ids(trace), dialect_of(trace.data).variable
    noun = "method" if columns[0] in ("eager", "executions") else noun
    of_steps = any(row.steps for row in rows)
    left = [Column("step", left=True), Column("replica", left=True)][: 1 + (len(ids) > 1)]
    lines = []
    if sum(len(row.names) for row in rows) <= _MAX_APART:
        rows = [row._replace(names=(name,)) for row in rows for name in row.names]
    for row in sorted(rows, key=lambda row: not row.note)[:_MAX_ROWS]:
        name = f"{row.of}: {row.names[0]}" if row.of else row.names[0] or "''"
        name = first_of([name, *row.names[1:]], 1)
        on = first_of([ids[index] for index in row.replicas], _MAX_NAMES)
        cells = [_steps(row.steps), on][: len(left)] if of_steps else []
        lines.append(Line(shown(name), [*cells, *row.counts], row.note))
    more = len(rows) - _MAX_ROWS
    below = [f"… and {some(more, 'more row')}"] if more > 0 else []
    table = Table(noun, [*(left if of_steps else ()), *map(Column, columns)], lines, below=below)
    return [line.plain for line in table.lines(WIDTH)] if rows else []


def _steps(steps: Sequence[Steps]) -> str:
    """The steps as text; of many stretches, only the first.

    >>> _steps([Steps(1, 15, 3, 4), Steps(20, 20, 1), Steps(24, 25, 2), Steps(31, 33, 3)])
    '1-3, 5-7 … 13-15, 20, 24-25 and 3 more'
    """
    names = ", ".join(map(steps_label, steps[:_MAX_NAMES]))
    more = sum(each.number for each in steps[_MAX_NAMES:])
    return f"{names} and {more:,} more" if more else names


def _text(
    trace: Trace,
    heads: Iterable[str],
    table: Sequence[str] = (),
    causes: Iterable[str] = (),
    notes: bool = True,
) -> str:
    """The text of a failure: the wrong counts, the notes of the trace, the table, the causes."""
    why = list(dict.fromkeys(causes))
    lines = list(heads)
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    lines += ["", *table] if table else []
    lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why) if why else []
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
