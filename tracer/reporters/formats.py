"""The formats of the report, and where it goes."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

from tracer.errors import MissingExtra, Mistake
from tracer.model.trace import Trace
from tracer.reporters import printing, text
from tracer.reporters.columns import By

Format = Literal[
    "text", "json", "csv", "markdown", "html", "tensorboard", "speedscope", "collapsed"
]

_MODULES = {"json": "jsonreport", "csv": "csvreport"}  # the library has modules of these names
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
    return str(module(format).render(trace, by))


def module(format: Format) -> ModuleType:
    """The module of a format.

    Raises `MissingExtra`, an `ImportError`, if the packages of the extra with the name of the
    format are not installed.
    """
    try:
        return import_module(f"tracer.reporters.{_MODULES.get(format, format)}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tracer"):
            raise
        raise MissingExtra(
            f"the {format} report needs {error.name}: pip install 'optimizer-tracer[{format}]'"
        ) from error


def put(trace: Trace, format: Format | None, by: By | None, output: Path | None) -> None:
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
        printing.put(lambda width, color: render(trace, format, by, width, color))
