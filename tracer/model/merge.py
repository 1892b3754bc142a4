"""One trace of several: of a run's workers, or of the optimizers of one process. No TensorFlow."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import ref

import msgspec

from tracer.errors import MergeError
from tracer.model.labels import replica_name
from tracer.model.names import distinct
from tracer.model.records import (
    INDICES,
    Block,
    Entry,
    Failure,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.trace import Trace
from tracer.model.wording import listed

_NAMED = 8  # workers of which there is no trace

Reference = ref[Any] | None
"""A variable's object, held weakly; None for the argument of a function."""


def merge(traces: Iterable[Trace]) -> Trace:
    """The traces of one run's workers as one trace: see `tracer.merge`."""
    parts = [trace.data for trace in traces]
    if not parts:
        raise MergeError("there is no trace to merge: give the traces of a run's workers")
    together = _of_one_launch(parts)
    return Trace(_processes(parts) if together and len(parts) > 1 else _workers_of_one_run(parts))


def of_whole_run(trace: Trace) -> Trace:
    """The trace, incomplete if it knows of workers whose traces are not in it."""
    notes = _missing([trace.data])
    if not notes:
        return trace
    data = msgspec.structs.replace(trace.data, complete=False, notes=(*trace.data.notes, *notes))
    return Trace(data, trace.objects)


def _workers_of_one_run(parts: Sequence[TraceData]) -> TraceData:
    every = parts
    parts = sorted((data for data in every if data.optimizers), key=_workers) or every
    first = parts[0]
    for other in parts[1:]:
        _same_run(first, other)
    whole = _Whole()
    replicas: list[Replica] = []
    known: set[tuple[str, int]] = set()
    of_variable = {variable.name: index for index, variable in enumerate(first.variables)}
    for data in parts:
        own = {(each.worker, each.id) for each in data.replicas}
        if twice := known & own:
            name = replica_name(Replica(*min(twice), ""))
            raise MergeError(f"two of the traces are of {name}: give one trace for each worker")
        known |= own
        begin = len(replicas)
        replicas += data.replicas
        whole.add(
            data,
            optimizers=range(len(first.optimizers)),
            variables=[of_variable[variable.name] for variable in data.variables],
            replicas=range(begin, len(replicas)),
        )
    optimizers = tuple(_of_all_workers(index, parts) for index in range(len(first.optimizers)))
    unknown = [*_missing(every), *_not_together(every)]
    notes = dict.fromkeys(_of_worker(note, data) for data in every for note in data.notes)
    notes |= dict.fromkeys([*_of_some_workers(parts), *unknown])
    return whole.data(
        optimizers=optimizers,
        variables=tuple(msgspec.structs.replace(v, shape=_shape(v)) for v in first.variables),
        replicas=tuple(replicas),
        complete=not unknown and all(data.complete for data in every),
        notes=tuple(notes),
        environment={key: text for d in parts[::-1] for key, text in d.environment.items()},
        finished=all(data.finished for data in every),
        programs=tuple(program for data in every for program in data.programs),
        only=first.only,
        first_step=first.first_step,
    )


def _of_all_workers(index: int, parts: Sequence[TraceData]) -> Optimizer:
    """An optimizer with what any of the workers saw of it.

    Turns, rates and values are compared among the optimizers of one process, so they are those of
    the first worker.
    """
    own = [data.optimizers[index] for data in parts]
    failures: dict[Failure, list[Failure]] = {}
    for failure in (failure for each in own for failure in each.failures):
        alike = msgspec.structs.replace(failure, after=0, last=True)
        failures.setdefault(alike, []).append(failure)
    moved = [each.iterations for each in own if each.iterations is not None]
    astray = [each for each, data in zip(own, parts, strict=True) if _astray(index, data)]
    settings = {name: value for each in own[::-1] for name, value in each.settings.items()}
    scales = [each.settings.get("dynamic_scale") for each in own]
    if known := [scale for scale in scales if isinstance(scale, int | float)]:
        settings["dynamic_scale"] = min(known)
    return msgspec.structs.replace(
        own[0],
        settings=settings,
        iterations=astray[0].iterations if astray else next(iter(moved), None),
        remarks=tuple(dict.fromkeys(remark for each in own for remark in each.remarks)),
        never_handed=tuple(dict.fromkeys(name for each in own for name in each.never_handed)),
        frozen=tuple(dict.fromkeys(name for each in own for name in each.frozen)),
        failures=tuple(
            msgspec.structs.replace(
                alike,
                after=min(failure.after for failure in same),
                last=any(failure.last for failure in same),
            )
            for alike, same in failures.items()
        ),
        decay=max((e.decay for e in own if e.decay), key=lambda d: len(d.unmatched), default=None),
        slots=max((each.slots for each in own if each.slots is not None), default=None),
    )


