"""Say why a trace is not as expected: the counts, the report's rows of them, the findings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from tracer.check.expectation import METHODS, Expectation
from tracer.findings.rule import causes
from tracer.layout import paragraph, shown
from tracer.model.counts import (
    ROLES,
    Selection,
    observing,
    require_effects,
    updates,
)
from tracer.model.names import NAMES_ONLY, variables_meant, with_namesakes
from tracer.model.phrases import steps_label
from tracer.model.records import OBSERVATIONS
from tracer.model.timeline import Steps
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import first_of, listed, plural, some, span
from tracer.reporters import columns, text
from tracer.reporters.columns import Row
from tracer.reporters.text import answer

WIDTH = 76  # pytest indents a message by 4
_MAX_NAMES = 3  # of replicas, methods or stretches of steps
_MAX_ROWS = 12


# How the counts differ.


class Difference(NamedTuple):
    """How the counts differ from an expectation."""

    got: str
    """`got 3 in each of 8 steps`."""
    few: bool
    """True if a count is too small."""
    total: int | None = None
    """The count of the whole run, if that was judged."""
    roots: frozenset[int] = frozenset()
    """The optimizers with wrong steps, if steps were judged."""


def runs_for_all(trace: Trace, method: str | None) -> bool:
    """True for a step method, which runs once for all variables."""
    roles: set[str] = {each.role for each in trace.methods if each.name == method}
    return (roles or METHODS.get(method or "", set())) == {"step"}


def selection_of(trace: Trace, expected: Expectation) -> Selection:
    """The entries of the trace that count; none for a method that was never called.

    Raises `tracer.UnknownName` for a variable that the trace does not have.
    """
    rows, methods = expected.rows, None
    if expected.names and rows is None:
        meant = (variables_meant(name, trace.variables, NAMES_ONLY) for name in expected.names)
        rows = with_namesakes(frozenset[int]().union(*meant), trace.variables)
    if expected.method is not None:
        named = (i for i, method in enumerate(trace.methods) if method.name == expected.method)
        methods = frozenset(named)
    kinds = None if expected.kind is None else frozenset({expected.kind})
    return Selection(roles=ROLES.get(expected.what), kinds=kinds, methods=methods, variables=rows)


def optimizers_of(trace: Trace, measure: Selection) -> Sequence[Summary]:
    """The root optimizers that have the variables; all if none has."""
    variables, summaries = measure.variables or frozenset(), summaries_of(trace)
    return [each for each in summaries if not variables.isdisjoint(each.variables)] or summaries


def difference(trace: Trace, expected: Expectation) -> Difference | None:
    """How the trace differs from an expectation; None if it does not.

    Raises `tracer.UnknownName` for a variable that the trace does not have, and for effects if it
    has none.
    """
    measure, low = selection_of(trace, expected), expected.low or 0
    summaries = optimizers_of(trace, measure)
    if expected.what in OBSERVATIONS:
        require_effects(trace.data, expected.what, trace.steps)
        if apart := first_of([*_not_compared(trace, summaries)], 3):
            return Difference(f"but nothing was compared in some steps of {apart}", False)
    if not expected.per_step:
        total = trace.steps if expected.what == "steps" else trace.counts.total(measure)
        where = _steps(summaries, measure) if expected.what in OBSERVATIONS and total else ""
        wrong = Difference(f"got {total:,}{where}", total < low, total)
        return None if expected.holds(total) else wrong
    said: dict[str, list[str]] = {}
    counts, roots = [], set[int]()
    for summary in summaries:
        for replica in summary.replicas:
            text, least = _in_steps(summary, replica, measure, expected)
            said.setdefault(text, []).append(_name(trace, summary, replica, len(summaries)))
            counts.append(least)
            roots |= {summary.root} if text else set()
    if not any(summary.steps for summary in summaries):
        return Difference("but no step ran", low > 0)
    texts = [
        f"{text} ({first_of(names, 3)})" if len(names) < len(counts) else text
        for text, names in said.items()
        if text
    ]
    wrong = Difference(first_of(texts, 5, "; "), min(counts) < low, None, frozenset(roots))
    return wrong if texts else None


def _steps(summaries: Sequence[Summary], measure: Selection) -> str:
    """` in steps 4-6, 9-10`: those in which anything is counted."""
    timelines = [summary.timeline(measure) for summary in summaries]
    steps = [each for line in timelines for each in line.steps_with({*line.spread} - {(0,)})]
    return f" in steps {_spans(steps)}"


def _spans(steps: Sequence[Steps]) -> str:
    """`1-3, 5-7 … 61-63`, at most three stretches."""
    return ", ".join(map(steps_label, steps[:3])) + ("" if len(steps) <= 3 else ", ...")


def _in_steps(
    summary: Summary, replica: int, measure: Selection, expected: Expectation
) -> tuple[str, int]:
    """What wrong steps did on a replica, and the least count of one; an empty text if none did."""
    timeline, steps = summary.timeline(measure, replica=replica), summary.steps_on[replica]
    wrong = {values for values in timeline.spread if not expected.holds(values[0])}
    if not steps:
        return "but no step ran", 0
    outside = summary.outside(replace(measure, replicas=frozenset({replica})))
    texts = [f"{outside:,} outside any step"] if outside else []
    counts = [count for (count,) in wrong] or [expected.low or 0]
    if wrong:
        number = sum(timeline.spread[values] for values in wrong)
        spans = _spans(timeline.steps_with(wrong))
        where = f"{number:,} of {steps:,} steps ({spans})"
        where = f"step {spans} of {steps:,}" if number == 1 else where
        where = f"each of {steps:,} steps" if number == steps > 1 else where
        texts.append(f"{span((min(counts), max(counts)))} in {where}")
    return f"got {' and '.join(texts)}" if texts else "", min(counts)


def _name(trace: Trace, summary: Summary, replica: int, number: int = 2) -> str:
    """`adam#2 on replica 1`; without the optimizer or the replica if there is only one."""
    names = [summary.optimizers[0].name] if number > 1 else []
    names += [trace.replicas[replica].label] if len(trace.replicas) > 1 else []
    return shown(" on ".join(names))


def _not_compared(trace: Trace, summaries: Sequence[Summary]) -> Iterator[str]:
    """The optimizers that made updates in steps whose effects are not known."""
    for summary in summaries:
        for replica in summary.replicas:
            spread = summary.spread(updates, observing("compared"), replica=replica)
            if any(made and not seen for made, seen in spread):
                yield _name(trace, summary, replica)


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
    few = any(wrong.few for wrong in judged.values())
    first = next(iter(judged))
    roots = frozenset[int]().union(*(wrong.roots for wrong in judged.values()))
    lines, names = _table(trace, first, few, [], roots)
    heads = [_head(each, wrong.got) for each, wrong in judged.items()]
    why = [*_causes(trace, judged, names, few)]
    return _text(trace, heads, lines, why, ran=few, notes=not partial)


def never_updated(trace: Trace, variables: Sequence[tuple[str, int | None]]) -> str:
    """Which of these variables were never updated, and why; empty if each of them was.

    Each has its name and its index in the trace, None if the trace does not have it.
    """
    summaries = summaries_of(trace)
    updated = frozenset[int]().union(*(summary.updated for summary in summaries))
    passed = frozenset(index for summary in summaries for index in summary.variables)
    missed = [(name, index) for name, index in variables if index not in updated]
    elsewhere = {i for i, each in enumerate(trace.variables) if each.shards > 1} - passed
    missed = [each for each in missed if each[1] not in elsewhere]  # on other ranks
    expected = Expectation("updates", 1, None, rows=frozenset(i for _, i in missed if i in passed))
    if not missed:
        return incomplete(trace, [expected])
    ran = any(summary.steps for summary in summaries)
    otherwise = "not passed to the optimizer" if ran else "no step ran"
    otherwise = otherwise if trace.complete else "not seen"
    rows = [_row(name, otherwise) for name, index in missed if index not in passed]
    lines, names = _table(trace, expected, True, rows)
    each_of = f"at least 1 of each of {some(len(variables), 'variable')}"
    heads = [f"updates: expected {each_of}, got none for {len(missed):,} of them"]
    why = [*_causes(trace, {expected: Difference("", True)}, names, True)]
    return _text(trace, heads, lines, why, ran=True)


def _row(name: str, note: str) -> Row:
    """The row of a variable that was not passed, as the report's table of variables has rows."""
    return Row({"variable": name, "updates": 0, "dense": 0, "sparse": 0}, note)


