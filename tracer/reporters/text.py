"""The report as text: the answer, then the evidence, in tables that fit the terminal."""

import io
from collections.abc import Sequence
from itertools import chain

from rich.console import Console
from rich.text import Text

from tracer.errors import UnknownName, shown
from tracer.findings.rule_list import to_report
from tracer.layout import paragraph
from tracer.model.apply_methods import never_reached
from tracer.model.labels import (
    brand_of,
    class_of,
    only_worker,
    program_lines,
    replica_noun,
)
from tracer.model.programs import endings, runs
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import all_true, some
from tracer.reporters.answer import question, sentences
from tracer.reporters.colors import ODD, WRONG
from tracer.reporters.columns import By
from tracer.reporters.text_tables import IN_FULL, IN_PYTHON, TABLES, Asked, overview

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
    """The report on a trace: question, answer, notes, what looks wrong, and tables.

    `by` picks one table and shows all of its rows; without it the report has every table that says
    something, the long ones shortened with a line that says so, or a line for each optimizer if
    there are more than three. `width` is in terminal cells, 80 if it is not given. `color` adds
    ANSI styles. `command` names options where else arguments of `tracer.report` are named.

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


def printed(lines: Sequence[Text], width: int, color: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)
    return out.getvalue()


# The top of the report.


def _head(trace: Trace, width: int, answered: bool) -> list[Text]:
    """What comes before the tables; without the answer the methods that never ran at most."""
    unreached = (each for summary in summaries_of(trace) for each in never_reached(summary))
    answers = chain.from_iterable(sentences(trace)) if answered else dict.fromkeys(unreached)
    begin, indent = ("Note: ", "") if trace.complete else ("", "  - ")
    blank, findings = ("", "", ""), to_report(trace)
    parts = [  # each with its indent and its style
        *((text, "", ODD) for text in all_true((trace.only, shown(trace.only)))),
        (question(trace), "", "bold"),
        *((sentence, "  ", "") for sentence in answers),
        *chain.from_iterable(
            (blank, (warning, "", ODD if warning is _UNFINISHED else WRONG))
            for warning in warnings(trace)
        ),
        *([blank] if trace.complete and trace.notes else []),
        *((begin + shown(note), indent, ODD) for note in trace.notes),
        *([blank, (_FINDINGS, "", "bold")] if findings else []),
        *chain.from_iterable(
            (
                (
                    f"{each.severity}[{each.code}]: {each.text}",
                    "  ",
                    WRONG if each.severity == "error" else ODD,
                ),
                (each.advice, "    ", ""),
            )
            for each in findings
        ),
    ]
    return [line for text, *look in parts for line in paragraph(text, width, *look)]


def warnings(trace: Trace) -> list[str]:
    """What a reader must know before the counts: the run goes on, failed, or was not all seen."""
    incomplete = 'INCOMPLETE: not everything was seen, so the counts are "at least".'
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
    workers = {trace.replicas[each].worker for each in summary.replicas}
    worker = shown(only_worker(trace, summary.replicas))
    parts = (
        (unlike or (named and not summary.dialect.named_by_class), f' "{shown(root.name)}"'),
        (line, f" of {line}"),
        (nested, f" around {around}"),
        (True, f" ({shown(brand_of(root, trace))})"),
        (strategy, f" under {strategy}"),
        (True, f": {least}{some(summary.steps, 'step')}"),
        (True, f", {some(len(summary.variables), summary.dialect.variable)}"),
        (len(summary.replicas) > 1, f", {some(len(summary.replicas), copy)}"),
        (len(workers) > 1 and copy != "rank", f", {some(len(workers), 'worker')}"),
        (worker, f", in {worker}"),
    )
    return cls + "".join(all_true(*parts))


def _tables(summary: Summary) -> list[By]:
    """The tables that say something."""
    many = len(summary.replicas) > _MANY_REPLICAS
    says: dict[By, bool] = {
        "variable": bool(summary.variables),
        "step": bool(summary.steps),
        "replica": len(summary.replicas) > 1 and not many,
        "worker": many,
        "method": bool(summary.methods),
    }
    return [table for table, something in says.items() if something]
