"""Excerpts: what a trace says of some variables, steps, replicas or methods. No TensorFlow.

The records say that it is one (`TraceData.only`), and which step of the run its first one is.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import msgspec

from tracer.errors import UnknownName
from tracer.model.merge import Places, renumbered
from tracer.model.names import named
from tracer.model.records import INDICES, Block, Effect, Entry, Graph, Optimizer, TraceData
from tracer.model.runs import Run
from tracer.model.selection import Selection
from tracer.model.trace import Trace


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
    if all(given is None for given in (variable, steps, replica, method, optimizer)):
        return trace
    if optimizer is not None:
        trace = _of_optimizers(trace, optimizer)
    if steps is not None and not range(max(1, steps.start), min(trace.steps + 1, steps.stop)):
        held = {0: "no step", 1: "step 1 alone"}.get(trace.steps, f"the steps 1 to {trace.steps:,}")
        raise UnknownName(f"no such step: the trace holds {held}")
    data = trace.data
    kept = trace.selection(method=method, variable=variable, replica=replica)
    if method is not None:  # a variable that the method never gets is not in the excerpt
        variables = set(_variables(data, kept))
        kept = replace(
            kept,
            variables=frozenset(
                variables if kept.variables is None else variables & kept.variables
            ),
        )
    blocks = [
        msgspec.structs.replace(cut, entries=tuple(_entries(block, kept)))
        for block in data.blocks
        if kept.replicas is None or block.replica in kept.replicas
        for cut in _within(block, steps)
    ]
    if method is not None and not any(
        e.role in ("update", "vain", "discarded") for block in blocks for e in block.entries
    ):
        blocks = [_promoted(block) for block in blocks]
    calls = [
        msgspec.structs.replace(calls_of_method, variables=kept.kept(calls_of_method.variables))
        for calls_of_method in data.calls
        if kept.holds_replica(calls_of_method.replica)
        and (kept.methods is None or calls_of_method.method in kept.methods)
        and (kept.kept(calls_of_method.variables) or not calls_of_method.variables)
    ]
    excerpt = msgspec.structs.replace(
        data,
        blocks=tuple(blocks),
        calls=tuple(calls),
        effects=tuple(_effects(data, kept, steps)),
        only=_only(variable, steps, replica, method, optimizer, trace.steps),
        first_step=1 if steps is None else max(1, steps.start),
    )
    return Trace(excerpt, trace.objects)


def _of_optimizers(trace: Trace, wanted: str) -> Trace:
    """The trace without other optimizers; those that are nested in one another stay together."""
    data = trace.data
    names = [each.name for each in data.optimizers]
    roots = {data.optimizers[index].root for index in named("optimizer", wanted, names)}
    places = {
        table: {old: new for new, old in enumerate(_of_roots(getattr(data, table), roots))}
        for table in ("optimizers", "graphs")
    }
    tables = ("optimizers", "blocks", "calls", "graphs", "graph_tracings", "effects")
    parts = {table: _in_places(getattr(data, table), places) for table in tables}
    chosen = msgspec.structs.replace(data, **parts)
    return Trace(chosen, trace.objects)


def _of_roots(records: Iterable[Optimizer | Graph], roots: Collection[int]) -> Iterator[int]:
    return (index for index, record in enumerate(records) if record.root in roots)


def _in_places(records: Iterable[msgspec.Struct], places: Places) -> tuple[msgspec.Struct, ...]:
    """The records of what is kept, renumbered."""
    return tuple(
        renumbered(record, places)
        for record in records
        if all(
            getattr(record, field) in places[table]
            for field, table in INDICES[type(record)].items()
            if table in places
        )
    )


def _variables(data: TraceData, kept: Selection) -> Iterator[int]:
    """The variables that the methods got, on the replicas."""
    for block in data.blocks:
        if kept.replicas is None or block.replica in kept.replicas:
            for entry in block.entries:
                if kept.methods is None or entry.method in kept.methods:
                    yield from entry.variables
    for calls in data.calls:
        if kept.methods is None or calls.method in kept.methods:
            yield from calls.variables


def _entries(block: Block, kept: Selection) -> Iterator[Entry]:
    """The entries that are kept; gradients were handed to no method, so they always are."""
    for entry in block.entries:
        if entry.role == "request" or kept.methods is None or entry.method in kept.methods:
            variables = kept.kept(entry.variables)
            if variables or not entry.variables:
                yield msgspec.structs.replace(entry, variables=variables)


def _effects(data: TraceData, kept: Selection, steps: range | None) -> Iterator[Effect]:
    """The effects on the variables that are kept; in some steps, which are numbered from 1 then."""
    for effect in data.effects:
        variables = kept.kept(effect.variables)
        if not variables or (kept.replicas is not None and effect.replica not in kept.replicas):
            continue
        runs, total = effect.runs, effect.total
        if steps is not None:
            runs = tuple(_from_one(effect.runs, steps))
            total = sum(run.total for run in runs)
        if total:
            yield msgspec.structs.replace(effect, variables=variables, runs=runs, total=total)


def _promoted(block: Block) -> Block:
    """The block with executions inside other methods as updates."""
    entries = tuple(
        msgspec.structs.replace(entry, role="update") if entry.role == "apply" else entry
        for entry in block.entries
    )
    return msgspec.structs.replace(block, entries=entries)


def _within(block: Block, steps: range | None) -> Iterator[Block]:
    """The block in those steps, which are numbered from 1 then."""
    if steps is None:
        yield block
    elif not block.outside:
        runs = tuple(_from_one(block.runs, steps))
        total = sum(run.total for run in runs)
        yield msgspec.structs.replace(block, runs=runs, total=total)


def _from_one(runs: Iterable[Run], steps: range) -> Iterator[Run]:
    """The runs in those steps, of which the first is step 1 then."""
    before = max(1, steps.start) - 1
    for run in runs:
        within = run.only(steps)
        if within is not None:
            yield within.moved(-before)


def _only(
    variable: str | None,
    steps: range | None,
    replica: int | None,
    method: str | None,
    optimizer: str | None,
    last: int,
) -> str:
    parts = [] if optimizer is None else [f"optimizer {optimizer}"]
    if variable is not None:
        parts.append(f"variable {variable}")
    if steps is not None:
        first, last = max(1, steps.start), min(last, steps.stop - 1)
        parts.append(f"step {first:,}" if first == last else f"steps {first:,} to {last:,}")
    if replica is not None:
        parts.append(f"replica {replica}")
    if method is not None:
        parts.append(f"method {method}")
    calls = "; Python calls have no step and are those of the whole run" if steps else ""
    return f"Only {', '.join(parts)}{calls}."
