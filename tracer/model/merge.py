"""Merges traces: of a run's workers, or of the optimizers of one process. No TensorFlow."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar
from weakref import ref

from msgspec.structs import replace

from tracer.errors import MergeError
from tracer.model.matching import Matching, Root, match
from tracer.model.names import distinct, without_number
from tracer.model.phrases import replica_name
from tracer.model.records import (
    Failure,
    Launch,
    Note,
    Optimizer,
    Rate,
    Replica,
    TraceData,
    Variable,
    with_indices,
)
from tracer.model.trace import Trace
from tracer.model.words import first_of, listed

_MAX_NAMES = 8  # the most workers or variables named

Reference = ref[Any] | None
"""A variable's object, held weakly; None for an argument of a function."""


def merge(traces: Iterable[Trace]) -> Trace:
    """Merge the traces of one run's workers: see `tracer.merge`."""
    parts = [trace.data for trace in traces]
    if not parts:
        raise MergeError("there is no trace to merge: give the traces of a run's workers")
    runs = {data.launch.run if data.launch else "" for data in parts}
    together = len(parts) > 1 and len(runs) == 1 and runs != {""}
    return Trace(_processes(parts) if together else _workers_of_one_run(parts))


def of_whole_run(trace: Trace) -> Trace:
    """Return the trace, marked incomplete if it lacks workers of its cluster."""
    data, notes = trace.data, [*_missing([trace.data])]
    return Trace(replace(data, notes=(*data.notes, *notes)), trace.objects)


# The workers of one run.


def _named_alike(every: Sequence[TraceData]) -> Iterator[TraceData]:
    """Give processes without an optimizer the names that the framework gave the others.

    The framework names a process when it uses an optimizer; before, its name is the launcher's.
    """
    clusters = {data.environment.get("cluster", "") for data in every if data.replicas}
    names = min(clusters, default="").split(", ")
    for data in every:
        own = data.environment.get("cluster", "").split(", ")
        if own == names or data.replicas or len(clusters) > 1 or len(own) != len(names):
            yield data
            continue
        new = dict(zip(own, names, strict=True))
        programs = tuple(replace(e, worker=new.get(e.worker, e.worker)) for e in data.programs)
        processes = tuple(new.get(name, name) for name in data.processes)
        environment = {**data.environment, "cluster": ", ".join(names)}
        yield replace(data, programs=programs, processes=processes, environment=environment)


def _order_of_workers(data: TraceData) -> list[tuple[int, str]]:
    return [_in_order(replica.worker) for replica in data.replicas]


def _workers_of_one_run(every: Sequence[TraceData]) -> TraceData:
    """Merge the traces of workers, whose optimizers and variables `match` identifies."""
    every = [*_named_alike(every)]
    parts = sorted((data for data in every if data.replicas), key=_order_of_workers)
    idle = [data for data in every if not data.replicas]  # ran no step, so made no variable known
    found = match([*parts, *idle])
    for difference in _differences(parts, found):
        raise MergeError(f"not one run: {difference}")
    replicas = Counter(key for data in parts for key in {(e.worker, e.id) for e in data.replicas})
    if twice := [key for key, number in replicas.items() if number > 1]:
        name = replica_name(Replica(*min(twice), ""))
        raise MergeError(f"two of the traces are of {name}: give one trace for each worker")
    parts += idle
    whole = _joined([*zip(parts, found.optimizers, found.variables, strict=True)])
    seen: dict[Hashable, list[tuple[Optimizer, TraceData]]] = defaultdict(list)
    for data, keys in zip(parts, found.optimizers, strict=True):
        for key, each in zip(keys, data.optimizers, strict=True):
            seen[key].append((each, data))
    names = {key: each.name for key, each in zip(seen, whole.optimizers, strict=True)}
    notes = [note for data in every for note in _of_worker(data, _workers_named(data))]
    apart = {_identity(unit, found) for units in found.doubts for unit in units}
    for key, name in names.items():
        notes += _seen_by_some(name, seen[key], [] if key in apart else parts)
    unknown = [_in_doubt(units, found, names, parts) for units in found.doubts]
    unknown += [*_missing(every), *_mixed(every)]
    return replace(
        whole,
        optimizers=tuple(
            replace(_of_all_workers(seen[key]), name=each.name, root=each.root)
            for key, each in zip(seen, whole.optimizers, strict=True)
        ),
        notes=tuple(dict.fromkeys((*notes, *unknown))),
    )


