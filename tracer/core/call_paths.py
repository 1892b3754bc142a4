"""Finds the path of a call: from the program's outermost line to the optimizer. No framework.

A path is a row of `records.Line`: the program's own lines, and between them the well-known
functions of the framework (`Model.fit`, `Adam.minimize`). All other frames of the Python stack are
left out: the framework, the standard library, the tracer, and other packages except for one name of
each.

Each step reads the Python stack, which nearly always equals the stack of an earlier step. So
`Paths.of` identifies a stack by the instructions of its frames, and finds lines only for a new
stack. A known stack keeps its code alive, but never its frames, which hold the program's objects.

Each recorder has a `Paths`. The number of a path never changes; any thread may ask for it.
"""

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, Literal

from msgspec.structs import replace

from tracer.kinds import FRAMEWORKS
from tracer.model.records import Line

UNKNOWN = -1
"""The number of an unknown path, also when there are too many paths."""

MAX_PATHS = 2000
"""The largest number of paths; a program has a handful."""

_MAX_STACKS = 4096
"""The most stacks known by their instructions; at this number all are forgotten."""

_MAX_LINES = 200
"""The most lines of a path; the middle of a longer one is left out."""

_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
_CELL = re.compile(r"^<ipython-input-|[/\\]ipykernel_\d+[/\\]\d+\.py$")

_LIBRARY = os.path.normcase(sysconfig.get_paths()["stdlib"]) + os.sep
_SCRIPTS = os.path.normcase(sysconfig.get_paths()["scripts"]) + os.sep
"""The folder of the start scripts of installed packages, such as `pytest`."""
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_KNOWN_METHODS = {
    "fit": ("Model", "compile"),
    "train_on_batch": ("Model", "compile"),
    "train_step": ("Model", "compile"),
    "run": ("Strategy", "extended"),
    "minimize": ("", "apply_gradients"),
    "apply_gradients": ("", "apply_gradients"),
    "apply": ("", "apply_gradients"),
    "stateless_apply": ("", "apply_gradients"),
}
"""Well-known methods of the framework: the class shown before the method (empty: the object's
class), and an attribute of this class."""

_KNOWN_CODES = {
    *_KNOWN_METHODS,
    *("step_method", "tf__step_method", "apply_method", "tf__apply_method"),
    *("wrapper", "_step_of_scaler"),  # around each `step` of PyTorch; `GradScaler.step`
}

_NO_SOURCE = re.compile(r"^<frozen |^<eval_with_key>|[/\\]torchinductor_")
"""Code without an author, such as the output of `torch.compile` or calls from its line."""

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
"""Dynamo's name for the rest of a function after a graph break."""

AuthorOf = Callable[[CodeType, int], Line | None]
"""From generated code and a line in it to the author's line, with the full file name; None if
unknown."""


def shown_file(file: str) -> str:
    """The short name of a file: relative to the working folder if the file is below it.

    >>> shown_file("/elsewhere/models/train.py")
    'models/train.py'
    >>> shown_file("<ipython-input-3-8a5e>")
    'cell 3'
    """
    if is_cell(file):
        return _cell(file)
    folder = ""
    with suppress(OSError):  # the working folder is gone
        folder = os.getcwd()
    return _shown_from(folder, file)


@lru_cache(1 << 12)
def _shown_from(folder: str, file: str) -> str:
    if file.startswith("<"):  # no file, but "<stdin>" or "<string>"
        return file
    path = os.path.normpath(file)
    try:
        below = os.path.relpath(path, folder)
    except (OSError, ValueError):  # no folder, or another drive
        below = os.pardir
    return os.path.join(*path.split(os.sep)[-2:]) if below.startswith(os.pardir) else below


def is_cell(file: str) -> bool:
    """Whether the file is a cell of a notebook."""
    return _CELL.search(file) is not None


def _cell(file: str) -> str:
    """The name of a notebook cell, with its number if IPython knows it."""
    if file.startswith("<ipython-input-"):
        number: Any = file.removeprefix("<ipython-input-").partition("-")[0]
    else:
        ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        numbers = getattr(getattr(ipython, "compile", None), "_filename_map", {})
        number = numbers.get(file, "")
    return f"cell {number}" if number != "" else "cell"


