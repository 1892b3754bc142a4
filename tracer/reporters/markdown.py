"""The report as Markdown, for a pull request or a page."""

import re
from collections.abc import Iterator, Sequence

from tracer.errors import shown
from tracer.findings.catalogue import to_report
from tracer.model.labels import program_lines
from tracer.model.programs import endings, runs
from tracer.model.summary import Summary
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.reporters.answer import question, sentences
from tracer.reporters.rows import TREES, By, Row, Value, everything
from tracer.reporters.text_tables import TABLES as TEXT_TABLES, Asked

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
    if not trace.finished:
        yield "\n**Unfinished:** the run went on, or was killed, after this was written."
    for ending in endings(trace):
        yield f"\n**{_plain(ending)}**"
    if not trace.complete:
        yield '\n**Incomplete:** not everything was seen, so the counts are "at least".'
    if trace.notes:
        yield ""
        yield from (f"- {_plain(note)}" for note in trace.notes)
    before = None
    for summary, table, rows in everything(trace, by):
        if summary is not before:
            before = summary
            root = summary.optimizers[0]
            steps = some(summary.steps, "step")
            line = program_lines(trace).get(summary.root, "")
            of = f" of {_plain(line)}" if line else ""
            yield f"\n### {_plain(root.name)}{of} ({_plain(root.class_name)}), {steps}"
        if table in TREES:
            yield from _fenced(summary, table)
        elif rows:
            yield f"\nBy {table}:\n"
            yield from _table(rows)
    wrong = to_report(trace)
    if wrong:
        yield "\n### What looks wrong\n"
    for finding in wrong:
        line = " ".join(_plain(text) for text in (f"{finding.code}:", finding.text, finding.advice))
        yield f"- **{finding.severity}** {line}"
    for ran in runs(trace):
        yield f"\nRan: {_plain(ran)}"


def _fenced(summary: Summary, tree: By) -> Iterator[str]:
    """A tree as the text report has it, in a fence that nothing in it can end."""
    lines = [line.plain for line in TEXT_TABLES[tree](summary, _WIDTH, Asked(command=True))]
    longest = max(map(len, re.findall("`+", "".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{fence}text", *lines, fence)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    fields = [
        (place, name)
        for place, name in enumerate(rows[0]._fields)
        if name not in _OPTIONAL or any(row[place] is not None for row in rows)
    ]
    text = [isinstance(rows[0][place], str) for place, _ in fields]
    yield "| " + " | ".join(name.replace("_", " ") for _, name in fields) + " |"
    yield "|" + "|".join(" --- " if each else " ---: " for each in text) + "|"
    for row in rows:
        yield "| " + " | ".join(_cell(row[place]) for place, _ in fields) + " |"


_OPTIONAL = ("accumulated", "unchanged", "not_finite")
"""Columns that are left out where no gradients are accumulated, or there are no effects."""


def _cell(value: Value) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else _plain(value)


def _plain(text: str) -> str:
    """The text on one line, with what Markdown would act on escaped."""
    return shown(text).translate(_SPECIAL)
