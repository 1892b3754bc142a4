"""The report as Markdown, for a pull request or a page."""

import re
from collections.abc import Iterator, Sequence

from tracer.errors import shown
from tracer.findings.catalogue import to_report
from tracer.model.programs import runs
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters.answer import question, sentences
from tracer.reporters.columns import TABLES, TREES, By, Row, Value
from tracer.reporters.tables import rows
from tracer.reporters.text import headline, warnings
from tracer.reporters.text_tables import IN_FULL, TABLES as TEXT_TABLES

_WIDTH = 100  # of a tree
_SPECIAL = {ord(char): f"\\{char}" for char in "\\`*_{}[]<>#|~"}


def render(trace: Trace, by: By | None = None) -> str:
    """The report in GitHub's Markdown; `by` picks one table."""
    return "\n".join(_lines(trace, by)) + "\n"


def _lines(trace: Trace, by: By | None) -> Iterator[str]:
    yield f"**{_plain(question(trace))}**"
    if trace.only:
        yield f"\n{_plain(trace.only)}"
    for pair in sentences(trace):
        yield f"\n{_plain(' '.join(pair))}"
    for warning in warnings(trace):
        yield f"\n**{_plain(warning)}**"
    if trace.notes:
        yield ""
    yield from (f"- {_plain(note)}" for note in trace.notes)
    summaries = summaries_of(trace)
    for summary in summaries:
        yield f"\n### {_plain(headline(summary, named=len(summaries) > 1))}"
        for table in TABLES if by is None else (by,):
            if table in TREES:
                yield from _fenced(summary, table)
            elif made := rows(summary, table):
                yield from ("", f"By {table}:", "", *_table(made))
    wrong = to_report(trace)
    if wrong:
        yield "\n### What looks wrong\n"
    for each in wrong:
        said = _plain(f"{each.code}: {each.text} {each.advice}")
        yield f"- **{each.severity}** {said}"
    yield from (f"\nRan: {_plain(ran)}" for ran in runs(trace))


def _fenced(summary: Summary, tree: By) -> Iterator[str]:
    """A tree as the text report has it, in a fence that nothing in it can end."""
    lines = [line.plain for line in TEXT_TABLES[tree](summary, _WIDTH, IN_FULL)]
    longest = max(map(len, re.findall("`+", "".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{fence}text", *lines, fence)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """A table without the columns that are empty in every row."""
    columns = [
        (name, column)
        for name, *column in zip(rows[0]._fields, *rows, strict=True)
        if any(value is not None for value in column)
    ]
    yield "| " + " | ".join(name.replace("_", " ") for name, _ in columns) + " |"
    text = (isinstance(column[0], str) for _, column in columns)
    yield "|" + "|".join(" --- " if each else " ---: " for each in text) + "|"
    for row in zip(*(column for _, column in columns), strict=True):
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _cell(value: Value) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return _plain(value or "")


def _plain(text: str) -> str:
    """The text on one line, with what Markdown would act on escaped."""
    return shown(text).translate(_SPECIAL)
