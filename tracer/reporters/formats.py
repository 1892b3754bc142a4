"""The report in any format.

JSON, CSV and Markdown are made here; text and HTML have their own modules.
"""

import csv
import html
import io
import json
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

import msgspec

from tracer.errors import Mistake
from tracer.findings.rule import findings
from tracer.layout import Figure, print_text
from tracer.model.phrases import endings, rates_of, sentences_on
from tracer.model.trace import Trace
from tracer.reporters import columns, text
from tracer.reporters.columns import WHOLE, By, Part
from tracer.words import shown


def print_report(trace: Trace, by: By | None = None, file: TextIO | None = None) -> None:
    """Print the text report on a trace to `file`, or to `sys.stdout`.

    In a terminal it has the terminal's width and colours; elsewhere it has 80 columns and no ANSI
    codes. Characters that the file's encoding lacks are escaped. Raises `tracer.UnknownName` for a
    table that does not exist.
    """
    print_text(lambda width, color: text.render(trace, by, width=width, color=color), file)


_WIDTH = 100


def for_notebook(trace: Trace) -> str:
    """The text report as HTML."""
    return f'<pre style="line-height:1.4">{html.escape(text.render(trace, width=_WIDTH))}</pre>'


# Formats.

Format = Literal["text", "json", "csv", "markdown", "html"]
_ENDINGS: dict[str, Format] = {
    ".txt": "text",
    ".log": "text",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
}


def chosen(format: Format | None, output: Path | None) -> Format:
    """The given format or, if None, the format for the file's ending.

    A file without an ending, and no file, means text. Raises `Mistake` for an unknown ending.
    """
    if format is not None or output is None or not output.suffix:
        return format or "text"
    if known := _ENDINGS.get(output.suffix.lower()):
        return known
    raise Mistake(
        f"{output}: no report has the ending {output.suffix}: choose one of "
        f"{', '.join(_ENDINGS)}, or say which format it is with --format"
    )


def render(
    trace: Trace,
    format: Format,
    by: By | None = None,
    part: Part = WHOLE,
    width: int | None = None,
    color: bool = False,
) -> str:
    """The report in a format; the text fits the width."""
    if format == "text":
        return text.render(trace, by, part, width=width, color=color)
    return _FORMATS[format](trace, by, part)


# JSON: the text report as values.

FORMAT = "optimizer-tracer-report"
VERSION = 4
"""New fields keep this number; any other change increases it."""


def as_json(trace: Trace, by: By | None = None, part: Part = WHOLE) -> str:
    """The report as one JSON object in ASCII; `findings` includes those of severity `info`."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "question": text.question(trace),
        "answer": text.answer(trace),
        "rows": part.text,
        "complete": trace.complete,
        "finished": trace.finished,
        "programs": msgspec.to_builtins(trace.data.programs),
        "ended": endings(trace),
        "notes": list(trace.notes),
        "findings": msgspec.to_builtins(findings(trace)),
        "environment": dict(trace.data.environment),
        "optimizers": [
            {
                "name": summary.optimizers[0].name,
                "class": summary.optimizers[0].class_name,
                "kind": summary.optimizers[0].kind,
                "made": summary.optimizers[0].made,
                "nested": [each.class_name for each in summary.optimizers[1:]],
                "steps": summary.steps,
                "facts": sentences_on(summary),
                "rates": [
                    {
                        "what": rate.what,
                        "group": rate.group,
                        "schedule": rate.schedule,
                        "not_finite": rate.not_finite,
                        "variables": [shown(trace.variables[at].name) for at in rate.variables],
                        "runs": [*map(msgspec.structs.asdict, rate.runs)],
                    }
                    for rate in rates_of(summary)
                ],
                "evidence": msgspec.to_builtins(summary.optimizers[0].evidence),
                "tables": {table.by: _records(table) for table in tables},
            }
            for summary, tables in columns.sections(trace, by, part)
        ],
    }
    return msgspec.json.format(json.dumps(content), indent=1) + "\n"  # in C


def _records(table: columns.Table) -> list[dict[str, Figure]]:
    """The rows of a table, with all columns and the note."""
    return [
        {**{each.name: row.values.get(each.name) for each in table.columns}, "note": row.note}
        for row in table.rows
    ]


# CSV: one table, for a spreadsheet.

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""How formulas begin in a spreadsheet: owasp.org/www-community/attacks/CSV_Injection."""


def as_csv(trace: Trace, by: By | None = None, part: Part = WHOLE) -> str:
    """The table `by` (the first one with the rows of `part`) of all optimizers, with a header."""
    first: By = by or [*part.rows, "variable"][0]
    names = [column.name or column.header for column in columns.COLUMNS[first]]
    out = io.StringIO()
    writer = csv.DictWriter(out, ["optimizer", *names, "note"], lineterminator="\n")
    writer.writeheader()
    for summary, tables in columns.sections(trace, first, part):
        for row in chain.from_iterable(map(_records, tables)):
            named = {"optimizer": summary.optimizers[0].name, **row}
            writer.writerow({name: _csv_cell(value) for name, value in named.items()})
    return out.getvalue()


def _csv_cell(value: Figure) -> Figure:
    """The value; a text that looks like a formula gets an apostrophe in front."""
    return "'" * value.startswith(_FORMULA) + shown(value) if isinstance(value, str) else value


# Markdown, for a pull request or a page.


def as_markdown(trace: Trace, by: By | None = None, part: Part = WHOLE) -> str:
    """The text report in a code fence, which is longer than any in it."""
    report = text.render(trace, by, part, width=_WIDTH)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", report)), default=0))
    return f"{fence}text\n{report}{fence}\n"


# The page.


def as_page(trace: Trace, by: By | None = None, part: Part = WHOLE) -> str:
    """The report as a page; raises `Mistake` without jinja2, and for a part of it."""
    if by is not None or part != WHOLE:
        raise Mistake("the html report has all tables and rows: pick some with text, csv or json")
    try:
        from tracer.reporters.html import render as page_of
    except ModuleNotFoundError as error:
        raise Mistake(f"the html report needs {error.name}: pip install jinja2") from error
    return page_of(trace)


_FORMATS: dict[str, Callable[[Trace, By | None, Part], str]] = {
    "json": as_json,
    "csv": as_csv,
    "markdown": as_markdown,
    "html": as_page,
}
