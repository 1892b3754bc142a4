"""Write the report in any format to a file, a terminal or a notebook.

JSON, CSV and Markdown are made here; text and HTML have their own modules.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from tracer import files
from tracer.errors import MissingExtra, Mistake, shown, to_install
from tracer.findings.run_rules import findings, to_report
from tracer.model import rates
from tracer.model.phrases import endings, runs
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters import text
from tracer.reporters.answer import answer, question, sentences
from tracer.reporters.tables import FIELDS, TABLES, By, TableRow, Value, rows, tracings
from tracer.reporters.text import headline, warnings


def print_report(
    trace: Trace, by: By | None = None, file: TextIO | None = None, *, command: bool = False
) -> None:
    """Print the text report on a trace to `file`, or to `sys.stdout`.

    In a terminal it has the terminal's width and colours, unless `NO_COLOR` is set in the
    environment; elsewhere it has 80 columns and no ANSI codes. Characters that the file's encoding
    lacks are escaped. `command` means that the reader uses the `tracer` command. Raises
    `tracer.UnknownName` for a table that does not exist.
    """
    print_text(
        lambda width, color: text.render(trace, by, width=width, color=color, command=command),
        file,
    )


def print_text(render: Callable[[int | None, bool], str], file: TextIO | None = None) -> None:
    """Print the text that `render` makes for a width (None if unknown), coloured or not."""
    file = sys.stdout if file is None else file
    written = render(*_terminal(file, os.environ))
    file.write(_encodable(written, file.encoding))


def put(render: Callable[[int | None, bool], str], output: Path | None) -> None:
    """Write such a text to a file, completely or not at all; print it if `output` is None."""
    if output is None:
        print_text(render)
    else:
        files.write(output, _encodable(render(None, False), "utf-8").encode())


_ASCII = {ord("…"): "..."}
"""The ASCII substitute for the ellipsis of tables."""


def _terminal(file: TextIO, environment: Mapping[str, str]) -> tuple[int | None, bool]:
    """The terminal's width (None if `file` is not a terminal), and whether to use colours."""
    if not file.isatty():
        return None, False
    width = None
    with suppress(OSError, ValueError):  # a terminal without a size, or a substitute
        width = os.get_terminal_size(file.fileno()).columns or None
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return width, not plain


def _encodable(text: str, encoding: str | None) -> str:
    """The text, with characters that the encoding lacks replaced."""
    encoding = encoding or "utf-8"
    with suppress(UnicodeEncodeError):
        return text.encode(encoding).decode(encoding)
    return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)


_WIDTH = 100
_FORMAT = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.4;'
    "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\">{code}</pre>"
)


def for_notebook(trace: Trace) -> str:
    """The text report as HTML, with colours."""
    shown = Text.from_ansi(text.render(trace, width=_WIDTH, color=True))
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        color_system="standard",
        force_terminal=True,
        force_jupyter=False,  # it would print the text itself
    )
    console.print(shown, soft_wrap=True, highlight=False)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


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
    width: int | None = None,
    color: bool = False,
) -> str:
    """The report in a format; imports only the module of that format."""
    if format == "text":
        return text.render(trace, by, width=width, color=color, command=True)
    if format == "html":
        return str(_html_module().render(trace))
    return _MADE_HERE[format](trace, by)


def _html_module() -> ModuleType:
    """The module of the page; raises `MissingExtra`, an `ImportError`, without jinja2."""
    try:
        return import_module("tracer.reporters.html")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tracer"):
            raise
        raise MissingExtra(f"the html report {to_install(error.name)}") from error


def write(trace: Trace, format: Format | None, by: By | None, output: Path | None) -> None:
    """Write the report to a file, or to standard output.

    Without a `format`, the file's ending decides: see `chosen`. `by` selects one table, in formats
    that have single tables. Raises `OSError` if the file cannot be written, `MissingExtra` if the
    format needs packages that are not installed, and `Mistake` for an unknown ending or a `by` that
    the format does not support.
    """
    format = chosen(format, output)
    if by is not None and format == "html":
        raise Mistake("--by picks one table: the html report has all of them")
    put(lambda width, color: render(trace, format, by, width, color), output)


# JSON: the text report as values.

FORMAT = "optimizer-tracer-report"
VERSION = 2
"""New fields keep this number; any other change increases it."""


