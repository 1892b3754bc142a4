"""Judge a trace by an expectation: which entries count, and how their counts differ."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.check.expectation import METHODS, Expectation
from tracer.errors import shown
from tracer.model.counts import (
    ROLES,
    Selection,
    observing,
    require_effects,
    updates,
)
from tracer.model.names import NAMES_ONLY, variables_meant, with_namesakes
from tracer.model.phrases import replica_names, steps_label
from tracer.model.records import OBSERVATIONS
from tracer.model.timeline import Steps
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import first_of, span


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
    names += [trace.derived(replica_names)[replica]] if len(trace.replicas) > 1 else []
    return shown(" on ".join(names))


def _not_compared(trace: Trace, summaries: Sequence[Summary]) -> Iterator[str]:
    """The optimizers that made updates in steps whose effects are not known."""
    for summary in summaries:
        for replica in summary.replicas:
            spread = summary.spread(updates, observing("compared"), replica=replica)
            if any(made and not seen for made, seen in spread):
                yield _name(trace, summary, replica)
