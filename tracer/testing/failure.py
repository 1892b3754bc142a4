"""Why a trace is not what a test expects, in text: the counts, the rows that differ, the cause.

Each function returns the text of a failed assertion, or an empty string if nothing is amiss.
"""

from collections.abc import Iterable, Iterator, Sequence

from tracer.model.records import Kind, Role
from tracer.model.tally import Measure, Tally, tallies
from tracer.model.trace import Trace
from tracer.model.wording import some, times
from tracer.reporters.layout import Column, Row, Table, paragraph, shown
from tracer.testing.failure_rows import (
    WIDTH,
    Expected,
    Rows,
    Scope,
    Span,
    Wanted,
    as_lines,
    label,
    length,
    listed,
    parts_of,
    places,
)

_MOST_NAMES = 3


def of_executions(trace: Trace, expected: Expected) -> str:
    """Why the executions, or the updates, are not as `expected`; empty if they are."""
    found = tallies(trace)
    failed: list[Wanted] = []
    heads = []
    for wanted in expected.wanted:
        got = _got_in_steps if expected.per_step else _got_in_all
        texts = [
            f"{text} ({listed(places, 3)})" if any(places) else text
            for text, places in got(trace, found, expected, wanted).items()
        ]
        if texts:
            failed.append(wanted)
            heads.append(
                f"{wanted.what}: expected {wanted}{expected.where}, {listed(texts, 5, '; ')}"
            )
    if trace.complete and not failed:
        return ""
    if not failed:
        heads = [
            f"{wanted.what}: expected {wanted}{expected.where}, but the trace is incomplete"
            for wanted in expected.wanted
        ]
        return _text(trace, heads)
    rows = Rows(trace, found, expected, failed)
    causes = _causes(trace, found, expected, failed, rows)
    return _text(trace, heads, rows.table(), causes)


def _got_in_steps(
    trace: Trace, found: Sequence[Tally], expected: Expected, wanted: Wanted
) -> dict[str, list[str]]:
    """What there was instead, with the places where it was; empty if it was as wanted."""
    if not any(each.steps for each in found):
        return {"but no step ran": [""]}
    got: dict[str, list[str]] = {}
    measure = expected.scope.measure(wanted.kinds)
    for each in found:
        for replica in places(each, expected.per_replica):
            steps = each.steps if replica is None else each.steps_on[replica]
            bad = {
                values[0]: spans
                for values, spans in parts_of(each, replica, [measure]).items()
                if not wanted.holds(values[0])
            }
            text = _in_steps(bad, steps) if bad else ""
            if not steps and each.steps:
                text = "but no step ran"
            elif outside := each.outside(_on(measure, replica)):
                text = f"got {outside:,} outside any step" + (f" and {text[4:]}" if text else "")
            if text:
                got.setdefault(text, []).append(_place(trace, found, each, replica))
    return got


def _in_steps(bad: dict[int, list[Span]], steps: int) -> str:
    """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`."""
    spans = [span for each in bad.values() for span in each]
    low, high = min(bad), max(bad)
    many = f"{low:,}" if low == high else f"{low:,} {'or' if len(bad) == 2 else 'to'} {high:,}"
    number = length(spans)
    if number == 1:
        return f"got {many} in step {spans[0][0]:,} of {steps:,}"
    if number == steps:
        return f"got {many} in each of {steps:,} steps"
    return f"got {many} in {number:,} of {steps:,} steps"


def _got_in_all(
    trace: Trace, found: Sequence[Tally], expected: Expected, wanted: Wanted
) -> dict[str, list[str]]:
    got: dict[str, list[str]] = {}
    measure = expected.scope.measure(wanted.kinds)
    places: list[int | None] = [None]
    if expected.per_replica:
        places = list(sorted({replica for each in found for replica in each.replicas}) or places)
    for replica in places:
        total = sum(each.total(measure, replica) for each in found)
        if not wanted.holds(total):
            place = "" if replica is None else _replica(trace, replica)
            got.setdefault(f"got {total:,}", []).append(place)
    return got


