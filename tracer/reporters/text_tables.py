"""The tables of the text report: the figures of `tables`, with what there is to say about them."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from rich.text import Text

from tracer.errors import shown
from tracer.layout import Column, Row, Table, cut, paragraph
from tracer.model import callers, measures
from tracer.model.apply_methods import apply_methods
from tracer.model.labels import (
    class_of,
    only_worker,
    program_lines,
    replica_ids,
    replica_noun,
    steps_label,
    why_idle,
)
from tracer.model.measures import counting
from tracer.model.selection import Selection
from tracer.model.skipped_steps import Reason, accumulated, reason, reason_for_all, skipper
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Steps
from tracer.model.wording import dash, first_true, some
from tracer.reporters import caller_tree, layer_tree, tables
from tracer.reporters.tables import By, StepRow
from tracer.reporters.trees import Node, Tree, in_order

ODD = "bold yellow"
WRONG = "bold red"
MAX_ROWS = 30  # rows of a table in the whole report
MAX_ROWS_IN_FULL = 1000  # rows of a table that was asked for
_LINE = 24  # cells of a line of the program; it is cut at the front


class Asked(NamedTuple):
    """How the reader asked for the report."""

    everything: bool = False
    """True for a single table, in full."""
    command: bool = False
    """True if the reader uses the `tracer` command."""

    @property
    def most(self) -> int:
        """The rows of a table that are shown."""
        return MAX_ROWS_IN_FULL if self.everything else MAX_ROWS

    def more(self, rest: str, table: By) -> str:
        """The line below a table that was cut: how to get all of its rows."""
        see = f"--by {table}" if self.command or self.everything else f'by="{table}"'
        csv = " --format csv" if self.everything else ""
        return f"… and {rest}: {see}{csv} has them all"


_UPDATES = (Column("updates"), Column("dense", drop=3), Column("sparse", drop=3))
_BEHIND = Column("behind", drop=3, left=True, optional=True)
_EFFECTS = (
    Column("unchanged", drop=1, optional=True),
    Column("not\nfinite", drop=1, optional=True),
)


def overview(summaries: Sequence[Summary], width: int, asked: Asked) -> list[Text]:
    """A row for each optimizer, with the first of its variables."""
    several = any(len(summary.replicas) > 1 for summary in summaries)
    lines = program_lines(summaries[0].trace)
    columns = (
        Column("made in", drop=1, left=True, optional=True),
        Column("worker", drop=5, left=True, optional=True),
        Column("steps"),
        Column("updates"),
        Column(_step_of(summaries[0]) if several else "per step", drop=3),
        Column("Python\ncalls", drop=4),
        Column("updates of", drop=2, left=True),
    )
    table = Table("optimizer", columns)
    for summary in summaries:
        root = summary.optimizers[0]
        made = summary.total(measures.updates)
        calls = sum(sum(summary.calls(index)) for index in apply_methods(summary))
        names = [summary.trace.variables[index].name for index in summary.variables]
        more = f" +{len(names) - 1:,}" if len(names) > 1 else ""
        cells = (
            cut(shown(lines.get(summary.root, "")), _LINE, _LINE - 2),
            shown(only_worker(summary.trace, summary.replicas)),
            *_figures(summary.steps, made),
            _per_step(summary, measures.updates),
            f"{calls:,}",
            cut(shown("".join(names[:1])), 30, 15) + more,
        )
        name = f'{shown(class_of(root))} "{shown(root.name)}"'
        table.rows.append(Row(name, cells, style="" if made else WRONG))
    table.below.append(
        "--optimizer NAME has all that is known of one of them"
        if asked.command
        else 'by="variable" has a table for each of them'
    )
    return table.lines(width)


def _step_of(summary: Summary) -> str:
    """The header of updates per step where there are several replicas."""
    return f"per\nstep and\n{replica_noun(summary.trace)}"


def _per_step(summary: Summary, measure: Selection) -> str:
    """The updates on one replica in a step that made any: `4`, `2-4`, or `?` if it is not known."""
    if summary.unplaced(measure):
        return "?"
    rates = {n for each in summary.replicas for n in summary.rates(measure, each)} or {0}
    return dash(min(rates), max(rates))


def by_variable(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each variable; a long table keeps the first rows and those that are odd."""
    several = len(summary.replicas) > 1
    per_step = _step_of(summary) if several else "per step"
    split = Column(f"by {replica_noun(summary.trace)}", drop=4, optional=not several)
    columns = (_UPDATES[0], Column(per_step, drop=2), *_UPDATES[1:], split, *_EFFECTS)
    all_rows = _variable_rows(summary)
    order = sorted(range(len(all_rows)), key=lambda index: (not all_rows[index].note, index))
    table = Table(summary.dialect.variable, columns)
    table.rows = [all_rows[index] for index in sorted(order[: asked.most])]
    if rest := [all_rows[index] for index in order[asked.most :]]:
        odd = sum(bool(row.note) for row in rest)
        more = some(len(rest), f"more {table.header}") + (f", {odd:,} of them odd" if odd else "")
        table.below.append(asked.more(more, "variable"))
    empty = summary.spread(measures.updates)[(0,)]
    if 0 < empty < summary.steps and not summary.unplaced(measures.updates):
        heading = per_step.replace("\n", " ")
        without = f"without the {some(empty, 'step')} that updated nothing"
        table.below.append(f"({heading}: {without})")
    if summary.effects:
        table.below.append(
            "(unchanged: after so many steps no bit of it was another one, skipped steps too; "
            "not finite: after so many it held inf or NaN)"
        )
    return table.lines(width)