def _identity(unit: Sequence[Root], found: Matching) -> Hashable:
    return found.optimizers[unit[0].trace][unit[0].index]


def _in_doubt(
    units: Sequence[Sequence[Root]],
    found: Matching,
    names: Mapping[Hashable, str],
    parts: Sequence[TraceData],
) -> Note:
    """A note on optimizers that may be the same on different workers."""
    items = [
        f"{names[_identity(unit, found)]} "
        f"({first_of([_workers_in(parts[root.trace]) for root in unit], _MAX_NAMES)})"
        for unit in units
    ]
    line = units[0][0].record.made
    return Note(
        f"{listed(items, _MAX_NAMES)} {f'were made in {line}' if line else 'were made earlier'}, "
        "for variables of equal names: it is unknown which are the same optimizer, so they are "
        "kept apart"
    )


def _of_all_workers(every: Sequence[tuple[Optimizer, TraceData]]) -> Optimizer:
    """Merge an optimizer's records of all workers.

    Turns, rates and values are compared within one process, so the first worker's are kept.
    """
    own = [each for each, _ in every]
    astray_first = sorted(every, key=lambda each: not _is_astray(*each))
    moved = (each.iterations for each, _ in astray_first if each.iterations is not None)
    failures: dict[Failure, list[Failure]] = defaultdict(list)
    for failure in chain.from_iterable(each.failures for each in own):
        failures[replace(failure, after=0, last=True)].append(failure)
    settings = {key: value for each in own[::-1] for key, value in each.settings.items()}
    scales = [each.settings.get("dynamic_scale") for each in own]
    if known_scales := [scale for scale in scales if isinstance(scale, int | float)]:
        settings["dynamic_scale"] = min(known_scales)
    seen: dict[str, Any] = {
        field: tuple(dict.fromkeys(chain.from_iterable(getattr(each, field) for each in own)))
        for field in ("evidence", "never_passed", "frozen")
    }
    return replace(
        own[0],
        settings=settings,
        iterations=next(moved, None),
        failures=tuple(
            replace(one, after=min(e.after for e in alike), last=any(e.last for e in alike))
            for one, alike in failures.items()
        ),
        **seen,
    )


def _is_astray(optimizer: Optimizer, data: TraceData) -> bool:
    """Whether an optimizer's own count stayed at 0 despite steps, or exceeds the steps."""
    steps = Trace(data).steps_by_replica()
    made = max((steps[root, of] for root, of in steps if root == optimizer.root), default=0)
    moved = optimizer.iterations
    return moved is not None and (moved == 0 < made or moved > made)


_SEEN: Mapping[str, Callable[[Optimizer, TraceData], object]] = {
    "a step raised": lambda optimizer, _: optimizer.failures,
    "frozen variables were updated": lambda optimizer, _: optimizer.frozen,
    "trainable variables were never passed": lambda optimizer, _: optimizer.never_passed,
    "iterations are not the steps": _is_astray,
}
"""A fact that only some workers may have seen of an optimizer, and its test."""


def _seen_by_some(
    name: str, every: Sequence[tuple[Optimizer, TraceData]], parts: Sequence[TraceData]
) -> Iterator[Note]:
    """Yield notes on facts of a merged optimizer that only some workers saw."""
    using = [id(data) for _, data in every]
    without = [_workers_in(data) for data in parts if data.finished and id(data) not in using]
    if without:
        yield Note(f"{name}: no step was made in {first_of(without, _MAX_NAMES)}", "fact")
    for said, saw in _SEEN.items():
        having = [_workers_in(data) for optimizer, data in every if saw(optimizer, data)]
        if 0 < len(having) < len(every):
            yield Note(f"{name}: {said} in {listed(having)} only", "fact")


