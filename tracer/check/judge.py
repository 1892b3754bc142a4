"""Judge a trace by an expectation: how its counts differ, and which rows of its tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tracer.check.expectation import METHODS, Expectation
from tracer.errors import shown
from tracer.model.measures import (
    KINDS as GRADIENTS,
    ROLES,
    Selection,
    counted,
    missing,
    observing,
    requests,
    require_effects,
    updates,
    zeroed,
)
from tracer.model.names import NAMES_ONLY, variables_meant, with_namesakes
from tracer.model.phrases import SET_TO_ZERO, replica_names
from tracer.model.records import OBSERVATIONS
from tracer.model.summary import Summary, summaries_of
from tracer.model.timeline import Steps, Values
from tracer.model.trace import Trace
from tracer.model.words import first_of, first_true, span

_MISSED = (missing, requests, zeroed)
"""The counts that tell why there was no update."""


class Difference(NamedTuple):
    """How the counts differ from an expectation."""

    got: str
    """`got 3 in each of 8 steps`."""
    few: bool
    """True if a count is too small."""
    total: int | None = None
    """The count of the whole run, if that was judged."""


class Row(NamedTuple):
    """The counts of some variables, or of a method, that differ."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    note: str = ""
    """Why there was no update; empty if there was one."""
    of: str = ""
    """The name of the optimizer, if there are several."""
    steps: tuple[Steps, ...] = ()
    """The wrong steps, with the counts of each; empty for the counts of the whole run."""
    replicas: tuple[int, ...] = ()


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
        executed = sum(block.total * measure(block) for block in counted(trace.data))
        total = trace.steps if expected.what == "steps" else executed
        return None if expected.holds(total) else Difference(f"got {total:,}", total < low, total)
    said: dict[str, list[str]] = {}
    counts = []
    for summary in summaries:
        for replica in summary.replicas:
            text, least = _in_steps(summary, replica, measure, expected)
            said.setdefault(text, []).append(_name(trace, summary, replica, len(summaries)))
            counts.append(least)
    if not any(summary.steps for summary in summaries):
        return Difference("but no step ran", low > 0)
    texts = [
        f"{text} ({first_of(names, 3)})" if len(names) < len(counts) else text
        for text, names in said.items()
        if text
    ]
    return Difference(first_of(texts, 5, "; "), min(counts) < low) if texts else None


def _in_steps(
    summary: Summary, replica: int, measure: Selection, expected: Expectation
) -> tuple[str, int]:
    """What wrong steps did on a replica, and the least count of one; an empty text if none did."""
    timeline = summary.timeline(measure, replica=replica)
    steps, wrong = summary.steps_on[replica], _wrong(timeline.spread, [expected])
    if not steps:
        return "but no step ran", 0
    outside = summary.outside(replace(measure, replicas=frozenset({replica})))
    texts = [f"{outside:,} outside any step"] if outside else []
    counts = [count for (count,) in wrong] or [expected.low or 0]
    if wrong:
        number = sum(timeline.spread[values] for values in wrong)
        first = next(timeline.spans(wrong.__contains__))[0]
        where = f"step {first:,} of {steps:,}" if number == 1 else f"{number:,} of {steps:,} steps"
        where = f"each of {steps:,} steps" if number == steps > 1 else where
        texts.append(f"{span((min(counts), max(counts)))} in {where}")
    return f"got {' and '.join(texts)}" if texts else "", min(counts)


def _wrong(spread: Iterable[Values], expected: Sequence[Expectation]) -> set[Values]:
    """The counts of steps, which begin with those of the expectations, that are not as expected."""
    return {each for each in spread if not all(map(Expectation.holds, expected, each))}


def _name(trace: Trace, summary: Summary, replica: int, number: int = 2) -> str:
    """`adam#2 on replica 1`; without the optimizer or the replica if there is only one."""
    names = [summary.optimizers[0].name] if number > 1 else []
    names += [trace.derived(replica_names)[replica]] if len(trace.replicas) > 1 else []
    return shown(" on ".join(names))


def _not_compared(trace: Trace, summaries: Sequence[Summary]) -> Iterator[str]:
    """The optimizers that made updates in steps whose effects are not known."""
    for summary in summaries:
        for replica in summary.replicas:
            spread = summary.spread(updates, observing("compared"), replica=replica)
            if any(made and not seen for made, seen in spread):
                yield _name(trace, summary, replica)


