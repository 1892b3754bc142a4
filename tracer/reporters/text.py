"""The report as text: the answer, the notes and findings, and tables that fit the terminal.

`COLUMNS` lists the columns of each table. A row has a value for each: the field of that name of the
row in `tables`, or a value computed here because only this format has it. The texts of `tracer
explain` are here as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

from rich.text import Text

from tracer.errors import UnknownName, shown
from tracer.findings.rule import Rule
from tracer.findings.run_rules import to_report
from tracer.layout import Column, Figure, Row, Table, cut, paragraph, printed
from tracer.model import measures, rates
from tracer.model.phrases import (
    SET_TO_ZERO,
    Reason,
    accumulated,
    brand_of,
    class_of,
    endings,
    never_reached,
    program_lines,
    reason,
    reason_for_all,
    replica_ids,
    replica_noun,
    runs,
    skipper,
    steps_label,
    why_idle,
)
from tracer.model.summary import Pattern, Summary, summaries_of
from tracer.model.timeline import Steps
from tracer.model.trace import Trace
from tracer.model.words import all_true, dash, first_true, listed, some
from tracer.reporters import tables
from tracer.reporters.answer import in_all, question, sentences
from tracer.reporters.colors import ERROR, WARNING
from tracer.reporters.tables import By, StepRow

MAX_ROWS = 30  # rows of a table in the whole report
MAX_ROWS_IN_FULL = 1000  # rows of a single table
_LINE = 24  # cells for a line of the program; longer ones lose their start

_UPDATES = {
    "updates": Column("updates"),
    "dense": Column("dense", drop=3),
    "sparse": Column("sparse", drop=3),
}
_BEHIND = {"behind": Column("behind", drop=3, left=True, optional=True)}
_EFFECTS = {
    "unchanged": Column("unchanged", drop=1, optional=True),
    "not_finite": Column("NaN/inf", drop=1, optional=True),
}
COLUMNS: Mapping[By | Literal["optimizer"], Mapping[str, Column]] = {
    "optimizer": {
        "": Column("optimizer"),
        "made_in": Column("made in", drop=1, left=True, optional=True),
        "worker": Column("worker", drop=5, left=True, optional=True),
        "steps": Column("steps"),
        "updates": Column("updates"),
        "per_step": Column("{per_step}", drop=3),
        "calls": Column("Python\ncalls", drop=4),
        "updates_of": Column("updates of", drop=2, left=True),
    },
    "variable": {
        "": Column("{variable}"),
        "updates": Column("updates"),
        "per_step": Column("{per_step}", drop=2),
        "dense": Column("dense", drop=3),
        "sparse": Column("sparse", drop=3),
        "by_replica": Column("by {replica}", drop=4, optional=True),
        **_EFFECTS,
    },
    "step": {"": Column("{per_step_of_all}"), **_UPDATES, **_EFFECTS},
    "replica": {
        "": Column("{replica}"),
        "steps": Column("steps"),
        **_UPDATES,
        **_BEHIND,
        "device": Column("device", drop=4, left=True),
    },
    "worker": {
        "": Column("worker"),
        "replicas": Column("replicas", drop=2, optional=True),
        "steps": Column("steps"),
        **_UPDATES,
        **_BEHIND,
    },
    "method": {
        "": Column("method"),
        "executions": Column("executions"),
        "calls_eager": Column("calls\neager", drop=2),
        "calls_tracing": Column("calls\ntracing", drop=1),
        "graphs": Column("\n{program}s", drop=3),
        "graphs_never_ran": Column("never\nran", drop=3),
    },
    "caller": {
        "": Column("who calls"),
        "executions": Column("executions"),
        "steps": Column("steps", drop=2),
        "calls": Column("Python\ncalls", drop=1),
    },
    "layer": {
        "": Column("layer"),
        "variables": Column("{variable}s", drop=3),
        "updates": Column("updates"),
        "dense": Column("dense", drop=4),
        "sparse": Column("sparse", drop=4),
    },
}
"""The columns of each table, in order, by the key of their values; the column of names has no key.
Words in braces depend on the trace.
"""

_Line = tuple[str, Mapping[str, Figure], str, str]
"""The name of a row, its values by column (others are ignored), a note, and a style."""


class Asked(NamedTuple):
    """Limits and wording that depend on how the report was requested."""

    most: int = MAX_ROWS
    """The most rows of a table."""
    see: str = "--by {}"
    """How to request all rows of one table."""

    def more(self, rest: str, by: By) -> str:
        """The line below a table whose rows were cut."""
        return f"… and {rest}: {self.see.format(by)} has them all"


IN_PYTHON = Asked(see='by="{}"')
IN_FULL = Asked(MAX_ROWS_IN_FULL, "--by {} --format csv")
"""A single table."""


def _columns(by: By | Literal["optimizer"], *summaries: Summary) -> list[Column]:
    """The columns of a table, the names first, with headers in the words of these optimizers."""
    dialect, copy = summaries[0].dialect, replica_noun(summaries[0].trace)
    several = any(len(summary.replicas) > 1 for summary in summaries)
    words = {
        "variable": dialect.variable,
        "program": dialect.program,
        "replica": copy,
        "per_step": f"per\nstep and\n{copy}" if several else "per step",
        "per_step_of_all": f"per step,\nall {copy}s" if several else "per step",
    }
    columns = COLUMNS[by].values()
    return [replace(each, header=each.header.format_map(words)) for each in columns]


def _table(
    by: By | Literal["optimizer"],
    summaries: Sequence[Summary],
    rows: Iterable[_Line],
    below: Sequence[str] = (),
) -> Table:
    """A table of these rows, with the columns that `COLUMNS` has for it."""
    names, *columns = _columns(by, *summaries)
    keys = [key for key in COLUMNS[by] if key]
    made = [Row(name, [values[key] for key in keys], *said) for name, values, *said in rows]
    return Table(names.header, columns, made, cut_names=by not in ("step", "caller"), below=below)


def _cut(by: By, noun: str, rows: Sequence[_Line], asked: Asked) -> tuple[list[_Line], str]:
    """The odd rows (with a note or a style), filled up with the first of the others.

    Also the line that says how many rows are omitted; empty if none.
    """
    odd = {index for index, (_, _, *look) in enumerate(rows) if any(look)}
    order = sorted(range(len(rows)), key=lambda index: (index not in odd, index))
    rest = set(order[asked.most :])
    more = some(len(rest), f"more {noun}") + (
        f", {len(odd & rest):,} of them odd" if odd & rest else ""
    )
    kept = [row for index, row in enumerate(rows) if index not in rest]
    return kept, asked.more(more, by) if rest else ""


def overview(summaries: Sequence[Summary], width: int, asked: Asked) -> list[Text]:
    """A row for each optimizer, with its first variable."""
    below = all_true(
        (asked is not IN_FULL, f"{asked.see.format('variable')} has a table for each of them")
    )
    return _table("optimizer", summaries, map(_optimizer, summaries), below).lines(width)


def _optimizer(summary: Summary) -> _Line:
    root, trace = summary.optimizers[0], summary.trace
    updates = summary.total(measures.updates)
    first, *more = [trace.variables[index].name for index in summary.variables] or [""]
    line = trace.derived(program_lines).get(summary.root, "")
    values: dict[str, Figure] = {
        "made_in": cut(shown(line), _LINE, _LINE - 2),
        "worker": shown(summary.only_worker),
        "steps": summary.steps,
        "updates": updates,
        "per_step": _per_step(summary, measures.updates, summary.replicas),
        "calls": sum(sum(summary.calls(index)) for index in summary.apply_methods),
        "updates_of": cut(shown(first), 30, 15) + (f" +{len(more):,}" if more else ""),
    }
    kind, name = shown(class_of(root)), shown(root.name)
    title = name if name.partition("#")[0] == kind else f'{kind} "{name}"'  # adam#2 of optax
    return title, values, "", "" if updates else ERROR


def _per_step(summary: Summary, measure: measures.Selection, replicas: Sequence[int]) -> str:
    """The updates per step on `replicas`, in steps with any: `4`, `2-4`, or `?` if unknown."""
    if summary.step_unknown(measure):
        return "?"
    rates = {n for each in replicas for n in summary.rates(measure, each)} or {0}
    return dash(min(rates), max(rates))


def by_variable(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each variable; a long table has the odd rows and the first of the others."""
    kept, more = _cut("variable", summary.dialect.variable, _variables(summary), asked)
    empty = summary.spread(measures.updates)[(0,)]
    known = not summary.step_unknown(measures.updates)
    heading = _columns("variable", summary)[2].header.replace("\n", " ")
    below = all_true(
        (more, more),
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
    return _table("variable", [summary], kept, below).lines(width)


def _variables(summary: Summary) -> list[_Line]:
    made = {}
    figures = dict(zip(summary.variables, tables.by_variable(summary), strict=True))
    unapplied = reason_for_all(summary)
    for pattern in summary.patterns:
        row, why = figures[pattern.variables[0]], _why_without(pattern, unapplied)
        by_replica = [pattern.total(measures.updates, each) for each in summary.replicas]
        values = {
            **row._asdict(),
            "per_step": _per_step(
                summary,
                measures.counting(["update"], variable=pattern.variables[0]),
                summary.replicas_with(pattern),
            ),
            "by_replica": _split(by_replica) if len(by_replica) > 1 else "",
        }
        said = ": ".join(all_true((not row.updates, "never updated"), (why, why)))
        meaning = "stands for each variable passed"
        note = "; ".join(all_true((pattern.argument, meaning), (said, said)))
        idle = not row.updates and why != SET_TO_ZERO
        style = ERROR if idle or row.not_finite else WARNING if why else ""
        for index in pattern.variables:
            name = shown(summary.trace.variables[index].name) or "''"
            if pattern.argument:
                name = f"argument {name.removeprefix('argument ')}"
            made[index] = name, values, note, style
    return [made[index] for index in summary.variables]


def _why_without(pattern: Pattern, unapplied: Reason | None) -> str:
    """`no gradient in 3 steps`, or why no step updated anything."""
    steps = sum(n for (count,), n in pattern.spread(measures.missing).items() if count)
    zeroed = sum(n for (count,), n in pattern.spread(measures.zeroed).items() if count)
    when = f" in {some(zeroed, 'step')}" if pattern.total(measures.updates) else ""
    lost = pattern.step_unknown(measures.missing)
    missing = f"no gradient in {'at least ' if lost else ''}{some(steps, 'step')}"
    parts = all_true(
        (zeroed, f"{SET_TO_ZERO}{when}"),
        (steps or lost, missing),
    )
    if unapplied and unapplied.text not in parts and pattern.has(measures.requests):
        parts.append(f"else {unapplied.text}" if parts else unapplied.text)
    return ", ".join(parts)


def _split(counts: Sequence[int]) -> str:
    """`63 + 63`; `63 x 8` for many equal counts, `60-63` for many different ones."""
    if len(counts) <= 3:
        return " + ".join(f"{count:,}" for count in counts)
    low, high = min(counts), max(counts)
    return f"{low:,} x {len(counts):,}" if low == high else dash(low, high)


def by_step(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each stretch of equal steps; a cycle of steps has a row for each of its parts."""
    figures = tables.by_step(summary)
    why = reason(summary)
    kept = figures if len(figures) <= asked.most else figures[: asked.most - 1]
    rows = [_step(row, summary, why) for row in kept]
    unseen = dict.fromkeys(_EFFECTS)
    for count, name, note in (
        (summary.step_unknown, "step not known", "in all; steps above may have more"),
        (summary.outside, "outside any step", "in all; a direct call"),
    ):
        counts = {key: count(getattr(measures, key)) for key in _UPDATES}
        if any(counts.values()) or (count == summary.step_unknown and count(measures.steps)):
            rows.append((name, counts | unseen, note, WARNING))
    compared = [row.unchanged is not None for row in kept]
    copy, noun = replica_noun(summary.trace), f"{summary.dialect.variable}s"
    those = "shards" if any(map(summary.is_sharded, summary.patterns)) else "those"
    each = f", {those} of each {copy} counted" if len(summary.replicas) > 1 else ""
    more = some(len(figures) - len(kept), "more row")
    last = summary.steps + summary.trace.first_step - 1
    below = all_true(
        (len(kept) < len(figures), asked.more(f"{more} up to step {last:,}", "step")),
        (any(compared), f"(unchanged, NaN/inf: how many {noun} were so after the step{each})"),
        (any(compared) and not all(compared), "(-: none was compared in these steps)"),
    )
    return _table("step", [summary], rows, below).lines(width)


def _step(row: StepRow, summary: Summary, why: Reason) -> _Line:
    """The row, with a note that says why it has no update, or what is missing."""
    missing = row.requests_without_gradient
    unknown = not row.updates and summary.step_unknown(measures.updates)
    on_some = 0 < row.on_replicas < len(summary.replicas) and not unknown
    copies = some(len(summary.replicas), replica_noun(summary.trace))
    said = first_true(
        (unknown, "not known"),
        (not row.on_replicas, "not recorded"),
        (row.updates, f"{missing:,} without gradient" if missing else ""),
        (not row.requests, "nothing was passed"),
        (row.requests == missing, "no gradient came"),
        (row.accumulated, accumulated(summary)),
        (row.accumulated == 0, f"skipped by {skipper(summary.optimizers)}"),
        (why.text, why.text),
        (True, "gradients came, none was applied"),
    )
    note = "; ".join(all_true((said, said), (on_some, f"on {row.on_replicas:,} of {copies}")))
    expected = not row.updates and why.usual and said in why.text and not on_some
    values = row._asdict() | (dict.fromkeys(_UPDATES, "?") if unknown else {})
    label = steps_label(Steps(row.first, row.last, row.length, row.every))
    return (
        label,
        values,
        note,
        ERROR if row.not_finite else WARNING if note and not expected else "",
    )


def by_group(by: By, summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each replica or worker, with how many updates it is behind, and since when."""
    trace, noun = summary.trace, replica_noun(summary.trace)
    ids = replica_ids(trace)
    figures: Sequence[Any] = tables.rows(summary, by)
    groups = [(ids[index], [index]) for index in summary.replicas]
    if by == "worker":
        groups = [(worker or "(local)", indices) for worker, indices in summary.workers.items()]
    behind = _behind(summary, [group for _, group in groups])
    rows: list[_Line] = []
    for (name, group), row, late in zip(groups, figures, behind, strict=True):
        extra = {
            "replicas": None if noun == "rank" else len(group),  # each rank is one
            "device": shown(trace.replicas[group[0]].device.rpartition("device:")[2]) or None,
            "behind": late,
        }
        style = WARNING if row.steps < summary.steps or late else ""
        rows.append((shown(name), row._asdict() | extra, "", style))
    kept, more = _cut(by, noun if by == "replica" else by, rows, asked)
    return _table(by, [summary], kept, all_true((more, more))).lines(width)


def _behind(summary: Summary, groups: Sequence[Sequence[int]]) -> list[str | None]:
    """For each group of replicas, how many updates it is behind the first group with the most."""
    totals = [sum(summary.total(measures.updates, each) for each in group) for group in groups]
    parts = summary.is_partitioned or any(map(summary.is_sharded, summary.patterns))
    if parts or len({len(group) for group in groups}) != 1 or len(set(totals)) == 1:
        return [None] * len(groups)
    leaders = groups[totals.index(max(totals))]
    found = [summary.behind(group, leaders) for group in groups]
    return [
        f"{missing:,}{f' since step {since:,}' if since else ''}" if missing else None
        for missing, since in found
    ]


def by_method(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each method: executions, Python calls, and the graphs that calls traced."""
    rows: list[_Line] = [
        (shown(row.method), row._asdict(), "", "" if row.executions else ERROR)
        for row in tables.by_method(summary)
    ]
    why = why_idle(summary)
    return _table("method", [summary], rows, all_true((why, f"({why})"))).lines(width)


def by_caller(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each line of the program that called the methods in question."""
    rows: list[_Line] = []
    for row in tables.by_caller(summary):
        look = ("", "") if row.executions else ("never ran", WARNING)
        rows.append((row.caller, row._asdict(), *look))
    kept, more = _cut("caller", "line", rows, asked)
    return _table("caller", [summary], kept, all_true((more, more))).lines(width)


def by_layer(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each group of variables whose names begin alike."""
    rows: list[_Line] = []
    for row in tables.by_layer(summary):
        all_idle = row.never_updated == row.variables
        note = "never updated" if all_idle else f"{row.never_updated:,} never updated"
        look = (note, ERROR if all_idle else WARNING) if row.never_updated else ("", "")
        rows.append((shown(row.layer) or "''", row._asdict(), *look))
    kept, more = _cut("layer", "row", rows, asked)
    return _table("layer", [summary], kept, all_true((more, more))).lines(width)


TABLES: dict[By, Callable[[Summary, int, Asked], list[Text]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": partial(by_group, "replica"),
    "worker": partial(by_group, "worker"),
    "method": by_method,
    "caller": by_caller,
    "layer": by_layer,
}


# The report.

_MANY_REPLICAS = 16
_MANY_OPTIMIZERS = 3
_UNFINISHED = "UNFINISHED: the run went on, or was killed, after this was written."

_FINDINGS = "What looks wrong (tracer explain CODE tells more)"


def render(
    trace: Trace,
    by: By | None = None,
    *,
    width: int | None = None,
    color: bool = False,
    command: bool = False,
) -> str:
    """The report on a trace: question, answer, notes, findings, and tables.

    `by` selects one table and shows all its rows. Without it, the report has every table with
    content, shortened if it is long, or one line for each optimizer if there are more than three.
    `width` is in terminal cells, 80 by default. `color` adds ANSI styles. With `command`, hints
    name options of `tracer report` rather than arguments of `tracer.report`.

    Raises `tracer.UnknownName` for a table that does not exist.
    """
    if by is not None and by not in TABLES:
        raise UnknownName(f"no table {by!r}: by is one of {', '.join(TABLES)}")
    width = max(20, width or 80)
    asked = IN_FULL if by else Asked() if command else IN_PYTHON
    summaries = summaries_of(trace)
    many = len(summaries) > _MANY_OPTIMIZERS
    lines = _head(trace, width, answered=not many)
    if many:
        lines += [Text(), *overview(summaries, width, asked)]
    for summary in [] if many and by is None else summaries:
        heading = headline(summary, named=len(summaries) > 1)
        lines += [Text(), *paragraph(heading, width, style="bold")]
        for table in _tables(summary) if by is None else [by]:
            lines += [Text(), *TABLES[table](summary, width, asked)]
    for ran in runs(trace):
        lines += [Text(), *paragraph(f"Ran: {ran}", width)]
    return printed(lines, width, color)


# The top of the report.


def _head(trace: Trace, width: int, answered: bool) -> list[Text]:
    """The lines above the tables; if not `answered`, totals instead of answers."""
    unreached = (each for summary in summaries_of(trace) for each in never_reached(summary))
    answers = chain.from_iterable(sentences(trace)) if answered else dict.fromkeys(unreached)
    begin, indent = ("Note: ", "") if trace.complete else ("", "  - ")
    blank, findings = ("", "", ""), to_report(trace)
    parts = [  # text, indent and style
        *((text, "", WARNING) for text in all_true((trace.excerpt, shown(trace.excerpt)))),
        (question(trace), "", "bold"),
        *((sentence, "  ", "") for sentence in (*answers, *in_all(trace, answered))),
        *((said, "  ", "") for said in rates.sentences(trace) if answered),
        *chain.from_iterable(
            (blank, (warning, "", WARNING if warning is _UNFINISHED else ERROR))
            for warning in warnings(trace)
        ),
        *([blank] if trace.complete and trace.notes else []),
        *((begin + shown(note), indent, WARNING) for note in trace.notes),
        *([blank, (_FINDINGS, "", "bold")] if findings else []),
        *chain.from_iterable(
            (
                (
                    f"{each.severity}[{each.code}]: {each.text}",
                    "  ",
                    ERROR if each.severity == "error" else WARNING,
                ),
                (each.advice, "    ", ""),
            )
            for each in findings
        ),
    ]
    return [line for text, *look in parts for line in paragraph(text, width, *look)]


def warnings(trace: Trace) -> list[str]:
    """What readers must know before the counts: the run is unfinished, failed, or is incomplete."""
    incomplete = 'INCOMPLETE: the counts are "at least", unless a note says otherwise.'
    unfinished = all_true((not trace.finished, _UNFINISHED))
    return [*unfinished, *endings(trace), *all_true((not trace.complete, incomplete))]


def headline(summary: Summary, named: bool) -> str:
    """`Adam (tf_keras legacy) under MirroredStrategy: 64 steps, 5 variables, 2 replicas`."""
    trace = summary.trace
    root, *nested = summary.optimizers
    cls, copy = shown(class_of(root)), replica_noun(trace)
    around = shown(", ".join(map(class_of, nested)))
    unlike = root.name.replace("_", "").lower() != cls.replace("_", "").lower()
    line = shown(program_lines(trace).get(summary.root, ""))
    strategy = shown(trace.environment.get("strategy", ""))
    least = "" if trace.complete else "at least "
    worker, workers = shown(summary.only_worker), summary.workers
    parts = (
        (unlike or (named and not summary.dialect.named_by_class), f' "{shown(root.name)}"'),
        (line, f" of {line}"),
        (nested, f" around {around}"),
        (True, f" ({shown(brand_of(root, trace))})"),
        (strategy, f" under {strategy}"),
        (True, f": {least}{some(summary.steps, 'step')}"),
        (True, f", {some(len(summary.variables), summary.dialect.variable)}{_shards(summary)}"),
        (len(summary.replicas) > 1, f", {some(len(summary.replicas), copy)}"),
        (len(workers) > 1 and copy != "rank", f", {some(len(workers), 'worker')}"),
        (worker, f", in {worker}"),
    )
    return cls + "".join(all_true(*parts))


def _shards(summary: Summary) -> str:
    """` sharded 2 ways` if all variables are, ` (3 sharded 2 ways)` if some are."""
    every = Counter(summary.trace.variables[index].shards for index in summary.variables)
    said = [(number, f"sharded {n:,} ways") for n, number in sorted(every.items()) if n > 1]
    if len(every) == 1:
        return "".join(f" {ways}" for _, ways in said)
    return f" ({listed([f'{number:,} {ways}' for number, ways in said])})" if said else ""


def _tables(summary: Summary) -> list[By]:
    """The tables with content."""
    many = len(summary.replicas) > _MANY_REPLICAS
    says: dict[By, bool] = {
        "variable": bool(summary.variables),
        "step": bool(summary.steps),
        "replica": len(summary.replicas) > 1 and not many,
        "worker": many,
        "method": bool(summary.methods),
    }
    return [table for table, something in says.items() if something]


# The texts of `tracer explain`.


def listing(rules: Sequence[Rule], width: int | None, color: bool) -> str:
    """A line for each rule; titles wrap in a narrow terminal."""
    width = max(40, width or 80)
    longest = max(len(rule.code) for rule in rules)
    lines = []
    for rule in rules:
        name = f"{rule.code:{longest}}  {rule.severity:7}  "
        first, *rest = paragraph(rule.title, width, name)
        first.stylize("bold", 0, len(name))
        lines += [first, *rest]
    return printed(lines, width, color)


def explanation(rule: Rule, width: int | None, color: bool) -> str:
    """The full explanation of one rule."""
    width = max(40, width or 80)
    lines = paragraph(f"{rule.code} ({rule.severity}): {rule.title}", width, style="bold")
    texts = {"Why it matters": rule.why, **rule.advices, "When it is reported": rule.explanation}
    for name, text in texts.items():
        lines += [Text(), Text(name, "bold"), *paragraph(text, width, "  ")]
    return printed(lines, width, color)
