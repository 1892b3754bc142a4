"""One trace of several: of a run's workers, or of the optimizers of one process. No TensorFlow."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import ref

import msgspec

from tracer.errors import MergeError
from tracer.model.labels import distinct
from tracer.model.records import (
    Block,
    Calls,
    Graph,
    Method,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.trace import Trace

Ref = ref[Any] | None
"""A variable's object, held weakly; None for the argument of a function."""


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


# The optimizers of one process.


def combine(
    parts: Sequence[tuple[TraceData, Sequence[Ref]]], notes: Sequence[str]
) -> tuple[TraceData, list[Ref]]:
    """One trace of several optimizers' traces of one process, with `notes` of its own.

    With each trace come its variables' objects: a variable that several optimizers update is one.
    """
    variables: list[Variable] = []
    objects: list[Ref] = []
    methods: dict[Method, int] = {}
    replicas: dict[tuple[str, int], Replica] = {}
    optimizers: list[Optimizer] = []
    blocks: list[Block] = []
    calls: list[Calls] = []
    graphs: list[Graph] = []
    index_of: dict[int, int] = {}
    for data, _ in parts:
        for replica in data.replicas:
            known = replicas.setdefault((replica.worker, replica.id), replica)
            if replica.device and not known.device:
                replicas[replica.worker, replica.id] = replica
    places = {place: index for index, place in enumerate(sorted(replicas))}
    for data, own in parts:
        first = len(optimizers)
        optimizers += [
            msgspec.structs.replace(each, root=each.root + first) for each in data.optimizers
        ]
        to_variable = []
        taken = {each.name for each in data.variables}
        for variable, reference in zip(data.variables, own, strict=True):
            held = None if reference is None else reference()
            index = (
                len(variables) if held is None else index_of.setdefault(id(held), len(variables))
            )
            if index == len(variables):
                plain = _plain(variable.name, taken)
                variables.append(msgspec.structs.replace(variable, name=plain))
                objects.append(reference)
            to_variable.append(index)
        to_method = [methods.setdefault(each, len(methods)) for each in data.methods]
        to_replica = [places[each.worker, each.id] for each in data.replicas]

        def moved(
            indices: Iterable[int], to_variable: Sequence[int] = to_variable
        ) -> tuple[int, ...]:
            return tuple(sorted(to_variable[index] for index in indices))

        blocks += [
            msgspec.structs.replace(
                block,
                root=block.root + first,
                replica=to_replica[block.replica],
                entries=tuple(
                    msgspec.structs.replace(
                        entry,
                        optimizer=entry.optimizer + first,
                        method=to_method[entry.method],
                        variables=moved(entry.variables),
                    )
                    for entry in block.entries
                ),
            )
            for block in data.blocks
        ]
        calls += [
            msgspec.structs.replace(
                each,
                optimizer=each.optimizer + first,
                method=to_method[each.method],
                replica=to_replica[each.replica],
                variables=moved(each.variables),
            )
            for each in data.calls
        ]
        graphs += [
            msgspec.structs.replace(each, root=each.root + first, replica=to_replica[each.replica])
            for each in data.graphs
        ]
    optimizer_names = distinct(each.name for each in optimizers)
    variable_names = distinct(each.name for each in variables)
    said = [*dict.fromkeys(note for data, _ in parts for note in data.notes), *notes]
    combined = TraceData(
        optimizers=tuple(
            msgspec.structs.replace(each, name=name)
            for each, name in zip(optimizers, optimizer_names, strict=True)
        ),
        variables=tuple(
            msgspec.structs.replace(each, name=name)
            for each, name in zip(variables, variable_names, strict=True)
        ),
        methods=tuple(methods),
        replicas=tuple(replicas[place] for place in sorted(replicas)),
        blocks=tuple(blocks),
        calls=tuple(calls),
        graphs=tuple(graphs),
        complete=not said and all(data.complete for data, _ in parts),
        notes=tuple(said),
        environment={key: text for data, _ in parts for key, text in data.environment.items()},
        finished=all(data.finished for data, _ in parts),
    )
    return combined, objects


def _plain(name: str, names: Collection[str]) -> str:
    """The name without the number that it has because others of `names` are the same."""
    plain, mark, number = name.rpartition("#")
    return plain if mark and number.isdecimal() and plain in names else name
