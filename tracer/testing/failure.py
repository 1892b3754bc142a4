"""Why a trace is not as expected, in text: the counts, the rows that differ, the likely cause.

Each function returns the text of a failure, or an empty string if nothing is amiss.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracer.errors import UnknownName, unknown_name
from tracer.model.labels import replica_names
from tracer.model.measures import Measure
from tracer.model.names import near_patterns
from tracer.model.records import Kind, Role
from tracer.model.selection import Selection
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.reporters.layout import Column, Row, Table, paragraph, shown
from tracer.testing import causes, handed
from tracer.testing.called import callers_at_fault
from tracer.testing.expected import IN_PYTHON, Expected, Wanted, concerned
from tracer.testing.failure_rows import (
    MOST_NAMES,
    WIDTH,
    Rows,
    Span,
    as_lines,
    length,
    listed,
    measure_of,
    replicas_to_judge,
    spans_of,
)


class Failure(NamedTuple):
    """What a failure says: which counts are wrong, where, and the likely causes."""

    heads: Sequence[str]
    table: Sequence[str] = ()
    causes: Sequence[str] = ()
    callers: Sequence[str] = ()
    """The lines of the program that called what was not expected."""


def of_expected(
    trace: Trace, expected: Expected, selection: Selection | None = None, *, partial: bool = False
) -> str:
    """Why the trace is not as `expected`; empty if it is.

    A trace that is not complete is never as expected, unless a `partial` one will do: then only its
    counts are judged. `selection` is what is meant if `expected` cannot say it.

    Raises `tracer.UnknownName` for a variable that the trace does not hold.
    """
    if selection is None:
        selection = expected.selection(trace)
    if expected.what == "steps":
        failure = _of_steps(trace, expected)
    elif expected.what == "calls":
        failure = _of_calls(trace, expected, selection)
    else:
        failure = _of_executions(trace, expected, selection)
    if failure is None and (trace.complete or partial):
        return ""
    if failure is None:
        failure = Failure(
            [
                f"{wanted.what}: expected {wanted}{expected.where}, but the trace is incomplete"
                for wanted in expected.wanted
            ]
        )
    return text_of(trace, failure, notes=not partial)


def _of_steps(trace: Trace, expected: Expected) -> Failure | None:
    heads = [
        f"{wanted.what}: expected {wanted}, got {trace.steps:,}"
        for wanted in expected.wanted
        if not wanted.holds(trace.steps)
    ]
    if not heads:
        return None
    why = [] if trace.steps else list(causes.unused(trace, expected.words.scope))
    return Failure(heads, causes=why)


def _of_executions(trace: Trace, expected: Expected, selection: Selection) -> Failure | None:
    summaries = concerned(summaries_of(trace), selection)
    failed: list[Wanted] = []
    heads = []
    for wanted in expected.wanted:
        measure = measure_of(selection, wanted.kinds)
        got = _got_in_steps if expected.per_step else _got_in_all
        texts = [
            f"{text} ({listed(wheres, 3)})" if any(wheres) else text
            for text, wheres in got(trace, summaries, expected, wanted, measure).items()
        ]
        if texts:
            failed.append(wanted)
            heads.append(
                f"{wanted.what}: expected {wanted}{expected.where}, {listed(texts, 5, '; ')}"
            )
    if not failed:
        return None
    rows = Rows(trace, summaries, expected, selection, failed)
    if culprits := _frozen(summaries, expected, selection, failed, rows):
        return Failure(heads, causes=[handed.of_layers(trace, culprits)])
    why = list(causes.of_executions(trace, summaries, expected, selection, failed, rows))
    return Failure(
        heads, rows.table(), why, callers_at_fault(summaries, expected, selection, failed)
    )


def _frozen(
    summaries: Sequence[Summary],
    expected: Expected,
    selection: Selection,
    failed: Sequence[Wanted],
    rows: Rows,
) -> Sequence[handed.Frozen]:
    """The frozen layers that are why too little ran, if nothing of what was handed over is."""
    if len(summaries) != 1:
        return []
    (summary,) = summaries
    if not summary.trace.complete or not summary.steps:
        return []
    methods = [summary.trace.methods[index] for index in selection.methods or ()]
    if any(method.role != "apply" for method in methods):
        return []
    if not all(row.counts.executed for row in rows.rows):
        return []
    return handed.explaining(
        summary, expected, [(wanted, measure_of(selection, wanted.kinds)) for wanted in failed]
    )


def _got_in_steps(
    trace: Trace,
    summaries: Sequence[Summary],
    expected: Expected,
    wanted: Wanted,
    measure: Measure,
) -> dict[str, list[str]]:
    """What there was instead, with where it was; empty if it was as wanted."""
    if not any(summary.steps for summary in summaries):
        return {"but no step ran": [""]}
    got: dict[str, list[str]] = {}
    for summary in summaries:
        for replica in replicas_to_judge(summary, expected.per_replica):
            steps = summary.steps if replica is None else summary.steps_on[replica]
            wrong = spans_of(
                summary, replica, [measure], but=lambda values: wanted.holds(values[0])
            )
            text = _in_steps({values[0]: wrong[values] for values in wrong}, steps) if wrong else ""
            if not steps and summary.steps:
                text = "but no step ran"
            elif outside := summary.outside(_on(measure, replica)):
                text = f"got {outside:,} outside any step" + (f" and {text[4:]}" if text else "")
            if text:
                got.setdefault(text, []).append(_where(trace, summaries, summary, replica))
    return got


def _in_steps(wrong: dict[int, list[Span]], steps: int) -> str:
    """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`."""
    spans = [span for spans in wrong.values() for span in spans]
    low, high = min(wrong), max(wrong)
    many = f"{low:,}" if low == high else f"{low:,} {'or' if len(wrong) == 2 else 'to'} {high:,}"
    number = length(spans)
    if number == 1:
        return f"got {many} in step {spans[0][0]:,} of {steps:,}"
    if number == steps:
        return f"got {many} in each of {steps:,} steps"
    return f"got {many} in {number:,} of {steps:,} steps"


def _got_in_all(
    trace: Trace,
    summaries: Sequence[Summary],
    expected: Expected,
    wanted: Wanted,
    measure: Measure,
) -> dict[str, list[str]]:
    got: dict[str, list[str]] = {}
    replicas: list[int | None] = [None]
    if expected.per_replica:
        replicas = list(
            sorted({index for summary in summaries for index in summary.replicas}) or replicas
        )
    for replica in replicas:
        total = sum(summary.total(measure, replica) for summary in summaries)
        if not wanted.holds(total):
            where = "" if replica is None else shown(replica_names(trace)[replica])
            got.setdefault(f"got {total:,}", []).append(where)
    return got


def _of_calls(trace: Trace, expected: Expected, selection: Selection) -> Failure | None:
    """Why the Python calls, of one method or of all, are not as expected."""
    method, context = expected.method, expected.context
    only = {trace.variables[index].name for index in selection.variables or ()}
    calls: dict[str, dict[str, int]] = {}
    for (name, variable, way), count in trace.count(
        "calls", by=("method", "variable", "context")
    ).items():
        meant = selection.variables is None or variable in only
        if method in (None, name) and count and meant:
            row_name = name if method is None else variable or name
            row = calls.setdefault(row_name, {"eager": 0, "tracing": 0})
            row[way] += count
    total = sum(n for row in calls.values() for way, n in row.items() if context in (None, way))
    heads = [
        f"{wanted.what}: expected {wanted}, got {total:,}"
        for wanted in expected.wanted
        if not wanted.holds(total)
    ]
    if not heads:
        return None
    rows = [
        Row(shown(name), (f"{row['eager']:,}", f"{row['tracing']:,}"))
        for name, row in calls.items()
    ]
    table = Table("calls of", [Column("eager"), Column("tracing")])
    why = list(causes.of_calls(trace, expected, selection))
    return Failure(heads, as_lines(table, rows), why)


def of_variables(trace: Trace, wanted: Sequence[tuple[str, int | None]]) -> str:
    """Why not each variable, a name and its index in the trace, was updated; empty if each was.

    The index is None for a variable that the trace does not hold.
    """
    updated = _by_variable(trace, "update", ("dense", "sparse"))
    requested = _by_variable(trace, "request", ("dense", "sparse"))
    none = _by_variable(trace, "request", ("none",))
    idle = _by_variable(trace, "vain", ("dense", "sparse"))
    traced = {i for block in trace.blocks for entry in block.entries for i in entry.variables}
    missed = [(name, index) for name, index in wanted if not updated.get(index)]
    what = f"updates: expected at least 1 of each of {some(len(wanted), 'variable')}"
    if not missed:
        if trace.complete:
            return ""
        return text_of(trace, Failure([f"{what}, but the trace is incomplete"]))
    rows = []
    for name, index in missed:
        cells = (f"{requested.get(index, 0):,}", f"{none.get(index, 0):,}")
        note = "never handed to the optimizer" if trace.complete else "not seen"
        if idle.get(index):
            note = "nothing was assigned"
        elif requested.get(index):
            note = "handed over, never applied"
        elif none.get(index):
            note = "no gradient"
        elif index in traced:
            note = "its graph never ran"
        rows.append(Row(shown(name) or "''", cells, note))
    lines = as_lines(Table("variable", [Column("gradients"), Column("None")]), rows)
    used = any(block.total for block in trace.blocks)
    summaries = summaries_of(trace)
    why = list(causes.in_vain(summaries, Selection()))
    for summary in summaries:
        why += causes.without_result(summary)
        why += causes.never_ran(summary, trace.selection("updates"))
    if not used:
        why += causes.unused(trace, IN_PYTHON.scope)
    heads = [f"{what}, got none of {len(missed):,} of them"]
    return text_of(trace, Failure(heads, lines, why))


def _by_variable(trace: Trace, role: Role, kinds: Sequence[Kind | None]) -> dict[int | None, int]:
    by_variable: dict[int | None, int] = {}
    for block in trace.blocks:
        for entry in block.entries:
            if entry.role == role and entry.kind in kinds:
                for index in entry.variables:
                    by_variable[index] = by_variable.get(index, 0) + entry.times * block.total
    return by_variable


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
        trace, Failure(heads, causes=[handed.not_handed(trace, frozen or names, layers)])
    )


def of_no_variables(trace: Trace, given: str, layers: Sequence[handed.Frozen]) -> str:
    """Why there was no variable to update in what was given, of which all `layers` are frozen."""
    head = f"updates: expected at least 1 of each variable{given}, but there is no "
    if not layers:
        return f"{head}variable"
    names = [name for _, own in layers for name in own]
    cause = f"{handed.are_frozen(layers)}, with {handed.together(names)}"
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


def _on(measure: Measure, replica: int | None) -> Measure:
    if replica is None:
        return measure
    return lambda block: measure(block) if block.replica == replica else 0


def _where(
    trace: Trace, summaries: Sequence[Summary], summary: Summary, replica: int | None
) -> str:
    names = [shown(summary.optimizers[0].name)] if len(summaries) > 1 else []
    if replica is not None:
        names.append(shown(replica_names(trace)[replica]))
    return " on ".join(names)


def text_of(trace: Trace, failure: Failure, notes: bool = True) -> str:
    lines = list(failure.heads)
    if notes and not trace.complete:
        lines += ["", 'The trace is incomplete, so its counts are "at least":']
        for note in trace.notes:
            lines += _item(shown(note))
    if failure.table:
        lines += ["", *failure.table]
    if failure.callers:
        called = f"Called from {listed(failure.callers, MOST_NAMES)}"
        lines += ["", *(line.plain for line in paragraph(called, WIDTH))]
    why = list(dict.fromkeys(failure.causes))
    if why:
        lines += ["", "Likely cause:" if len(why) == 1 else "Likely causes:"]
        for cause in why:
            lines += _item(cause)
    return "\n".join(lines)


def _item(text: str) -> Iterable[str]:
    return (line.plain for line in paragraph(text, WIDTH, "  - "))
