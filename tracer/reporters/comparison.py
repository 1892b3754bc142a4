"""What differs between two runs: `differences` finds it, `render` prints it.

Three tables are compared row by row: variables, steps and methods. Keras numbers layers in the
order in which a process makes them, so a variable can have another name in another run; `canonical`
pairs the names.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, islice, product
from typing import Any, NamedTuple

from rich.text import Text

from tracer.errors import shown
from tracer.layout import Column, Line, paragraph, printed, tabulated
from tracer.model.counts import EXECUTIONS
from tracer.model.records import Variable
from tracer.model.timeline import Timeline
from tracer.model.trace import Trace

_TABLES = _CLASS, _METHODS, _VARIABLES, _STEPS = "optimizer", "method", "updates of", "updates in"
_MAX_ROWS = 100  # rows of a table
_MAX_SPANS = 3  # spans of steps in a row


class Change(NamedTuple):
    """A row that differs: its count in both traces, None where a trace has no such row."""

    optimizer: str
    table: str
    name: str
    before: int | str | None
    after: int | str | None
    where: str = ""
    """The first steps in which the counts differ."""


# Variables.

_NUMBER = re.compile(r"_\d+(?=/|$)")


def canonical(variables: Sequence[Variable], *, ends: bool = False) -> dict[str, object]:
    """Return a key for each variable by name, equal in traces that number layers differently.

    A key is the name of the layer without numbers, its shapes, its place among such layers, and the
    name of the variable in it. If `ends`, the key has only the last part of the layer's name: Keras
    2 names a variable by its layer, Keras 3 by the whole path.
    """
    layers: dict[str, dict[str, object]] = defaultdict(dict)
    for each in variables:
        layer = each.name.rpartition("/")[0] or each.name
        layers[layer][each.name[len(layer) :]] = each.shape
    keys: dict[str, object] = {}
    places: Counter[object] = Counter()
    for layer, shapes in layers.items():
        path = _NUMBER.sub("", layer)
        alike = path.rpartition("/")[2] if ends else path, frozenset(shapes.items())
        keys |= {layer + word: (alike, places[alike], word) for word in shapes}
        places[alike] += 1
    return keys


def _names(before: Trace, after: Trace) -> tuple[dict[str, str], dict[str, str]]:
    """The names of rows for the variables of both traces: `dense (dense_3)` if they differ."""
    old, new = ({each.name: each.name for each in trace.variables} for trace in (before, after))
    if not (old.keys() <= new.keys() or old.keys() >= new.keys()):  # else layers came or went
        kinds = [{each.kind for each in trace.optimizers} for trace in (before, after)]
        ends = kinds[0].isdisjoint(kinds[1])
        named = {key: name for name, key in canonical(before.variables, ends=ends).items()}
        for name, key in canonical(after.variables, ends=ends).items():
            if named.get(key, name) != name:
                old[named[key]] = new[name] = f"{name} ({named[key]})"
    return old, new


# Counts.


class _Work:
    """What an optimizer did, with the optimizers nested in it."""

    def __init__(self, trace: Trace, root: int, names: Mapping[str, str]) -> None:
        self.optimizer = trace.optimizers[root]
        self.class_name = shown(self.optimizer.class_name)
        blocks = [block for block in trace.blocks if block.root == root]
        self.executed = [*((block.total, block.runs) for block in blocks), (1, ())]
        """How often each block was executed, and in which steps; last, a Python call."""
        self.rows: dict[tuple[str, str], dict[str, Counter[int]]] = defaultdict(dict)
        """The counts of one execution of each block, by table and name, then by replica."""

        def add(table: str, name: str, replica: int, block: int, times: int) -> None:
            label = trace.replicas[replica].label
            self.rows[table, name].setdefault(label, Counter())[block] += times

        for number, block in enumerate(blocks):
            add(_METHODS, "steps", block.replica, number, int(block.step))
            for entry in block.entries:
                times = entry.times * max(1, len(entry.variables))
                if entry.role in EXECUTIONS:
                    method = f"{trace.methods[entry.method].name}: executions"
                    add(_METHODS, method, block.replica, number, times)
                updates = entry.times if entry.role == "update" else 0
                for index in entry.variables:
                    name = names[trace.variables[index].name]
                    sparse = updates if entry.kind == "sparse" else 0
                    add(_VARIABLES, name, block.replica, number, updates - sparse)
                    if sparse:
                        add(_VARIABLES, f"{name}, sparse", block.replica, number, sparse)
                add(_STEPS, "", block.replica, number, updates * len(entry.variables))
        for call in trace.data.calls:
            if trace.optimizers[call.optimizer].root == root:
                for what, calls in (("eager", call.eager), ("tracing", call.tracing)):
                    method = f"{trace.methods[call.method].name}: {what} calls"
                    add(_METHODS, method, call.replica, -1, calls * max(1, len(call.variables)))


def differences(before: Trace, after: Trace) -> list[Change]:
    """Return the rows that differ; optimizers match by class, then by their variables."""
    old, new = (
        [_Work(trace, at, names) for at, each in enumerate(trace.optimizers) if each.root == at]
        for trace, names in zip((before, after), _names(before, after), strict=True)
    )
    changes: list[Change] = []
    for one, other in sorted(product(old, new), key=lambda pair: _unlike(*pair)):
        if one in old and other in new:
            old.remove(one)
            new.remove(other)
            changes += _changes(one, other)
    for work in (*old, *new):
        first, second = (work.class_name if work in e else None for e in (old, new))
        changes.append(Change(work.optimizer.name, _CLASS, "class", first, second))
    return changes


def _unlike(one: _Work, other: _Work) -> tuple[bool, int]:
    return one.class_name != other.class_name, -len(one.rows.keys() & other.rows.keys())


def _changes(one: _Work, other: _Work) -> Iterator[Change]:
    """Yield the rows that differ on each replica; replicas that differ alike share a row."""
    title, classes = other.optimizer.name, [each.class_name for each in (one, other)]
    if classes[0] != classes[1]:
        yield Change(title, _CLASS, "class", *classes)

    @cache  # many variables are updated alike
    def compared(*sides: tuple[tuple[int, int], ...] | None) -> tuple[Any, ...]:
        """Return the totals, and (first, last, counts of a step) for the steps that differ."""
        totals, ran = [], []
        for work, counts in zip((one, other), sides, strict=True):
            ran.append([(*work.executed[number], times) for number, times in counts or () if times])
            totals.append(None if counts is None else sum(total * n for total, _, n in ran[-1]))
        if None in totals or ran[0] == ran[1]:
            return (*totals, ())
        weighted = [(run, (n, 0)) for _, runs, n in ran[0] for run in runs]
        weighted += [(run, (0, n)) for _, runs, n in ran[1] for run in runs]
        steps = max((run.last for run, _ in weighted), default=0)
        spans = Timeline.of(weighted, steps, 2).spans()
        differ = (span for span in spans if span[2][0] != span[2][1])
        return (*totals, tuple(islice(differ, _MAX_ROWS + 1)))

    rows = [work.rows for work in (one, other)]
    replicas = sorted({replica for each in rows for row in each.values() for replica in row})
    for table, name in sorted(rows[0] | rows[1], key=lambda row: _TABLES.index(row[0])):
        both = [each.get((table, name)) for each in rows]
        if table == _METHODS and None in both and one.optimizer.kind != other.optimizer.kind:
            continue  # another kind of optimizer has other methods
        alike: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for replica in replicas:
            sides = [tuple(row.get(replica, {}).items()) if row else None for row in both]
            alike[compared(*sides)].append(replica)
        for (first, second, spans), group in alike.items():
            more = f" and {len(group) - 1:,} like it" if len(group) > 1 else ""
            on = f", {group[0]}{more}" if len(group) < len(replicas) else ""
            steps = [
                (f"steps {at:,}-{last:,}" if at < last else f"step {at:,}", counts)
                for at, last, counts in spans
                if table != _METHODS  # the table of steps shows it
            ]
            if table == _STEPS:
                yield from (Change(title, table, where + on, *counts) for where, counts in steps)
            elif first != second or steps:
                where = [f"{old:,} to {new:,} in {at}" for at, (old, new) in steps]
                where[_MAX_SPANS:] = ["..."] if len(steps) > _MAX_SPANS else []
                yield Change(title, table, name + on, first, second, "; ".join(where))


# Text.


def render(
    before: Trace,
    after: Trace,
    changes: Sequence[Change],
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """The rows that differ as text, in tables of each optimizer; one line if there are none."""
    old, new = ({*names.values()} for names in _names(before, after))
    if old and new and not old & new:
        return "The traces have no variable in common.\n"
    width = max(20, width or 80)
    texts = ["The traces differ." if changes else "The traces count the same."]
    for which, trace in (("first", before), ("second", after)):
        unfinished = [] if trace.finished else ["is of a run that was not finished"]
        incomplete = [] if trace.complete else ["is incomplete: its counts are lower limits"]
        texts += [f"The {which} trace {text}." for text in (*unfinished, *incomplete)]
    replicas = {replica.label for trace in (before, after) for replica in trace.replicas}
    if changes and len(replicas) > 1:
        texts.append(f"Counts are for each of {len(replicas):,} replicas.")
    lines = [line for text in texts for line in paragraph(text, width)]
    several = len({change.optimizer for change in changes}) > 1
    for (optimizer, title), group in groupby(changes, key=lambda change: change[:2]):
        header = f"{shown(optimizer)}: {title}" if several else title
        columns = [Column(each) for each in (header, "first", "second")]
        rows = [Line((shown(row.name), row.before, row.after), row.where) for row in group]
        more = [f"... and {len(rows) - _MAX_ROWS:,} more"] if len(rows) > _MAX_ROWS else []
        lines += [Text(), *tabulated(columns, rows[:_MAX_ROWS], width, more)]
    return printed(lines, width, color)