def as_json(trace: Trace, by: By | None = None) -> str:
    """The report as one JSON object in ASCII, with the rows of `tracer.reporters.tables`.

    `findings` includes those of severity `info`; it is null for an excerpt of a trace.
    """
    tables = FIELDS if by is None else (by,)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "question": question(trace),
        "answer": answer(trace),
        "excerpt": trace.excerpt,
        "complete": trace.complete,
        "finished": trace.finished,
        "programs": msgspec.to_builtins(trace.programs),
        "ended": endings(trace),
        "notes": list(trace.notes),
        "findings": None if trace.excerpt else msgspec.to_builtins(findings(trace)),
        "environment": dict(trace.environment),
        "graph_tracings": [each._asdict() for each in tracings(trace)],
        "optimizers": [
            {
                "name": summary.optimizers[0].name,
                "class": summary.optimizers[0].class_name,
                "kind": summary.optimizers[0].kind,
                "made": summary.optimizers[0].made,
                "nested": [each.class_name for each in summary.optimizers[1:]],
                "steps": summary.steps,
                "rates": [*rates.plain(summary)],
                "tables": {
                    table: [row._asdict() for row in rows(summary, table)] for table in tables
                },
            }
            for summary in summaries_of(trace)
        ],
    }
    return json.dumps(content, indent=1) + "\n"


# CSV: one table, for a spreadsheet.

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""How formulas begin in a spreadsheet: owasp.org/www-community/attacks/CSV_Injection."""


def as_csv(trace: Trace, by: By | None = None) -> str:
    """The table `by` (of variables by default) of all optimizers, with a header."""
    by = by or "variable"
    out = io.StringIO()
    writer = csv.DictWriter(out, ["optimizer", *FIELDS[by]], lineterminator="\n")
    writer.writeheader()
    for summary in summaries_of(trace):
        for row in rows(summary, by):
            named = {"optimizer": summary.optimizers[0].name, **row._asdict()}
            writer.writerow({name: _csv_cell(value) for name, value in named.items()})
    return out.getvalue()


def _csv_cell(value: Value) -> Value:
    """The value; a text that looks like a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(_FORMULA) else shown(value)


# Markdown, for a pull request or a page.

_SPECIAL = {ord(char): f"\\{char}" for char in "\\`*_{}[]<>#|~"}


def as_markdown(trace: Trace, by: By | None = None) -> str:
    """The report in GitHub's Markdown; `by` selects one table."""
    summaries, wrong = summaries_of(trace), to_report(trace)
    parts = [
        f"**{_escaped(question(trace))}**",
        _escaped(trace.excerpt),
        *(_escaped(" ".join(pair)) for pair in sentences(trace)),
        *map(_escaped, rates.sentences(trace)),
        *(f"**{_escaped(warning)}**" for warning in warnings(trace)),
        "\n".join(f"- {_escaped(note)}" for note in trace.notes),
        *(part for summary in summaries for part in _sections(summary, by, len(summaries) > 1)),
        "### What looks wrong" if wrong else "",
        "\n".join(
            f"- **{each.severity}** " + _escaped(f"{each.code}: {each.text} {each.advice}")
            for each in wrong
        ),
        *(_escaped(f"Ran: {ran}") for ran in runs(trace)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _sections(summary: Summary, by: By | None, named: bool) -> Iterator[str]:
    """The sections on an optimizer."""
    yield f"### {_escaped(headline(summary, named=named))}"
    for table in TABLES if by is None else (by,):
        if made := rows(summary, table):
            yield f"By {table}:\n\n{_markdown_table(made)}"


def _markdown_table(rows: Sequence[TableRow]) -> str:
    """A table without the columns that are empty in all rows."""
    columns = [
        (
            name.replace("_", " "),
            "---" if isinstance(column[0], str) else "---:",
            *map(_markdown_cell, column),
        )
        for name, *column in zip(rows[0]._fields, *rows, strict=True)
        if any(value is not None for value in column)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True))


def _markdown_cell(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else _escaped(value or "")


def _escaped(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    return shown(text).translate(_SPECIAL)


_MADE_HERE: dict[Format, Callable[[Trace, By | None], str]] = {
    "json": as_json,
    "csv": as_csv,
    "markdown": as_markdown,
}
