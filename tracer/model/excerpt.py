"""A part of a trace, as a trace: some variables, steps, replicas or methods. No TensorFlow."""

from collections.abc import Iterator

import msgspec

from tracer.errors import UnknownName
from tracer.model.records import Block, Calls, Entry, Run
from tracer.model.trace import Trace


def select(
    trace: Trace,
    *,
    variable: str | None = None,
    steps: range | None = None,
    replica: int | None = None,
    method: str | None = None,
) -> Trace:
    """The part of a trace that the filters leave; they are those of `Trace.executions`.

    `steps` is a range without a stride. What ran outside any step, or in one that is not known, is
    not in a part of the steps; Python calls have no step, so they stay those of the whole run.

    Raises `tracer.UnknownName` for what the trace does not hold.
    """
    if all(each is None for each in (variable, steps, replica, method)):
        return trace
    if steps is not None and not range(max(1, steps.start), min(trace.steps + 1, steps.stop)):
        raise UnknownName(f"no such step: the trace holds the steps 1 to {trace.steps:,}")
    chosen = trace._filter(None, method, variable, None, replica, None, None)
    data = trace.data
    blocks = [
        block
        for block in data.blocks
        if chosen.replicas is None or block.replica in chosen.replicas
    ]
    methods = frozenset(range(len(data.methods))) if chosen.methods is None else chosen.methods
    variables = frozenset(range(len(data.variables)))
    if chosen.variables is not None:
        variables = chosen.variables
    if method is not None:  # a variable that the method never gets is not of the part
        holders: list[Entry | Calls] = [entry for block in blocks for entry in block.entries]
        holders += data.calls
        variables &= {i for each in holders if each.method in methods for i in each.variables}
    kept = [
        msgspec.structs.replace(block, entries=tuple(_entries(block, methods, variables)))
        for each in blocks
        for block in _within(each, steps)
    ]
    if method is not None and not any(e.role == "update" for each in kept for e in each.entries):
        kept = [_promoted(block) for block in kept]
    part = msgspec.structs.replace(
        data,
        blocks=tuple(kept),
        calls=tuple(
            msgspec.structs.replace(
                calls, variables=tuple(each for each in calls.variables if each in variables)
            )
            for calls in data.calls
            if calls.method in methods
            and (chosen.replicas is None or calls.replica in chosen.replicas)
            and (not calls.variables or not variables.isdisjoint(calls.variables))
        ),
    )
    excerpt = Trace(part)
    excerpt.only = _only(variable, steps, replica, method, trace.steps)
    if steps is not None:
        excerpt.first_step = max(1, steps.start)
    return excerpt


def _entries(block: Block, methods: frozenset[int], variables: frozenset[int]) -> Iterator[Entry]:
    for entry in block.entries:
        if entry.role == "request" or entry.method in methods:
            kept = tuple(each for each in entry.variables if each in variables)
            if kept or not entry.variables:
                yield msgspec.structs.replace(entry, variables=kept)


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
        before = max(1, steps.start) - 1
        runs = tuple(
            Run(part.first - before, part.stride, part.count, part.times)
            for run in block.runs
            if (part := run.only(steps)) is not None
        )
        total = sum(run.total for run in runs)
        yield msgspec.structs.replace(block, runs=runs, total=total)


def _only(
    variable: str | None, steps: range | None, replica: int | None, method: str | None, last: int
) -> str:
    parts = []
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
