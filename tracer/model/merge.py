"""Merges traces: of a run's workers, or of the optimizers of one process. No TensorFlow."""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar
from weakref import ref

from msgspec.json import encode
from msgspec.structs import replace

from tracer.errors import MergeError
from tracer.model.matching import match
from tracer.model.names import distinct, without_number
from tracer.model.records import (
    Launch,
    Note,
    NotUpdated,
    Optimizer,
    Replica,
    TraceData,
    Variable,
    with_indices,
)
from tracer.model.trace import Trace
from tracer.words import listed

_MAX_NAMES = 8  # the most workers or variables named

Reference = ref[Any] | None
"""A variable's object, held weakly; None for an argument of a function."""


def merge(traces: Iterable[Trace]) -> Trace:
    """Merge the traces of the workers of one run; each replica of the result has its worker.

    Optimizers are matched by the lines that made them, variables by their names. If a worker of the
    cluster has no trace, or if the traces are of different launches, the result is incomplete. A
    merged trace can be merged with others.

    Raises `tracer.MergeError`, a `ValueError`, if there are no traces, two of one worker, or traces
    of different runs; the error names the difference.
    """
    # The result keeps the traces that it was made of, and a merge of merged traces begins with
    # these. So neither order nor grouping matters, and what is missing is found out each time.
    every = (part for trace in traces for part in trace.data.parts or (trace.data,))
    parts = sorted(every, key=_order)
    if not parts:
        raise MergeError("there is no trace to merge: give the traces of a run's workers")
    if len(parts) == 1 and not [*_not_one_whole_run(parts)]:
        return Trace(parts[0])
    runs = {data.launch.run for data in parts if data.launch}
    whole = _workers_of_one_run(parts) if runs <= {""} or len(runs) > 1 else _processes(parts)
    return Trace(replace(whole, parts=tuple(parts)))


def _order(data: TraceData) -> tuple[object, ...]:
    """The key to sort traces: those with an optimizer by worker, then by the start."""
    workers = [_in_order(replica.worker) for replica in data.replicas]
    rest = b"" if workers else encode(data)  # without an optimizer, it is small
    started = data.launch.started if data.launch else 0
    return not workers, workers, data.processes, started, rest


def _in_order(worker: str) -> tuple[int, str]:
    """The key to sort workers in TensorFlow's order: `worker:2` before `worker:10`."""
    return len(worker), worker


# The workers of one run.


def _cluster(data: TraceData) -> str:
    """The names of all workers of the cluster, joined: there may be thousands in each trace."""
    return data.environment.get("cluster", "")


def _workers_of_one_run(parts: Sequence[TraceData]) -> TraceData:
    """Merge the traces of workers, whose optimizers and variables `match` identifies.

    Raises `tracer.MergeError` for two traces of one replica.
    """
    replicas = Counter(key for data in parts for key in {(e.worker, e.id) for e in data.replicas})
    if twice := [key for key, number in replicas.items() if number > 1]:
        name = Replica(*min(twice), "").label
        raise MergeError(f"two of the traces are of {name}: give one trace for each worker")
    optimizers, variables, doubts = match(parts)
    whole = _joined([*zip(parts, optimizers, variables, strict=True)])
    notes = [replace(e, worker=e.worker or _named(data)) for data in parts for e in data.notes]
    for roots in doubts:
        items = [f"{root.record.name} ({_named(parts[root.trace])})" for root in roots]
        why = "it is unknown which are the same optimizer, so they are kept apart"
        notes.append(Note(f"{listed(items, _MAX_NAMES)}: {why}"))
    notes += _not_one_whole_run(parts)
    return replace(whole, notes=tuple(dict.fromkeys(notes)))


def _not_one_whole_run(parts: Sequence[TraceData]) -> Iterator[Note]:
    """Yield notes: workers of the cluster have no trace; the traces are of several launches."""
    clusters = {*map(_cluster, parts)} - {""}
    known = {name for data in parts for name in (*data.processes, *_workers(data))}
    missing = {name for names in clusters for name in names.split(", ")} - known
    if missing:
        names = listed(sorted(missing, key=_in_order), _MAX_NAMES)
        yield Note(f"no trace of {names}, so nothing that ran there is counted")
    if len({data.launch.key for data in parts if data.launch}) > 1 or len(clusters) > 1:
        yield Note("the traces are of different launches, so the counts mix several runs")


def _workers(data: TraceData) -> list[str]:
    return [*dict.fromkeys(replica.worker for replica in data.replicas if replica.worker)]


def _named(data: TraceData) -> str:
    return ", ".join(_workers(data))


# The processes of one launch.


def _processes(parts: Sequence[TraceData]) -> TraceData:
    """Merge the traces of the processes of one `tracer run --children`, whatever each trained.

    The workers of one cluster that have one key are one training. Any other process is a training
    of its own, even with the same model as another: nothing shows whether they exchange gradients.
    """
    parts = sorted(parts, key=lambda data: data.launch.started if data.launch else 0)
    alone = sum(bool(data.replicas) for data in parts) == 1
    groups: defaultdict[tuple[object, ...], list[tuple[int, TraceData]]] = defaultdict(list)
    for number, data in enumerate(parts, 1):
        launch = data.launch or Launch()
        key = (launch.key, _cluster(data)) if _named(data) else (number,)
        groups[key].append((number, data))
    trainings: list[TraceData] = []
    doubts: list[Note] = []
    for group in groups.values():
        try:
            whole = _workers_of_one_run([data for _, data in group])
        except MergeError:
            names = listed([*dict.fromkeys(_named(data) for _, data in group)], _MAX_NAMES)
            text = f"it is unknown which processes of {names} train together: each is listed alone"
            doubts.append(Note(text))
            trainings += [_renamed(data, f"process:{number}") for number, data in group]
            continue
        if not _named(whole) and whole.replicas and not alone:
            whole = _renamed(whole, f"process:{group[0][0]}")
        taken = {replica.worker for data in trainings for replica in data.replicas}
        if not taken.isdisjoint(replica.worker for replica in whole.replicas):
            whole = _renamed(whole, f"{{}}#{len(trainings) + 1}")
        trainings.append(whole)
    joined, _ = combine([(data, [None] * len(data.variables)) for data in trainings])
    programs = tuple(sorted(joined.programs, key=lambda each: each.started))
    return replace(joined, programs=programs, notes=(*joined.notes, *doubts))


