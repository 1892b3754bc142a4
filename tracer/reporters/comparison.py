"""What differs between two runs: `differences` finds it, `render` prints it.

Four tables are compared row by row: replicas, methods, variables and steps. Optimizers are matched
by their order. Keras numbers layers in the order in which a process makes them, so a variable can
have another name in another run; `_names` pairs the names.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby, islice, starmap, zip_longest
from typing import NamedTuple

from rich.text import Text

from tracer.layout import Column, Line, paragraph, printed, tabulated
from tracer.model.counts import EXECUTIONS, counted
from tracer.model.records import Variable
from tracer.model.timeline import Run, Timeline
from tracer.model.trace import Trace
from tracer.words import shown

_TABLES = ("optimizer", "replica", "method", "updates of", "updates in")
_CLASS, _REPLICAS, _METHODS, _VARIABLES, _STEPS = _TABLES
_MAX_ROWS = 100  # rows of a table


class Change(NamedTuple):
    """A row that differs: its counts in both traces, None where a trace has no such row."""

    optimizer: str
    table: str
    name: str
    before: int | str | None
    after: int | str | None


# Variables.

_NUMBER = re.compile(r"_\d+(?=/|$)")


def _alike(variables: Sequence[Variable], ends: bool) -> dict[object, list[str]]:
    """The names of variables by what is equal in traces that number layers differently.

    That is the name without numbers, and the shape. If `ends`, it has only the last two parts of
    the name: Keras 2 has fewer parts than Keras 3.
    """
    names: dict[object, list[str]] = defaultdict(list)
    for variable in variables:
        parts = _NUMBER.sub("", variable.name).split("/")
        names["/".join(parts[-2:] if ends else parts), variable.shape].append(variable.name)
    return names


def _names(before: Trace, after: Trace) -> tuple[dict[str, str], dict[str, str]]:
    """The names of rows for the variables of both traces: `dense (dense_3)` if they differ."""
    old, new = ({each.name: each.name for each in trace.variables} for trace in (before, after))
    if not (old.keys() <= new.keys() or old.keys() >= new.keys()):  # else layers came or went
        ends = {each.kind for each in before.optimizers} != {e.kind for e in after.optimizers}
        earlier = _alike(before.variables, ends)
        for key, names in _alike(after.variables, ends).items():
            for name, first in zip(names, earlier[key], strict=False):
                if name != first:
                    old[first] = new[name] = f"{name} ({first})"
    return old, new


# Counts.

_Work = frozenset[tuple[int, tuple[Run, ...], int]]
"""How often and in which steps blocks ran, with the count of one execution."""
_Step = tuple[str, int, int]


def _rows(trace: Trace, root: int, names: Mapping[str, str]) -> dict[tuple[str, str], _Work]:
    """What an optimizer did, by table and name; methods and variables on all replicas together."""
    rows: dict[tuple[str, str], Counter[tuple[int, tuple[Run, ...]]]] = defaultdict(Counter)
    for block in counted(trace.data):
        if block.root != root:
            continue
        label = trace.replicas[block.replica].label
        found = [(_REPLICAS, f"{label}: steps", int(block.step))]
        for entry in block.entries:
            number, role = entry.times * max(1, len(entry.variables)), str(entry.role)
            what = f"{block.context} calls" if role == "call" else "executions"
            if role == "call" or role in EXECUTIONS:
                found.append((_METHODS, f"{trace.methods[entry.method].name}: {what}", number))
            if role == "update":
                found += [(_REPLICAS, f"{label}: updates", number), (_STEPS, "", number)]
                kind = ", sparse" if entry.kind == "sparse" else ""
                own = [names[trace.variables[index].name] + kind for index in entry.variables]
                found += [(_VARIABLES, name, entry.times) for name in own]
        for table, name, number in found:
            if number:
                rows[table, name][block.total, block.runs] += number
    return {key: frozenset((*ran, n) for ran, n in own.items()) for key, own in rows.items()}


def differences(before: Trace, after: Trace) -> list[Change]:
    """Return the rows that differ; optimizers match by their order in the traces."""
    traces, changes = (before, after), list[Change]()
    compared = cache(_compared)  # many variables are updated alike
    roots = [[at for at, own in enumerate(each.optimizers) if own.root == at] for each in traces]
    for pair in zip_longest(*roots):
        both = [*zip(traces, pair, _names(before, after), strict=True)]
        own = [trace.optimizers[at] for trace, at, _ in both if at is not None]
        classes = [None if at is None else t.optimizers[at].class_name for t, at, _ in both]
        name, of_kind = own[-1].name, own[0].kind == own[-1].kind
        if classes[0] != classes[1]:
            changes.append(Change(name, _CLASS, "class", classes[0], classes[1]))
        if len(own) == 1:
            continue
        old, new = starmap(_rows, both)
        for table, row in sorted({**old, **new}, key=lambda key: _TABLES.index(key[0])):
            sides = old.get((table, row)), new.get((table, row))
            first, second, spans = compared(*sides)
            if table == _STEPS:
                changes += [Change(name, table, *each) for each in spans]
            elif table == _METHODS and (first == second or (not of_kind and None in sides)):
                continue  # optimizers of two kinds have other methods
            elif first != second or spans:
                elsewhere = ", in other steps" if first == second else ""
                changes.append(Change(name, table, row + elsewhere, first, second))
    return changes


def _compared(*sides: _Work | None) -> tuple[int | None, int | None, list[_Step]]:
    """Return the totals, and the steps that differ, each with its counts."""
    first, second = (None if s is None else sum(ran * n for ran, _, n in s) for s in sides)
    if None in sides or sides[0] == sides[1]:
        return first, second, []
    old, new = ([(run, n) for _, runs, n in side or () for run in runs] for side in sides)
    weighted = [*((run, (n, 0)) for run, n in old), *((run, (0, n)) for run, n in new)]
    steps = max((run.last for run, _ in weighted), default=0)
    spans = Timeline(weighted, steps, 2).spans()
    differ = (span for span in spans if span[2][0] != span[2][1])
    return (
        first,
        second,
        [
            (f"steps {low:,}-{high:,}" if low < high else f"step {low:,}", before, after)
            for low, high, (before, after) in islice(differ, _MAX_ROWS + 1)
        ],
    )


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
    width = max(20, width or 80)
    texts = ["The traces differ." if changes else "The traces count the same."]
    for which, trace in (("first", before), ("second", after)):
        if not (trace.finished and trace.complete):
            texts.append(f"The {which} trace is not complete: its counts are lower limits.")
    lines = [line for text in texts for line in paragraph(text, width)]
    several = len({change.optimizer for change in changes}) > 1
    for (optimizer, title), group in groupby(changes, key=lambda change: change[:2]):
        header = f"{shown(optimizer)}: {title}" if several else title
        columns = [Column(each) for each in (header, "first", "second")]
        rows = [Line((row.name, row.before, row.after)) for row in group]
        more = [f"... and {len(rows) - _MAX_ROWS:,} more"] if len(rows) > _MAX_ROWS else []
        lines += [Text(), *tabulated(columns, rows[:_MAX_ROWS], width, more)]
    return printed(lines, width, color)
