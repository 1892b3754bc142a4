"""The rows of a report's tables as plain values, computed once for all formats.

JSON, CSV and Markdown have a column for each field of a row, the HTML page for some of them; the
text report has columns of its own (`text.COLUMNS`), notes and colours.
"""

from collections import Counter, namedtuple
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Literal, get_args

from tracer.errors import shown
from tracer.model import callers, measures
from tracer.model.phrases import accumulations
from tracer.model.records import Block, Line
from tracer.model.summary import Pattern, Summary
from tracer.model.trace import Trace

By = Literal["variable", "step", "replica", "worker", "method", "caller", "layer"]
TABLES: tuple[By, ...] = tuple(each for each in get_args(By) if each not in ("caller", "layer"))
"""The tables of a whole report; it has the others only on request."""

Value = str | int | None

VariableRow = namedtuple(
    "VariableRow",
    "variable shape dtype shards updates dense sparse least_a_step most_a_step"
    " requests_without_gradient unchanged not_finite",
)
"""One variable. `shards` is the number of its shards, None if it is not sharded. `least_a_step` and
`most_a_step` are updates in a step on one replica, None if the steps are unknown. `unchanged` and
`not_finite` count steps with that effect, each replica counted; for a sharded variable, `unchanged`
counts steps in which all shards were. None without effects.
"""

StepRow = namedtuple(
    "StepRow",
    "first last length every on_replicas updates dense sparse requests"
    " requests_without_gradient accumulated unchanged not_finite",
)
"""`length` equal steps in a row, from `first` on, with the counts of each step.

If `every` is not None, they repeat each `every` steps, up to the step `last`. `accumulated` is on
how many replicas a step kept its gradients for a later one; None if the optimizer does not
accumulate, or if unknown. `unchanged` and `not_finite` count the variables with that effect, on all
replicas; None if none was compared.
"""

ReplicaRow = namedtuple("ReplicaRow", "worker replica device steps updates dense sparse")
WorkerRow = namedtuple("WorkerRow", "worker replicas steps updates dense sparse")
MethodRow = namedtuple(
    "MethodRow", "method executions calls_eager calls_tracing graphs graphs_never_ran"
)

CallerRow = namedtuple("CallerRow", "caller file line executions updates steps calls")
"""A line of the program, as text and as `file` and `line`, which are None if it is unknown.

`executions` and `calls` are those of the methods in the report's question.
"""

LayerRow = namedtuple("LayerRow", "layer variables never_updated updates dense sparse")
"""The variables whose names have one path up to the first part that differs: `encoder/*`."""

TableRow = VariableRow | StepRow | ReplicaRow | WorkerRow | MethodRow | CallerRow | LayerRow
FIELDS: Mapping[By, tuple[str, ...]] = {
    "variable": VariableRow._fields,
    "step": StepRow._fields,
    "replica": ReplicaRow._fields,
    "worker": WorkerRow._fields,
    "method": MethodRow._fields,
    "caller": CallerRow._fields,
    "layer": LayerRow._fields,
}

# The rows.


def rows(summary: Summary, by: By) -> Sequence[TableRow]:
    return _ROWS[by](summary)


def by_variable(summary: Summary) -> list[VariableRow]:
    """A row for each of `Summary.variables`, in that order."""
    made = {}
    for pattern in summary.patterns:
        dense, sparse = pattern.total(measures.dense), pattern.total(measures.sparse)
        replicas = summary.replicas_with(pattern)
        spreads = [pattern.spread(measures.updates, replica=each) for each in replicas]
        rates = [count for spread in spreads for (count,) in spread] or [0]
        known = not pattern.step_unknown(measures.updates)
        figures = (
            *(dense + sparse, dense, sparse),
            *((min(rates), max(rates)) if known else (None, None)),
            pattern.total(measures.missing),
            *(_effects(summary, pattern) if summary.effects else (None, None)),
        )
        for index in pattern.variables:
            variable = summary.trace.variables[index]
            shape = "x".join("?" if size is None else str(size) for size in variable.shape)
            shards = variable.shards if variable.shards > 1 else None
            made[index] = VariableRow(variable.name, shape, variable.dtype, shards, *figures)
    return [made[index] for index in summary.variables]


def _effects(summary: Summary, pattern: Pattern) -> tuple[int, int]:
    """In how many steps its variables were unchanged, and in how many not finite."""
    compared, unchanged, not_finite = measures.effects
    still = pattern.total(unchanged)
    if summary.is_sharded(pattern):  # it changed if any shard did
        spread = pattern.spread(compared, unchanged)
        still = sum(number for (seen, same), number in spread.items() if 0 < seen == same)
    return still, pattern.total(not_finite)


def by_step(summary: Summary) -> list[StepRow]:
    """A row for each stretch of equal steps; a cycle of steps has a row for each of its parts."""
    reached = accumulations(summary)
    timeline = summary.timeline(
        measures.steps,
        measures.dense,
        measures.sparse,
        measures.requests,
        measures.missing,
        measures.updates,
        reached or measures.steps,
        *measures.effects,
    )
    made = []
    for steps, values in timeline.parts():
        on, dense, sparse, requests, missing, tried, accumulating, compared, *effects = values
        kept = None if reached is None else 0 if tried else min(on, accumulating)
        updates = (dense + sparse, dense, sparse)
        seen = effects if compared else (None, None)
        made.append(StepRow(*steps, on, *updates, requests + missing, missing, kept, *seen))
    return made