def _in_order(worker: str) -> tuple[int, str]:
    """The key to sort workers in TensorFlow's order: `worker:2` before `worker:10`."""
    return len(worker), worker


def _missing(parts: Sequence[TraceData]) -> Iterator[Note]:
    """Yield a note for each worker of the cluster without a trace."""
    cluster = {name for data in parts for name in data.environment.get("cluster", "").split(", ")}
    replicas = {replica.worker for data in parts for replica in data.replicas}
    processes = {name for data in parts for name in data.processes}
    missing = sorted(cluster - replicas - processes - {""}, key=_in_order)
    for worker in missing[:_MAX_NAMES]:
        yield Note("this worker has no trace, so nothing of it is counted", worker=worker)
    if more := missing[_MAX_NAMES:]:
        yield Note(f"{len(more):,} more workers have no trace: {more[0]} to {more[-1]}")


def _mixed(parts: Sequence[TraceData]) -> Iterator[Note]:
    """Yield a note if the traces are of several launches, or of clusters of different sizes."""
    if len({data.launch.key for data in parts if data.launch}) > 1:
        yield Note("the traces are of different launches, so the counts mix several runs")
    elif len({data.environment.get("cluster", "") for data in parts} - {""}) > 1:
        yield Note("the traces are of different clusters, so the counts mix several runs")


def _of_worker(data: TraceData, worker: str) -> Iterator[Note]:
    """Yield the notes of a trace, with `worker` where none is named."""
    return (replace(note, worker=note.worker or worker) for note in data.notes)


def _workers_named(data: TraceData) -> str:
    return ", ".join(dict.fromkeys(each.worker for each in data.replicas if each.worker))


def _workers_in(data: TraceData) -> str:
    return _workers_named(data) or ", ".join(data.processes) or "one trace"


def _differences(parts: Sequence[TraceData], found: Matching) -> Iterator[str]:
    """Yield how traces differ from the one that trains most."""
    most = max(parts, key=lambda data: len(data.optimizers) + len(data.variables), default=None)
    yield from (said for other in parts if most and (said := _difference(most, other)))
    for pair in found.unlike:
        one, other = (
            first_of([parts[e.trace].variables[i].name for i in e.labels], _MAX_NAMES) for e in pair
        )
        before, after = (_workers_in(parts[each.trace]) for each in pair)
        yield f"{before} has the variables {one}, {after} has {other}"


def _difference(first: TraceData, other: TraceData) -> str:
    """What only one of the two traces trains; empty if they train the same, or the other less.

    Workers of one cluster that know the lines which made their optimizers may train anything.
    """
    same_cluster = _is_one_cluster(first, other)
    if same_cluster and all(each.made for each in (*first.optimizers, *other.optimizers)):
        return ""
    may_train_less = same_cluster and _are_made_alike(first, other)
    for table, described in _DESCRIBED.items():
        if getattr(first, table) != getattr(other, table):
            both = [dict.fromkeys(map(described, getattr(e, table))) for e in (first, other)]
            is_same = both[0].keys() == both[1].keys()
            if not is_same and not (may_train_less and both[0].keys() > both[1].keys()):
                alone = [
                    first_of([name for name in own if name not in others], _MAX_NAMES) or "none"
                    for own, others in (both, both[::-1])
                ]
                before, after = map(_workers_in, (first, other))
                return f"{before} has the {table} {alone[0]}, {after} has {alone[1]}"
    return ""


def _is_one_cluster(first: TraceData, other: TraceData) -> bool:
    clusters = {each.environment.get("cluster", "") for each in (first, other)}
    return len(clusters) == 1 and clusters != {""}


def _are_made_alike(first: TraceData, other: TraceData) -> bool:
    """Whether the lines that made the optimizers of `other` are equal in both traces.

    Then one may have died before its first step with an optimizer, be late, or have skipped it.
    """
    made = {each.name: each.made for each in first.optimizers}
    return all(made.get(each.name) == each.made for each in other.optimizers)


