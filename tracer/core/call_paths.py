"""Finds the line of the program that makes a call. No framework.

A path is a row of `records.Line`. In eager mode it is the innermost line of the program around the
call; the framework, the standard library, other packages and the tracer are left out. A graph adds
the line that traced it: see `backends.tensorflow.places`.

Each step looks for its line. A frame at one instruction always has the same line, so its answer is
kept. The code is kept alive for that, but never a frame, which holds the program's objects.

Each recorder has a `Paths`. The number of a path never changes; any thread may ask for it.
"""

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any, Literal

from msgspec.structs import replace

from tracer.core import locks
from tracer.kinds import FRAMEWORKS
from tracer.model.records import Line

_MAX_FRAMES = 4096
"""The most frames known by their instructions; at this number all are forgotten."""

_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")  # parts of the enclosing function
_NOT_SHOWN = {*FRAMEWORKS, "tracer", "decorator", "pluggy", "six", "wrapt"}
"""The tracer, frameworks, and packages that only forward calls."""
_CELL = re.compile(r"ipython-input-(\d+)-|[/\\]ipykernel_\d+[/\\]\d+\.py$")

_LIBRARY = os.path.normcase(sysconfig.get_paths()["stdlib"]) + os.sep
_SCRIPTS = os.path.normcase(sysconfig.get_paths()["scripts"]) + os.sep
"""The folder of the start scripts of installed packages, such as `pytest`."""
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_NO_SOURCE = re.compile(r"^<frozen |^<eval_with_key>|[/\\]torchinductor_")
"""Code without an author, such as the output of `torch.compile` or calls from its line."""

AuthorOf = Callable[[CodeType, int], Line | None]
"""From generated code and a line in it to the author's line, with the full file name; None if
unknown."""


@cache
def shown_file(file: str) -> str:
    """The short name of a file: relative to the working folder if the file is below it.

    The first answer stays: the program may change its working folder.

    >>> shown_file("/elsewhere/models/train.py")
    'models/train.py'
    >>> shown_file("<ipython-input-3-8a5e>")
    'cell 3'
    """
    cell = _CELL.search(file)
    if cell is not None:
        ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        numbers = getattr(getattr(ipython, "compile", None), "_filename_map", {})
        return f"cell {cell[1] or numbers.get(file, '')}".rstrip()
    if file.startswith("<"):  # no file, but "<stdin>" or "<string>"
        return file
    with suppress(OSError, ValueError):  # the working folder is gone, or on another drive
        below = os.path.relpath(file)
        if not below.startswith(os.pardir):
            return below
    return os.path.join(*os.path.normpath(file).split(os.sep)[-2:])


def line(file: str, number: int) -> str:
    """The name of a line; its file is relative to the working folder if below it.

    >>> line("/elsewhere/models/train.py", 12)
    'models/train.py:12'
    >>> line("<ipython-input-3-8a5e>", 4)
    'cell 3:4'
    """
    return f"{shown_file(file)}:{number}"


def line_of_caller(made: object) -> str:
    """The running line of the program, outside of the constructors of `made`; empty if none.

    If no line of the program is on the stack, the line of a package.
    """
    outwards = [each for each in frames_from(sys._getframe(1)) if not _constructs(each, made)]
    innermost = {sort_of(frame): frame for frame in reversed(outwards)}
    frame = innermost.get("program") or innermost.get("package")
    return line(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def _constructs(frame: FrameType, made: object) -> bool:
    """Whether a frame runs an `__init__` of `made`."""
    code = frame.f_code
    # `f_locals` of any other function keeps its objects alive.
    return code.co_name == "__init__" and any(
        frame.f_locals.get(name) is made for name in code.co_varnames[:1]
    )


Sort = Literal["program", "package", "other"]


class Paths:
    """The paths of one root optimizer, by number, and the calls while tracing that each led to."""

    def __init__(self, author_of: AuthorOf = lambda code, line: None) -> None:
        """`author_of` maps a line of generated code to its author's line."""
        self.rows: list[tuple[Line, ...]] = []
        self.traced: Counter[tuple[int, int | None]] = Counter()
        """The number of calls while tracing, by site and path."""
        self._numbers: dict[tuple[Line, ...], int] = {}
        self._author_of = author_of
        self._known: dict[tuple[int, int], tuple[Sort, int | None, CodeType]] = {}
        self._lock = locks.new_lock("paths")

    def number(self, lines: Sequence[Line]) -> int:
        """Return the number of a path; the first request assigns it."""
        row = tuple(lines)
        with self._lock:
            number = self._numbers.get(row)
            if number is None:
                number = self._numbers[row] = len(self.rows)
                self.rows.append(row)
            return number

    def of(self, frames: Iterable[FrameType]) -> int | None:
        """Return the path to these frames, innermost first: the first line of the program.

        The first line of a package if there is none of the program.
        """
        package: int | None = None
        for frame in frames:
            known = self._known.get((id(frame.f_code), frame.f_lasti))
            sort, number, _ = known or self._find(frame)
            if sort == "program":
                return number
            package = number if package is None else package
        return package

    def above(self, frame: FrameType | None) -> int | None:
        """Return the path to the running `frame`."""
        known = frame and self._known.get((id(frame.f_code), frame.f_lasti))
        return known[1] if known and known[0] == "program" else self.of(frames_from(frame))

    def _find(self, frame: FrameType) -> tuple[Sort, int | None, CodeType]:
        code, number, sort = frame.f_code, None, sort_of(frame)
        if sort in ("program", "package"):
            line = Line(qualified(code), code.co_filename, frame.f_lineno or code.co_firstlineno)
            if "__autograph_generated_file" in code.co_filename:
                line = self._author_of(code, line.number) or line
            number = self.number([replace(line, file=shown_file(line.file))])
        if len(self._known) >= _MAX_FRAMES:
            self._known = {}
        found = self._known[id(code), frame.f_lasti] = sort, number, code
        return found

    def lines(self, path: int | None) -> tuple[Line, ...]:
        """The lines of a path; empty if the path is unknown."""
        return () if path is None else self.rows[path]

    def line(self, path: int | None) -> str:
        """The innermost program line in a path: `train.py:12`; empty if there is none."""
        lines = reversed(self.lines(path))
        return next((f"{each.file}:{each.number}" for each in lines if each.file), "")


def frames_from(at: Any) -> Iterator[Any]:
    """Yield the Python frame `at` and its callers; nothing if it is None."""
    while at is not None:
        yield at
        at = at.f_back


def sort_of(frame: FrameType) -> Sort:
    """Classify a frame: the program, a third-party package, or other code around them."""
    file, code = frame.f_code.co_filename, frame.f_code
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if root in _NOT_SHOWN or code.co_name in _COMPREHENSIONS or _NO_SOURCE.search(file):
        return "other"
    if any(each in file for each in _PACKAGES):
        return "package"
    return "other" if os.path.normcase(file).startswith((_LIBRARY, _SCRIPTS)) else "program"


def qualified(code: CodeType) -> str:
    """The name of a function; with its class from Python 3.11 on: `MyModel.train_step`."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
