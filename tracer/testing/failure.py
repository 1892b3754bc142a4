"""The judge: why a trace is not as expected, in text: the counts, what differs, the likely cause.

`judge` is the one for every expectation; `not_judged` is for what cannot be judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.layout import paragraph, shown
from tracer.model.effects import OBSERVATIONS, require_effects
from tracer.model.labels import replica_names
from tracer.model.selection import Selection
from tracer.model.summary import Summary
from tracer.model.timeline import Timeline
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.testing import causes, failure_rows
from tracer.testing.expected import Claim, Expected, Wanted, claim_of
from tracer.testing.failure_rows import MAX_NAMES, WIDTH, Judged, listed
from tracer.testing.frozen_layers import explaining, names_in, not_handed


class Failure(NamedTuple):
    """What a failure says: which counts are wrong, where, and the likely causes."""

    heads: Sequence[str]
    table: Sequence[str] = ()
    causes: Iterable[str] = ()
    callers: Sequence[str] = ()
    """The lines of the program that called what was not expected."""


def of_expected(
    trace: Trace, expected: Expected, selection: Selection | None = None, *, partial: bool = False
) -> str:
    """Why the trace is not as `expected`; empty if it is.

    A trace that is not complete is never as expected, unless a `partial` one will do: then only its
    counts are judged. `selection` is what is meant if `expected` cannot say it.

    Raises `tracer.UnknownName` for a variable that the trace does not hold, and for effects if it
    has none.
    """
    failure = judge(trace, expected, selection)
    if failure is None and (trace.complete or partial):
        return ""
    if failure is None:
        heads = [_expected(each, expected) for each in expected.wanted]
        failure = Failure([f"{head}, but the trace is incomplete" for head in heads])
    return text_of(trace, failure, notes=not partial)


def judge(trace: Trace, expected: Expected, selection: Selection | None = None) -> Failure | None:
    """What is not as expected; None if all is. `selection` and errors are as for `of_expected`."""
    claim = claim_of(trace, expected, selection)
    if expected.targets is not None:
        return _of_targets(claim)
    if expected.observation is not None:
        require_effects(trace.data, expected.what, trace.steps)
    got = {each: text for each in expected.wanted if (text := _got(claim, each))}
    if not got:
        return None
    claim = replace(claim, failed=tuple(got))
    heads = [f"{_expected(each, expected)}, {text}" for each, text in got.items()]
    if expected.what == "steps":
        return Failure(heads, causes=() if trace.steps else causes.unused(claim))
    if expected.what == "calls":
        return Failure(heads, failure_rows.table_of_calls(claim.calls()), causes.of_calls(claim))
    if expected.observation is not None:
        return Failure(heads, failure_rows.table_of_effects(claim), causes.found(claim))
    judged = [Judged(claim, each, on) for each in claim.summaries for on in claim.replicas(each)]
    rows = failure_rows.rows_of_work(judged)
    if all(row.counts.executed for row in rows) and (layers := explaining(claim)):
        return Failure(heads, causes=[not_handed(trace, names_in(layers))])
    table = failure_rows.table_of_work(claim, rows)
    why = causes.of_executions(claim, judged, rows)
    return Failure(heads, table, why, causes.callers_at_fault(judged))


def _expected(wanted: Wanted, expected: Expected) -> str:
    """`updates: expected 4 in each step`."""
    of_each = ""
    if expected.targets is not None:
        of_each = f" of each of {some(len(expected.targets), 'variable')}"
    return f"{wanted.what}: expected {wanted}{of_each}{expected.where}"


def _got(claim: Claim, wanted: Wanted) -> str:
    """What there was instead, with where it was; empty if it was as wanted."""
    got: dict[str, list[str]] = {}
    for text, where in (_in_steps if claim.expected.per_step else _in_all)(claim, wanted):
        got.setdefault(text, []).append(where)
    texts = [f"{each} ({listed(got[each], 3)})" if any(got[each]) else each for each in got]
    return listed(texts, 5, "; ")


def _in_steps(claim: Claim, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """What the steps of each optimizer had instead, and the optimizer and replica if needed."""
    if not any(summary.steps for summary in claim.summaries):
        yield "but no step ran", ""
        return
    for summary in claim.summaries:
        for replica in claim.replicas(summary):
            steps = summary.steps if replica is None else summary.steps_on[replica]
            outside = claim.outside(summary, wanted, replica)
            texts = [f"{outside:,} outside any step"] if outside else []
            texts += _wrong(claim.timeline(summary, wanted, replica), wanted, steps)
            if not steps and summary.steps:
                yield "but no step ran", _where(claim, summary, replica)
            elif texts:
                yield f"got {' and '.join(texts)}", _where(claim, summary, replica)


def _wrong(timeline: Timeline, wanted: Wanted, steps: int) -> list[str]:
    """`0 in step 33 of 64`, or `0 to 3 in 12 of 64 steps`; none if no step is wrong."""
    spread = timeline.spread
    wrong = {values for values in spread if not wanted.holds(values[0])}
    number = sum(spread[values] for values in wrong)
    if not wrong:
        return []
    (low,), (high,) = min(wrong), max(wrong)
    many = f"{low:,}" if low == high else f"{low:,} {'or' if len(wrong) == 2 else 'to'} {high:,}"
    if number == 1:
        first, *_ = next(timeline.spans(wrong.__contains__))
        return [f"{many} in step {first:,} of {steps:,}"]
    return [f"{many} in {'each' if number == steps else f'{number:,}'} of {steps:,} steps"]


def _where(claim: Claim, summary: Summary, replica: int | None) -> str:
    names = [shown(summary.optimizers[0].name)] if len(claim.summaries) > 1 else []
    if replica is not None:
        names.append(shown(replica_names(claim.trace)[replica]))
    return " on ".join(names)


def _in_all(claim: Claim, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """What there was in all instead, and the replica if needed."""
    on = {replica for summary in claim.summaries for replica in claim.replicas(summary)}
    for replica in sorted(on, key=lambda each: each or 0) or [None]:
        total = _total(claim, wanted, replica)
        if not wanted.holds(total):
            where = "" if replica is None else shown(replica_names(claim.trace)[replica])
            yield f"got {total:,}", where


def _total(claim: Claim, wanted: Wanted, replica: int | None) -> int:
    context = claim.expected.context
    if claim.expected.what == "steps":
        return claim.trace.steps
    if claim.expected.what == "calls":
        return sum(n for (_, each), n in claim.calls().items() if context in (None, each))
    return claim.total(wanted, replica)


def _of_targets(claim: Claim) -> Failure | None:
    """Why not each of the targets was updated or changed; None if each was."""
    (wanted,) = claim.expected.wanted
    missed = failure_rows.rows_of_missed(claim)
    if not missed:
        return None
    head = f"{_expected(wanted, claim.expected)}, got none of {len(missed):,} of them"
    changes = claim.expected.what == "changes"
    columns = ["updates", *OBSERVATIONS[:2]] if changes else ["gradients", "None"]
    table = failure_rows.as_lines("variable", columns, [row for _, row in missed])
    return Failure([head], table, causes.of_targets(claim, {name for name, _ in missed}))


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
        called = f"Called from {listed(failure.callers, MAX_NAMES)}"
        lines += ["", *(line.plain for line in paragraph(called, WIDTH))]
    if why := list(dict.fromkeys(failure.causes)):
        lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why)
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