# The rows that differ.


def rows(trace: Trace, expected: Sequence[Expectation], few: bool) -> tuple[list[str], list[Row]]:
    """The headers of the counts, and the rows that differ; those of few variables come first.

    The expectations are of the same variables. With `few`, a count is too small, so variables
    without any update differ, too.
    """
    first = expected[0]
    if first.what in OBSERVATIONS:  # each is odd, so the steps with any are named
        first = replace(first, per_step=True, low=0, high=0)
        expected = [first]
    measure = selection_of(trace, replace(first, kind=None))
    summaries = optimizers_of(trace, measure)
    if first.what == "calls":
        return ["eager", "tracing"], [*_calls(summaries, measure)]
    columns = {first.what.replace("_", " "): measure}
    if first.what in ("updates", "executions") and not runs_for_all(trace, first.method):
        columns = {kind: replace(measure, kinds=frozenset({kind})) for kind in GRADIENTS[:2]}
    alike: dict[tuple[Row, bool], list[int]] = {}
    has_rows = first.what != "steps" and measure.methods != frozenset()
    for summary in summaries if has_rows else ():
        of = summary.optimizers[0].name if len(summaries) > 1 else ""
        groups = [measure.kept(pattern.variables) for pattern in summary.patterns]
        for variables in [()] if runs_for_all(trace, first.method) else filter(None, groups):
            for row, usual in _of_variables(trace, summary, variables, expected, columns):
                is_right = usual or not (few or first.per_step or any(row.counts))
                alike.setdefault((row._replace(of=of), is_right), []).extend(variables)
    found = []
    for (row, is_right), indices in alike.items():
        names = [trace.variables[index].name for index in sorted(indices)]
        if not is_right or all(each for _, each in alike):
            found.append(row._replace(names=tuple(names or [first.method or ""])))
    return [*columns], sorted(found, key=lambda row: (len(row.names), row.steps))


def _calls(summaries: Iterable[Summary], measure: Selection) -> Iterator[Row]:
    """How often Python called each method."""
    for summary in summaries:
        for index in summary.methods:
            if measure.methods is None or index in measure.methods:
                yield Row((summary.trace.methods[index].name,), summary.calls(index))


def _of_variables(
    trace: Trace,
    summary: Summary,
    variables: Sequence[int],
    expected: Sequence[Expectation],
    columns: Mapping[str, Selection],
) -> Iterator[tuple[Row, bool]]:
    """The rows of variables with equal counts, and whether right steps have the same counts.

    Without variables, the rows are of a step method.
    """
    only, first, size = frozenset(variables[:1]), expected[0], len(expected)
    own = [replace(each, variables=only if variables else None) for each in columns.values()]
    own += [replace(each, variables=only) for each in _MISSED]

    def row(counts: Values, *where: Any) -> Row:
        made, missed = counts[: len(columns)], counts[len(columns) :]
        otherwise = "not passed" if first.per_step else "never ran"
        otherwise = otherwise if trace.complete else "not seen"
        note = why_none(sum(made), missed, otherwise) if first.what == "updates" else ""
        return Row((), made, note, "", *where)

    if not first.per_step:
        yield row(tuple(map(summary.total, own))), False
        return
    asserted = [selection_of(trace, each) for each in expected]
    replicas: dict[tuple[Values, tuple[Steps, ...], bool], list[int]] = {}
    for replica in summary.replicas:
        timeline = summary.timeline(*asserted, *own, replica=replica)
        wrong = _wrong(timeline.spread, expected)
        right = {values[size:] for values in timeline.spread if values not in wrong}
        for counts in {values[size:] for values in wrong}:
            steps = timeline.steps_with({each for each in wrong if each[size:] == counts})
            replicas.setdefault((counts, steps, counts in right), []).append(replica)
    for (counts, steps, usual), on in replicas.items():
        yield row(counts, steps, tuple(on)), usual


def why_none(made: int, missed: Sequence[int], otherwise: str) -> str:
    """Why there was no update, from the counts in `_MISSED`; empty if there was."""
    none, requested, set_to_zero = missed
    return first_true(
        (made, ""),
        (set_to_zero, SET_TO_ZERO),
        (requested, "not applied"),
        (none, "no gradient"),
        (True, otherwise),
    )
