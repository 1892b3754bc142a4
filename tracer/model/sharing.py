"""A trace without folders and arguments, to be shown to others. No TensorFlow."""

import re
import shlex
from collections.abc import Iterator

import msgspec

from tracer.model.records import TraceData
from tracer.model.redaction import message
from tracer.model.trace import Trace

_ABSOLUTE = re.compile(
    r"(?<![\w+.-])(?!file:)(?P<url>\w[\w+.-]{0,20}://[^\s'\"]*)|"
    r"(?<![^\s'\"=,;:(\[])(?:[A-Za-z]:|~|\.{1,2})?[/\\]+(?:[^\s'\"/\\]+[/\\]+)*"
)
"""A URL, or the folders of a path from the root, from home or from here; `3/4` in an error is none.
"""


def without_paths(trace: Trace) -> Trace:
    """The trace with each file named by its name alone: `train.py:41`, wherever the file is.

    That is so for the lines of callers, the lines that made optimizers and those that remarks are
    about, for notes, and for errors. Of commands only the program stays, without its arguments.
    Functions, line numbers, variables and counts stay.
    """
    data = trace.data
    known = sorted(set(_files(data)), key=len, reverse=True)

    def plain(text: str) -> str:
        for file in known:
            if file != _name(file):
                text = text.replace(file, _name(file))
        return text

    replace = msgspec.structs.replace
    optimizers = tuple(
        replace(
            each,
            made=_name(each.made),
            remarks=tuple(replace(remark, where=_name(remark.where)) for remark in each.remarks),
            failures=tuple(
                replace(failure, error=_error(failure.error)) for failure in each.failures
            ),
        )
        for each in data.optimizers
    )
    programs = tuple(
        replace(each, command=_program(each.command), error=_error(each.error))
        for each in data.programs
    )
    shared = replace(
        data,
        optimizers=optimizers,
        lines=tuple(replace(each, file=_name(each.file)) for each in data.lines),
        notes=tuple(map(plain, data.notes)),
        programs=programs,
    )
    return Trace(shared, trace.objects)


def _files(data: TraceData) -> Iterator[str]:
    """The files that the trace names with a folder, and lines in them."""
    for line in data.lines:
        yield line.file
    for optimizer in data.optimizers:
        yield optimizer.made
        yield from (remark.where for remark in optimizer.remarks)


def _name(file: str) -> str:
    """What is behind the last folder; a file that is none, as `<stdin>`, stays."""
    return file if file.startswith("<") else re.split(r"[/\\]", file)[-1]


def _error(text: str) -> str:
    """What an error says without folders; a URL stays, but for what is secret in it."""
    return message(_ABSOLUTE.sub(lambda found: found["url"] or "", text))


def _program(command: str) -> str:
    """The program of a command, without options of Python and without arguments."""
    try:
        parts = iter(shlex.split(command))
    except ValueError:  # written by another program
        return ""
    for part in parts:
        if part in ("-W", "-X"):
            next(parts, "")
        elif part == "-m":
            return shlex.join([part, next(parts, "")])
        elif part == "-c" or not part.startswith("-"):
            return shlex.quote(_name(part))
    return ""