def _variable_rows(summary: Summary) -> list[Row]:
    made = {}
    unapplied = reason_for_all(summary)
    for pattern in summary.patterns:
        dense, sparse = pattern.total(measures.dense), pattern.total(measures.sparse)
        by_replica = [pattern.total(measures.updates, each) for each in summary.replicas]
        seen = pattern.observed("unchanged"), pattern.observed("not_finite")
        never, why = not dense + sparse, _why_without(pattern, unapplied)
        cells = (
            f"{dense + sparse:,}",
            _per_step(summary, counting(["update"], variable=pattern.variables[0])),
            *_figures(dense, sparse),
            _split(by_replica) if len(by_replica) > 1 else "",
            *_figures(*(seen if summary.effects else (None, None))),
        )
        said = ": ".join(filter(None, ("never updated" if never else "", why)))
        meaning = "stands for each variable passed" if pattern.argument else ""
        note = "; ".join(filter(None, (meaning, said)))
        style = WRONG if never or seen[1] else ODD if why else ""
        for index in pattern.variables:
            name = shown(summary.trace.variables[index].name) or "''"
            if pattern.argument:
                name = f"argument {name.removeprefix('argument ')}"
            made[index] = Row(name, cells, note, style)
    return [made[index] for index in summary.variables]


def _why_without(pattern: Pattern, unapplied: Reason | None) -> str:
    """`no gradient in 3 steps`, or `nothing was assigned`, or why no step updated anything."""
    steps = sum(n for (count,), n in pattern.spread(measures.missing).items() if count)
    lost = pattern.unplaced(measures.missing)
    missing = f"no gradient in {'at least ' if lost else ''}{some(steps, 'step')}"
    parts = ["nothing was assigned"] if pattern.has(measures.ineffective) else []
    parts += [missing] if steps or lost else []
    if unapplied and pattern.has(measures.requests):
        parts.append(f"else {unapplied.text}" if parts else unapplied.text)
    return ", ".join(parts)


def _split(counts: Sequence[int]) -> str:
    """`63 + 63`, `63 x 8` for many that are equal, `60-63` for many that are not."""
    if len(counts) <= 3:
        return " + ".join(_figures(*counts))
    low, high = min(counts), max(counts)
    return f"{low:,} x {len(counts):,}" if low == high else dash(low, high)