def _astray(index: int, data: TraceData) -> bool:
    """Whether an optimizer's own count stayed at 0, or moved more often than it made steps."""
    optimizer = data.optimizers[index]
    steps: Counter[int] = Counter()
    for block in data.blocks:
        if block.step and block.root == optimizer.root:
            steps[block.replica] += block.total
    made, moved = max(steps.values(), default=0), optimizer.iterations
    return moved is not None and (moved == 0 < made or moved > made)


_SEEN: Mapping[str, str] = {
    "failures": "a step raised",
    "frozen": "frozen variables were updated",
    "never_handed": "trainable variables were never handed over",
}


def _of_some_workers(parts: Sequence[TraceData]) -> Iterator[str]:
    """Which workers alone saw what an optimizer of all workers says."""
    for index, optimizer in enumerate(parts[0].optimizers):
        seen = {
            said: [data for data in parts if getattr(data.optimizers[index], name)]
            for name, said in _SEEN.items()
        }
        seen["iterations are not the steps"] = [data for data in parts if _astray(index, data)]
        for said, having in seen.items():
            if 0 < len(having) < len(parts):
                yield f"{optimizer.name}: {said} in {listed([*map(_named, having)])} alone"


def _workers(data: TraceData) -> list[tuple[str, int]]:
    """The workers in TensorFlow's order: `worker:2` before `worker:10`."""
    return sorted(_number(name) for name in {replica.worker for replica in data.replicas})


def _number(worker: str) -> tuple[str, int]:
    kind, _, number = worker.partition(":")
    return kind, int(number) if number.isdigit() else 0


def _cluster(parts: Sequence[TraceData]) -> set[str]:
    """The workers that take part in the run, as TensorFlow told each of them."""
    return {
        worker for data in parts for worker in data.environment.get("cluster", "").split(", ")
    } - {""}


def _missing(parts: Sequence[TraceData]) -> list[str]:
    """A note for each worker of the cluster of which there is no trace."""
    traced = {replica.worker for data in parts for replica in data.replicas}
    traced |= {program.worker for data in parts for program in data.programs}
    missing = sorted(_cluster(parts) - traced, key=_number)
    notes = [
        f"{worker}: there is no trace of this worker, so what it ran is not counted"
        for worker in missing[:_NAMED]
    ]
    if more := missing[_NAMED:]:
        notes.append(f"there is no trace of {len(more):,} more workers: {more[0]} to {more[-1]}")
    return notes


def _not_together(parts: Sequence[TraceData]) -> list[str]:
    """A note on a program that had ended when another one began: they are of different runs."""
    programs = [program for data in parts for program in data.programs]
    ends = [program.started + program.seconds for program in programs]
    if not programs or min(ends) >= max(program.started for program in programs):
        return []
    first = programs[ends.index(min(ends))].worker or "one"
    last = max(programs, key=lambda program: program.started).worker or "another"
    return [
        f"the program of {first} had ended when that of {last} began: a file is left of an earlier "
        "run, so the counts are of several"
    ]


def _of_worker(note: str, data: TraceData) -> str:
    workers = ", ".join(dict.fromkeys(replica.worker for replica in data.replicas))
    return f"{workers}: {note}" if workers else note


def _same_run(first: TraceData, other: TraceData) -> None:
    if difference := _difference(first, other):
        raise MergeError(f"not one run: {difference}")
    _same_part(first, other)


def _difference(first: TraceData, other: TraceData) -> str:
    """What one of them trains and the other does not; empty if they train the same."""
    here, there = (_named(data) for data in (first, other))
    ours, theirs = ([(o.name, o.class_name) for o in data.optimizers] for data in (first, other))
    if ours != theirs:
        return f"{here} has the optimizers {_listed(ours)}, {there} has {_listed(theirs)}"
    mine, its = (
        {v.name: f"{v.name} {v.dtype}{list(_shape(v))}" for v in data.variables}
        for data in (first, other)
    )
    for name in sorted(mine.keys() ^ its.keys()):
        has, lacks = (here, there) if name in mine else (there, here)
        return f"{has} has the variable {name}, {lacks} has not"
    for name, described in mine.items():
        if its[name] != described:
            return f"{described} in {here} is {its[name]} in {there}"
    return ""


def _shape(variable: Variable) -> tuple[int | None, ...]:
    """The shape on each worker; of what is split among the workers it is not the same."""
    return (None,) if variable.part_of == variable.name else variable.shape


