"""The formats of the report, and where it goes: a file, a folder, a terminal, a notebook."""

import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

from tracer.errors import MissingExtra, Mistake
from tracer.model.trace import Trace
from tracer.reporters import text
from tracer.reporters.tables import By


def print_report(
    trace: Trace, by: By | None = None, file: TextIO | None = None, *, command: bool = False
) -> None:
    """Print the text report on a trace to `file`, or to `sys.stdout`.

    In a terminal it has that terminal's width and colours, which a `NO_COLOR` in the environment
    turns off; elsewhere it has 80 columns and no ANSI codes. Characters that the file's encoding
    lacks are written as escapes. `command` says that the reader is at the `tracer` command. Raises
    `tracer.UnknownName` for a table that does not exist.
    """
    print_text(
        lambda width, color: text.render(trace, by, width=width, color=color, command=command),
        file,
    )


def print_text(render: Callable[[int | None, bool], str], file: TextIO | None = None) -> None:
    """Print a text that `render` makes for a width (None if it is not known), coloured or not."""
    file = sys.stdout if file is None else file
    written = render(*_terminal(file, os.environ))
    file.write(_encodable(written, file.encoding))


_PLAIN = {ord("…"): "...", ord("→"): ">", **dict(zip(map(ord, "├└│─"), "+`|-", strict=True))}
"""What is written for the signs of tables and trees where they cannot be."""


def _terminal(file: TextIO, environment: Mapping[str, str]) -> tuple[int | None, bool]:
    """The terminal's width, None if `file` is no terminal, and whether to use colours."""
    if not file.isatty():
        return None, False
    width = None
    with suppress(OSError, ValueError):  # a terminal that has no size, or a stand-in for one
        width = os.get_terminal_size(file.fileno()).columns or None
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return width, not plain


def _encodable(text: str, encoding: str | None) -> str:
    """The text with what the encoding lacks made plain."""
    encoding = encoding or "utf-8"
    with suppress(UnicodeEncodeError):
        return text.encode(encoding).decode(encoding)
    return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)


_WIDTH = 100
_FORMAT = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.4;'
    "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\">{code}</pre>"
)


def for_notebook(trace: Trace) -> str:
    """The text report as HTML, with its colours."""
    shown = Text.from_ansi(text.render(trace, width=_WIDTH, color=True))
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        color_system="standard",
        force_terminal=True,
        force_jupyter=False,  # in a notebook it would show the text by itself
    )
    console.print(shown, soft_wrap=True, highlight=False)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


Format = Literal[
    "text", "json", "csv", "markdown", "html", "tensorboard", "speedscope", "collapsed"
]

_HOMES = {
    "json": ("jsonreport", "render"),  # the library has modules of these names
    "csv": ("csvreport", "render"),
    "speedscope": ("stacks", "speedscope"),
    "collapsed": ("stacks", "collapsed"),
}
"""The module of a format and the function in it, where they are not `FORMAT.render`."""
_NO_TABLES: dict[Format, str] = {
    "html": "the html report has all of them",
    "tensorboard": "the tensorboard report has all of them",
    "speedscope": "speedscope shows the callers",
    "collapsed": "collapsed stacks show the callers",
}
_ENDINGS: dict[str, Format] = {
    ".txt": "text",
    ".log": "text",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".speedscope.json": "speedscope",
    ".collapsed": "collapsed",
    ".folded": "collapsed",
}


def chosen(format: Format | None, output: Path | None) -> Format:
    """The given format or, if none is given, the format that the ending of the file stands for.

    A file without an ending, and no file, is text. Raises `Mistake` for an unknown ending.
    """
    if format is not None or output is None or not output.suffix:
        return format or "text"
    for ending in ("".join(output.suffixes[-2:]), output.suffix):
        if known := _ENDINGS.get(ending.lower()):
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
    """The report in a format; only the module of that format is imported."""
    if format == "text":
        return text.render(trace, by, width=width, color=color, command=True)
    _, function = _HOMES.get(format, (format, "render"))
    return str(getattr(module(format), function)(trace, by))


def module(format: Format) -> ModuleType:
    """The module of a format.

    Raises `MissingExtra`, an `ImportError`, if the packages of the extra with the name of the
    format are not installed.
    """
    try:
        return import_module(f"tracer.reporters.{_HOMES.get(format, (format,))[0]}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tracer"):
            raise
        raise MissingExtra(
            f"the {format} report needs {error.name}: pip install 'optimizer-tracer[{format}]'"
        ) from error


def write(trace: Trace, format: Format | None, by: By | None, output: Path | None) -> None:
    """Write the report to a file, or to standard output; for TensorBoard, to a folder.

    Without a `format` the file's ending decides: see `chosen`. `by` picks one table; a page,
    TensorBoard and the formats of stacks have no single tables. Raises `OSError` if the file cannot
    be written, `MissingExtra` if the format needs packages that are not there, and `Mistake` for
    an ending, a `by`, no folder or no callers, where there is no such format or it cannot do that.
    """
    format = chosen(format, output)
    if by is not None and format in _NO_TABLES:
        raise Mistake(f"--by picks one table: {_NO_TABLES[format]}")
    if format == "tensorboard":
        if output is None:
            raise Mistake("--format tensorboard needs the folder of the logs: -o LOGDIR")
        module(format).write(trace, output)
    elif output is not None:
        output.write_text(render(trace, format, by), encoding="utf-8")
    else:
        print_text(lambda width, color: render(trace, format, by, width, color))