def _causes(
    trace: Trace,
    found: Sequence[Tally],
    expected: Expected,
    failed: Sequence[Wanted],
    rows: Rows,
) -> Iterator[str]:
    scope = expected.scope
    measure = scope.measure()
    totals = {
        wanted: sum(each.total(scope.measure(wanted.kinds)) for each in found) for wanted in failed
    }
    called = _calls(trace, scope)
    if not any(each.steps for each in found) and not any(called.values()):
        yield "no optimizer was used in the block"
        return
    if scope.methods == frozenset():
        yield _not_called(trace)
        return
    for each in found:
        graphs, idle = each.graphs(measure)
        if graphs and graphs == idle and not each.total(measure):
            never = "which never ran" if graphs == 1 else "none of which ever ran"
            traced = some(graphs, "graph")
            yield f"traced but never executed: called while tracing {traced}, {never}"
    if rows.unapplied and scope.methods is None:
        yield _unapplied(found, sorted(rows.unapplied))
    names = dict.fromkeys(row.name for row in sorted(rows.rows) if row.counts[2])
    if names and rows.short:
        yield f"no gradient (None) for {listed(list(names), _MOST_NAMES)}"
    twice = [row for row in sorted(rows.rows) if max(row.counts[:2]) > 1 and row.order >= 0]
    if twice:
        many = times(max(twice[0].counts[:2]))
        yield f"{twice[0].name} was updated {many} in one step: is it applied again in a wrapper?"
    yield from _slips(found, expected, failed, totals, called)


def _unapplied(found: Sequence[Tally], spans: Sequence[Span]) -> str:
    classes = [each.class_name for tally in found for each in tally.optimizers]
    why = "gradients are being accumulated, or a condition skipped them"
    if any("LossScale" in name for name in classes):
        why = "skipped by the loss scale: a gradient was not finite"
    steps = "step" if length(spans) == 1 else "steps"
    return f"gradients of {steps} {label(spans, 3)} were not applied: {why}"


def _not_called(trace: Trace) -> str:
    names = listed([shown(each.name) for each in trace.methods])
    return f"this method was never called; those that were: {names}"


def _slips(
    found: Sequence[Tally],
    expected: Expected,
    failed: Sequence[Wanted],
    totals: dict[Wanted, int],
    called: dict[Kind | None, int],
) -> Iterator[str]:
    """Hints for an expectation that is right, but for something else."""
    steps = max((each.steps for each in found), default=0)
    replicas = max((len(each.replicas) for each in found), default=1)
    for wanted in failed:
        number, total = wanted.low, totals[wanted]
        if not number or number != wanted.high or expected.per_replica:
            continue
        calls = sum(called.get(kind, 0) for kind in wanted.kinds)
        if expected.per_step:
            if replicas > 1 and total == number * replicas * steps:
                on = f"on each of {replicas:,} replicas"
                yield f"that is {number:,} {on}: did you mean per_replica=True?"
        elif total == number * steps and steps > 1:
            yield f"that is {number:,} in each of {steps:,} steps: did you mean per_step=True?"
        if not expected.per_step and number == calls != total:
            yield (
                f"{number:,} is how often Python called it: a mock counts that, and so does "
                "tracer.assert_calls"
            )


def _calls(trace: Trace, scope: Scope) -> dict[Kind | None, int]:
    """How often Python called the methods that are meant, by the kind of gradient."""
    methods = scope.methods
    if methods is None:
        methods = frozenset(
            entry.method
            for block in trace.blocks
            for entry in block.entries
            if entry.role in scope.roles
        )
    names = {trace.methods[index].name for index in methods}
    only = {trace.variables[index].name for index in scope.variables or ()}
    counts: dict[Kind | None, int] = {}
    split = trace.count("calls", by=("method", "kind", "variable"))
    for (method, kind, variable), count in split.items():
        if method in names and (scope.variables is None or variable in only):
            counts[kind] = counts.get(kind, 0) + count
    return counts


def of_calls(
    trace: Trace,
    method: str,
    wanted: Wanted,
    *,
    context: str | None = None,
    variables: frozenset[int] | None = None,
) -> str:
    """Why the Python calls of `method` are not as `wanted`; empty if they are."""
    only = {trace.variables[index].name for index in variables or ()}
    calls: dict[str, dict[str, int]] = {}
    for (name, variable, way), count in trace.count(
        "calls", by=("method", "variable", "context")
    ).items():
        if name == method and count and (variables is None or variable in only):
            row = calls.setdefault(variable or method, {"eager": 0, "tracing": 0})
            row[way] += count
    total = sum(n for row in calls.values() for way, n in row.items() if context in (None, way))
    if wanted.holds(total):
        if trace.complete:
            return ""
        return _text(trace, [f"{wanted.what}: expected {wanted}, but the trace is incomplete"])
    rows = [
        Row(shown(name), (f"{row['eager']:,}", f"{row['tracing']:,}"))
        for name, row in calls.items()
    ]
    table = Table("calls of", [Column("eager"), Column("tracing")])
    head = f"{wanted.what}: expected {wanted}, got {total:,}"
    return _text(
        trace, [head], as_lines(table, rows), _call_causes(trace, method, wanted, variables)
    )


