"""The report as Markdown, for a pull request or a page."""

import re
from collections.abc import Iterator, Sequence

from tracer.errors import shown
from tracer.findings.rule_list import to_report
from tracer.model.labels import runs
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters.answer import question, sentences
from tracer.reporters.tables import TABLES, TREES, By, Row, Value, rows
from tracer.reporters.text import IN_FULL, TABLES as TEXT_TABLES, headline, warnings

_WIDTH = 100  # of a tree
_SPECIAL = {ord(char): f"\\{char}" for char in "\\`*_{}[]<>#|~"}


def render(trace: Trace, by: By | None = None) -> str:
    """The report in GitHub's Markdown; `by` picks one table."""
    summaries, wrong = summaries_of(trace), to_report(trace)
    parts = [
        f"**{_plain(question(trace))}**",
        _plain(trace.only),
        *(_plain(" ".join(pair)) for pair in sentences(trace)),
        *(f"**{_plain(warning)}**" for warning in warnings(trace)),
        "\n".join(f"- {_plain(note)}" for note in trace.notes),
        *(part for summary in summaries for part in _parts(summary, by, len(summaries) > 1)),
        "### What looks wrong" if wrong else "",
        "\n".join(
            f"- **{each.severity}** " + _plain(f"{each.code}: {each.text} {each.advice}")
            for each in wrong
        ),
        *(_plain(f"Ran: {ran}") for ran in runs(trace)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _parts(summary: Summary, by: By | None, named: bool) -> Iterator[str]:
    """What there is on an optimizer."""
    yield f"### {_plain(headline(summary, named=named))}"
    for table in TABLES if by is None else (by,):
        if table in TREES:
            yield _fenced(summary, table)
        elif made := rows(summary, table):
            yield f"By {table}:\n\n{_table(made)}"


def _fenced(summary: Summary, tree: By) -> str:
    """A tree as the text report has it, in a fence that nothing in it can end."""
    lines = [line.plain for line in TEXT_TABLES[tree](summary, _WIDTH, IN_FULL)]
    longest = max(map(len, re.findall("`+", "".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}text", *lines, fence))


def _table(rows: Sequence[Row]) -> str:
    """A table without the columns that are empty in every row."""
    columns = [
        (
            name.replace("_", " "),
            "---" if isinstance(column[0], str) else "---:",
            *map(_cell, column),
        )
        for name, *column in zip(rows[0]._fields, *rows, strict=True)
        if any(value is not None for value in column)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True))


def _cell(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else _plain(value or "")


def _plain(text: str) -> str:
    """The text on one line, with what Markdown would act on escaped."""
    return shown(text).translate(_SPECIAL)