class Paths:
    """The paths by number, and the known stacks of each."""

    def __init__(self, author_of: AuthorOf) -> None:
        """`author_of` maps a line of generated code to its author's line."""
        self.rows: list[tuple[Line, ...]] = []
        self._numbers: dict[tuple[Line, ...], int] = {}
        self._author_of = author_of
        self._shown: dict[str, str] = {}
        self._known: dict[tuple[Hashable, ...], tuple[int, list[CodeType]]] = {}
        self._recent: list[tuple[Stack, Hashable, int]] = []
        self._lock = threading.Lock()

    def number(self, lines: Sequence[Line]) -> int:
        """Return the number of a path; the first request assigns it."""
        row = tuple(lines)
        with self._lock:
            number = self._numbers.get(row)
            if number is None:
                if len(self.rows) >= MAX_PATHS:
                    return UNKNOWN
                number = self._numbers[row] = len(self.rows)
                self.rows.append(row)
            return number

    def above(self, frame: FrameType | None, end: Hashable = None) -> int:
        """Return the path to the running `frame`, from the beginning of its thread's stack.

        `end` is what the frame calls, if one instruction may call different optimizers or methods.
        """
        for stack, known_end, number in self._recent:
            if end == known_end and is_stack(stack, frame):
                return number
        number = self.of(frames_above(frame))
        self._recent = [(stack_above(frame), end, number), *self._recent[:3]]
        return number

    def of(self, frames: Sequence[FrameType], outermost: bool = True) -> int:
        """Return the path of these frames, innermost first.

        `outermost` if nothing of the program is around them; otherwise they are part of a path.
        """
        key: tuple[Hashable, ...] = (outermost, *map(id, (each.f_code for each in frames)))
        key += tuple(each.f_lasti for each in frames)
        # One instruction may call different optimizers and methods.
        key += tuple(_name_of(each) for each in frames if each.f_code.co_name in _KNOWN_CODES)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_STACKS:
                self._known = {}
            number = self.number(lines_of(frames, self._author_of, outermost, self.file))
            known = self._known[key] = number, [each.f_code for each in frames]
        return known[0]

    def line(self, path: int) -> str:
        """The innermost program line in a path: `train.py:12`; empty if there is none."""
        lines = () if path == UNKNOWN else self.rows[path]
        return next((f"{each.file}:{each.number}" for each in reversed(lines) if each.file), "")

    def file(self, file: str) -> str:
        """The first answer of `shown_file`: the program may change its working folder."""
        shown = shown_file(file)
        return shown if is_cell(file) else self._shown.setdefault(file, shown)


def frames_above(frame: FrameType | None) -> list[FrameType]:
    """The frames from `frame` to the beginning of its stack."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


Stack = Sequence[tuple[CodeType, int]]
"""A stack without its frames: the code and the current instruction of each."""


def stack_above(frame: FrameType | None) -> Stack:
    """The stack from `frame` outward, innermost first.

    Empty if code does not identify it: the name of a frame may depend on its object.
    """
    frames = frames_above(frame)
    if any(each.f_code.co_name in _KNOWN_CODES and _is_own_name(each) for each in frames):
        return ()
    return tuple((each.f_code, each.f_lasti) for each in frames)


def _is_own_name(frame: FrameType) -> bool:
    """Whether the frame's well-known name depends on the class of its object."""
    name = frame.f_code.co_name
    if name in ("wrapper", "_step_of_scaler") or _KNOWN_METHODS.get(name, ("",))[0]:
        return False  # PyTorch, where `end` distinguishes, or a fixed class
    return bool(_name_of(frame))


def is_stack(stack: Stack, at: Any) -> bool:
    """Whether `stack` is the stack from the frame `at` outward; unrolled, as each step asks."""
    try:
        for code, instruction in stack:
            if at.f_code is not code or at.f_lasti != instruction:
                return False
            at = at.f_back
    except AttributeError:  # the frames end first
        return False
    return at is None


