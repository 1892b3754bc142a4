"""Excerpts: what a trace says of some variables, steps, replicas or methods. No TensorFlow.

The records say that it is one (`TraceData.only`), and which step of the run its first one is.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from msgspec.structs import replace

from tracer.errors import UnknownName
from tracer.model.names import named
from tracer.model.records import Block, Effect, Role, TraceData, with_indices
from tracer.model.selection import Selection
from tracer.model.trace import Trace
from tracer.model.wording import plural, some, span

_Ran = TypeVar("_Ran", Block, Effect)


def select(
    trace: Trace,
    *,
    variable: str | None = None,
    steps: range | None = None,
    replica: int | None = None,
    method: str | None = None,
    optimizer: str | None = None,
) -> Trace:
    """What the filters leave of a trace; they are those of `Trace.executions`.

    `steps` is a range without a stride. What ran outside any step, or in one that is not known, is
    not in an excerpt of some steps; Python calls have no step, so they stay those of the whole run.

    Raises `tracer.UnknownName` for what the trace does not hold.
    """
    if {variable, steps, replica, method, optimizer} == {None}:
        return trace
    if optimizer is not None:
        trace = Trace(_of_optimizers(trace.data, optimizer), trace.objects)
    if steps is not None:
        found = range(max(1, steps.start), min(trace.steps + 1, steps.stop))
        if not found:
            raise UnknownName(f"no such step: the trace holds {some(trace.steps, 'step')}")
        steps = found
    kept = trace.selection(method=method, variable=variable, replica=replica)
    own = {index: index for index in range(len(trace.replicas)) if kept.holds_replica(index)}
    data = _cut(trace.data, {"replicas": own.get, "variables": kept.kept})
    if kept.methods is not None:
        data = _of_methods(data, kept.methods)
    if steps is not None:
        data = _in_steps(data, steps)
    limits = {
        "optimizer": optimizer,
        "variable": variable,
        plural(len(steps or ()), "step"): steps and span((steps[0], steps[-1])),
        "replica": replica,
        "method": method,
    }
    only = ", ".join(f"{name} {limit}" for name, limit in limits.items() if limit is not None)
    calls = "; Python calls have no step and are those of the whole run" if steps else ""
    return Trace(replace(data, only=f"Only {only}{calls}."), trace.objects)


def _cut(
    data: TraceData,
    change: Mapping[str, Callable[[Any], Any]],
    tables: Sequence[str] = ("blocks", "calls", "effects"),
) -> TraceData:
    """The trace without the records that `change` leaves out: see `with_indices`."""
    parts = {table: tuple(with_indices(getattr(data, table), change)) for table in tables}
    return replace(data, **parts)


def _of_optimizers(data: TraceData, wanted: str) -> TraceData:
    """The trace without other optimizers; those that are nested in one another stay together."""
    names = [each.name for each in data.optimizers]
    roots = {data.optimizers[index].root for index in named("optimizer", wanted, names)}
    change = {}
    for table in ("optimizers", "graphs"):
        kept = [n for n, record in enumerate(getattr(data, table)) if record.root in roots]
        change[table] = {old: new for new, old in enumerate(kept)}.get
    every = ("optimizers", "blocks", "calls", "graphs", "graph_tracings", "effects")
    return _cut(data, change, every)


def _of_methods(data: TraceData, methods: frozenset[int]) -> TraceData:
    """The trace of some methods, with the variables that they got.

    Gradients were handed to no method, so they stay. If no method is left whose executions are
    updates, those inside other methods are.
    """
    entries = [entry for block in data.blocks for entry in block.entries if entry.method in methods]
    calls = tuple(each for each in data.calls if each.method in methods)
    updates = any(entry.role in ("update", "vain", "discarded") for entry in entries)
    roles: dict[Role, Role] = {} if updates else {"apply": "update"}
    blocks = tuple(
        replace(
            block,
            entries=tuple(
                replace(entry, role=roles.get(entry.role, entry.role))
                for entry in block.entries
                if entry.role == "request" or entry.method in methods
            ),
        )
        for block in data.blocks
    )
    lists = (*(each.variables for each in entries), *(each.variables for each in calls))
    kept = Selection(variables=frozenset(chain(*lists))).kept
    return _cut(replace(data, blocks=blocks, calls=calls), {"variables": kept})


def _in_steps(data: TraceData, steps: range) -> TraceData:
    """The trace in those steps, of which the first is step 1 then."""

    def within(record: _Ran) -> _Ran:
        found = (run.only(steps) for run in record.runs)
        runs = tuple(run.moved(1 - steps.start) for run in found if run is not None)
        return replace(record, runs=runs, total=sum(run.total for run in runs))

    return replace(
        data,
        blocks=tuple(within(block) for block in data.blocks if not block.outside),
        effects=tuple(effect for effect in map(within, data.effects) if effect.total),
        first_step=data.first_step + steps.start - 1,
    )