_DESCRIBED: Mapping[str, Callable[[Any], str]] = {
    "optimizers": lambda optimizer: f"{optimizer.name} ({optimizer.class_name})",
    "variables": lambda variable: (
        f"{variable.name} {variable.dtype}{[*variable.shape]}"
        + (f" in {variable.shards:,} shards" if variable.shards > 1 else "")
    ),
}


# The processes of one launch.


def _processes(parts: Sequence[TraceData]) -> TraceData:
    """Merge the traces of the processes of one `tracer run --children`, whatever each trained.

    The workers of one cluster that have one key are one training. Any other process is a training
    of its own, even with the same model as another: nothing shows whether they exchange gradients.
    """
    parts = sorted(parts, key=lambda data: data.launch.started if data.launch else 0)
    several = sum(bool(data.replicas) for data in parts) > 1
    groups: defaultdict[tuple[object, ...], list[tuple[int, TraceData]]] = defaultdict(list)
    for number, data in enumerate(parts, 1):
        is_worker = any(replica.worker for replica in data.replicas)
        cluster = data.environment.get("cluster", "")
        launch = data.launch or Launch()
        key = (launch.key, launch.restart, cluster) if is_worker else (number,)
        groups[key].append((number, data))
    trainings: list[TraceData] = []
    doubts: list[Note] = []
    taken: set[str] = set()
    for group in groups.values():
        own = [data for _, data in group]
        names = Counter(name for data in own for name in {e.worker for e in data.replicas})
        if not names or (names.keys() == {""} and not several):
            trainings += own
            continue
        if "" in names or max(names.values()) > 1:
            trainings += [_as_worker(data, f"process:{number}") for number, data in group]
            if "" not in names:
                doubts.append(
                    Note(
                        f"several processes are {first_of([*names], _MAX_NAMES)}: which of them "
                        "train together is unknown, so each is listed as a training of its own"
                    )
                )
            continue
        own = own if any(_differences(own, match(own))) else [_workers_of_one_run(own)]
        trainings += [_renumbered(data, taken) for data in own]
        taken |= {replica.worker for data in trainings for replica in data.replicas}
    whole, _ = combine([(data, [None] * len(data.variables)) for data in trainings], doubts)
    return replace(whole, programs=tuple(sorted(whole.programs, key=lambda each: each.started)))


def _renumbered(data: TraceData, taken: Set[str]) -> TraceData:
    """Return the trace with other names for workers whose names are taken: `rank:0#2`."""
    own = {each.worker for each in data.replicas} - {""}
    if not own & taken:
        return data
    number = next(n for n in count(2) if not any(f"{name}#{n}" in taken for name in own))
    names = {name: f"{name}#{number}" for name in own}
    return replace(
        data,
        replicas=tuple(replace(e, worker=names.get(e.worker, e.worker)) for e in data.replicas),
        programs=tuple(replace(e, worker=names.get(e.worker, e.worker)) for e in data.programs),
        processes=tuple(names.get(name, name) for name in data.processes),
        notes=tuple(
            replace(note, worker=names.get(note.worker, note.worker or f"training #{number}"))
            for note in data.notes
        ),
    )


def _as_worker(data: TraceData, name: str) -> TraceData:
    """Return the trace with `name` as the name of its process."""
    return replace(
        data,
        replicas=tuple(replace(each, worker=name) for each in data.replicas),
        programs=tuple(replace(each, worker=name) for each in data.programs),
        notes=tuple(_of_worker(data, name)),
    )


# The optimizers of one process.


def combine(
    parts: Sequence[tuple[TraceData, Sequence[Reference]]], notes: Sequence[Note] = ()
) -> tuple[TraceData, list[Reference]]:
    """Merge the traces of several optimizers, and add `notes`.

    Each trace comes with its variables' objects: a variable that several optimizers update is one.
    """
    # Python makes only one plain weak reference to an object.
    keys = [
        [(number, i) if each is None else id(each) for i, each in enumerate(references)]
        for number, (_, references) in enumerate(parts)
    ]
    whole = _joined(
        [
            (data, [(number, i) for i in range(len(data.optimizers))], keys[number])
            for number, (data, _) in enumerate(parts)
        ]
    )
    references = dict(zip(chain(*keys), chain(*(each for _, each in parts)), strict=True))
    all_notes = tuple(dict.fromkeys((*whole.notes, *notes)))
    return replace(whole, notes=all_notes), [*references.values()]