def unknown(
    trace: Trace,
    expected: Iterable[Expectation],
    why: str,
    instead: str = "",
) -> str:
    """A text that the counts cannot be judged, why, and what the trace has instead."""
    lines = [line.plain for line in paragraph(shown(instead), WIDTH)] if instead else []
    return _text(trace, [_head(each, f"but {why}") for each in expected], lines)


def incomplete(trace: Trace, expected: Iterable[Expectation]) -> str:
    """Why an incomplete trace is not as expected; empty for a complete one."""
    heads = [_head(each, "but the trace is incomplete") for each in expected]
    return "" if trace.complete else _text(trace, heads or ["what was not seen cannot be asserted"])


# The likely causes.


def _causes(
    trace: Trace, judged: Mapping[Expectation, Difference], names: Set[str], few: bool
) -> Iterator[str]:
    """Why nothing ran, the findings on the variables with these names, and a hint."""
    first = next(iter(judged))
    measure = selection_of(trace, first)
    summaries = optimizers_of(trace, measure)
    called = first_of([shown(method.name) for method in trace.methods], _MAX_NAMES)
    if not called and trace.complete and not names:
        unused = [shown(each.optimizers[0].name) for each in summaries]
        was = f"{listed(unused, _MAX_NAMES)} {plural(len(unused), 'was', 'were')} not used"
        yield f"{was}: did another optimizer train?" if unused else "no optimizer was used"
    if called and measure.methods == frozenset():
        yield f"{first.method} was never called; those that were: {called}"
    if not called or measure.methods == frozenset():
        return
    failed: str = first.what
    if first.what in ("updates", "executions"):
        of_steps = runs_for_all(trace, first.method)
        failed = f"{'few' if few else 'many'} {'steps' if of_steps else failed}"
    for finding in causes(trace, failed, [summary.root for summary in summaries]):
        if not finding.variables or not names.isdisjoint(finding.variables):
            yield finding.text + (f" {finding.advice}" if finding.severity != "info" else "")
    for expected, wrong in judged.items():
        if hint := _confused(expected, wrong, summaries):
            yield hint