def by_step(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for equal steps, however many; a cycle of steps has a row for each of its parts."""
    copy, several = replica_noun(summary.trace), len(summary.replicas) > 1
    why, idle = reason(summary), bool(summary.total(measures.ineffective))
    figures = tables.by_step(summary)
    kept = figures if len(figures) <= asked.most else figures[: asked.most - 1]
    header = f"per step,\nall {copy}s" if several else "per step"
    table = Table(header, (*_UPDATES, *_EFFECTS), cut_names=False)
    table.rows += [_step_row(row, summary, why, idle) for row in kept]
    unknown = ("-", "-") if summary.effects else ("", "")
    for count, name, note in (
        (summary.unplaced, "step not known", "in all; steps above may have more"),
        (summary.outside, "outside any step", "in all; a direct call"),
    ):
        counts = [count(each) for each in (measures.updates, measures.dense, measures.sparse)]
        if any(counts) or (count == summary.unplaced and count(measures.steps)):
            table.rows.append(Row(name, (*_figures(*counts), *unknown), note, ODD))
    if rest := len(figures) - len(kept):
        last = summary.steps + summary.trace.first_step - 1
        table.below.append(asked.more(f"{some(rest, 'more row')} up to step {last:,}", "step"))
    if summary.effects:
        each = f", those of each {copy} counted" if several else ""
        noun = f"{summary.dialect.variable}s"
        table.below.append(f"(unchanged, not finite: so many {noun} were so after the step{each})")
        if any(row.unchanged is None for row in kept):
            table.below.append("(-: none was compared in these steps)")
    return table.lines(width)


def _step_row(row: StepRow, summary: Summary, why: Reason, idle: bool) -> Row:
    """The row, with a note: why it has no update, or what is missing."""
    missing = row.requests_without_gradient
    unknown = not row.updates and summary.unplaced(measures.updates)
    copies = some(len(summary.replicas), replica_noun(summary.trace))
    on_some = 0 < row.on_replicas < len(summary.replicas) and not unknown
    said = first_true(
        (unknown, "not known"),
        (not row.on_replicas, "not recorded"),
        (row.updates, f"{missing:,} without gradient" if missing else ""),
        (not row.requests, "nothing was handed over"),
        (row.requests == missing, "no gradient came"),
        (idle, "nothing was assigned"),
        (row.accumulated, accumulated(summary)),
        (row.accumulated == 0, f"skipped by {skipper(summary.optimizers)}"),
        (why.text, why.text),
        (True, "gradients came, none was applied"),
    )
    expected = not row.updates and why.usual and said in why.text and not on_some
    notes = [said] if said else []
    if on_some:
        notes.append(f"on {row.on_replicas:,} of {copies}")
    counts = ("?",) * 3 if unknown else _figures(row.updates, row.dense, row.sparse)
    seen = _figures(row.unchanged, row.not_finite, none="-" if summary.effects else "")
    label = steps_label(Steps(row.first, row.last, row.length, row.every))
    style = WRONG if row.not_finite else ODD if notes and not expected else ""
    return Row(label, (*counts, *seen), "; ".join(notes), style)


def by_replica(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each replica; one with fewer updates than the others says since when."""
    copy, names = replica_noun(summary.trace), replica_ids(summary.trace)
    table = Table(copy, (Column("steps"), *_UPDATES, _BEHIND, Column("device", 4, left=True)))
    behind = _behind(summary, [[index] for index in summary.replicas])
    figures = zip(summary.replicas, tables.by_replica(summary), behind, strict=True)
    for index, row, late in islice(figures, asked.most):
        counts = _figures(row.steps, row.updates, row.dense, row.sparse)
        device = shown(row.device.rpartition("device:")[2]) or "-"
        style = ODD if row.steps < summary.steps or late not in ("", "-") else ""
        table.rows.append(Row(shown(names[index]), (*counts, late, device), style=style))
    if rest := len(behind) - len(table.rows):
        table.below.append(asked.more(some(rest, f"more {copy}"), "replica"))
    return table.lines(width)


def by_worker(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each worker, with its replicas together."""
    ranks = replica_noun(summary.trace) == "rank"  # each is one replica
    columns = (Column("replicas", drop=2, optional=ranks), Column("steps"), *_UPDATES, _BEHIND)
    table = Table("worker", columns)
    behind = _behind(summary, list(tables.workers(summary).values()))
    for row, late in zip(tables.by_worker(summary), behind, strict=True):
        counts = _figures(row.steps, row.updates, row.dense, row.sparse)
        cells = ("" if ranks else f"{row.replicas:,}", *counts, late)
        style = "" if late in ("", "-") else ODD
        table.rows.append(Row(shown(row.worker) or "(local)", cells, style=style))
    return table.lines(width)


def _behind(summary: Summary, groups: Sequence[Sequence[int]]) -> list[str]:
    """For each group of replicas how many updates it is behind the first of those with most."""
    totals = [sum(summary.total(measures.updates, each) for each in group) for group in groups]
    if len({len(group) for group in groups}) != 1 or len(set(totals)) == 1:
        return [""] * len(groups)
    leaders = groups[totals.index(max(totals))]
    late = []
    for group in groups:
        missing, since = summary.behind(group, leaders)
        step = f" since step {since:,}" if since else ""
        late.append(f"{missing:,}{step}" if missing else "-")
    return late


def by_method(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each method: executions, Python calls, and the graphs that calls traced."""
    columns = (
        Column("executions"),
        Column("calls\neager", drop=2),
        Column("calls\ntracing", drop=1),
        Column(f"\n{summary.dialect.program}s", drop=3),
        Column("never\nran", drop=3),
    )
    made = [
        Row(shown(name), _figures(*figures), style="" if figures[0] else WRONG)
        for name, *figures in tables.by_method(summary)
    ]
    why = why_idle(summary)
    return Table("method", columns, made, below=[f"({why})"] if why else []).lines(width)


def by_caller(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each chain of calls, the widest branch first."""
    if not callers.known(summary.trace.data):
        return paragraph(callers.LACKING, width, style=ODD)
    header = f"who calls {caller_tree.methods(summary) or 'it'}"
    columns = (Column("executions"), Column("steps", drop=2), Column("Python\ncalls", drop=1))
    nodes = caller_tree.nodes(summary, ODD)
    return _tree("caller", header, columns, nodes, caller_tree.JOINT, width)


def by_layer(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each layer; those in a row that are alike are one."""
    columns = (
        Column(f"{summary.dialect.variable}s", drop=3),
        Column("updates"),
        Column("of each", drop=2),
        Column("dense", drop=4),
        Column("sparse", drop=4),
    )
    nodes = layer_tree.nodes(summary, ODD, WRONG)
    return _tree("layer", "layer", columns, nodes, summary.dialect.separator, width)


def _tree(
    by: By, header: str, columns: Sequence[Column], nodes: Sequence[Node], joint: str, width: int
) -> list[Text]:
    rest = sum(1 for _ in in_order(nodes)) - MAX_ROWS_IN_FULL
    below = [Asked(everything=True).more(some(rest, "more row"), by)] if rest > 0 else []
    tree = Tree(header, columns, below=below, nodes=nodes, joint=joint, most=MAX_ROWS_IN_FULL)
    return tree.lines(width)


TABLES: dict[By, Callable[[Summary, int, Asked], list[Text]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": by_replica,
    "worker": by_worker,
    "method": by_method,
    "caller": by_caller,
    "layer": by_layer,
}


def _figures(*counts: int | None, none: str = "") -> tuple[str, ...]:
    return tuple(none if count is None else f"{count:,}" for count in counts)
