"""The rows of a report's tables as plain values, computed once for all formats.

JSON, CSV and Markdown have a column for each field of a row, the HTML page for some of them; the
text report has columns of its own (`text.COLUMNS`), notes and colours.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from tracer.errors import shown
from tracer.model import callers, measures
from tracer.model.phrases import accumulations
from tracer.model.records import Line
from tracer.model.summary import Pattern, Summary
from tracer.model.trace import Trace
from tracer.reporters import trees

By = Literal["variable", "step", "replica", "worker", "method", "caller", "layer"]
TREES: tuple[By, ...] = ("caller", "layer")
"""Tables whose rows contain rows; a report has them only on request."""
TABLES: tuple[By, ...] = tuple(each for each in get_args(By) if each not in TREES)

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

CallerRow = namedtuple(
    "CallerRow", "depth caller file line function executions updates steps calls"
)
"""A node of the tree of callers: a line of the program, or a function or method that it called.

Its children follow with a greater `depth`. The counts are of the methods in the report's question.
`steps` is None for these methods, and for parts of a step.
"""

LayerRow = namedtuple("LayerRow", "depth layer variables never_updated updates dense sparse")
"""A layer, by its path in the names of variables, or a variable.

Its children follow with a greater `depth`.
"""

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
    for steps, values in timeline.parts(summary.trace.first_step):
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
    """A row for each node of the tree of callers; nothing is folded."""
    made = []
    for depth, each in trees.in_order(trees.callers_of(summary).children):
        line = each.line or Line("")
        place = (trees.caller_label(each), line.file, line.number or None, line.function)
        steps = each.steps if trees.has_steps(each) else None
        made.append(CallerRow(depth, *place, each.executions, each.updates, steps, each.calls))
    return made


def by_layer(summary: Summary) -> list[LayerRow]:
    """A row for each layer and each variable; nothing is folded."""
    return [
        LayerRow(depth, each.path, *each.counts())
        for depth, each in trees.in_order(trees.layers_of(summary).children)
    ]


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
