"""The tables of a report as rows of plain values, for programs to read."""

from collections.abc import Iterator
from typing import get_args

from tracer.model import tally
from tracer.model.records import Role
from tracer.model.tally import Measure, Tally, counting
from tracer.model.trace import Trace
from tracer.reporters.tables import By

Value = str | int | None
Row = dict[str, Value]

TABLES: tuple[By, ...] = get_args(By)

_KINDS = {"updates": tally.updates, "dense": tally.dense, "sparse": tally.sparse}


def rows(found: Tally, by: By) -> list[Row]:
    """The rows of one table; all have the same keys, in the same order."""
    return list(_ROWS[by](found))


def columns(by: By) -> list[str]:
    """The names of the table's columns."""
    return list(_COLUMNS[by])


def everything(trace: Trace, by: By | None) -> Iterator[tuple[Tally, By, list[Row]]]:
    """Each table of each optimizer, or that one table of each."""
    for found in tally.tallies(trace):
        for table in TABLES if by is None else (by,):
            yield found, table, rows(found, table)


_COLUMNS: dict[By, tuple[str, ...]] = {
    "variable": (
        *("variable", "shape", "dtype", "updates", "dense", "sparse"),
        *("least_a_step", "most_a_step", "requests_without_gradient"),
    ),
    "step": (
        *("first", "last", "length", "every", "on_replicas", "updates", "dense", "sparse"),
        *("requests", "requests_without_gradient"),
    ),
    "replica": ("worker", "replica", "device", "steps", "updates", "dense", "sparse"),
    "worker": ("worker", "replicas", "steps", "updates", "dense", "sparse"),
    "method": (
        *("method", "executions", "calls_eager", "calls_tracing", "graphs", "graphs_never_ran"),
    ),
}
"""What the rows hold.

A step row stands for `length` steps in a row from `first` on and, if `every` is not None, for as
many again each `every` steps, up to the step `last`. `least_a_step` and `most_a_step` are on one
replica, in the steps that updated anything, and None where the steps are not known.
"""


def _by_variable(found: Tally) -> Iterator[Row]:
    counts: dict[tuple[int, Role, str | None], int] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    for number, block in zip(found.places, found.blocks, strict=True):
        for entry in block.entries:
            for index in entry.variables:
                key = (index, entry.role, entry.kind)
                counts[key] = counts.get(key, 0) + entry.times * block.total
                if entry.role == "update":
                    places.setdefault(index, []).append((number, entry.times))
    rates: dict[tuple[tuple[int, int], ...], tuple[int | None, int | None]] = {}
    for index in found.variables:
        variable = found.trace.variables[index]
        key_ = tuple(places.get(index, ()))
        if key_ not in rates:
            rates[key_] = _rate(found, counting(["update"], variable=index))
        dense, sparse = (counts.get((index, "update", kind), 0) for kind in ("dense", "sparse"))
        values = (
            *(variable.name, "x".join("?" if n is None else str(n) for n in variable.shape)),
            *(variable.dtype, dense + sparse, dense, sparse, *rates[key_]),
            counts.get((index, "request", "none"), 0),
        )
        yield dict(zip(_COLUMNS["variable"], values, strict=True))


def _rate(found: Tally, measure: Measure) -> tuple[int | None, int | None]:
    if found.unplaced(measure):
        return None, None
    counts = {count for each in found.replicas for count in found.rates(measure, each)} or {0}
    return min(counts), max(counts)


def _by_step(found: Tally) -> Iterator[Row]:
    measures = (tally.steps, tally.updates, tally.dense, tally.sparse, tally.requests)
    for stretch in found.stretches(*measures, tally.missing):
        begin = stretch.first + found.trace.first_step - 1
        for length, counts in stretch.cycle:
            last = begin + length - 1 + stretch.period * (stretch.turns - 1)
            every = stretch.period if stretch.turns > 1 else None
            on, updates, dense, sparse, requests, missing = counts
            requests += missing
            values = (begin, last, length, every, on, updates, dense, sparse, requests, missing)
            yield dict(zip(_COLUMNS["step"], values, strict=True))
            begin += length


def _by_replica(found: Tally) -> Iterator[Row]:
    for index in found.replicas:
        replica = found.trace.replicas[index]
        yield {
            "worker": replica.worker,
            "replica": replica.id,
            "device": replica.device,
            "steps": found.steps_on[index],
            **{name: found.total(measure, index) for name, measure in _KINDS.items()},
        }


def _by_worker(found: Tally) -> Iterator[Row]:
    replicas: dict[str, list[int]] = {}
    for index in found.replicas:
        replicas.setdefault(found.trace.replicas[index].worker, []).append(index)
    for worker, own in replicas.items():
        yield {
            "worker": worker,
            "replicas": len(own),
            "steps": max(found.steps_on[index] for index in own),
            **{
                name: sum(found.total(measure, index) for index in own)
                for name, measure in _KINDS.items()
            },
        }


def _by_method(found: Tally) -> Iterator[Row]:
    for index in found.methods:
        measure = tally.of_methods([index])
        name = found.trace.methods[index].name
        values = (name, found.total(measure), *found.calls(index), *found.graphs(measure))
        yield dict(zip(_COLUMNS["method"], values, strict=True))


_ROWS = {
    "variable": _by_variable,
    "step": _by_step,
    "replica": _by_replica,
    "worker": _by_worker,
    "method": _by_method,
}
