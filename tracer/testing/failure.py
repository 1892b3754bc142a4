"""The judge: why a trace is not as expected, in text: the counts, what differs, the likely cause.

`judge` is the one for every expectation; `not_judged` is for what cannot be judged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tracer.layout import paragraph, shown
from tracer.model.labels import replica_names
from tracer.model.records import OBSERVATIONS
from tracer.model.selection import require_effects
from tracer.model.trace import Trace
from tracer.model.wording import first_of
from tracer.testing import causes, failure_rows
from tracer.testing.expected import Claim, Counted, Expected, Wanted, claim_of
from tracer.testing.failure_rows import MAX_NAMES, WIDTH, Part
from tracer.testing.frozen_layers import explaining, not_handed

_TABLES: Mapping[Counted, Callable[[Claim], list[str]]] = {
    "steps": lambda claim: [],
    "calls": failure_rows.table_of_calls,
}
"""The table of a failure that is not about the steps of variables."""


def of_expected(trace: Trace, expected: Expected, *, partial: bool = False) -> str:
    """Why the trace is not as `expected`; empty if it is.

    A trace that is not complete is never as expected, unless a `partial` one will do: then only its
    counts are judged.

    Raises `tracer.UnknownName` for a variable that the trace does not hold, and for effects if it
    has none.
    """
    text = judge(trace, expected, notes=not partial)
    if text or trace.complete or partial:
        return text
    incomplete = (_head(expected, each, "but the trace is incomplete") for each in expected.wanted)
    return text_of(trace, incomplete)


def judge(trace: Trace, expected: Expected, notes: bool = True) -> str:
    """What is not as expected; empty if all is. Raises as `of_expected`."""
    claim = claim_of(trace, expected)
    if expected.targets is not None:
        return _of_targets(claim, notes)
    if expected.what in OBSERVATIONS:
        require_effects(trace.data, expected.what, trace.steps)
    parts = [Part(claim, each, on) for each in claim.summaries for on in claim.replicas(each)]
    got = {each: _got(claim, parts, at) for at, each in enumerate(expected.wanted)}
    claim = replace(claim, failed=tuple(each for each in got if got[each]))
    heads = [_head(expected, each, got[each]) for each in claim.failed]
    if not heads:
        return ""
    if expected.what in _TABLES:
        table = _TABLES[expected.what](claim)
        return text_of(trace, heads, table, causes.likely(claim), notes=notes)
    rows = failure_rows.rows_of(parts)
    if all(any(counts) for *_, counts, _ in rows) and (frozen := explaining(claim)):
        cause = not_handed(trace, frozen)
        return text_of(trace, heads, causes=[cause], notes=notes)
    table = failure_rows.table_of_work(claim, rows)
    indices = {index for _, index, *_ in rows}
    names = {trace.variables[index].name for index in indices if -1 not in indices}
    why = causes.likely(claim, names, any(each.short for each in parts), parts)
    return text_of(trace, heads, table, why, causes.callers_at_fault(claim, parts), notes)


def _head(expected: Expected, wanted: Wanted, got: str) -> str:
    """`updates: expected 4 in each step, got 3 in each of 8 steps`."""
    return f"{wanted.what}: expected {wanted}{expected.where}, {got}"


def _got(claim: Claim, parts: Iterable[Part], number: int) -> str:
    """What there was instead, with where it was; empty if it was as wanted.

    `number` is the place of the asserted count.
    """
    trace, expected, wanted = claim.trace, claim.expected, claim.expected.wanted[number]
    if expected.per_step and not any(summary.steps for summary in claim.summaries):
        return "but no step ran"
    got: dict[str, list[str]] = {}
    if expected.per_step:
        for part in parts:
            got.setdefault(part.got(number), []).append(part.name)
    else:
        for replica in dict.fromkeys(part.replica for part in parts) or [None]:
            total = claim.counted(wanted, replica)
            text = "" if wanted.holds(total) else f"got {total:,}"
            name = "" if replica is None else shown(trace.derived(replica_names)[replica])
            got.setdefault(text, []).append(name)
    texts = (
        f"{each} ({first_of(got[each], 3)})" if any(got[each]) else each for each in got if each
    )
    return first_of([*texts], 5, "; ")


def _of_targets(claim: Claim, notes: bool) -> str:
    """Why not each of the targets was updated or changed; empty if each was."""
    missed = failure_rows.rows_of_missed(claim)
    if not missed:
        return ""
    got = f"got none of {len(missed):,} of them"
    columns = ["gradients", "None"]
    table = failure_rows.as_lines("variable", columns, [row for _, row in missed])
    why = causes.likely(claim, {name for name, _ in missed}, short=True)
    heads = [_head(claim.expected, each, got) for each in claim.expected.wanted]
    return text_of(claim.trace, heads, table, why, notes=notes)


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
    return text_of(trace, heads, lines, causes)


def text_of(
    trace: Trace,
    heads: Iterable[str],
    table: Iterable[str] = (),
    causes: Iterable[str] = (),
    callers: Sequence[str] = (),
    notes: bool = True,
) -> str:
    """The text of a failure: which counts are wrong, where, who called, and the likely causes.

    With `notes`, those of a trace that is not complete.
    """
    why = list(dict.fromkeys(causes))
    called = paragraph(f"Called from {first_of(callers, MAX_NAMES)}", WIDTH) if callers else []
    lines = list(heads)
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    lines += ["", *table] if table else []
    lines += ["", *(line.plain for line in called)] if called else []
    lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why) if why else []
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
