"""The tables of the text report: the figures of `rows`, with what there is to say about them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from tracer.errors import shown
from tracer.layout import Column, Row, Table, cut
from tracer.model import measures
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
from tracer.model.wording import dash, some
from tracer.reporters import rows
from tracer.reporters.rows import By, StepRow, VariableRow

ODD = "bold yellow"
WRONG = "bold red"
MAX_ROWS = 30  # rows of a table in the whole report
MAX_ROWS_IN_FULL = 1000  # rows of a table that was asked for


class Asked(NamedTuple):
    """How a report was asked for."""

    everything: bool = False
    """For one table, in full."""
    command: bool = False
    """By the `tracer` command."""

    def all_of(self, table: By, query: str = "") -> str:
        """What gives all rows of a table; `query` is what Python has that goes further."""
        if self.command:
            return f"--by {table}" + (" --format csv" if self.everything else "")
        return query if self.everything else f'by="{table}"'


_KINDS = (Column("updates"), Column("dense", drop=3), Column("sparse", drop=3))
_BEHIND = Column("behind", drop=3, left=True, optional=True)


_LINE = 24  # cells of a line of the program, of which the end tells most


def overview(summaries: Sequence[Summary], width: int, asked: Asked) -> list[Text]:
    """A row for each optimizer, with the first of its variables."""
    several = any(len(summary.replicas) > 1 for summary in summaries)
    lines = program_lines(summaries[0].trace)
    workers = [only_worker(summary.trace, summary.replicas) for summary in summaries]
    copy = replica_noun(summaries[0].trace)
    columns = (
        Column("made in", drop=1, left=True, optional=True),
        Column("worker", drop=5, left=True, optional=True),
        Column("steps"),
        Column("updates"),
        Column(f"per\nstep and\n{copy}" if several else "per step", drop=3),
        Column("Python\ncalls", drop=4),
        Column("updates of", drop=2, left=True),
    )
    table = Table("optimizer", columns)
    for summary, worker in zip(summaries, workers, strict=True):
        root = summary.optimizers[0]
        made = summary.total(measures.updates)
        calls = sum(sum(summary.calls(index)) for index in apply_methods(summary))
        first = [summary.trace.variables[index].name for index in summary.variables[:1]]
        more = f" +{len(summary.variables) - 1:,}" if len(summary.variables) > 1 else ""
        variables = "".join(cut(shown(name), 30, 15) for name in first) + more
        cells = (
            cut(shown(lines.get(summary.root, "")), _LINE, _LINE - 2),
            shown(worker),
            *_cells([summary.steps, made]),
            _per_step(summary, measures.updates),
            f"{calls:,}",
            variables,
        )
        name = f'{shown(class_of(root))} "{shown(root.name)}"'
        table.rows.append(Row(name, cells, style="" if made else WRONG))
    table.below.append(
        "--optimizer NAME has all that is known of one of them"
        if asked.command
        else 'by="variable" has a table for each of them'
    )
    return table.lines(width)


def _per_step(summary: Summary, measure: Selection) -> str:
    """The updates on one replica in a step that made any: `4`, `2-4`, or `?` if it is not known."""
    if summary.unplaced(measure):
        return "?"
    rates = {n for each in summary.replicas for n in summary.rates(measure, each)} or {0}
    return dash(min(rates), max(rates))


def by_variable(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each variable; a long table keeps the first rows and those that are odd."""
    several = len(summary.replicas) > 1
    copy = replica_noun(summary.trace)
    per_step = f"per\nstep and\n{copy}" if several else "per step"
    split = Column(f"by {copy}", drop=4, optional=not several)
    columns = [_KINDS[0], Column(per_step, drop=2), *_KINDS[1:], split, *_EFFECT_COLUMNS]
    extras = _extras(summary)
    all_rows = [
        _variable_row(row, summary, index, extras[index])
        for index, row in zip(summary.variables, rows.by_variable(summary), strict=True)
    ]
    kept = _first(all_rows, MAX_ROWS_IN_FULL if asked.everything else MAX_ROWS)
    noun = summary.dialect.variable
    table = Table(noun, columns, kept)
    if rest := len(all_rows) - len(kept):
        odd = sum(bool(row.note) for row in all_rows) - sum(bool(row.note) for row in kept)
        more = f"… and {some(rest, f'more {noun}')}{f', {odd:,} of them odd' if odd else ''}"
        see = asked.all_of("variable", 'trace.count("updates", by=("variable",))')
        table.below.append(f"{more}: {see} has them all")
    empty = summary.spread(measures.updates)[(0,)]
    if 0 < empty < summary.steps and not summary.unplaced(measures.updates):
        heading = per_step.replace("\n", " ")
        without = f"without the {some(empty, 'step')} that updated nothing"
        table.below.append(f"({heading}: {without})")
    table.below += [_EFFECTS] if summary.effects else []
    return table.lines(width)


