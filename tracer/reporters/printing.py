"""The text report on a terminal, a pipe or a file."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

from tracer.model.trace import Trace
from tracer.reporters.columns import By
from tracer.reporters.text import render


def report(
    trace: Trace, by: By | None = None, file: TextIO | None = None, *, command: bool = False
) -> None:
    """Print the text report on a trace to `file`, or to `sys.stdout`.

    In a terminal it has that terminal's width and colours, which a `NO_COLOR` in the environment
    turns off; elsewhere it has 80 columns and no ANSI codes. Characters that the file's encoding
    lacks are written as escapes. `command` says that the reader is at the `tracer` command. Raises
    `tracer.UnknownName` for a table that does not exist.
    """
    put(
        lambda width, color: render(trace, by, width=width, color=color, command=command),
        file,
    )


def put(render: Callable[[int | None, bool], str], file: TextIO | None = None) -> None:
    """Print a text that `render` makes for a width (None if it is not known), coloured or not."""
    file = sys.stdout if file is None else file
    text = render(*_terminal(file, os.environ))
    file.write(_encodable(text, file.encoding))


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