def _call_causes(
    trace: Trace, method: str, wanted: Wanted, variables: frozenset[int] | None
) -> Iterator[str]:
    methods = frozenset(i for i, each in enumerate(trace.methods) if each.name == method)
    roles: frozenset[Role] = frozenset({"step", "update", "apply"})
    scope = Scope(roles, methods, variables)
    if not any(_calls(trace, scope).values()):
        yield _not_called(trace) if trace.methods else "no optimizer was used in the block"
        return
    for each in tallies(trace):
        graphs, idle = each.graphs(scope.measure())
        if graphs > 1:
            never = f" ({idle:,} of them never ran)" if idle else ""
            yield f"retraced: {method} was called for each of {graphs:,} graphs{never}"
    executed = sum(each.total(scope.measure()) for each in tallies(trace))
    if wanted.holds(executed):
        yield (
            f"{executed:,} is how often it was executed: use tracer.assert_executions to count that"
        )


def of_variables(trace: Trace, wanted: Sequence[tuple[str, int | None]]) -> str:
    """Why not each variable, a name and its index in the trace, was updated; empty if each was."""
    updated = _by_variable(trace, "update", ("dense", "sparse"))
    requested = _by_variable(trace, "request", ("dense", "sparse"))
    none = _by_variable(trace, "request", ("none",))
    missed = [(name, index) for name, index in wanted if not updated.get(index)]
    what = f"updates: expected at least 1 of each of {some(len(wanted), 'variable')}"
    if not missed:
        return "" if trace.complete else _text(trace, [f"{what}, but the trace is incomplete"])
    rows = []
    for name, index in missed:
        cells = tuple(f"{each.get(index, 0):,}" for each in (requested, none))
        note = "never handed to the optimizer"
        if requested.get(index):
            note = "handed over, never applied"
        elif none.get(index):
            note = "no gradient"
        rows.append(Row(shown(name) or "''", cells, note))
    lines = as_lines(Table("variable", [Column("gradients"), Column("None")]), rows)
    used = any(block.total for block in trace.blocks)
    causes = [] if used else ["no optimizer ran in the block"]
    return _text(trace, [f"{what}, got none of {len(missed):,} of them"], lines, causes)


def _by_variable(trace: Trace, role: Role, kinds: Sequence[Kind | None]) -> dict[int | None, int]:
    counts: dict[int | None, int] = {}
    for block in trace.blocks:
        for entry in block.entries:
            if entry.role == role and entry.kind in kinds:
                for index in entry.variables:
                    counts[index] = counts.get(index, 0) + entry.times * block.total
    return counts


def of_incomplete(trace: Trace) -> str:
    """Why nothing can be said of a trace that is not complete; empty if it is."""
    return "" if trace.complete else _text(trace, ["nothing can be said of what was not seen"])


def of_unknown(trace: Trace, wanted: Sequence[Wanted]) -> str:
    """Why nothing can be said of a variable: the trace does not hold it."""
    heads = [
        f"{each.what}: expected {each}, but no such variable was handed over" for each in wanted
    ]
    names = listed([shown(each.name) for each in trace.variables], 8) or "no variable"
    return _text(
        trace, heads, [each.plain for each in paragraph(f"The trace holds {names}.", WIDTH)]
    )


def _on(measure: Measure, replica: int | None) -> Measure:
    if replica is None:
        return measure
    return lambda block: measure(block) if block.replica == replica else 0


def _place(trace: Trace, found: Sequence[Tally], each: Tally, replica: int | None) -> str:
    names = [shown(each.optimizers[0].name)] * (len(found) > 1)
    names += [] if replica is None else [_replica(trace, replica)]
    return " on ".join(names)


def _replica(trace: Trace, index: int) -> str:
    replica = trace.replicas[index]
    worker = f"{shown(replica.worker)} " if len(trace.workers) > 1 else ""
    return f"{worker}replica {replica.id}"


def _text(
    trace: Trace,
    heads: Sequence[str],
    table: Sequence[str] = (),
    causes: Iterable[str] = (),
) -> str:
    lines = list(heads)
    if not trace.complete:
        lines += ["", 'The trace is incomplete, so its counts are "at least":']
        for note in trace.notes:
            lines += [each.plain for each in paragraph(shown(note), WIDTH, "  - ")]
    if table:
        lines += ["", *table]
    found = list(dict.fromkeys(causes))
    if found:
        lines += ["", "Likely cause:" if len(found) == 1 else "Likely causes:"]
        for cause in found:
            lines += [each.plain for each in paragraph(cause, WIDTH, "  - ")]
    return "\n".join(lines)
