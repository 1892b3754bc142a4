"""The formats of the report, and where it goes."""

from importlib import import_module
from pathlib import Path
from typing import Literal

from tracer.calltrace import CallTrace
from tracer.reporters import console
from tracer.reporters.tables import By

Format = Literal["text", "json", "csv", "markdown"]

_MODULES: dict[Format, str] = {
    "text": "text",
    "json": "jsonreport",
    "csv": "csvreport",
    "markdown": "markdown",
}
_ENDINGS: dict[str, Format] = {
    ".txt": "text",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
}


def render(trace: CallTrace, format: Format, by: By | None = None) -> str:
    """The report in a format; only the module of that format is imported."""
    rendered: str = import_module(f"tracer.reporters.{_MODULES[format]}").render(trace, by)
    return rendered


def put(trace: CallTrace, format: Format | None, by: By | None, output: Path | None) -> None:
    """Write the report to a file, or to standard output.

    Without a `format` the file's ending decides; what is no known ending, and no file, is text.
    Raises `OSError` if the file cannot be written.
    """
    format = format or _ENDINGS.get("" if output is None else output.suffix.lower(), "text")
    if output is not None:
        output.write_text(render(trace, format, by), encoding="utf-8")
    elif format == "text":
        console.report(trace, by)
    else:
        console.put(lambda width, color: render(trace, format, by))