_EFFECT_COLUMNS = (
    Column("unchanged", drop=1, optional=True),
    Column("not\nfinite", drop=1, optional=True),
)
_EFFECTS = (
    "(unchanged: after so many steps no bit of it was another one, skipped steps too; not finite: "
    "after so many it held inf or NaN)"
)


class _Extra(NamedTuple):
    """What is said of a variable beside its row."""

    rate: str
    """Updates per step and replica, in the steps that updated anything: `1`, or `0-1` where they
    differ; `?` where the steps are not known."""
    by_replica: str
    why: str
    """`no gradient in 3 steps`, or `nothing was assigned`, or why no step updated anything; empty
    if all gradients were applied."""


def _extras(summary: Summary) -> dict[int, _Extra]:
    """The extras of each variable that is in any entry."""
    extras: dict[int, _Extra] = {}
    unapplied = reason_for_all(summary)
    for pattern in summary.patterns:
        why = _no_gradient(pattern)
        if pattern.has(measures.ineffective):
            why = "nothing was assigned" + (f", {why}" if why else "")
        elif unapplied and pattern.has(measures.requests):
            why = f"{why}, else {unapplied.text}" if why else unapplied.text
        split = _split([pattern.total(measures.updates, each) for each in summary.replicas])
        extra = _Extra(_rate(summary, pattern), split, why)
        extras.update(dict.fromkeys(pattern.variables, extra))
    return extras


def _rate(summary: Summary, pattern: Pattern) -> str:
    if not pattern.has(measures.updates):
        return "0"
    return _per_step(summary, counting(["update"], variable=pattern.variables[0]))


def _no_gradient(pattern: Pattern) -> str:
    if not pattern.has(measures.missing):
        return ""
    spread = pattern.timeline(measures.missing).spread
    steps = sum(number for (count,), number in spread.items() if count)
    lost = pattern.unplaced(measures.missing)
    if not steps and not lost:
        return ""
    return f"no gradient in {'at least ' if lost else ''}{some(steps, 'step')}"


def _variable_row(row: VariableRow, summary: Summary, index: int, extra: _Extra) -> Row:
    name, note = shown(row.variable) or "''", extra.why
    if not row.updates:
        note = f"never updated: {note}" if note else "never updated"
    if summary.trace.variables[index].argument:
        name = name if name.startswith("argument ") else f"argument {name}"
        meaning = "stands for each variable passed"
        note = f"{meaning}; {note}" if note else meaning
    cells = (
        f"{row.updates:,}",
        extra.rate,
        f"{row.dense:,}",
        f"{row.sparse:,}",
        extra.by_replica if len(summary.replicas) > 1 else "",
        *("" if seen is None else f"{seen:,}" for seen in (row.unchanged, row.not_finite)),
    )
    style = WRONG if not row.updates or row.not_finite else ODD if extra.why else ""
    return Row(name, cells, note, style)


