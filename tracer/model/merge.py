"""One trace of the traces of a run's workers. No TensorFlow."""

from collections.abc import Iterable, Sequence

import msgspec

from tracer.errors import MergeError
from tracer.model.records import Block, Calls, Graph, Replica, TraceData
from tracer.model.trace import Trace


def merge(traces: Iterable[Trace]) -> Trace:
    """The traces of one run's workers as one trace: see `tracer.merge`."""
    parts = [trace.data for trace in traces]
    if not parts:
        raise MergeError("there is no trace to merge: give the traces of a run's workers")
    parts.sort(key=_workers)
    first = parts[0]
    for other in parts[1:]:
        _same_run(first, other)
    replicas: list[Replica] = []
    blocks: list[Block] = []
    calls: list[Calls] = []
    graphs: list[Graph] = []
    methods = {method: index for index, method in enumerate(first.methods)}
    of_variable = {variable.name: index for index, variable in enumerate(first.variables)}
    found: set[tuple[str, int]] = set()
    for data in parts:
        places = set(_places(data.replicas))
        if twice := found & places:
            worker, replica = min(twice)
            raise MergeError(
                f"two of the traces are of {worker or 'a local run'}, replica {replica}: give one "
                "trace for each worker"
            )
        found |= places
        offset = len(replicas)
        replicas += data.replicas
        method_of = [methods.setdefault(method, len(methods)) for method in data.methods]
        variable_of = [of_variable[variable.name] for variable in data.variables]
        same = method_of == [*range(len(method_of))] and variable_of == [*range(len(variable_of))]
        blocks += [_moved(each, offset, same, method_of, variable_of) for each in data.blocks]
        calls += [
            msgspec.structs.replace(
                each,
                method=method_of[each.method],
                replica=each.replica + offset,
                variables=_renumbered(each.variables, variable_of),
            )
            for each in data.calls
        ]
        graphs += [
            msgspec.structs.replace(each, replica=each.replica + offset) for each in data.graphs
        ]
    missing = sorted(_cluster(parts) - {replica.worker for replica in replicas})
    notes = dict.fromkeys(_of_worker(note, data) for data in parts for note in data.notes)
    for worker in missing:
        notes[f"{worker}: there is no trace of this worker, so what it ran is not counted"] = None
    merged = TraceData(
        optimizers=first.optimizers,
        variables=first.variables,
        methods=tuple(methods),
        replicas=tuple(replicas),
        blocks=tuple(blocks),
        calls=tuple(calls),
        graphs=tuple(graphs),
        complete=not missing and all(data.complete for data in parts),
        notes=tuple(notes),
        environment=first.environment,
        finished=all(data.finished for data in parts),
    )
    return Trace(merged)


def _workers(data: TraceData) -> list[tuple[str, int]]:
    """The workers in TensorFlow's order: `worker:2` before `worker:10`."""
    found = []
    for name in dict.fromkeys(replica.worker for replica in data.replicas):
        kind, _, number = name.partition(":")
        found.append((kind, int(number) if number.isdigit() else 0))
    return sorted(found)


def _cluster(parts: Sequence[TraceData]) -> set[str]:
    """The workers that take part in the run, as TensorFlow told each of them."""
    return {
        worker for data in parts for worker in data.environment.get("cluster", "").split(", ")
    } - {""}


def _of_worker(note: str, data: TraceData) -> str:
    workers = ", ".join(dict.fromkeys(replica.worker for replica in data.replicas))
    return f"{workers}: {note}" if workers else note


def _places(replicas: Iterable[Replica]) -> Iterable[tuple[str, int]]:
    return ((replica.worker, replica.id) for replica in replicas)


def _same_run(first: TraceData, other: TraceData) -> None:
    here, there = (_named(each) for each in (first, other))
    ours, theirs = ([(o.name, o.class_name) for o in each.optimizers] for each in (first, other))
    if ours != theirs:
        raise MergeError(
            f"not one run: {here} has the optimizers {_listed(ours)}, {there} has {_listed(theirs)}"
        )
    mine, its = (
        {v.name: f"{v.name} {v.dtype}{list(v.shape)}" for v in each.variables}
        for each in (first, other)
    )
    for name in sorted(mine.keys() ^ its.keys()):
        has, lacks = (here, there) if name in mine else (there, here)
        raise MergeError(f"not one run: {has} has the variable {name}, {lacks} has not")
    for name, described in mine.items():
        if its[name] != described:
            raise MergeError(f"not one run: {described} in {here} is {its[name]} in {there}")


def _named(data: TraceData) -> str:
    return ", ".join(dict.fromkeys(r.worker for r in data.replicas if r.worker)) or "one trace"


def _listed(optimizers: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({cls})" for name, cls in optimizers) or "none"


def _moved(
    block: Block, offset: int, same: bool, method_of: Sequence[int], variable_of: Sequence[int]
) -> Block:
    if same:
        return msgspec.structs.replace(block, replica=block.replica + offset)
    entries = tuple(
        msgspec.structs.replace(
            entry,
            method=method_of[entry.method],
            variables=_renumbered(entry.variables, variable_of),
        )
        for entry in block.entries
    )
    return msgspec.structs.replace(block, replica=block.replica + offset, entries=entries)


def _renumbered(indices: tuple[int, ...], variable_of: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(variable_of[index] for index in indices))