def by_replica(summary: Summary) -> list[ReplicaRow]:
    """A row for each of `Summary.replicas`, in that order."""
    return [
        ReplicaRow(each.worker, each.id, each.device, *_counts(summary, [index]))
        for index in summary.replicas
        for each in [summary.trace.replicas[index]]
    ]


def by_worker(summary: Summary) -> list[WorkerRow]:
    """A row for each of `Summary.workers`, in that order, with the sums of its replicas."""
    return [
        WorkerRow(worker, len(indices), *_counts(summary, indices))
        for worker, indices in summary.workers.items()
    ]


def _counts(summary: Summary, replicas: Sequence[int]) -> tuple[int, int, int, int]:
    """The steps of these replicas, and their updates: all, dense and sparse."""
    dense, sparse = (
        sum(summary.total(kind, replica) for replica in replicas)
        for kind in (measures.dense, measures.sparse)
    )
    steps = max(summary.steps_on[replica] for replica in replicas)
    return steps, dense + sparse, dense, sparse


def by_method(summary: Summary) -> list[MethodRow]:
    """A row for each method: executions, Python calls, and the graphs that calls traced.

    Discarded executions of a method have a separate row below it.
    """
    made = []
    for index in summary.methods:
        measure = measures.of_methods([index])
        name = summary.trace.methods[index].name
        figures = (summary.total(measure), *summary.calls(index), *summary.graphs(measure))
        made.append(MethodRow(name, *figures))
        if lost := summary.total(measures.counting(["discarded"], methods=[index])):
            made.append(MethodRow(f"{name}, discarded", lost, 0, 0, 0, 0))
    return made


def by_caller(summary: Summary) -> list[CallerRow]:
    """A row for each line of the program that called, or traced a graph: the most executions first.

    For steps in a graph it is the line by which the graph was traced.
    """
    data = summary.trace.data
    called: dict[tuple[Line | None, bool], list[Block]] = {}
    for block in measures.counted(data):
        if block.root == summary.root:
            called.setdefault(callers.origin(data, block.path), []).append(block)
    ran = measures.of_methods(summary.apply_methods)
    calls = measures.counting(measures.ROLES["calls"], None, summary.apply_methods)
    made = []
    for (line, in_graph), blocks in called.items():
        steps = Counter[int]()
        for block in blocks:
            steps[block.replica] += block.total * measures.steps(block)
        executions, updates, calls_made = (
            sum(block.total * measure(block) for block in blocks)
            for measure in (ran, measures.updates, calls)
        )
        name = "not known" if line is None else shown(callers.label(line))
        text = f"traced from {name}" if in_graph and line else name
        file, number = (line.file, line.number) if line else (None, None)
        if executions or calls_made:
            counts = (executions, updates, max(steps.values()), calls_made)
            made.append(CallerRow(text, file, number, *counts))
    return sorted(made, key=lambda row: (-row.executions, -row.calls))


def by_layer(summary: Summary) -> list[LayerRow]:
    """A row for each path that variables share, up to the first part in which paths differ."""
    variables, separator = summary.trace.variables, summary.dialect.separator
    counts = {
        index: (pattern.total(measures.dense), pattern.total(measures.sparse))
        for pattern in summary.patterns
        for index in pattern.variables
    }
    paths = [variables[index].name.split(separator) for index in summary.variables]
    outer = zip(*(path[:-1] for path in paths), strict=False)
    first = 1 + sum(1 for _ in takewhile(lambda parts: len({*parts}) == 1, outer))
    layers: dict[tuple[str, ...], list[int]] = {}
    for index, path in zip(summary.variables, paths, strict=True):
        below = ("*",) if path[first:] else ()  # a variable and a layer may share a name
        layers.setdefault((*path[:first], *below), []).append(index)
    made = []
    for layer, indices in layers.items():
        name = variables[indices[0]].name if len(indices) == 1 else separator.join(layer)
        dense, sparse = (sum(each) for each in zip(*(counts[i] for i in indices), strict=True))
        never = sum(not any(counts[index]) for index in indices)
        made.append(LayerRow(name, len(indices), never, dense + sparse, dense, sparse))
    return made


_ROWS: dict[By, Callable[[Summary], Sequence[TableRow]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": by_replica,
    "worker": by_worker,
    "method": by_method,
    "caller": by_caller,
    "layer": by_layer,
}


# Graph tracings as events, by time.

CAUSES = {
    "first": "the first call",
    "variables": "variables were made in the first call",
    "argument": "another argument",
    "value": "another Python value",
    "function": "a new function object",
    "forgotten": "its graphs were forgotten: wrapped late, or compiled again",
    "unknown": "not known",
}


TracingRow = namedtuple("TracingRow", "began after graph worker cause caller")
"""One graph tracing, which `began` this many seconds after the first one of the trace.

`after` is how many steps had run. `caller` is the program's line nearest to it; empty if
unknown.
"""


def tracings(trace: Trace, root: int | None = None) -> list[TracingRow]:
    """The graph tracings of one root optimizer, or of all, earliest first."""
    events = sorted(trace.graph_tracings, key=lambda each: each.at)
    rows = []
    for each in events:
        line = callers.nearest(trace.data, each.path)
        row = TracingRow(
            began=round(each.at - events[0].at, 3),
            after=each.after,
            graph=shown(trace.graphs[each.graph].function),
            worker=shown(trace.replicas[trace.graphs[each.graph].replica].worker),
            cause=CAUSES[each.cause] + (f": {shown(each.detail)}" if each.detail else ""),
            caller="" if line is None else shown(callers.label(line)),
        )
        if root is None or trace.graphs[each.graph].root == root:
            rows.append(row)
    return rows
