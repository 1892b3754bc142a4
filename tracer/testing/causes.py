"""The likely causes of counts that are not as expected, each in one line of text."""

from collections.abc import Iterator, Sequence

from tracer.model.apply_methods import never_reached
from tracer.model.measures import vain
from tracer.model.records import Kind
from tracer.model.selection import Selection
from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import some, times
from tracer.reporters.layout import shown
from tracer.testing import handed
from tracer.testing.expected import Expected, Wanted
from tracer.testing.failure_rows import (
    MOST_NAMES,
    Rows,
    Span,
    label,
    length,
    listed,
    measure_of,
)


def of_executions(
    trace: Trace,
    summaries: Sequence[Summary],
    expected: Expected,
    selection: Selection,
    failed: Sequence[Wanted],
    rows: Rows,
) -> Iterator[str]:
    """Why executions are not as expected, for those of `expected.wanted` that `failed`."""
    for summary in summaries:
        yield from (each.removesuffix(".") for each in never_reached(summary))
    called = _calls(trace, selection)
    if not any(summary.steps for summary in summaries) and not any(called.values()):
        yield from unused(trace, expected.words.scope)
        return
    if selection.methods == frozenset():
        yield from _not_called(trace)
        return
    for summary in summaries:
        yield from without_result(summary)
        yield from never_ran(summary, selection)
    if rows.unapplied and selection.methods is None:
        yield _unapplied(summaries, sorted(rows.unapplied))
    if selection.methods is None and rows.short:
        yield from in_vain(summaries, selection)
    names = dict.fromkeys(row.name for row in sorted(rows.rows) if row.counts[2])
    if names and rows.short:
        yield f"no gradient (None) for {listed(list(names), MOST_NAMES)}"
    twice = [row for row in sorted(rows.rows) if max(row.counts[:2]) > 1 and row.order >= 0]
    if twice:
        many = times(max(twice[0].counts[:2]))
        yield f"{twice[0].name} was updated {many} in one step: is it applied again in a wrapper?"
    for wanted in failed:
        total = sum(summary.total(measure_of(selection, wanted.kinds)) for summary in summaries)
        calls = sum(n for kind, n in called.items() if wanted.kinds is None or kind in wanted.kinds)
        if any(summary.total(vain) for summary in summaries):
            calls = total  # what they did beside it is said already
        yield from _slips(summaries, expected, wanted, total, calls)


def of_calls(trace: Trace, expected: Expected, selection: Selection) -> Iterator[str]:
    """Why Python calls are not as expected."""
    method = expected.method
    if not any(_calls(trace, selection).values()):
        if trace.methods:
            yield from _not_called(trace)
        else:
            yield from unused(trace, expected.words.scope)
        return
    summaries = summaries_of(trace)
    for summary in summaries:
        graphs, idle = summary.graphs(selection.count)
        if graphs > 1:
            never = f" ({idle:,} of them never ran)" if idle else ""
            name = "the optimizer" if method is None else method
            yield f"retraced: {name} was called for each of {graphs:,} graphs{never}"
    executed = sum(summary.total(selection.count) for summary in summaries)
    if method is not None and any(wanted.holds(executed) for wanted in expected.wanted):
        yield (
            f"{executed:,} is how often it was executed: use tracer.assert_executions to count that"
        )


def unused(trace: Trace, scope: str) -> Iterator[str]:
    """That no optimizer of the trace was used; of a trace that is not complete nobody knows."""
    if not trace.complete:
        return
    if trace.calls():
        if not trace.blocks:
            methods = listed([shown(method.name) for method in trace.methods], MOST_NAMES)
            yield f"an error ended each call of {methods}: nothing was updated"
        return
    names = [shown(each.name) for i, each in enumerate(trace.optimizers) if each.root == i]
    if frozen := trace.objects.frozen():
        yield handed.of_layers(trace, frozen)
    elif not names:
        yield f"no optimizer was used in {scope}"
    else:
        was = "was" if len(names) == 1 else "were"
        which = listed(names, MOST_NAMES)
        yield f"{which} {was} not used in {scope}: did another optimizer train?"


