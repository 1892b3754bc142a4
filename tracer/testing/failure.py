"""The judge: why a trace is not as expected, in text: the counts, what differs, the likely cause.

`judge` is the one for every expectation; `not_judged` is for what cannot be judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.layout import paragraph, shown
from tracer.model.labels import replica_names
from tracer.model.records import OBSERVATIONS
from tracer.model.selection import require_effects
from tracer.model.summary import Summary
from tracer.model.trace import Trace
from tracer.model.wording import first_of
from tracer.testing import causes, failure_rows
from tracer.testing.expected import Claim, Expected, Wanted, claim_of, of_kinds
from tracer.testing.failure_rows import MAX_NAMES, WIDTH, Judged
from tracer.testing.frozen_layers import explaining, names_in, not_handed


class Failure(NamedTuple):
    """What a failure says: which counts are wrong, where, and the likely causes."""

    heads: Sequence[str]
    table: Sequence[str] = ()
    causes: Iterable[str] = ()
    callers: Sequence[str] = ()
    """The lines of the program that called what was not expected."""


def of_expected(trace: Trace, expected: Expected, *, partial: bool = False) -> str:
    """Why the trace is not as `expected`; empty if it is.

    A trace that is not complete is never as expected, unless a `partial` one will do: then only its
    counts are judged.

    Raises `tracer.UnknownName` for a variable that the trace does not hold, and for effects if it
    has none.
    """
    failure = judge(trace, expected)
    if failure is None and (trace.complete or partial):
        return ""
    incomplete = dict.fromkeys(expected.wanted, "but the trace is incomplete")
    failure = failure or Failure(_heads(expected, incomplete))
    return text_of(trace, failure, notes=not partial)


def judge(trace: Trace, expected: Expected) -> Failure | None:
    """What is not as expected; None if all is. Raises as `of_expected`."""
    claim = claim_of(trace, expected)
    if expected.targets is not None:
        return _of_targets(claim)
    if expected.what in OBSERVATIONS:
        require_effects(trace.data, expected.what, trace.steps)
    got = {each: text for each in expected.wanted if (text := _got(claim, each))}
    if not got:
        return None
    claim = replace(claim, failed=tuple(got))
    heads = _heads(expected, got)
    if expected.what not in ("updates", "executions"):
        table = [] if expected.what == "steps" else failure_rows.table_of_effects(claim)
        if expected.what == "calls":
            table = failure_rows.table_of_calls(claim)
        return Failure(heads, table, causes.likely(claim))
    judged = [Judged(claim, each, on) for each in claim.summaries for on in claim.replicas(each)]
    rows = failure_rows.rows_of_work(judged)
    if all(row.counts.executed for row in rows) and (layers := explaining(claim)):
        return Failure(heads, causes=[not_handed(trace, names_in(layers))])
    table = failure_rows.table_of_work(claim, rows)
    known = rows and all(row.variable >= 0 for row in rows)
    names = {trace.variables[row.variable].name for row in rows} if known else None
    why = causes.likely(claim, names, any(each.short for each in judged), judged)
    return Failure(heads, table, why, causes.callers_at_fault(judged))


def _heads(expected: Expected, got: Mapping[Wanted, str]) -> list[str]:
    """`updates: expected 4 in each step, got 3 in each of 8 steps`."""
    return [f"{each.what}: expected {each}{expected.where}, {got[each]}" for each in got]


def _got(claim: Claim, wanted: Wanted) -> str:
    """What there was instead, with where it was; empty if it was as wanted."""
    summaries, per_step = claim.summaries, claim.expected.per_step
    judged = {(s if per_step else None, on): "" for s in summaries for on in claim.replicas(s)}
    if per_step and not any(summary.steps for summary in summaries):
        return "but no step ran"
    got: dict[str, list[str]] = {}
    for summary, replica in judged or {(None, None)}:
        names = [shown(summary.optimizers[0].name)] if summary and len(summaries) > 1 else []
        names += [] if replica is None else [shown(replica_names(claim.trace)[replica])]
        if summary is None:
            total = _total(claim, wanted, replica)
            text = "" if wanted.holds(total) else f"got {total:,}"
        else:
            text = _in_steps(claim, wanted, summary, replica)
        if text:
            got.setdefault(text, []).append(" on ".join(names))
    texts = [f"{each} ({first_of(got[each], 3)})" if any(got[each]) else each for each in got]
    return first_of(texts, 5, "; ")


def _total(claim: Claim, wanted: Wanted, replica: int | None) -> int:
    context = claim.expected.context
    if claim.expected.what == "steps":
        return claim.trace.steps
    if claim.expected.what == "calls":
        return sum(n for (_, each), n in claim.calls().items() if context in (None, each))
    return claim.total(wanted, replica)


def _in_steps(claim: Claim, wanted: Wanted, summary: Summary, replica: int | None) -> str:
    """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`; empty if no step is wrong."""
    steps = summary.steps if replica is None else summary.steps_on[replica]
    on = claim.selection.replicas if replica is None else frozenset({replica})
    measure = replace(of_kinds(claim.selection, wanted.kinds), replicas=on)
    outside, timeline = summary.outside(measure), summary.timeline(measure, replica=replica)
    wrong = {values for values in timeline.spread if not wanted.holds(values[0])}
    number = sum(timeline.spread[values] for values in wrong)
    texts = [f"{outside:,} outside any step"] if outside else []
    if wrong:
        (low,), (high,) = min(wrong), max(wrong)
        to = "or" if len(wrong) == 2 else "to"
        which = f"{'each' if number == steps else f'{number:,}'} of {steps:,} steps"
        if number == 1:
            which = f"step {next(timeline.spans(wrong.__contains__))[0]:,} of {steps:,}"
        texts.append(f"{low:,}{'' if low == high else f' {to} {high:,}'} in {which}")
    if summary.steps and not steps:
        return "but no step ran"
    return f"got {' and '.join(texts)}" if texts else ""


def _of_targets(claim: Claim) -> Failure | None:
    """Why not each of the targets was updated or changed; None if each was."""
    missed = failure_rows.rows_of_missed(claim)
    if not missed:
        return None
    got = dict.fromkeys(claim.expected.wanted, f"got none of {len(missed):,} of them")
    changes = claim.expected.what == "changes"
    columns = ["updates", *OBSERVATIONS[:2]] if changes else ["gradients", "None"]
    table = failure_rows.as_lines("variable", columns, [row for _, row in missed])
    why = causes.likely(claim, {name for name, _ in missed}, short=True)
    return Failure(_heads(claim.expected, got), table, why)


def not_judged(
    trace: Trace,
    wanted: Iterable[Wanted],
    why: str,
    instead: str = "",
    causes: Iterable[str] = (),
) -> str:
    """That nothing can be said of what is wanted, why, and what the trace holds instead."""
    heads = [f"{each.what}: expected {each}, but {why}" for each in wanted]
    lines = [line.plain for line in paragraph(shown(instead), WIDTH)] if instead else []
    return text_of(trace, Failure(heads, lines, causes))


def text_of(trace: Trace, failure: Failure, notes: bool = True) -> str:
    """The failure as text; with `notes`, those of a trace that is not complete."""
    lines = list(failure.heads)
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    if failure.table:
        lines += ["", *failure.table]
    if failure.callers:
        called = f"Called from {first_of(failure.callers, MAX_NAMES)}"
        lines += ["", *(line.plain for line in paragraph(called, WIDTH))]
    if why := list(dict.fromkeys(failure.causes)):
        lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why)
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