# Joining records.

_RECORDS = (
    "optimizers",
    "variables",
    "graphs",
    "blocks",
    "calls",
    "graph_tracings",
    "effects",
    "rates",
)


def _joined(
    parts: Sequence[tuple[TraceData, Sequence[Hashable], Sequence[Hashable]]],
) -> TraceData:
    """Join traces into one, with each line, path, method and replica once.

    Each trace comes with keys for its optimizers and variables. Records with the same key are one:
    the first trace's.
    """
    every = [data for data, _, _ in parts]
    replicas = _all_replicas(every)
    tables: dict[str, list[Any]] = {table: [] for table in _RECORDS}
    numbers: defaultdict[str, dict[Any, int]] = defaultdict(dict)
    numbers["replicas"] |= {key: number for number, key in enumerate(replicas)}
    for part, (data, optimizers, variables) in enumerate(parts):
        keys: dict[str, Sequence[Hashable]] = {
            "optimizers": optimizers,
            "variables": variables,
            "graphs": [(part, number) for number in range(len(data.graphs))],
            "replicas": [(each.worker, each.id) for each in data.replicas],
            "methods": data.methods,
            "lines": data.lines,
            "paths": [tuple(data.lines[index] for index in path) for path in data.paths],
        }
        places = {
            table: [known.setdefault(key, len(known)) for known in [numbers[table]] for key in own]
            for table, own in keys.items()
        }
        change = {
            table: partial(_all_at, own) if table == "variables" else own.__getitem__
            for table, own in places.items()
            if own != [*range(len(own))]
        }
        for table, records in tables.items():
            before, own = len(records), getattr(data, table)
            if table in places:
                own = [each for each, n in zip(own, places[table], strict=True) if n >= before]
            records += with_indices(own, change)
    tables["graph_tracings"].sort(key=lambda each: each.at)
    rates: dict[Rate, set[int]] = {}
    for each in tables["rates"]:  # each rank may have some variables of a group
        rates.setdefault(replace(each, variables=()), set()).update(each.variables)
    tables["rates"] = [
        replace(each, variables=tuple(sorted(variables))) for each, variables in rates.items()
    ]
    tables |= {table: _numbered(tables[table]) for table in ("optimizers", "variables")}
    return TraceData(
        **{table: tuple(records) for table, records in tables.items()},
        methods=tuple(numbers["methods"]),
        lines=tuple(numbers["lines"]),
        paths=tuple(tuple(numbers["lines"][line] for line in path) for path in numbers["paths"]),
        replicas=tuple(replicas.values()),
        notes=tuple(dict.fromkeys(note for data in every for note in data.notes)),
        environment={key: text for data in every for key, text in data.environment.items()},
        finished=all(data.finished for data in every),
        programs=tuple(program for data in every for program in data.programs),
        launch=max((e.launch for e in every if e.launch), key=lambda e: e.started, default=None),
        processes=tuple(dict.fromkeys(name for data in every for name in data.processes)),
    )


def _all_at(places: Sequence[int], indices: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(places[index] for index in indices))


def _all_replicas(parts: Iterable[TraceData]) -> dict[tuple[str, int], Replica]:
    """The replicas sorted by worker and id; each with its device if any trace has it."""
    every = sorted(chain(*(data.replicas for data in parts)), key=lambda each: each.device)
    replicas = {(each.worker, each.id): each for each in every}
    return dict(sorted(replicas.items(), key=lambda item: (_in_order(item[0][0]), item[0][1])))


Named = TypeVar("Named", Optimizer, Variable)


def _numbered(records: Sequence[Named]) -> list[Named]:
    """Return the records with repeated names renumbered; parts may have numbered them."""
    if len({record.name for record in records}) == len(records):
        return list(records)
    names = distinct(without_number(record.name) for record in records)
    return [replace(record, name=name) for record, name in zip(records, names, strict=True)]
