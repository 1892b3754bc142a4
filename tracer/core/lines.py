"""Names lines of the program: `train.py:12`. No TensorFlow."""

import sys
from types import CodeType, FrameType
from typing import Any

from tracer.core.call_paths import frames_above, shown_file, sort_of
from tracer.core.optimizers import NOT_SEEN, Made, ProgramLine


def line(file: str, number: int) -> str:
    """The name of a line; its file is relative to the working folder if below it.

    >>> line("/elsewhere/models/train.py", 12)
    'models/train.py:12'
    >>> line("<ipython-input-3-8a5e>", 4)
    'cell 3:4'
    """
    return f"{shown_file(file)}:{number}"


def line_of(code: CodeType) -> str:
    """The line that defines a function."""
    return line(code.co_filename, code.co_firstlineno)


def line_of_caller(made: object) -> str:
    """The running line of the program, outside of the constructors of `made`; empty if none.

    If no line of the program is on the stack, the line of a package.
    """
    found = ""
    for frame in frames_above(sys._getframe(1)):
        sort = sort_of(frame)
        if sort != "other" and not _constructs(frame, made):
            here = line(frame.f_code.co_filename, frame.f_lineno)
            if sort == "program":
                return here
            found = found or here
    return found


_lines: dict[str, ProgramLine] = {}


def made_here(optimizer: object) -> Made:
    """The running line of the program, which makes `optimizer`, with the number of the optimizer.

    Call this once for each optimizer.
    """
    name = line_of_caller(optimizer)
    if not name:
        return NOT_SEEN
    line = _lines.setdefault(name, ProgramLine(name))
    line.made += 1
    return Made(line, line.made)


def forget_numbers() -> None:
    """Number the optimizers of each line from 1 again, as a new recording does."""
    _lines.clear()


def _constructs(frame: FrameType, made: Any) -> bool:
    """Whether a frame runs an `__init__` of `made`."""
    code = frame.f_code
    # `f_locals` of any other function keeps its objects alive.
    return code.co_name == "__init__" and any(
        frame.f_locals.get(name) is made for name in code.co_varnames[:1]
    )
