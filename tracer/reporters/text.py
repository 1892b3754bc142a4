"""The report as text: the answer, then the evidence, in tables that fit the terminal."""

import io
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.console import Console
from rich.text import Text

from tracer.errors import UnknownName, shown
from tracer.findings.catalogue import to_report
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
from tracer.model.wording import some
from tracer.reporters.answer import question, sentences
from tracer.reporters.rows import By
from tracer.reporters.text_tables import ODD, TABLES, WRONG, Asked, overview

_MANY_REPLICAS = 16
_MANY_OPTIMIZERS = 3


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
    if by is not None and by not in get_args(By):
        raise UnknownName(f"no table {by!r}: by is one of {', '.join(get_args(By))}")
    width = max(20, width or 80)
    asked = Asked(everything=by is not None, command=command)
    summaries = summaries_of(trace)
    many = len(summaries) > _MANY_OPTIMIZERS
    lines = [*_head(trace, width, answered=not many), *_findings(trace, width)]
    if many:
        lines += [Text(), *overview(summaries, width, asked)]
    for summary in [] if many and by is None else summaries:
        heading = headline(summary, named=len(summaries) > 1)
        lines += [Text(), *paragraph(heading, width, style="bold")]
        for table in _tables(summary, by):
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


def _head(trace: Trace, width: int, answered: bool) -> Iterator[Text]:
    if trace.only:
        yield from paragraph(shown(trace.only), width, style=ODD)
    yield from paragraph(question(trace), width, style="bold")
    for pair in sentences(trace) if answered else ():
        for sentence in pair:
            yield from paragraph(sentence, width, "  ")
    unreached = [each for summary in summaries_of(trace) for each in never_reached(summary)]
    for sentence in () if answered else dict.fromkeys(unreached):
        yield from paragraph(sentence, width, "  ")
    if not trace.finished:
        yield Text()
        unfinished = "UNFINISHED: the run went on, or was killed, after this was written."
        yield from paragraph(unfinished, width, style=ODD)
    for ending in endings(trace):
        yield Text()
        yield from paragraph(ending, width, style=WRONG)
    if not trace.complete:
        yield Text()
        warning = 'INCOMPLETE: not everything was seen, so the counts are "at least".'
        yield from paragraph(warning, width, style=WRONG)
    elif trace.notes:
        yield Text()
    for note in trace.notes:
        text = shown(note) if not trace.complete else f"Note: {shown(note)}"
        yield from paragraph(text, width, "  - " if not trace.complete else "", ODD)


def _findings(trace: Trace, width: int) -> Iterator[Text]:
    findings = to_report(trace)
    if findings:
        yield Text()
        yield from paragraph("What looks wrong (tracer explain CODE tells more)", width, "", "bold")
    for finding in findings:
        style = WRONG if finding.severity == "error" else ODD
        sentence = f"{finding.severity}[{finding.code}]: {finding.text}"
        yield from paragraph(sentence, width, "  ", style)
        yield from paragraph(finding.advice, width, "    ")


def headline(summary: Summary, named: bool) -> str:
    """`Adam (tf_keras legacy) under MirroredStrategy: 64 steps, 5 variables, 2 replicas`."""
    trace = summary.trace
    root, *nested = summary.optimizers
    cls = shown(class_of(root))
    around = f" around {shown(', '.join(map(class_of, nested)))}" if nested else ""
    unlike = root.name.replace("_", "").lower() != cls.replace("_", "").lower()
    named = named and not summary.dialect.named_by_class
    name = f' "{shown(root.name)}"' if named or unlike else ""
    strategy = trace.environment.get("strategy", "")
    under = f" under {shown(strategy)}" if strategy else ""
    least = "" if trace.complete else "at least "
    counts = [
        least + some(summary.steps, "step"),
        some(len(summary.variables), summary.dialect.variable),
    ]
    copy = replica_noun(trace)
    if len(summary.replicas) > 1:
        counts.append(some(len(summary.replicas), copy))
    if (
        copy != "rank"
        and (workers := len({trace.replicas[each].worker for each in summary.replicas})) > 1
    ):
        counts.append(some(workers, "worker"))
    if worker := only_worker(trace, summary.replicas):
        counts.append(f"in {shown(worker)}")
    line = program_lines(trace).get(summary.root, "")
    of = f" of {shown(line)}" if line else ""
    by = shown(brand_of(root, trace))
    return f"{cls}{name}{of}{around} ({by}){under}: {', '.join(counts)}"


def _tables(summary: Summary, by: By | None) -> list[By]:
    if by is not None:
        return [by]
    tables: list[By] = ["variable"] if summary.variables else []
    if summary.steps:
        tables.append("step")
    if len(summary.replicas) > 1:
        tables.append("worker" if len(summary.replicas) > _MANY_REPLICAS else "replica")
    return [*tables, "method"] if summary.methods else tables
