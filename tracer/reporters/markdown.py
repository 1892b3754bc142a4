"""The report as Markdown, for a pull request or a page."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

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
    summaries, wrong = summaries_of(trace), to_report(trace)
    tables, named = TABLES if by is None else (by,), len(summaries) > 1
    parts = [
        f"**{_plain(question(trace))}**",
        *([f"\n{_plain(trace.only)}"] if trace.only else []),
        *(f"\n{_plain(' '.join(pair))}" for pair in sentences(trace)),
        *(f"\n**{_plain(warning)}**" for warning in warnings(trace)),
        *([""] if trace.notes else []),
        *(f"- {_plain(note)}" for note in trace.notes),
        *chain.from_iterable(_optimizer(each, tables, named) for each in summaries),
        *(["\n### What looks wrong\n"] if wrong else []),
        *(f"- **{e.severity}** {_plain(f'{e.code}: {e.text} {e.advice}')}" for e in wrong),
        *(f"\nRan: {_plain(ran)}" for ran in runs(trace)),
    ]
    return "\n".join(parts) + "\n"


def _optimizer(summary: Summary, tables: Sequence[By], named: bool) -> Iterator[str]:
    yield f"\n### {_plain(headline(summary, named))}"
    for table in tables:
        if table in TREES:
            yield from _fenced(summary, table)
        elif made := rows(summary, table):
            yield from ("", f"By {table}:", "", *_table(made))


def _fenced(summary: Summary, tree: By) -> Iterator[str]:
    """A tree as the text report has it, in a fence that nothing in it can end."""
    lines = [line.plain for line in TEXT_TABLES[tree](summary, _WIDTH, IN_FULL)]
    longest = max(map(len, re.findall("`+", "".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{fence}text", *lines, fence)


def _table(rows: Sequence[Row]) -> list[str]:
    """A table without the columns that are empty in every row."""
    columns = {
        name: column
        for name, *column in zip(rows[0]._fields, *rows, strict=True)
        if any(value is not None for value in column)
    }
    lines = [
        [name.replace("_", " ") for name in columns],
        ["---" if isinstance(column[0], str) else "---:" for column in columns.values()],
        *(map(_cell, row) for row in zip(*columns.values(), strict=True)),
    ]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else _plain(value or "")


def _plain(text: str) -> str:
    """The text on one line, with what Markdown would act on escaped."""
    return shown(text).translate(_SPECIAL)