def by_step(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for equal steps, however many; a cycle of steps has a row for each of its parts."""
    why = reason(summary)
    all_rows = [_step_row(row, summary, why) for row in rows.by_step(summary)]
    most = MAX_ROWS_IN_FULL if asked.everything else MAX_ROWS
    kept = all_rows if len(all_rows) <= most else all_rows[: most - 1]
    every = f"per step,\nall {replica_noun(summary.trace)}s"
    header = every if len(summary.replicas) > 1 else "per step"
    table = Table(header, (*_KINDS, *_EFFECT_COLUMNS), kept.copy(), cut_names=False)
    lost, outside = (
        [count(measure) for measure in (measures.updates, measures.dense, measures.sparse)]
        for count in (summary.unplaced, summary.outside)
    )
    unknown = ("-", "-") if summary.effects else ("", "")
    if summary.unplaced(measures.steps) or any(lost):
        note = "in all; steps above may have more"
        table.rows.append(Row("step not known", (*_cells(lost), *unknown), note, ODD))
    if any(outside):
        cells = (*_cells(outside), *unknown)
        table.rows.append(Row("outside any step", cells, "in all; a direct call", ODD))
    if rest := len(all_rows) - len(kept):
        see = asked.all_of("step", 'trace.per_step("updates")')
        last = summary.steps + summary.trace.first_step - 1
        more = f"… and {some(rest, 'more row')} up to step {last:,}"
        table.below.append(f"{more}: {see} has them all")
    if summary.effects:
        noun, each = summary.dialect.variable, replica_noun(summary.trace)
        all_counted = f", those of each {each} counted" if len(summary.replicas) > 1 else ""
        said = f"(unchanged, not finite: so many {noun}s were so after the step{all_counted})"
        table.below.append(said)
        if any(row.cells[-1] == "-" for row in kept):
            table.below.append("(-: none was compared in these steps)")
    return table.lines(width)


def _step_row(row: StepRow, summary: Summary, why: Reason) -> Row:
    """The row; `why` gradients that came were not applied, is said beside it."""
    notes = []
    odd = True
    missing, requested = row.requests_without_gradient, row.requests > row.requests_without_gradient
    if not row.on_replicas:
        notes.append("not recorded")
    elif not row.updates:
        said = why.text or "gradients came, none was applied"
        if row.accumulated is not None:
            skipped = f"skipped by {skipper(summary.optimizers)}"
            said = accumulated(summary) if row.accumulated else skipped
        if not requested:
            said = "no gradient came" if missing else "nothing was handed over"
        elif summary.total(measures.ineffective):
            said = "nothing was assigned"
        notes.append(said)
        odd = not (why.usual and said in why.text)
    elif missing:
        notes.append(f"{missing:,} without gradient")
    if 0 < row.on_replicas < len(summary.replicas):
        copies = some(len(summary.replicas), replica_noun(summary.trace))
        notes.append(f"on {row.on_replicas:,} of {copies}")
        odd = True
    cells = _cells([row.updates, row.dense, row.sparse])
    if not row.updates and summary.unplaced(measures.updates):
        notes, cells, odd = ["not known"], ("?",) * len(cells), True
    not_compared = "-" if summary.effects else ""
    seen = (row.unchanged, row.not_finite)
    cells += tuple(not_compared if each is None else f"{each:,}" for each in seen)
    label = steps_label(Steps(row.first, row.last, row.length, row.every))
    style = WRONG if row.not_finite else ODD if notes and odd else ""
    return Row(label, cells, "; ".join(notes), style)


def by_replica(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each replica; one with fewer updates than the others says since when."""
    copy = replica_noun(summary.trace)
    workers = len(rows.workers(summary)) > 1 and copy != "rank"
    names = replica_ids(summary.trace)
    figures = rows.by_replica(summary)
    behind = _behind(
        summary, [[index] for index in summary.replicas], [row.updates for row in figures]
    )
    columns = (
        Column("worker", left=True, optional=True),
        Column("steps"),
        *_KINDS,
        _BEHIND,
        Column("device", drop=4, left=True),
    )
    table = Table(copy, columns)
    devices = _devices(summary)
    shown_rows = len(figures) if asked.everything else MAX_ROWS
    for index, row, late in zip(summary.replicas[:shown_rows], figures, behind, strict=False):
        cells = (
            shown(row.worker) if workers else "",
            *_cells([row.steps, row.updates, row.dense, row.sparse]),
            late or ("-" if any(behind) else ""),
            devices[index],
        )
        style = ODD if row.steps < summary.steps or late else ""
        name = names[index] if copy == "rank" else str(row.replica)
        table.rows.append(Row(name, cells, style=style))
    if rest := len(figures) - len(table.rows):
        more = f"… and {some(rest, f'more {copy}')}"
        table.below.append(f"{more}: {asked.all_of('replica')} has them all")
    return table.lines(width)


def by_worker(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each worker, with its replicas together."""
    figures = rows.by_worker(summary)
    groups = list(rows.workers(summary).values())
    behind = _behind(summary, groups, [row.updates for row in figures])
    ranks = replica_noun(summary.trace) == "rank"  # each is one replica
    columns = (Column("replicas", drop=2, optional=ranks), Column("steps"), *_KINDS, _BEHIND)
    table = Table("worker", columns)
    for row, late in zip(figures, behind, strict=True):
        cells = (
            "" if ranks else f"{row.replicas:,}",
            *_cells([row.steps, row.updates, row.dense, row.sparse]),
            late or ("-" if any(behind) else ""),
        )
        table.rows.append(Row(shown(row.worker) or "(local)", cells, style=ODD if late else ""))
    return table.lines(width)


def _behind(summary: Summary, groups: Sequence[Sequence[int]], updates: Sequence[int]) -> list[str]:
    """For each group of replicas how many updates it is behind the first of those with most."""
    most = max(updates, default=0)
    if len({len(group) for group in groups}) != 1 or len(set(updates)) == 1:
        return [""] * len(groups)
    leaders = groups[updates.index(most)]
    late = []
    for group, number in zip(groups, updates, strict=True):
        missing, since = (0, None) if number == most else summary.behind(group, leaders)
        step = "" if since is None else f" since step {since:,}"
        late.append(f"{missing:,}{step}" if missing else "")
    return late


def by_method(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each method: executions, and beside them the Python calls and their graphs."""
    columns = (
        Column("executions"),
        Column("calls\neager", drop=2),
        Column("calls\ntracing", drop=1),
        Column(f"\n{summary.dialect.program}s", drop=3),
        Column("never\nran", drop=3),
    )
    table = Table("method", columns)
    for name, *figures in rows.by_method(summary):
        style = "" if figures[0] else WRONG
        table.rows.append(Row(shown(name), _cells(figures), style=style))
    if why := why_idle(summary):
        table.below.append(f"({why})")
    return table.lines(width)


TABLES: dict[By, Callable[[Summary, int, Asked], list[Text]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": by_replica,
    "worker": by_worker,
    "method": by_method,
}


def _cells(figures: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{figure:,}" for figure in figures)


def _devices(summary: Summary) -> dict[int, str]:
    """The replicas' devices as `CPU:0`; in full where that would make two of a worker equal."""
    replicas = {index: summary.trace.replicas[index] for index in summary.replicas}
    short = {index: replica.device.rpartition("device:")[2] for index, replica in replicas.items()}
    distinct = {
        (replica.worker, short[index]) for index, replica in replicas.items() if replica.device
    }
    enough = len(distinct) == sum(bool(replica.device) for replica in replicas.values())
    return {
        index: shown(short[index] if enough else replica.device) or "-"
        for index, replica in replicas.items()
    }


def _first(rows: list[Row], most: int) -> list[Row]:
    """The odd rows and then the first others, `most` in all, in their own order."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    return [rows[index] for index in sorted(ranked[:most])]


def _split(summary: Sequence[int]) -> str:
    """`63 + 63`, `63 x 8` for many that are equal, `60-63` for many that are not."""
    if len(summary) <= 3:
        return " + ".join(f"{count:,}" for count in summary)
    low, high = min(summary), max(summary)
    return f"{low:,} x {len(summary):,}" if low == high else dash(low, high)