def _same_part(first: TraceData, other: TraceData) -> None:
    if (first.only, first.first_step) != (other.only, other.first_step):
        raise MergeError(
            f"not the same part of a run: {_named(first)} holds {_extent(first)}, "
            f"{_named(other)} {_extent(other)}"
        )


def _extent(data: TraceData) -> str:
    """What of its run a trace holds: `only steps 3 to 7`."""
    only = data.only.partition(";")[0].rstrip(".")
    return f"{only[0].lower()}{only[1:]}" if only else "all of it"


def _named(data: TraceData) -> str:
    return ", ".join(dict.fromkeys(r.worker for r in data.replicas if r.worker)) or "one trace"


def _listed(optimizers: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({cls})" for name, cls in optimizers) or "none"


# The processes that one program started.


def _of_one_launch(parts: Sequence[TraceData]) -> bool:
    """Whether all are of processes that one `tracer run --children` followed."""
    launches = {program.run for data in parts for program in data.programs}
    return len(launches) == 1 and "" not in launches and all(data.programs for data in parts)


def _processes(parts: Sequence[TraceData]) -> TraceData:
    """The trace of all processes of one launch, whatever each of them trained.

    The workers of one cluster are one training. Any other process is one of its own, also where it
    has the same model as another one: nothing tells whether they exchange their gradients.
    """
    for other in parts[1:]:
        _same_part(parts[0], other)
    parts = sorted(parts, key=lambda data: data.programs[0].started)
    trained = [data for data in parts if data.replicas]
    clusters: dict[str, list[TraceData]] = {}
    alone = []
    taken: set[str] = set()
    for number, data in enumerate(parts, 1):
        workers = {replica.worker for replica in data.replicas} - {""}
        if workers and not workers & taken:
            taken |= workers
            clusters.setdefault(data.environment.get("cluster", ""), []).append(data)
        elif data.replicas and len(trained) > 1:
            alone.append(_as_worker(data, f"process:{number}"))
        else:
            alone.append(data)
    trainings = alone
    for workers_of in clusters.values():
        if any(_difference(workers_of[0], other) for other in workers_of[1:]):
            trainings += workers_of
        else:
            trainings.append(_workers_of_one_run(workers_of))
    programs = [program for data in trainings for program in data.programs]
    combined, _ = combine([(data, [None] * len(data.variables)) for data in trainings])
    return msgspec.structs.replace(
        combined,
        complete=all(data.complete for data in trainings),
        only=parts[0].only,
        first_step=parts[0].first_step,
        programs=tuple(sorted(programs, key=lambda program: program.started)),
    )


def _as_worker(data: TraceData, name: str) -> TraceData:
    """The trace, with `name` for the process that it is of."""
    renamed = [msgspec.structs.replace(each, worker=name) for each in data.replicas]
    programs = [msgspec.structs.replace(each, worker=name) for each in data.programs]
    notes = tuple(f"{name}: {note}" for note in data.notes)
    return msgspec.structs.replace(
        data, replicas=tuple(renamed), programs=tuple(programs), notes=notes
    )


# The optimizers of one process.


def combine(
    parts: Sequence[tuple[TraceData, Sequence[Reference]]], notes: Sequence[str] = ()
) -> tuple[TraceData, list[Reference]]:
    """One trace of several optimizers' traces, with `notes` of its own.

    With each trace come its variables' objects: a variable that several optimizers update is one.
    """
    whole = _Whole()
    replicas = _all_replicas(data for data, _ in parts)
    number_of = {key: index for index, key in enumerate(replicas)}
    variables = _Variables()
    optimizers: list[Optimizer] = []
    for data, references in parts:
        places = whole.add(
            data,
            optimizers=range(len(optimizers), len(optimizers) + len(data.optimizers)),
            variables=variables.add(data.variables, references),
            replicas=[number_of[each.worker, each.id] for each in data.replicas],
        )
        names = {each.name for each in data.optimizers}
        for optimizer in data.optimizers:
            plain = msgspec.structs.replace(optimizer, name=_plain(optimizer.name, names))
            optimizers.append(renumbered(plain, places))
    every_note = [*dict.fromkeys(note for data, _ in parts for note in data.notes), *notes]
    combined = whole.data(
        optimizers=_distinct(optimizers),
        variables=_distinct(variables.all),
        replicas=tuple(replicas.values()),
        complete=not notes and all(data.complete for data, _ in parts),
        notes=tuple(every_note),
        environment={key: text for data, _ in parts for key, text in data.environment.items()},
        finished=all(data.finished for data, _ in parts),
    )
    return combined, variables.references


def _all_replicas(parts: Iterable[TraceData]) -> dict[tuple[str, int], Replica]:
    """The replicas by worker and id, in that order; each with its device, if any trace knows it."""
    replicas: dict[tuple[str, int], Replica] = {}
    for data in parts:
        for replica in data.replicas:
            known = replicas.setdefault((replica.worker, replica.id), replica)
            if replica.device and not known.device:
                replicas[replica.worker, replica.id] = replica
    return dict(sorted(replicas.items()))


class _Variables:
    """The variables of several traces, each once."""

    def __init__(self) -> None:
        self.all: list[Variable] = []
        self.references: list[Reference] = []
        self._index_of: dict[int, int] = {}  # by the id of the object, or of its weak reference

    def add(self, variables: Sequence[Variable], references: Sequence[Reference]) -> list[int]:
        """Add one trace's variables, and give back the index of each."""
        names = {each.name for each in variables}
        indices = []
        for variable, reference in zip(variables, references, strict=True):
            new = len(self.all)
            held = None if reference is None else reference()
            # Of what is gone by now Python had one weak reference, whoever asked for it.
            known_by = id(reference if held is None else held)
            index = new if reference is None else self._index_of.setdefault(known_by, new)
            if index == new:
                plain = _plain(variable.name, names)
                self.all.append(msgspec.structs.replace(variable, name=plain))
                self.references.append(reference)
            indices.append(index)
        return indices


def _plain(name: str, names: Collection[str]) -> str:
    """The name without the number that it has because others of `names` are the same."""
    plain, separator, number = name.rpartition("#")
    return plain if separator and number.isdecimal() and plain in names else name


Named = TypeVar("Named", Optimizer, Variable)


def _distinct(records: Sequence[Named]) -> tuple[Named, ...]:
    """The records, those of one name with their number."""
    names = distinct(record.name for record in records)
    return tuple(
        msgspec.structs.replace(record, name=name)
        for record, name in zip(records, names, strict=True)
    )


# Putting records together.


Places = Mapping[str, Sequence[int] | Mapping[int, int]]
"""For each table of a trace the new index of each old one; tables that stay are not in it."""

_Record = TypeVar("_Record", bound=msgspec.Struct)


def renumbered(record: _Record, places: Places) -> _Record:
    """The record with its indices as they are in a larger trace, or in a part of this one."""
    changes: dict[str, Any] = {}
    for field, table in INDICES[type(record)].items():
        old = getattr(record, field)
        if table in places and old is not None:
            new = places[table]
            several = table == "variables"
            changes[field] = tuple(sorted(new[i] for i in old)) if several else new[old]
    if isinstance(record, Block) and not places.keys().isdisjoint(INDICES[Entry].values()):
        changes["entries"] = tuple(renumbered(entry, places) for entry in record.entries)
    return msgspec.structs.replace(record, **changes)


class _Whole:
    """The records of several traces put together: those that are the same, and those in a row."""

    def __init__(self) -> None:
        self._once: dict[str, dict[Any, int]] = {"methods": {}, "lines": {}, "paths": {}}
        self._all: dict[str, list[Any]] = {
            "blocks": [],
            "calls": [],
            "graphs": [],
            "graph_tracings": [],
            "effects": [],
        }

    def add(self, data: TraceData, **places: Sequence[int]) -> Places:
        """Add one trace's; `places` has the indices that its optimizers and the like have here."""
        once = self._once
        for table in ("methods", "lines"):
            places[table] = _indices(once[table], getattr(data, table))
        lines = places["lines"]
        paths = [tuple(lines[index] for index in path) for path in data.paths]
        places["paths"] = _indices(once["paths"], paths)
        before = len(self._all["graphs"])
        places["graphs"] = range(before, before + len(data.graphs))
        moved = {name: new for name, new in places.items() if [*new] != [*range(len(new))]}
        for table, records in self._all.items():
            records += [renumbered(record, moved) for record in getattr(data, table)]
        return moved

    def data(self, **rest: Any) -> TraceData:
        """The whole trace, with the `rest` of its fields."""
        self._all["graph_tracings"].sort(key=lambda each: each.at)
        tables: dict[str, Any] = {**self._once, **self._all}
        rest |= {table: tuple(records) for table, records in tables.items()}
        return TraceData(**rest)


def _indices(table: dict[Any, int], records: Iterable[object]) -> list[int]:
    """The index of each record in the table, which gets those that it has not."""
    return [table.setdefault(record, len(table)) for record in records]
