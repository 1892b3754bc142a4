"""The rows of a report's tables as plain values: worked out here once, for every format.

JSON, CSV, Markdown and the page show the values as they are; the text report picks some of them,
and adds notes and colours.
"""

from collections.abc import Callable, Sequence

from tracer.model import measures
from tracer.model.measures import counting
from tracer.model.records import Line
from tracer.model.skipped_steps import accumulations
from tracer.model.summary import Summary
from tracer.reporters import caller_tree, layer_tree
from tracer.reporters.columns import (
    By,
    CallerRow,
    LayerRow,
    MethodRow,
    ReplicaRow,
    Row,
    StepRow,
    VariableRow,
    WorkerRow,
)
from tracer.reporters.trees import in_order


def rows(summary: Summary, by: By) -> Sequence[Row]:
    """The rows of one table."""
    return _ROWS[by](summary)


def by_variable(summary: Summary) -> list[VariableRow]:
    """A row for each of `Summary.variables`, in that order."""
    made = {}
    for pattern in summary.patterns:
        dense, sparse = pattern.total(measures.dense), pattern.total(measures.sparse)
        spreads = [pattern.spread(measures.updates, replica=each) for each in summary.replicas]
        rates = [count for spread in spreads for (count,) in spread] or [0]
        known = not pattern.unplaced(measures.updates)
        figures = (
            *(dense + sparse, dense, sparse),
            *((min(rates), max(rates)) if known else (None, None)),
            pattern.total(measures.missing),
            *(
                pattern.total(measures.observing(each)) if summary.effects else None
                for each in ("unchanged", "not_finite")
            ),
        )
        for index in pattern.variables:
            variable = summary.trace.variables[index]
            shape = "x".join("?" if size is None else str(size) for size in variable.shape)
            made[index] = VariableRow(variable.name, shape, variable.dtype, *figures)
    return [made[index] for index in summary.variables]


def by_step(summary: Summary) -> list[StepRow]:
    """A row for equal steps, however many; a cycle of steps has a row for each of its parts."""
    reached = accumulations(summary)
    timeline = summary.timeline(
        measures.steps,
        measures.dense,
        measures.sparse,
        measures.requests,
        measures.missing,
        measures.tries,
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
    replicas = [(index, summary.trace.replicas[index]) for index in summary.replicas]
    return [
        ReplicaRow(each.worker, each.id, each.device, *_counts(summary, [index]))
        for index, each in replicas
    ]


def by_worker(summary: Summary) -> list[WorkerRow]:
    """A row for each of `workers`, in that order, with its replicas together."""
    return [
        WorkerRow(worker, len(indices), *_counts(summary, indices))
        for worker, indices in workers(summary).items()
    ]


def workers(summary: Summary) -> dict[str, list[int]]:
    """The replicas of each worker."""
    replicas: dict[str, list[int]] = {}
    for index in summary.replicas:
        replicas.setdefault(summary.trace.replicas[index].worker, []).append(index)
    return replicas


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

    Discarded executions of a method have a row of their own below it.
    """
    made = []
    for index in summary.methods:
        measure = measures.of_methods([index])
        name = summary.trace.methods[index].name
        figures = (summary.total(measure), *summary.calls(index), *summary.graphs(measure))
        made.append(MethodRow(name, *figures))
        if lost := summary.total(counting(["discarded"], methods=[index])):
            made.append(MethodRow(f"{name}, discarded", lost, 0, 0, 0, 0))
    return made


def by_caller(summary: Summary) -> list[CallerRow]:
    """A row for each element of the tree of callers; nothing is folded."""
    made = []
    for depth, each in in_order(caller_tree.tree(summary).children):
        line = each.line or Line("")
        place = (caller_tree.label(each), line.file, line.number or None, line.function)
        steps = each.steps if caller_tree.has_steps(each) else None
        made.append(CallerRow(depth, *place, each.executions, each.updates, steps, each.calls))
    return made


def by_layer(summary: Summary) -> list[LayerRow]:
    """A row for each layer and each variable; nothing is folded."""
    return [
        LayerRow(depth, each.path, *each.counts())
        for depth, each in in_order(layer_tree.tree(summary).children)
    ]


_ROWS: dict[By, Callable[[Summary], Sequence[Row]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": by_replica,
    "worker": by_worker,
    "method": by_method,
    "caller": by_caller,
    "layer": by_layer,
}
