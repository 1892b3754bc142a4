"""The report as text: the answer, the notes and findings, and tables that fit the terminal.

The tables are those of `tracer.reporters.columns`. The texts of `tracer explain` are here as well.
"""

from collections.abc import Sequence
from itertools import zip_longest

from rich.text import Text

from tracer import layout
from tracer.errors import shown
from tracer.findings.rule import Rule, to_report
from tracer.layout import paragraph, printed
from tracer.model import facts
from tracer.model.phrases import runs
from tracer.model.trace import Trace, summaries_of
from tracer.model.words import all_true
from tracer.reporters import columns
from tracer.reporters.answer import UNFINISHED, headline, in_all, question, sentences, warnings
from tracer.reporters.columns import By

MAX_ROWS = 30  # rows of a table in the whole report
MAX_ROWS_IN_FULL = 1000  # rows of a single table
_MANY_OPTIMIZERS = 3
WARNING, ERROR = "bold yellow", "bold red"
"""Styles for possible faults, as skipped steps, and for certain ones."""
_FINDINGS = "What looks wrong (tracer explain CODE tells more)"
_STYLES = {"error": ERROR, "warning": WARNING, "quiet": "", "": ""}


def render(
    trace: Trace,
    by: By | None = None,
    part: columns.Part = columns.WHOLE,
    *,
    width: int | None = None,
    color: bool = False,
    command: bool = False,
) -> str:
    """The report on a trace: question, answer, notes, findings, and tables.

    `by` selects one table and shows all its rows. Without it, the report has every table with
    content, shortened if it is long, or one line for each optimizer if there are more than three.
    `part` picks rows. `width` is in terminal cells, 80 by default. `color` adds ANSI styles. With
    `command`, hints name options of `tracer report` rather than arguments of `tracer.report`.

    Raises `tracer.UnknownName` as `columns.sections` does.
    """
    width = max(20, width or 80)
    see = "--by {}" if command else 'by="{}"'
    sections = columns.sections(trace, by, part)
    summaries = [summary for summary, _ in sections]
    named = len(summaries_of(trace)) > 1
    many = len(sections) > _MANY_OPTIMIZERS and not part.text
    lines = _head(trace, part, width, answered=not many)
    if many:
        hint = f"{see.format('variable')} has a table for each of them" if by is None else ""
        lines += [Text(), *drawn(columns.optimizers(summaries), width, len(summaries), hint)]
    for summary, tables in [] if many and by is None else sections:
        if not tables:
            continue
        lines += [Text(), *paragraph(headline(summary, named), width, style="bold")]
        for table in tables:
            most, hint = MAX_ROWS, see.format(table.by)
            if by:
                most, hint = MAX_ROWS_IN_FULL, f"--by {by} --format csv"
            lines += [Text(), *drawn(table, width, most, more=f": {hint} has them all")]
    for ran in runs(trace):
        lines += [Text(), *paragraph(f"Ran: {ran}", width)]
    return printed(lines, width, color)


def drawn(
    table: columns.Table, width: int, most: int, below: str = "", more: str = ""
) -> list[Text]:
    """The first rows of a table as lines; `more` says where those left out are."""
    (rows, left), shown_columns, lines = table.first(most), table.shown, []
    for row in rows:
        cells = [row.values.get(column.name) for column in shown_columns]
        plain = [shown(cell) if isinstance(cell, str) else cell for cell in cells]
        plain[0] = plain[0] or "''"
        lines.append(layout.Line(plain, row.note, _STYLES[row.level]))
    remarks = [*all_true((left, f"... and {left}{more}"), (below, below)), *table.below]
    return layout.tabulated(shown_columns, lines, width, remarks)


# The top of the report.


def _head(trace: Trace, part: columns.Part, width: int, answered: bool) -> list[Text]:
    """The lines above the tables; if not `answered`, totals instead of answers."""
    lines: list[Text] = []

    def add(text: str, indent: str = "", style: str = "") -> None:
        lines.extend(paragraph(text, width, indent, style))

    if part.text:
        add(shown(part.text), style=WARNING)
    add(question(trace), style="bold")
    every, roots = summaries_of(trace), part.roots
    chosen = [each for each in every if roots is None or each.root in roots]
    for pair, summary in zip_longest(sentences(trace, roots), chosen) if answered else ():
        for said in filter(None, pair):
            add(said, "  ")
        for fact in facts.sentences_on(summary) if summary else ():
            add(fact, "    " if len(every) > 1 else "  ")
    for said in in_all(trace):
        add(said, "  ")
    for warning in warnings(trace):
        lines.append(Text())
        add(warning, style=WARNING if warning is UNFINISHED else ERROR)
    if trace.complete and trace.notes:
        lines.append(Text())
    for note in trace.notes:
        begin, indent = ("Note: ", "") if trace.complete else ("", "  - ")
        add(begin + shown(note), indent, WARNING)
    if findings := to_report(trace):
        lines.append(Text())
        add(_FINDINGS, style="bold")
    for finding in findings:
        text = f"{finding.severity}[{finding.code}]: {finding.text}"
        add(text, "  ", _STYLES[finding.severity])
        add(finding.advice, "    ")
    return lines


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
