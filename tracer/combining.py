"""One trace of the traces of several optimizers that ran in one process. No TensorFlow."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import ref

import msgspec

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
from tracer.snapshot import distinct

Ref = ref[Any] | None
"""A variable's object, held weakly; None for the argument of a function."""


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