def _confused(expected: Expectation, wrong: Difference, summaries: Sequence[Summary]) -> str:
    """A hint if the number of one step was expected of the whole run; else empty."""
    number, steps = expected.low, max(each.steps for each in summaries)
    replicas = max(len(each.replicas) for each in summaries)
    a_step, rest = divmod(wrong.total or 0, steps * replicas or 1)
    once = number and number == expected.high and expected.what != "steps"
    if not once or rest or number not in (a_step, a_step * replicas):
        return ""
    on_each = f" on each of {replicas:,} replicas" if replicas > 1 else ""
    per_step = f"{a_step}/step" if expected.text else "per_step=True"
    return f"that is {a_step:,} in each of {steps:,} steps{on_each}: did you mean {per_step}?"


# The text.


def _head(expected: Expectation, got: str) -> str:
    return f"{expected.noun}: expected {expected.limits}, {got}"


def _table(
    trace: Trace,
    expected: Expectation,
    few: bool,
    more: Sequence[Row],
    roots: Set[int] = frozenset(),
) -> tuple[list[str], set[str]]:
    """The report's rows of what is expected, as lines, and the names of their variables.

    If a count is too small, these are the odd rows, if any, and `more`. `roots` are the optimizers
    concerned; empty for all.
    """
    measure, lines, names = selection_of(trace, expected), list[str](), set[str]()
    of_method = expected.what == "calls" or runs_for_all(trace, expected.method)
    by: columns.By = "method" if of_method else "variable"
    summaries = optimizers_of(trace, measure)
    if expected.what == "steps" or measure.methods == frozenset():
        return [], set()
    for summary in [each for each in summaries if not roots or each.root in roots]:
        asked: dict[columns.By, frozenset[int]]
        asked = {} if measure.variables is None else {"variable": measure.variables}
        table = columns.table(summary, by, columns.Part(rows=asked))
        wanted = expected.method if of_method else None
        rows = [row for row in table.rows if wanted in (None, row.values[by])]
        odd = [row for row in rows if row.note] if few else []
        rows = [*(odd or ([] if more else rows)), *more]
        more = ()
        names |= {row.values[by] for row in rows}
        if rows:
            several = [f"{shown(summary.optimizers[0].name)}:"] if len(summaries) > 1 else []
            drawn = text.drawn(table._replace(rows=rows, below=()), WIDTH, _MAX_ROWS)
            lines += [*several, *(line.plain for line in drawn)]
    return lines, names


def _text(
    trace: Trace,
    heads: Iterable[str],
    table: Sequence[str] = (),
    why: Sequence[str] = (),
    *,
    ran: bool = False,
    notes: bool = True,
) -> str:
    """The text of a failure: the wrong counts, the notes of the trace, the table, the causes.

    With `ran`, it has the answer of the report if there is no cause.
    """
    lines = list(heads)
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    lines += ["", *table] if table else []
    if why:
        lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why)
    elif ran and trace.complete:
        lines += _items("What ran:", answer(trace).split("\n"))
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
