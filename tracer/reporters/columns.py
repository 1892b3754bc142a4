"""The tables of a report, for all formats: their columns, their rows, and what is odd in a row.

A column is decided here once. Text and page show the columns that have a header and content; CSV
and JSON have all of them, by name.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from tracer.errors import UnknownName, shown
from tracer.layout import Column, Figure, cut
from tracer.model import counts as measures
from tracer.model.facts import also_by, layers_of, why_not
from tracer.model.names import named, optimizers_meant, variables_meant
from tracer.model.phrases import (
    Accumulated,
    Fact,
    NoGradient,
    NothingPassed,
    Reason,
    SetToZero,
    Skipped,
    accumulated_steps,
    accumulations,
    class_of,
    program_lines,
    reason,
    reason_for_all,
    replica_ids,
    replica_noun,
    skipper,
    steps_label,
    text_of,
    why_idle,
    words_of,
)
from tracer.model.records import Block, Line
from tracer.model.timeline import Steps
from tracer.model.trace import Pattern, Summary, Trace, summaries_of
from tracer.model.words import all_true, dash, first_true, plural, some, span

By = Literal["variable", "step", "replica", "worker", "method", "caller", "layer"]
TABLES: tuple[By, ...] = get_args(By)

_UPDATES = (Column("updates"), Column("dense"), Column("sparse"))
_EFFECTS = (Column("unchanged"), Column("NaN/inf", "not_finite"))
_BEHIND = Column("behind")
COLUMNS: Mapping[By | Literal["optimizer", "tracing"], tuple[Column, ...]] = {
    "optimizer": (
        Column("optimizer", left=True),
        Column("made in", "made_in", left=True),
        Column("worker", left=True),
        Column("steps"),
        Column("updates"),
        Column("{per_step}", "per_step"),
        Column("Python\ncalls", "calls"),
        Column("updates of", "updates_of", left=True),
    ),
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
    "step": (
        Column("step{on_all}", "steps", left=True),
        Column("", "first"),
        Column("", "last"),
        Column("", "length"),
        Column("", "every"),
        Column("", "on_replicas"),
        *_UPDATES,
        Column("", "requests"),
        Column("", "without_gradient"),
        Column("", "accumulated"),
        *_EFFECTS,
    ),
    "replica": (
        Column("{replica}", "replica", left=True),
        Column("", "worker"),
        Column("steps"),
        *_UPDATES,
        _BEHIND,
        Column("device", left=True),
    ),
    "worker": (
        Column("worker", left=True),
        Column("replicas"),
        Column("steps"),
        *_UPDATES,
        _BEHIND,
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
        Column("", "file"),
        Column("", "line"),
        Column("executions"),
        Column("", "updates"),
        Column("steps"),
        Column("Python\ncalls", "calls"),
    ),
    "layer": (
        Column("layer", left=True),
        Column("{variable}s", "variables"),
        Column("", "never_updated"),
        *_UPDATES,
    ),
    "tracing": (
        Column("{program}", "graph", left=True),
        Column("seconds", "began"),
        Column("after\nstep", "after"),
        Column("worker", left=True),
        Column("traced because of", "cause", left=True),
        Column("called from", "caller", left=True),
    ),
}
"""The columns of each table; the first has the names of the rows. Words in braces depend on the
trace. A column without a header is for programs alone.
"""


class Row(NamedTuple):
    """A row: its values by the names of columns (None: there is none), and what is odd in it."""

    values: Mapping[str, Any]
    note: str = ""
    level: str = ""
    """`error`, `warning`, `quiet`, which many rows leave out, or empty."""
    of: Collection[int] | Steps | None = None
    """The indices of its variables or replicas, or its steps; None for other rows."""


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
        shown = [
            each
            for each in others
            if each.header and any(row.values.get(each.name) is not None for row in self.rows)
        ]
        return [names, *shown]

    def first(self, most: int) -> tuple[list[Row], str]:
        """The first rows, errors and then odd ones before others, in their order; what is left out.

        The second is `12 more rows, 3 of them odd`; empty if nothing is left out.
        """
        quiet = {index for index, row in enumerate(self.rows) if row.level == "quiet"}
        odd = {index for index, row in enumerate(self.rows) if row.note or row.level} - quiet
        faults = {index for index in odd if self.rows[index].level == "error"}
        rank = {**dict.fromkeys(quiet, 3), **dict.fromkeys(odd, 1), **dict.fromkeys(faults, 0)}
        order = sorted(range(len(self.rows)), key=lambda at: (rank.get(at, 2), at))
        most = min(most, len(order) - len(quiet) or most) if len(order) > most else most
        rest = {*order[most:]}
        more = some(len(rest), "more row") if rest else ""
        more += f", {len(odd & rest):,} of them odd" if odd & rest else ""
        return [row for index, row in enumerate(self.rows) if index not in rest], more


class Part(NamedTuple):
    """Which optimizers and rows are asked for, None for all: the trace stays whole."""

    roots: frozenset[int] | None = None
    variables: frozenset[int] | None = None
    steps: range | None = None
    replicas: frozenset[int] | None = None
    text: str = ""
    """The sentence on the rows; empty if all are asked for."""

    def wanted(self, by: By) -> Collection[int] | None:
        """What the rows of a table are picked by; None if all are asked for."""
        if by == "step":
            return self.steps
        of_table = {"variable": self.variables, "layer": self.variables}
        return {**of_table, "replica": self.replicas, "worker": self.replicas}.get(by)

    def has(self, by: By, row: Row) -> bool:
        """Whether a row is asked for: one of several steps if any of them is."""
        wanted = self.wanted(by)
        if isinstance(wanted, range) and isinstance(row.of, Steps):
            return row.of.last_before(wanted.stop) >= wanted.start
        return wanted is None or row.of is None or any(each in wanted for each in row.of)


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
    of, steps = trace.data, None
    if step is not None:
        steps = range(max(1, step.start), min(trace.steps + 1, step.stop))
        if not steps:
            raise UnknownName(f"no such step: the trace holds {some(trace.steps, 'step')}")
    workers = [each.worker for each in of.replicas]
    meant = optimizers_meant(optimizer, of.optimizers) if optimizer is not None else ()
    rows = all_true(
        (variable, f"variable {variable}"),
        (steps, f"{plural(len(steps), 'step')} {span((steps[0], steps[-1]))}" if steps else ""),
        (replica, f"{replica_noun(trace)} {(replica or '').removeprefix('rank:')}"),
    )
    return Part(
        None if optimizer is None else frozenset(of.optimizers[index].root for index in meant),
        None if variable is None else variables_meant(variable, of.variables, trace.objects),
        steps,
        None if replica is None else named("replica", replica, replica_ids(trace), workers),
        f"Only the rows of {', '.join(rows)}; what they count is of the whole run." if rows else "",
    )


def sections(
    trace: Trace, by: By | None = None, part: Part = WHOLE
) -> list[tuple[Summary, list[Table]]]:
    """The optimizers of a report, each with its tables: those with content, or the one `by`.

    If only some rows are asked for, these are the tables and optimizers that have them. Raises
    `tracer.UnknownName` for a table that does not exist or, with a part, has no such rows.
    """
    if by is not None and by not in TABLES:
        raise UnknownName(f"no table {by!r}: by is one of {', '.join(TABLES)}")
    if part.text and by and part.wanted(by) is None:
        picked = ", ".join(each for each in TABLES if part.wanted(each) is not None)
        raise UnknownName(f"the table by {by} has no such rows; these have: {picked}")
    found = []
    for summary in summaries_of(trace):
        names = [by] if by else in_report(summary, part)
        tables = [table(summary, each, part) for each in names]
        wanted = [each for each in tables if each.rows or not part.text]
        if (part.roots is None or summary.root in part.roots) and (wanted or not part.text):
            found.append((summary, wanted))
    return found


def table(summary: Summary, by: By, part: Part = WHOLE) -> Table:
    """One table of an optimizer."""
    rows, below = _TABLES[by](summary)
    return Table(by, _columns(by, summary), [row for row in rows if part.has(by, row)], below)


def in_report(summary: Summary, part: Part = WHOLE) -> list[By]:
    """The tables of a whole report: those with content or, of a part, with such rows."""
    if part.text:
        return [by for by in ("variable", "step", "replica") if part.wanted(by) is not None]
    many = len(summary.replicas) > _MANY_REPLICAS
    has: dict[By, object] = {
        "variable": summary.variables,
        "step": summary.steps,
        "replica": len(summary.replicas) > 1 and not many,
        "worker": many,
        "method": summary.methods,
    }
    return [by for by in has if has[by]]


_MANY_REPLICAS = 16


def _columns(by: By | Literal["optimizer", "tracing"], *summaries: Summary) -> list[Column]:
    """The columns of a table, with headers in the words of these optimizers."""
    dialect, copy = summaries[0].dialect, replica_noun(summaries[0].trace)
    several = any(len(summary.replicas) > 1 for summary in summaries)
    words = {
        "variable": dialect.variable,
        "program": dialect.program,
        "replica": copy,
        "per_step": f"per\nstep and\n{copy}" if several else "per step",
        "on_all": f",\nall {copy}s" if several else "",
    }
    return [
        Column(each.header.format_map(words), each.name or each.header, each.left)
        for each in COLUMNS[by]
    ]


_Made = tuple[list[Row], list[str]]
"""The rows of a table, and the remarks below it."""


# All optimizers.


def optimizers(summaries: Sequence[Summary]) -> Table:
    """A row for each optimizer, with its first variable."""
    return Table("optimizer", _columns("optimizer", *summaries), [*map(_optimizer, summaries)])


def _optimizer(summary: Summary) -> Row:
    root, trace = summary.optimizers[0], summary.trace
    updates = summary.total(measures.updates)
    first, *more = [trace.variables[index].name for index in summary.variables] or [""]
    kind, name = class_of(root), root.name
    line = trace.derived(program_lines).get(summary.root)
    values = {
        "optimizer": name if name.partition("#")[0] == kind else f'{kind} "{name}"',
        "made_in": line and cut(line, 20, 18),
        "worker": summary.only_worker or None,
        "steps": summary.steps,
        "updates": updates,
        "per_step": _per_step(summary, summary, summary.replicas),
        "calls": sum(sum(summary.calls(index)) for index in summary.apply_methods),
        "updates_of": cut(shown(first), 30, 15) + (f" +{len(more):,}" if more else ""),
    }
    return Row(values, level="" if updates else "error")


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
    return dash(min(rates), max(rates))


# Variables.


def _by_variable(summary: Summary) -> _Made:
    """A row for each of `Summary.variables`, in that order."""
    made = {}
    unapplied, others, why = reason_for_all(summary), also_by(summary), why_not(summary)
    for pattern in summary.patterns:
        figures, note, level = _figures(summary, pattern, unapplied)
        for index in pattern.variables:
            variable = summary.trace.variables[index]
            argument = f"argument {variable.name.removeprefix('argument ')}"
            own = {
                "variable": argument if pattern.argument else variable.name,
                "shape": "x".join("?" if size is None else str(size) for size in variable.shape),
                "dtype": variable.dtype,
                "shards": variable.shards if variable.shards > 1 else None,
            }
            made[index] = Row(own | figures, note, level, (index,))
    for index in {*why, *others}:
        row, by = made[index], others.get(index, "")
        how = "also" if row.values["updates"] else "updated"
        parts = row.note, why.get(index, ""), f"{how} by {by}" if by else ""
        made[index] = row._replace(note="; ".join(filter(None, parts)))
    empty = summary.spread(measures.updates)[(0,)]
    known = not summary.step_unknown(measures.updates)
    heading = _columns("variable", summary)[5].header.replace("\n", " ")
    below = all_true(
        (
            known and 0 < empty < summary.steps,
            f"({heading}: without the {some(empty, 'step')} that updated nothing)",
        ),
        (
            summary.effects,
            "(unchanged: steps that changed no bit of it, skipped steps included; NaN/inf: steps "
            "after which it held NaN or inf)",
        ),
    )
    return [made[index] for index in summary.variables], below


def _figures(summary: Summary, pattern: Pattern, unapplied: Reason | None) -> tuple[Any, str, str]:
    """The values that the variables of a pattern share, with their note and level."""
    dense, sparse = pattern.total(measures.dense), pattern.total(measures.sparse)
    by_replica = [pattern.total(measures.updates, each) for each in summary.replicas]
    unchanged, not_finite = _effects(summary, pattern) if summary.effects else (None, None)
    values = {
        "updates": dense + sparse,
        "dense": dense,
        "sparse": sparse,
        "per_step": _per_step(summary, pattern, summary.replicas_with(pattern)),
        "by_replica": _split(by_replica) if len({*by_replica}) > 1 else None,
        "without_gradient": pattern.total(measures.missing),
        "unchanged": unchanged,
        "not_finite": not_finite,
    }
    why, updates = _why_without(pattern, unapplied), dense + sparse
    if {*pattern.variables}.isdisjoint(summary.passed):
        return values, "", "quiet"
    said = ": ".join(all_true((not updates, "never updated"), (why, why)))
    meaning = "stands for each variable passed"
    note = "; ".join(all_true((pattern.argument, meaning), (said, said)))
    idle = not updates and not pattern.total(measures.zeroed)
    return values, note, first_true((idle or not_finite, "error"), (why, "warning"))


def _effects(summary: Summary, pattern: Pattern) -> tuple[int, int]:
    """In how many steps its variables were unchanged, and in how many not finite."""
    compared, unchanged, not_finite = measures.effects
    still = pattern.total(unchanged)
    if summary.is_sharded(pattern):  # it changed if any shard did
        spread = pattern.spread(compared, unchanged)
        still = sum(number for (seen, same), number in spread.items() if 0 < seen == same)
    return still, pattern.total(not_finite)


def _why_without(pattern: Pattern, unapplied: Reason | None) -> str:
    """`no gradient in 3 steps`, or why no step updated anything."""
    steps = sum(n for (count,), n in pattern.spread(measures.missing).items() if count)
    zeroed = sum(n for (count,), n in pattern.spread(measures.zeroed).items() if count)
    when = f" in {some(zeroed, 'step')}" if pattern.total(measures.updates) else ""
    lost = pattern.step_unknown(measures.missing)
    missing = f"no gradient in {'at least ' if lost else ''}{some(steps, 'step')}"
    parts = all_true((zeroed, f"{words_of(SetToZero())}{when}"), (steps or lost, missing))
    is_said = bool(zeroed) and unapplied is not None and SetToZero() in unapplied.facts
    if unapplied and not is_said and pattern.has(measures.requests):
        parts.append(f"else {text_of(unapplied.facts)}" if parts else text_of(unapplied.facts))
    return ", ".join(parts)


def _split(counts: Sequence[int]) -> str:
    """`63 + 62`; `60-63` for many counts."""
    few = " + ".join(f"{count:,}" for count in counts)
    return few if len(counts) <= 3 else dash(min(counts), max(counts))


# Steps.


def _by_step(summary: Summary) -> _Made:
    """A row for each stretch of equal steps; a cycle of steps has a row for each of its parts.

    First come the updates that are in no known step.
    """
    rows, why, reached = [], reason(summary), accumulations(summary)
    for count, name, note in (
        (summary.step_unknown, "step not known", "in all; steps below may have more"),
        (summary.outside, "outside any step", "in all; a direct call"),
    ):
        names = ("updates", "dense", "sparse")
        counts: dict[str, Figure] = {each: count(getattr(measures, each)) for each in names}
        if any(counts.values()) or (count == summary.step_unknown and count(measures.steps)):
            rows.append(Row({"steps": name, **counts}, note, "warning"))
    timeline = summary.timeline(
        measures.steps,
        measures.dense,
        measures.sparse,
        measures.requests,
        measures.missing,
        measures.updates,
        reached or measures.steps,
        *measures.effects,
    )
    for steps, counted in timeline.parts():
        on, dense, sparse, requests, missing, tried, accumulating, compared, *effects = counted
        unchanged, not_finite = effects if compared else (None, None)
        values = {
            "steps": steps_label(steps),
            **steps._asdict(),
            "on_replicas": on,
            "updates": dense + sparse,
            "dense": dense,
            "sparse": sparse,
            "requests": requests + missing,
            "without_gradient": missing,
            "accumulated": None if reached is None else 0 if tried else min(on, accumulating),
            "unchanged": unchanged,
            "not_finite": not_finite,
        }
        rows.append(_step(steps, values, summary, why))
    compared_in = [row.values.get("unchanged") is not None for row in rows if "first" in row.values]
    copy, noun = replica_noun(summary.trace), f"{summary.dialect.variable}s"
    those = "shards" if any(map(summary.is_sharded, summary.patterns)) else "those"
    of_each = f", {those} of each {copy} counted" if len(summary.replicas) > 1 else ""
    below = all_true(
        (
            any(compared_in),
            f"(unchanged, NaN/inf: how many {noun} were so after the step{of_each})",
        ),
        (any(compared_in) and not all(compared_in), "(-: none was compared in these steps)"),
    )
    return rows, below


def _step(steps: Steps, values: dict[str, Any], summary: Summary, why: Reason) -> Row:
    """The row, with a note that says why it has no update, or what is missing."""
    updates, on, missing = values["updates"], values["on_replicas"], values["without_gradient"]
    unknown = not updates and summary.step_unknown(measures.updates)
    on_some = 0 < on < len(summary.replicas) and not unknown
    copies = some(len(summary.replicas), summary.trace.derived(replica_noun))
    facts: tuple[Fact, ...] = why.facts
    if values["accumulated"] is not None:
        kept, by = Accumulated(accumulated_steps(summary)), skipper(summary.optimizers)
        facts = (kept,) if values["accumulated"] else (Skipped(by),)
    said = first_true(
        (unknown, "not known"),
        (not on, "not recorded"),
        (updates, f"{missing:,} without gradient" if missing else ""),
        (not values["requests"], words_of(NothingPassed())),
        (values["requests"] == missing, words_of(NoGradient())),
    )
    was_dropped = not (said or updates)
    if was_dropped:
        said = text_of(facts) or "gradients came, none was applied"
    note = "; ".join(all_true((said, said), (on_some, f"on {on:,} of {copies}")))
    expected = was_dropped and why.usual and {*facts} <= {*why.facts} and not on_some
    values |= dict.fromkeys(("updates", "dense", "sparse") if unknown else ())
    odd = note and not expected
    return Row(values, note, first_true((values["not_finite"], "error"), (odd, "warning")), steps)


# Replicas and workers.


def _by_place(by: By, summary: Summary) -> _Made:
    """A row for each replica or worker, in the order of `Summary`; odd are those that are behind.

    They are if they made fewer steps, or fewer updates than others alike.
    """
    rows, ids, replicas = [], replica_ids(summary.trace), summary.trace.replicas
    noun, all_steps = replica_noun(summary.trace), summary.steps
    groups = {ids[index]: [index] for index in summary.replicas}
    groups = groups if by == "replica" else summary.workers
    kinds = {"updates": measures.updates, "dense": measures.dense, "sparse": measures.sparse}
    counts = {
        name: {kind: sum(summary.total(what, on) for on in group) for kind, what in kinds.items()}
        for name, group in groups.items()
    }
    most = max((each["updates"] for each in counts.values()), default=0)
    apart = summary.is_partitioned or any(map(summary.is_sharded, summary.patterns))
    alike = not apart and len({len(group) for group in groups.values()}) == 1
    for name, group in groups.items():
        place, behind = replicas[group[0]], most - counts[name]["updates"]
        steps = max(summary.steps_on[replica] for replica in group)
        values = {
            "worker": place.worker or "(local)",
            by: name or "(local)",
            "replicas": len(group) if noun == "replica" else None,
            "device": place.device.rpartition("device:")[2] or None,
            "steps": steps,
            **counts[name],
            "behind": behind if alike and behind else None,
        }
        odd = steps < all_steps or values["behind"]
        rows.append(Row(values, "", "warning" if odd else "", group))
    return rows, []


# Methods, callers and layers.


def _by_method(summary: Summary) -> _Made:
    """A row for each method: executions, Python calls, and the graphs that calls traced.

    Discarded executions of a method have a row of their own.
    """
    rows = []
    for index in summary.methods:
        measure, name = measures.of_methods([index]), summary.trace.methods[index].name
        (eager, tracing), (graphs, idle) = summary.calls(index), summary.graphs(measure)
        values = {"method": name, "executions": summary.total(measure), "calls_eager": eager}
        values |= {"calls_tracing": tracing, "graphs": graphs, "graphs_never_ran": idle}
        rows.append(Row(values, level="" if values["executions"] else "error"))
        if lost := summary.total(measures.counting(["discarded"], methods=[index])):
            rows.append(Row({"method": f"{name}, discarded", "executions": lost}))
    why = why_idle(summary)
    return rows, all_true((why, f"({why})"))


def _by_caller(summary: Summary) -> _Made:
    """A row for each line of the program that called, or traced a graph: the most executions first.

    For steps in a graph it is the line by which the graph was traced. Executions and calls are
    those of the methods in the report's question.
    """
    data = summary.trace.data
    called: dict[tuple[Line | None, bool], list[Block]] = {}
    for block in measures.counted(data):
        if block.root == summary.root:
            called.setdefault(data.origin(block.path), []).append(block)
    ran = measures.of_methods(summary.apply_methods)
    of_calls = measures.counting(measures.ROLES["calls"], None, summary.apply_methods)
    made = []
    for (line, in_graph), blocks in called.items():
        steps = Counter[int]()
        for block in blocks:
            steps[block.replica] += block.total * measures.steps(block)
        executions, updates, calls = (
            sum(block.total * measure(block) for block in blocks)
            for measure in (ran, measures.updates, of_calls)
        )
        name = "not known" if line is None else shown(line.label)
        values: dict[str, Figure] = {
            "caller": f"traced from {name}" if in_graph and line else name,
            "file": line.file if line else None,
            "line": line.number if line else None,
            "executions": executions,
            "updates": updates,
            "steps": max(steps.values()),
            "calls": calls,
        }
        if executions or calls:
            look = ("", "") if executions else ("never ran", "warning")
            made.append((-executions, -calls, Row(values, *look)))
    return [row for *_, row in sorted(made, key=lambda each: each[:2])], []


def _by_layer(summary: Summary) -> _Made:
    """A row for each path that variables share, up to the first part in which paths differ."""
    variables, separator = summary.trace.variables, summary.dialect.separator
    counts: dict[int, tuple[int, int]] = {}
    for pattern in summary.patterns:
        figures = pattern.total(measures.dense), pattern.total(measures.sparse)
        counts |= dict.fromkeys(pattern.variables, figures)
    names, why, rows = [variables[index].name for index in summary.variables], why_not(summary), []
    layers: dict[str, list[int]] = {}
    for index, layer in zip(summary.variables, layers_of(names, separator), strict=True):
        layers.setdefault(layer, []).append(index)
    for layer, indices in layers.items():
        dense, sparse = (sum(each) for each in zip(*(counts[i] for i in indices), strict=True))
        never = sum(not any(counts[index]) for index in indices)
        values: dict[str, Figure] = {
            "layer": variables[indices[0]].name if len(indices) == 1 else layer,
            "variables": len(indices),
            "never_updated": never,
            "updates": dense + sparse,
            "dense": dense,
            "sparse": sparse,
        }
        of_all = never == len(indices)
        note = "never updated" if of_all else f"{never:,} never updated" if never else ""
        level = first_true((of_all, "error"), (never, "warning"))
        if why.keys() >= {*indices}:
            note, level = ", ".join(dict.fromkeys(why[index] for index in indices)), "quiet"
        rows.append(Row(values, note, level, indices))
    return rows, []


_TABLES: dict[By, Callable[[Summary], _Made]] = {
    "variable": _by_variable,
    "step": _by_step,
    "replica": partial(_by_place, "replica"),
    "worker": partial(_by_place, "worker"),
    "method": _by_method,
    "caller": _by_caller,
    "layer": _by_layer,
}


# Graph tracings, by time.

CAUSES = {
    "first": "the first call",
    "variables": "variables were made in the first call",
    "argument": "another argument",
    "function": "a new function object",
    "forgotten": "its graphs were forgotten: wrapped late, or compiled again",
    "unknown": "not known",
}


def tracings(summary: Summary) -> Table:
    """The graph tracings of an optimizer, earliest first.

    `began` is in seconds after the first one of the trace, `after` how many steps had run, and
    `caller` the program's line nearest to it.
    """
    trace, rows = summary.trace, []
    events = sorted(trace.graph_tracings, key=lambda each: each.at)
    for event in events:
        graph, line = trace.graphs[event.graph], trace.data.nearest_line(event.path)
        values = {
            "graph": graph.function,
            "began": round(event.at - events[0].at, 3),
            "after": event.after,
            "worker": trace.replicas[graph.replica].worker or None,
            "cause": CAUSES[event.cause] + (f": {event.detail}" if event.detail else ""),
            "caller": None if line is None else line.label,
        }
        if graph.root == summary.root:
            rows.append(Row(values))
    return Table("tracing", _columns("tracing", summary), rows)
