"""The judge: why a trace is not as expected, in text: the counts, what differs, the likely cause.

`judge` is the one for every expectation; the functions below it are for what cannot be judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.errors import UnknownName, unknown_name
from tracer.layout import paragraph, shown
from tracer.model.effects import require_effects
from tracer.model.labels import replica_names
from tracer.model.names import near_patterns
from tracer.model.selection import Selection
from tracer.model.summary import Summary
from tracer.model.timeline import Values
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.testing import causes, failure_rows, frozen_layers
from tracer.testing.expected import Claim, Expected, Target, Wanted, claim_of
from tracer.testing.failure_rows import MAX_NAMES, WIDTH, length, listed


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
        return _of_targets(claim, expected.targets)
    if expected.observation is not None:
        require_effects(trace.data, expected.what, trace.steps)
    calls = causes.calls_by_name(claim) if expected.what == "calls" else {}
    got = {each: text for each in expected.wanted if (text := _got(claim, each, calls))}
    if not got:
        return None
    claim = replace(claim, failed=tuple(got))
    heads = [f"{_expected(each, expected)}, {text}" for each, text in got.items()]
    if expected.what == "steps":
        return Failure(heads, causes=() if trace.steps else causes.unused(claim))
    if expected.what == "calls":
        return Failure(heads, failure_rows.table_of_calls(calls), causes.of_calls(claim))
    if expected.observation is not None:
        return Failure(heads, failure_rows.table_of_effects(claim), causes.of_effects(claim))
    differences = failure_rows.differences(claim)
    if all(row.counts.executed for row in differences.rows) and (
        culprits := frozen_layers.explaining(claim)
    ):
        return Failure(heads, causes=[frozen_layers.of_layers(trace, culprits)])
    table = failure_rows.table_of_work(claim, differences.rows)
    why = causes.of_executions(claim, differences)
    return Failure(heads, table, why, causes.callers_at_fault(claim))


def _expected(wanted: Wanted, expected: Expected) -> str:
    """`updates: expected 4 in each step`."""
    of_each = ""
    if expected.targets is not None:
        of_each = f" of each of {some(len(expected.targets), 'variable')}"
    return f"{wanted.what}: expected {wanted}{of_each}{expected.where}"


def _got(claim: Claim, wanted: Wanted, calls: Mapping[str, Mapping[str, int]]) -> str:
    """What there was instead; empty if it was as wanted."""
    if claim.expected.what == "steps":
        return "" if wanted.holds(claim.trace.steps) else f"got {claim.trace.steps:,}"
    if claim.expected.what == "calls":
        context = claim.expected.context
        rows = (row.items() for row in calls.values())
        total = sum(n for row in rows for way, n in row if context in (None, way))
        return "" if wanted.holds(total) else f"got {total:,}"
    got = _got_in_steps if claim.expected.per_step else _got_in_all
    texts = [
        f"{text} ({listed(wheres, 3)})" if any(wheres) else text
        for text, wheres in got(claim, wanted).items()
    ]
    return listed(texts, 5, "; ")


def _got_in_steps(claim: Claim, wanted: Wanted) -> dict[str, list[str]]:
    """What there was instead, with where it was; empty if it was as wanted."""
    if not any(summary.steps for summary in claim.summaries):
        return {"but no step ran": [""]}
    got: dict[str, list[str]] = {}
    for summary in claim.summaries:
        for replica in claim.replicas(summary):
            steps = summary.steps if replica is None else summary.steps_on[replica]
            text = _in_steps(claim.wrong(summary, wanted, replica), steps)
            if not steps and summary.steps:
                text = "but no step ran"
            elif outside := claim.outside(summary, wanted, replica):
                text = f"got {outside:,} outside any step" + (f" and {text[4:]}" if text else "")
            if text:
                got.setdefault(text, []).append(_where(claim, summary, replica))
    return got


def _in_steps(wrong: Sequence[tuple[int, int, Values]], steps: int) -> str:
    """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`; empty if none is wrong."""
    if not wrong:
        return ""
    counts = {values[0] for _, _, values in wrong}
    low, high = min(counts), max(counts)
    many = f"{low:,}" if low == high else f"{low:,} {'or' if len(counts) == 2 else 'to'} {high:,}"
    number = length(each[:2] for each in wrong)
    if number == 1:
        return f"got {many} in step {wrong[0][0]:,} of {steps:,}"
    if number == steps:
        return f"got {many} in each of {steps:,} steps"
    return f"got {many} in {number:,} of {steps:,} steps"


def _got_in_all(claim: Claim, wanted: Wanted) -> dict[str, list[str]]:
    got: dict[str, list[str]] = {}
    on = {replica for summary in claim.summaries for replica in claim.replicas(summary)}
    for replica in sorted(on, key=lambda each: each or 0) or [None]:
        total = sum(claim.total(summary, wanted, replica) for summary in claim.summaries)
        if not wanted.holds(total):
            where = "" if replica is None else shown(replica_names(claim.trace)[replica])
            got.setdefault(f"got {total:,}", []).append(where)
    return got


def _where(claim: Claim, summary: Summary, replica: int | None) -> str:
    names = [shown(summary.optimizers[0].name)] if len(claim.summaries) > 1 else []
    if replica is not None:
        names.append(shown(replica_names(claim.trace)[replica]))
    return " on ".join(names)


def _of_targets(claim: Claim, targets: Sequence[Target]) -> Failure | None:
    """Why not each of these variables was updated or changed; None if each was."""
    (wanted,) = claim.expected.wanted
    missed = failure_rows.rows_of_missed(claim, targets)
    if not missed:
        return None
    head = f"{_expected(wanted, claim.expected)}, got none of {len(missed):,} of them"
    table = failure_rows.table_of_targets(claim, [row for _, row in missed])
    return Failure([head], table, causes.of_targets(claim, {name for name, _ in missed}))


def of_incomplete(trace: Trace) -> str:
    """Why nothing can be said of a trace that is not complete; empty if it is."""
    if trace.complete:
        return ""
    return text_of(trace, Failure(["nothing can be said of what was not seen"]))


def of_unknown(trace: Trace, wanted: Sequence[Wanted], error: UnknownName) -> str:
    """Why nothing can be said of a variable: the trace does not hold it, as `error` says."""
    return _unknown(trace, wanted, "no such variable was handed over", error)


def of_not_handed(trace: Trace, wanted: Sequence[Wanted], names: Sequence[str]) -> str:
    """Why variables that the program holds were not updated: no optimizer was handed them."""
    heads = [
        f"{each.what}: expected {each}, but no such variable was handed over" for each in wanted
    ]
    layers = [each for each in trace.objects.frozen() if not set(names).isdisjoint(each[1])]
    frozen = [name for _, own in layers for name in own if name in names]
    return text_of(
        trace, Failure(heads, causes=[frozen_layers.not_handed(trace, frozen or names, layers)])
    )


def of_no_variables(trace: Trace, given: str, layers: Sequence[frozen_layers.Frozen]) -> str:
    """Why there was no variable to update in what was given, of which all `layers` are frozen."""
    head = f"updates: expected at least 1 of each variable{given}, but there is no "
    if not layers:
        return f"{head}variable"
    names = [name for _, own in layers for name in own]
    cause = f"{frozen_layers.are_frozen(layers)}, with {frozen_layers.together(names)}"
    return text_of(trace, Failure([f"{head}trainable variable"], causes=[cause]))


def of_no_such_variable(
    trace: Trace, wanted: Sequence[Wanted], name: str, alive: Iterable[str]
) -> str:
    """Why nothing can be said of `name`: the program holds no variable that it means.

    `alive` are the names of those that it holds, whether or not an optimizer was handed them.
    """
    handed = [variable.name for variable in trace.variables]
    others = sorted(set(alive) - set(handed))
    meant = near_patterns(name, handed) or near_patterns(name, others)
    error = unknown_name("variable", name, handed, meant=meant)
    return _unknown(trace, wanted, f"the program holds no variable {shown(name)!r}", error)


def of_another_tree(trace: Trace, wanted: Sequence[Wanted], name: str, like: str) -> str:
    """Why nothing can be said of a leaf: one by another path, `like`, may be the same.

    As those of a part of the parameters, whose paths begin where the part does, or of a list.
    """
    handed = [variable.name for variable in trace.variables]
    error = unknown_name("variable", name, handed, meant=[like])
    why = (
        f"no path in the parameters is {shown(name)!r}, and {shown(like)} may be the same leaf: "
        "give the whole tree, as the optimizer gets it, a part with its keys from the root on, or "
        "a variable of Keras itself"
    )
    return _unknown(trace, wanted, why, error)


def _unknown(trace: Trace, wanted: Sequence[Wanted], why: str, error: UnknownName) -> str:
    heads = [f"{each.what}: expected {each}, but {why}" for each in wanted]
    lines = [line.plain for line in paragraph(shown(error.instead), WIDTH)]
    return text_of(trace, Failure(heads, lines))


def text_of(trace: Trace, failure: Failure, notes: bool = True) -> str:
    lines = list(failure.heads)
    if notes and not trace.complete:
        lines += ["", 'The trace is incomplete, so its counts are "at least":']
        for note in trace.notes:
            lines += _item(shown(note))
    if failure.table:
        lines += ["", *failure.table]
    if failure.callers:
        called = f"Called from {listed(failure.callers, MAX_NAMES)}"
        lines += ["", *(line.plain for line in paragraph(called, WIDTH))]
    why = list(dict.fromkeys(failure.causes))
    if why:
        lines += ["", "Likely cause:" if len(why) == 1 else "Likely causes:"]
        for cause in why:
            lines += _item(cause)
    return "\n".join(lines)


def _item(text: str) -> Iterable[str]:
    return (line.plain for line in paragraph(text, WIDTH, "  - "))