def _renamed(data: TraceData, pattern: str) -> TraceData:
    """Return the trace with other names for workers: `{}` in the pattern is the earlier name."""
    tables: dict[str, object] = {
        table: tuple(
            replace(each, worker=pattern.format(each.worker)) for each in getattr(data, table)
        )
        for table in ("replicas", "programs", "notes")
    }
    return replace(data, processes=tuple(map(pattern.format, data.processes)), **tables)


# The optimizers of one process.


def combine(
    parts: Sequence[tuple[TraceData, Sequence[Reference]]],
) -> tuple[TraceData, Sequence[Reference]]:
    """Merge the traces of several optimizers.

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
    return whole, [*references.values()]


# Joining records.

_RECORDS = (
    "variables",
    "graphs",
    "blocks",
    "calls",
    "effects",
    "rates",
    "not_updated",
)


def _joined(
    parts: Sequence[tuple[TraceData, Sequence[Hashable], Sequence[Hashable]]],
) -> TraceData:
    """Join traces into one, with each line, path, method and replica once.

    Each trace comes with keys for its optimizers and variables. Records with the same key are one.
    """
    every = [data for data, _, _ in parts]
    replicas = _all_replicas(every)
    tables: dict[str, list[Any]] = {table: [] for table in _RECORDS}
    numbers: defaultdict[str, dict[Any, int]] = defaultdict(dict)
    numbers["replicas"] = dict(zip(replicas, count(), strict=False))
    same: defaultdict[int, list[Optimizer]] = defaultdict(list)
    for data, optimizers, variables in parts:
        keys: dict[str, Iterable[Hashable]] = {
            "optimizers": optimizers,
            "variables": variables,
            "replicas": ((replica.worker, replica.id) for replica in data.replicas),
            "methods": data.methods,
            "lines": data.lines,
            "paths": (tuple(data.lines[index] for index in path) for path in data.paths),
        }
        places = {
            table: [numbers[table].setdefault(key, len(numbers[table])) for key in own]
            for table, own in keys.items()
        }
        change = {
            table: partial(_all_at, own) if table == "variables" else own.__getitem__
            for table, own in places.items()
            if own != [*range(len(own))]
        }
        renumbered = with_indices(data.optimizers, change)
        for place, optimizer in zip(places["optimizers"], renumbered, strict=True):
            same[place].append(optimizer)
        for table, records in tables.items():
            before, own = len(records), getattr(data, table)
            if table in places:
                own = [each for each, n in zip(own, places[table], strict=True) if n >= before]
            records += with_indices(own, change)
    environment = {key: text for data in every for key, text in data.environment.items()}
    ran_under = [data.environment.get("strategy", "").split(", ") for data in every if data.blocks]
    strategies = {each or "none" for names in ran_under for each in names}
    if strategies - {"none"}:
        environment["strategy"] = ", ".join(sorted(strategies))
    blocks = (*tables["blocks"], *tables["calls"])
    passed = {*chain(*{entry.variables for block in blocks for entry in block.entries})}
    tables["not_updated"] = _not_updated(tables["not_updated"], passed)
    tables["rates"] = [*dict.fromkeys(tables["rates"])]
    tables["optimizers"] = [*map(_one_optimizer, same.values())]
    tables |= {table: _numbered(tables[table]) for table in ("optimizers", "variables")}
    return TraceData(
        **{table: tuple(records) for table, records in tables.items()},
        methods=tuple(numbers["methods"]),
        lines=tuple(numbers["lines"]),
        paths=tuple(tuple(numbers["lines"][line] for line in path) for path in numbers["paths"]),
        replicas=tuple(replicas.values()),
        notes=tuple(dict.fromkeys(note for data in every for note in data.notes)),
        environment=environment,
        finished=all(data.finished for data in every),
        programs=tuple(program for data in every for program in data.programs),
        launch=max((e.launch for e in every if e.launch), key=lambda e: e.started, default=None),
        processes=tuple(dict.fromkeys(name for data in every for name in data.processes)),
    )


def _one_optimizer(every: Sequence[Optimizer]) -> Optimizer:
    """Merge the records of an optimizer."""
    evidence = tuple(dict.fromkeys(chain.from_iterable(each.evidence for each in every)))
    settings = {key: value for each in every[::-1] for key, value in each.settings.items()}
    moved = [each.iterations for each in every if each.iterations is not None]
    iterations = max(moved, default=None)
    return replace(every[0], settings=settings, iterations=iterations, evidence=evidence)


def _not_updated(rows: Iterable[NotUpdated], passed: Container[int]) -> list[NotUpdated]:
    """Join the rows that differ only in variables; what any rank passes is not `not passed`."""
    variables: dict[NotUpdated, set[int]] = defaultdict(set)
    for row in rows:
        own = (index for index in row.variables if row.why != "not passed" or index not in passed)
        variables[replace(row, variables=())].update(own)
    return [replace(row, variables=tuple(sorted(own))) for row, own in variables.items() if own]


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
