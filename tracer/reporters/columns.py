"""The tables of a report, for all formats: their columns, their rows, and what is odd in a row.

A column is decided here once. Text and page show the columns that have a header and content; CSV
and JSON have all of them, by name.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from rich.text import Text

from tracer.errors import UnknownName
from tracer.layout import Column, Figure, Line, tabulated
from tracer.model import counts as measures, records
from tracer.model.names import named, optimizers_meant, variables_meant
from tracer.model.phrases import (
    NO_GRADIENT,
    NOTHING_PASSED,
    SET_TO_ZERO,
    layers_of,
    not_applied,
    reason,
    replica_ids,
    replica_noun,
    standing,
    steps_label,
)
from tracer.model.timeline import Steps
from tracer.model.trace import Pattern, Summary, Trace, summaries_of
from tracer.words import all_true, first_true, plural, shown, some, span

By = Literal["variable", "layer", "step", "replica", "method", "caller"]
TABLES: tuple[By, ...] = get_args(By)
_IN_REPORT: tuple[By, ...] = ("variable", "step", "replica", "method")

_UPDATES = (Column("updates"), Column("dense"), Column("sparse"))
_EFFECTS = (Column("unchanged"), Column("NaN/inf", "not_finite"))
COLUMNS: Mapping[By, tuple[Column, ...]] = {
    "variable": (
        Column("{variable}", "variable", left=True),
        Column("", "shape"),
        Column("", "dtype"),
        Column("", "shards"),
        Column("updates"),
        Column("{per_step}", "per_step"),
        Column("dense"),
        Column("sparse"),
        Column("by {replica}", "by_replica"),
        Column("", "without_gradient"),
        *_EFFECTS,
    ),
    "layer": (Column("layer", left=True), Column("{variable}s", "variables"), *_UPDATES),
    "step": (
        Column("step{on_all}", "steps", left=True),
        Column("", "first"),
        Column("", "last"),
        Column("", "length"),
        Column("", "every"),
        Column("", "on_replicas"),
        *_UPDATES,
        Column("", "without_gradient"),
        *_EFFECTS,
    ),
    "replica": (
        Column("{replica}", "replica", left=True),
        Column("", "worker"),
        Column("steps"),
        *_UPDATES,
        Column("device", left=True),
    ),
    "method": (
        Column("method", left=True),
        Column("executions"),
        Column("calls\neager", "calls_eager"),
        Column("calls\ntracing", "calls_tracing"),
        Column("\n{program}s", "graphs"),
        Column("never\nran", "graphs_never_ran"),
    ),
    "caller": (
        Column("who calls", "caller", left=True),
        Column("executions"),
        Column("", "updates"),
        Column("steps"),
        Column("Python\ncalls", "calls"),
    ),
}
"""The columns of each table; the first has the names of the rows. Words in braces depend on the
trace. A column without a header is for programs alone.
"""

WARNING, ERROR = "bold yellow", "bold red"
"""Styles for possible faults, as skipped steps, and for certain ones."""
STYLES = {"error": ERROR, "warning": WARNING, "quiet": "", "": ""}
_RANKS = {"error": 0, "warning": 1, "": 2, "quiet": 3}


class Row(NamedTuple):
    """A row: its values by the names of columns (None: there is none), and what is odd in it."""

    values: Mapping[str, Any]
    note: str = ""
    level: str = ""
    """`error`, `warning`, `quiet`, which many rows leave out, or empty."""
    of: int | Steps | None = None
    """The index of its variable or replica, or its steps; None for other rows."""


class Table(NamedTuple):
    """A table of a report."""

    by: str
    columns: Sequence[Column]
    """All columns, with headers in the words of the trace."""
    rows: Sequence[Row]
    below: Sequence[str] = ()
    """Remarks on the whole table."""

    @property
    def shown(self) -> list[Column]:
        """The columns for people: with a header, and a value in any row; the names always."""
        names, *others = self.columns
        filled = {
            name for row in self.rows for name, cell in row.values.items() if cell is not None
        }
        return [names, *(column for column in others if column.header and column.name in filled)]

    @property
    def odd_first(self) -> list[Row]:
        """All rows: errors, then warnings, then others."""
        return sorted(self.rows, key=lambda row: _RANKS[row.level])

    def first(self, most: int) -> tuple[list[Row], str]:
        """The first rows, odd ones before others, in the order of the table; what is left out.

        The second is `12 more rows`; empty if nothing is left out.
        """
        left = {*map(id, self.odd_first[most:])}
        more = some(len(left), "more row") if left else ""
        return [row for row in self.rows if id(row) not in left], more


class Part(NamedTuple):
    """Which optimizers and rows are asked for: the trace stays whole."""

    roots: frozenset[int] | None = None
    """None for all."""
    rows: Mapping[By, Collection[int]] = {}
    """The variables, steps or replicas of a table; other tables have no such rows."""
    text: str = ""
    """The sentence on the rows; empty if all are asked for."""

    def has(self, by: By, row: Row) -> bool:
        """Whether a row is asked for: one of several steps if any of them is."""
        wanted = self.rows.get(by)
        if isinstance(row.of, Steps) and isinstance(wanted, range):
            return row.of.within(wanted.start, wanted.stop) > 0
        return wanted is None or row.of is None or row.of in wanted


WHOLE = Part()


def part_of(
    trace: Trace,
    optimizer: str | None = None,
    variable: str | None = None,
    step: range | None = None,
    replica: str | None = None,
) -> Part:
    """The part that these names mean; a replica is named as in its table, or by its worker.

    Raises `tracer.UnknownName`, with similar names, for a name or step that the trace lacks.
    """
    data, said, rows = trace.data, list[str](), dict[By, Collection[int]]()
    if variable is not None:
        rows["variable"] = variables_meant(variable, data.variables, trace.objects)
        said.append(f"variable {variable}")
    if step is not None:
        rows["step"] = steps = range(max(1, step.start), min(trace.steps + 1, step.stop))
        if not steps:
            raise UnknownName(f"no such step: the trace holds {some(trace.steps, 'step')}")
        said.append(f"{plural(len(steps), 'step')} {span((steps[0], steps[-1]))}")
    if replica is not None:
        rows["replica"] = named(
            "replica", replica, replica_ids(trace), [each.worker for each in data.replicas]
        )
        said.append(f"{replica_noun(trace)} {replica.removeprefix('rank:')}")
    meant = optimizers_meant(optimizer, data.optimizers) if optimizer is not None else ()
    return Part(
        None if optimizer is None else frozenset(data.optimizers[index].root for index in meant),
        rows,
        f"Only the rows of {', '.join(said)}; what they count is of the whole run." if said else "",
    )


def sections(
    trace: Trace, by: By | None = None, part: Part = WHOLE
) -> list[tuple[Summary, list[Table]]]:
    """The optimizers of a report, each with its tables: those with content, or the one `by`.

    If only some rows are asked for, these are the tables and optimizers that have them. Raises
    `tracer.UnknownName` for a table that does not exist or, with a part, has no such rows.
    """
    known = [*part.rows] or _IN_REPORT
    if by is not None and by not in (part.rows or TABLES):
        of = " with these rows" if part.rows else ""
        raise UnknownName(f"no table {by!r}{of}: by is one of {', '.join(part.rows or TABLES)}")
    found, least = [], {} if by or part.rows else {"replica": 1}  # one would repeat the others
    for summary in summaries_of(trace):
        tables = [table(summary, name, part) for name in ([by] if by else known)]
        tables = [each for each in tables if len(each.rows) > least.get(each.by, 0)]
        if (part.roots is None or summary.root in part.roots) and (tables or not part.rows):
            found.append((summary, tables))
    return found


def table(summary: Summary, by: By, part: Part = WHOLE) -> Table:
    """One table of an optimizer, with headers in its words."""
    copy, several = replica_noun(summary.trace), len(summary.replicas) > 1
    words = {
        "variable": summary.dialect.variable,
        "program": summary.dialect.program,
        "replica": copy,
        "per_step": f"per\nstep and\n{copy}" if several else "per step",
        "on_all": f",\nall {copy}s" if several else "",
    }
    columns = [
        Column(each.header.format_map(words), each.name or each.header, each.left)
        for each in COLUMNS[by]
    ]
    rows, below = _TABLES[by](summary)
    return Table(by, columns, [row for row in rows if part.has(by, row)], below)


def drawn(table: Table, width: int, most: int, more: str = "") -> list[Text]:
    """The first rows of a table as lines; `more` says where those left out are."""
    (rows, left), columns = table.first(most), table.shown
    lines = [
        Line([row.values.get(column.name) for column in columns], row.note, STYLES[row.level])
        for row in rows
    ]
    remarks = [*all_true((left, f"... and {left}{more}")), *table.below]
    return tabulated(columns, lines, width, remarks)


_Made = tuple[list[Row], list[str]]
"""The rows of a table, and the remarks below it."""


def _per_step(summary: Summary, counted: Summary | Pattern, replicas: Iterable[int]) -> str:
    """The updates per step on `replicas`, in steps with any: `4`, `2-4`, or `?` if unknown."""
    if counted.step_unknown(measures.updates):
        return "?"
    rates = {
        number
        for replica in replicas
        for (number,), steps in counted.spread(measures.updates, replica=replica).items()
        if number or steps > summary.idle_on[replica]
    } or {0}
    low, high = min(rates), max(rates)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


# Variables.


def _by_variable(summary: Summary) -> _Made:
    """A row for each of `Summary.variables`, in that order."""
    made, variables, others = {}, summary.trace.variables, standing(summary)
    unapplied = "" if summary.total(measures.updates) or not summary.steps else reason(summary)
    for pattern in summary.patterns:
        figures, note, level = _figures(summary, pattern, unapplied)
        for index in pattern.variables:
            variable = variables[index]
            own = {
                "variable": variable.name,
                "shape": "x".join("?" if size is None else str(size) for size in variable.shape),
                "dtype": variable.dtype,
                "shards": variable.shards if variable.shards > 1 else None,
            }
            notes = "; ".join(filter(None, (note, others.get(index, ""))))
            made[index] = Row(own | figures, notes, level, index)
    empty = summary.spread(measures.updates)[(0,)]
    known = not summary.step_unknown(measures.updates)
    below = all_true(
        (
            known and 0 < empty < summary.steps,
            f"(per step: without the {some(empty, 'step')} that updated nothing)",
        ),
        (
            summary.effects,
            "(unchanged: steps that left every bit as it was, skipped steps too; NaN/inf: steps "
            "after which it held NaN or inf)",
        ),
    )
    return [made[index] for index in summary.variables], below


def _figures(
    summary: Summary, pattern: Pattern, unapplied: str
) -> tuple[dict[str, Figure], str, str]:
    """The values that the variables of a pattern share, with their note and level."""
    by_replica = [pattern.total(measures.updates, each) for each in summary.replicas]
    updates = pattern.total(measures.updates)
    effects = pattern.spread(*measures.effects) if summary.effects else {}
    still = sum(steps for (seen, same, _), steps in effects.items() if 0 < seen == same)
    bad = sum(steps for (*_, infinite), steps in effects.items() if infinite)
    values: dict[str, Figure] = {
        "updates": updates,
        "dense": pattern.total(measures.dense),
        "sparse": pattern.total(measures.sparse),
        "per_step": _per_step(summary, pattern, summary.replicas_with(pattern)),
        "by_replica": " + ".join(f"{number:,}" for number in by_replica)
        if len({*by_replica}) > 1
        else None,
        "without_gradient": pattern.total(measures.missing),
        "unchanged": still if summary.effects else None,
        "not_finite": bad if summary.effects else None,
    }
    if {*pattern.variables}.isdisjoint(summary.passed):
        return values, "", "quiet"
    why = _why_without(pattern, unapplied)
    said = ": ".join(filter(None, ("" if updates else "never updated", why)))
    meaning = "stands for each variable passed" if pattern.argument else ""
    idle = not updates and not pattern.total(measures.zeroed)
    level = first_true((idle or bad, "error"), (why, "warning"))
    return values, "; ".join(filter(None, (meaning, said))), level


def _why_without(pattern: Pattern, unapplied: str) -> str:
    """`no gradient in 3 steps`, or why no step updated anything."""
    parts = []
    for measure, words in ((measures.zeroed, SET_TO_ZERO), (measures.missing, "no gradient")):
        steps = sum(number for (count,), number in pattern.spread(measure).items() if count)
        lost = "at least " if pattern.step_unknown(measure) else ""
        if steps or lost:
            parts.append(f"{words} in {lost}{some(steps, 'step')}")
    return ", ".join(parts) or (unapplied if pattern.total(measures.requests) else "")


def _by_layer(summary: Summary) -> _Made:
    """A row for each path that variables share, up to the first part in which paths differ."""
    variables, _ = _by_variable(summary)
    names, rows = [row.values["variable"] for row in variables], []
    layers: dict[str, list[Row]] = {}
    for row, layer in zip(variables, layers_of(names, summary.dialect.separator), strict=True):
        layers.setdefault(layer, []).append(row)
    for layer, own in layers.items():
        values = {
            "layer": layer if len(own) > 1 else own[0].values["variable"],
            "variables": len(own),
            **{key: sum(row.values[key] for row in own) for key in ("updates", "dense", "sparse")},
        }
        never = sum(not row.values["updates"] for row in own)
        alike = len({row.note for row in own}) == 1
        note = own[0].note if alike else f"{never:,} never updated" if never else ""
        rows.append(Row(values, note, min((row.level for row in own), key=_RANKS.__getitem__)))
    return rows, []


# Steps.


def _by_step(summary: Summary) -> _Made:
    """A row for each stretch of equal steps; a cycle of steps has a row for each of its parts.

    First come the updates that are in no known step.
    """
    rows, why = [], not_applied(summary)
    for count, name, note in (
        (summary.step_unknown, "step not known", "in all; steps below may have more"),
        (summary.outside, "outside any step", "in all; a direct call"),
    ):
        counts: dict[str, Figure] = {
            "updates": count(measures.updates),
            "dense": count(measures.dense),
            "sparse": count(measures.sparse),
        }
        if any(counts.values()) or (count == summary.step_unknown and count(measures.steps)):
            rows.append(Row({"steps": name, **counts}, note, "warning"))
    timeline = summary.timeline(
        measures.steps,
        measures.dense,
        measures.sparse,
        measures.requests,
        measures.missing,
        *measures.effects,
    )
    for steps, (on, dense, sparse, requests, missing, compared, *effects) in timeline.parts():
        values = {
            "steps": steps_label(steps),
            **steps._asdict(),
            "on_replicas": on,
            "updates": dense + sparse,
            "dense": dense,
            "sparse": sparse,
            "without_gradient": missing,
            **(dict(zip(("unchanged", "not_finite"), effects, strict=True)) if compared else {}),
        }
        rows.append(_step(steps, values, requests, summary, why))
    below = (
        f"(unchanged: {summary.dialect.variable}s that the step left as they were, on each "
        f"{replica_noun(summary.trace)}; NaN/inf: with NaN or inf)"
    )
    return rows, [below] if summary.effects else []


def _step(steps: Steps, values: dict[str, Any], requests: int, summary: Summary, why: str) -> Row:
    """The row, with a note that says why it has no update, or what is missing."""
    updates, on, missing = values["updates"], values["on_replicas"], values["without_gradient"]
    unknown, copies = not updates and summary.step_unknown(measures.updates), len(summary.replicas)
    said = first_true(
        (unknown, "not known"),
        (not on, "not recorded"),
        (updates, f"{missing:,} without gradient" if missing else ""),
        (not requests, NO_GRADIENT if missing else NOTHING_PASSED),
        (True, why or "gradients came, none was applied"),
    )
    on_some = f"on {on:,} of {some(copies, summary.trace.derived(replica_noun))}"
    note = "; ".join(filter(None, (said, on_some if 0 < on < copies and not unknown else "")))
    values |= dict.fromkeys(("updates", "dense", "sparse") if unknown else ())
    level = first_true((values.get("not_finite"), "error"), (note and note != why, "warning"))
    return Row(values, note, level, steps)


# Replicas, methods and callers.


def _by_replica(summary: Summary) -> _Made:
    """A row for each replica."""
    rows, ids = [], replica_ids(summary.trace)
    for index in summary.replicas:
        place, steps = summary.trace.replicas[index], summary.steps_on[index]
        values = {
            "replica": ids[index],
            "worker": place.worker or "(local)",
            "steps": steps,
            "updates": summary.total(measures.updates, index),
            "dense": summary.total(measures.dense, index),
            "sparse": summary.total(measures.sparse, index),
            "device": place.device.rpartition("device:")[2] or None,
        }
        rows.append(Row(values, level="warning" if steps < summary.steps else "", of=index))
    return rows, []


def _by_method(summary: Summary) -> _Made:
    """A row for each method: executions, Python calls, and the graphs that calls traced.

    Discarded executions of a method have a row of their own.
    """
    rows = []
    for index in summary.methods:
        measure, name = measures.of_methods([index]), summary.trace.methods[index].name
        (eager, tracing), (graphs, idle) = summary.calls(index), summary.graphs(measure)
        values = {
            "method": name,
            "executions": summary.total(measure),
            "calls_eager": eager,
            "calls_tracing": tracing,
            "graphs": graphs,
            "graphs_never_ran": idle,
        }
        rows.append(Row(values, level="" if values["executions"] else "error"))
        if lost := summary.total(measures.counting(["discarded"], methods=[index])):
            rows.append(Row({"method": f"{name}, discarded", "executions": lost}))
    why = "(graphs that never ran are usual: a first tracing only makes the variables)"
    return rows, [why] if summary.idle_as_usual else []


def _by_caller(summary: Summary) -> _Made:
    """A row for each line of the program that called, or traced a graph: the most executions first.

    For steps in a graph it is the line by which the graph was traced. Executions and calls are
    those of the methods in the report's question.
    """
    data, methods, rows = summary.trace.data, summary.apply_methods, []
    counting = {
        "executions": measures.of_methods(methods),
        "updates": measures.updates,
        "calls": measures.counting(["call"], None, methods),
    }
    counts: dict[tuple[records.Line | None, bool], Counter[object]] = {}
    for block in measures.counted(data):
        if block.root == summary.root:
            own = counts.setdefault(data.origin(block.path), Counter())
            own.update({name: block.total * count(block) for name, count in counting.items()})
            own[block.replica] += block.total * measures.steps(block)
    for (line, in_graph), own in counts.items():
        name = shown(line.label) if line else "not known"
        values = {
            "caller": f"traced from {name}" if in_graph and line else name,
            "steps": max((own[replica] for replica in summary.replicas), default=0),
            **{name: own[name] for name in counting},
        }
        note = "" if own["executions"] else "never ran"
        if own["executions"] or own["calls"]:
            rows.append(Row(values, note, "warning" if note else ""))
    return sorted(rows, key=lambda row: (-row.values["executions"], -row.values["calls"])), []


_TABLES: dict[By, Callable[[Summary], _Made]] = {
    "variable": _by_variable,
    "layer": _by_layer,
    "step": _by_step,
    "replica": _by_replica,
    "method": _by_method,
    "caller": _by_caller,
}