def lines_of(
    frames: Sequence[FrameType],
    author_of: AuthorOf,
    outermost: bool = True,
    named: Callable[[str], str] = shown_file,
) -> list[Line]:
    """Return the lines of a path for a stack, whose innermost frame is first.

    If `outermost`, packages around the whole program (pytest) are left out; without a program, the
    lines of packages count as the program's. `named` gives the short name of a file.
    """
    frames = list(takewhile(lambda frame: not starts_programs(frame), frames))[::-1]
    sorts = [sort_of(frame) for frame in frames]
    if outermost and "program" in sorts:
        around = sorts.index("program")
        sorts[:around] = ["other"] * around
    elif outermost:
        sorts = ["program" if sort == "package" else sort for sort in sorts]
    lines: list[Line] = []
    within = ""  # the generated file or the package of the last line
    for frame, sort in zip(frames, sorts, strict=True):
        code, now_within = frame.f_code, ""
        if sort == "package":
            now_within = _root_of(frame)
            line = Line(f"{now_within}: {qualified(code)}")
            if now_within == within:  # an inner call of the same package
                continue
        elif sort == "other":
            line = Line(_name_of(frame))
            if not line.function:
                continue
        elif code.co_name in _COMPREHENSIONS:  # part of the enclosing function
            continue
        else:
            file, number = code.co_filename, frame.f_lineno or code.co_firstlineno
            line = Line(qualified(code), file, number)
            if _is_generated(code):
                now_within, line = file, author_of(code, number) or line
                if now_within == within and _is_body(code, line.function):
                    lines.pop()  # the loop or the branch itself is left out
            line = replace(line, file=named(line.file))
        if lines[-1:] != [line]:  # recursion is shown once
            lines.append(line)
        within = now_within
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES // 2 : -_MAX_LINES // 2] = [Line("...")]
    return lines


def _is_body(code: CodeType, author: str) -> bool:
    """Whether AutoGraph split the function off the author's: a loop body or a branch."""
    own = code.co_name
    return own != author.rpartition(".")[2] and not own.startswith(("tf__", "<"))


def starts_programs(frame: FrameType) -> bool:
    """Whether a frame starts programs: `tracer run`, or pytest for a test.

    Frames that call it in turn, such as pytest-xdist's, are not part of the program either.
    """
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("tracer.cli.") or (
        module == "_pytest.runner" and frame.f_code.co_name.startswith("pytest_runtest_")
    )


def _root_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_generated(code: CodeType) -> bool:
    return "__autograph_generated_file" in code.co_filename


def sort_of(frame: FrameType) -> Literal["program", "package", "other"]:
    """Classify a frame: the program, a third-party package, or other code around them."""
    file, root = frame.f_code.co_filename, _root_of(frame)
    if root in FRAMEWORKS or root == "tracer" or _NO_SOURCE.search(file):
        return "other"
    if _is_generated(frame.f_code):
        return "program"
    if any(each in file for each in _PACKAGES):
        return "other" if root in _WRAPPERS else "package"
    return "other" if os.path.normcase(file).startswith((_LIBRARY, _SCRIPTS)) else "program"


_WRAPPERS = ("decorator", "pluggy", "six", "wrapt")
"""Packages that only forward calls."""


def qualified(code: CodeType) -> str:
    """The name of a function; with its class from Python 3.11 on: `MyModel.train_step`."""
    resumed = _RESUMED.match(code.co_name)
    qualified = str(getattr(code, "co_qualname", code.co_name))
    return resumed[1] if resumed else qualified.rpartition("<locals>.")[2]


def _name_of(frame: FrameType) -> str:
    """The well-known name of a method of the framework or the tracer; empty if it has none."""
    code, root = frame.f_code, _root_of(frame)
    if root == "tracer" and code.co_name == "_step_of_scaler":
        return "GradScaler.step"
    if root == "tracer" and code.co_name in _KNOWN_CODES:  # also after AutoGraph
        method: Any = frame.f_locals.get("intercepted")
        if getattr(method, "role", "group") != "group":
            return f"{type(frame.f_locals['self']).__name__}.{method.name}"
    if root == "torch" and code.co_name == "wrapper":  # `profile_hook_step`
        given = frame.f_locals.get("args")
        if isinstance(given, tuple) and given and hasattr(type(given[0]), "add_param_group"):
            return f"{type(given[0]).__name__}.step"
    if root in FRAMEWORKS and code.co_name in _KNOWN_METHODS and code.co_varnames[:1] == ("self",):
        known_as, attribute = _KNOWN_METHODS[code.co_name]
        of = type(frame.f_locals.get("self"))
        if any(attribute in vars(cls) for cls in of.__mro__):
            return f"{known_as or of.__name__}.{code.co_name}"
    return ""