def never_ran(summary: Summary, selection: Selection) -> Iterator[str]:
    """That what is selected was traced, and no graph of it ran."""
    graphs, idle = summary.graphs(selection.count)
    ended = sum(each.failed for each in summary.trace.graphs if each.root == summary.root)
    if not graphs or summary.total(selection.count):
        return
    if idle and ended >= idle:
        yield "an error ended the tracing in the optimizer, so there is no graph to run"
    else:
        never = "which never ran" if graphs == 1 else "none of which ever ran"
        known = [each.idle for each in summary.trace.graphs if each.root == summary.root]
        if known and idle > sum(known):  # the graph ran, and not the branch in it
            never = "in a part that no step reached"
        traced = some(graphs, "graph")
        yield f"traced but never executed: called while tracing {traced}, {never}"


def without_result(summary: Summary) -> Iterator[str]:
    """Which methods returned None where TensorFlow needs an op."""
    for optimizer in summary.optimizers:
        for remark in optimizer.remarks:
            if remark.code == "no-result":
                yield f"{shown(remark.method)} returned None in a graph: return the op"


def in_vain(summaries: Sequence[Summary], selection: Selection) -> Iterator[str]:
    """Which methods ran and assigned nothing, so that what they did is no update."""
    for summary in summaries:
        for index in summary.methods:
            only = Selection(
                roles=frozenset({"vain"}),
                methods=frozenset({index}),
                variables=selection.variables,
            )
            ran = summary.total(only.count)
            if ran:
                name = shown(summary.trace.methods[index].name)
                yield (
                    f"{name} ran {times(ran)} and assigned nothing to its variable, which is no "
                    "update: assign_sub changes a variable, `variable = ...` does not"
                )


def _unapplied(summaries: Sequence[Summary], spans: Sequence[Span]) -> str:
    reasons = [reason(summary) for summary in summaries]
    clauses = dict.fromkeys(each.clause for each in reasons if each.text) or [reasons[0].clause]
    steps = "step" if length(spans) == 1 else "steps"
    return f"gradients of {steps} {label(spans, 3)} were not applied: {', or '.join(clauses)}"


def _not_called(trace: Trace) -> Iterator[str]:
    if trace.complete:
        names = listed([shown(method.name) for method in trace.methods])
        yield f"this method was never called; those that were: {names}"


def _slips(
    summaries: Sequence[Summary], expected: Expected, wanted: Wanted, total: int, calls: int
) -> Iterator[str]:
    """Hints for an expectation that is right, but for something else."""
    number, words = wanted.low, expected.words
    if not number or number != wanted.high or expected.per_replica:
        return
    steps = max((summary.steps for summary in summaries), default=0)
    replicas = max((len(summary.replicas) for summary in summaries), default=1)
    each_replica = f"on each of {replicas:,} replicas"
    each_step = f"each of {steps:,} steps" if steps > 1 else "the step"
    if expected.per_step:
        if replicas > 1 and total == number * replicas * steps:
            yield f"that is {number:,} {each_replica}: did you mean per_replica=True?"
        return
    in_each = words.per_step.format(number=number)
    if words.on_each_replica and replicas > 1:
        if total == number * steps * replicas:
            yield (f"that is {number:,} in {each_step} {each_replica}: did you mean {in_each}?")
    elif total == number * steps and steps > 1:
        yield f"that is {number:,} in {each_step}: did you mean {in_each}?"
    if number == calls != total:
        yield f"{number:,} is how often Python called it: a mock counts that{words.calls}"


def _calls(trace: Trace, selection: Selection) -> dict[Kind | None, int]:
    """How often Python called the methods that are meant, by the kind of gradient."""
    methods = selection.methods
    if methods is None:
        methods = frozenset(
            entry.method
            for block in trace.blocks
            for entry in block.entries
            if selection.roles is None or entry.role in selection.roles
        )
    names = {trace.methods[index].name for index in methods}
    only = {trace.variables[index].name for index in selection.variables or ()}
    calls: dict[Kind | None, int] = {}
    split = trace.count("calls", by=("method", "kind", "variable"))
    for (method, kind, variable), count in split.items():
        if method in names and (selection.variables is None or variable in only):
            calls[kind] = calls.get(kind, 0) + count
    return calls
