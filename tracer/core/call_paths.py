"""Paths of calls: who called an optimizer, from the program's outermost line on. No framework.

A path is a row of `records.Line`: the program's own lines, and between them the functions of the
framework that people know by name (`Model.fit`, `Adam.minimize`). All other frames of Python's
stack are left out: the framework, the standard library, the tracer, and other packages, except for
one name of each.

Python's stack is read in each step, and is nearly always the stack of an earlier step. So the
instructions of its frames identify it (`Paths.of`), and lines are found only for a new stack. Code
is held as long as it is known. Frames are never held, because they hold the program's objects.

A `Paths` belongs to a recorder. Paths get numbers, which never change; any thread may ask.
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
"""The number of no path: it is not known, or there are too many."""

MAX_PATHS = 2000
"""How many paths are kept apart; a program has a handful."""

_MAX_STACKS = 4096
"""How many stacks are known by their instructions, until they are forgotten and found again."""

_MAX_LINES = 200
"""How many lines a path has at most; of a longer one the middle is left out."""

_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
_CELL = re.compile(r"^<ipython-input-|[/\\]ipykernel_\d+[/\\]\d+\.py$")

_LIBRARY = os.path.normcase(sysconfig.get_paths()["stdlib"]) + os.sep
_SCRIPTS = os.path.normcase(sysconfig.get_paths()["scripts"]) + os.sep
"""The folder of what an installer wrote to start a package, as `pytest`."""
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
"""Methods of the framework that people know: the class by which they do, if it is not that of the
object, and an attribute that this class has."""

_KNOWN_CODES = {
    *_KNOWN_METHODS,
    *("step_method", "tf__step_method", "apply_method", "tf__apply_method"),
    *("wrapper", "_step_of_scaler"),  # around each `step` of PyTorch; `GradScaler.step`
}

_NO_SOURCE = re.compile(r"^<frozen |^<eval_with_key>|[/\\]torchinductor_")
"""What nobody wrote, as what `torch.compile` made of a program, and calls from its line."""

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
"""What it calls the rest of a function that it had to part."""

AuthorOf = Callable[[CodeType, int], Line | None]
"""From generated code and a line in it to the author's line, with the whole name of its file; None
if that is not known."""


def shown_file(file: str) -> str:
    """A file as people name it: from the working folder if it is below that.

    >>> shown_file("/elsewhere/models/train.py")
    'models/train.py'
    >>> shown_file("<ipython-input-3-8a5e>")
    'cell 3'
    """
    if is_cell(file):
        return _cell(file)
    folder = ""
    with suppress(OSError):  # no working folder any more
        folder = os.getcwd()
    return _shown_from(folder, file)


@lru_cache(1 << 12)
def _shown_from(folder: str, file: str) -> str:
    if file.startswith("<"):  # no file, but "<stdin>" or "<string>"
        return file
    path = os.path.normpath(file)
    try:
        below = os.path.relpath(path, folder)
    except (OSError, ValueError):  # no folder, or on another drive
        below = os.pardir
    return os.path.join(*path.split(os.sep)[-2:]) if below.startswith(os.pardir) else below


def is_cell(file: str) -> bool:
    """Whether it is no file but a cell of a notebook."""
    return _CELL.search(file) is not None


def _cell(file: str) -> str:
    """The cell of a notebook, with its number if IPython knows it."""
    if file.startswith("<ipython-input-"):
        number: Any = file.removeprefix("<ipython-input-").partition("-")[0]
    else:
        ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        numbers = getattr(getattr(ipython, "compile", None), "_filename_map", {})
        number = numbers.get(file, "")
    return f"cell {number}" if number != "" else "cell"


class Paths:
    """Paths by number, and the stacks that are known to be one."""

    def __init__(self, author_of: AuthorOf) -> None:
        """`author_of` says which line of an author a line of generated code was made of."""
        self.rows: list[tuple[Line, ...]] = []
        self._numbers: dict[tuple[Line, ...], int] = {}
        self._author_of = author_of
        self._shown: dict[str, str] = {}
        self._known: dict[tuple[Hashable, ...], tuple[int, list[CodeType]]] = {}
        self._recent: list[tuple[Stack, Hashable, int]] = []
        self._lock = threading.Lock()

    def number(self, lines: Sequence[Line]) -> int:
        """The number of a path, which it gets when it is asked for first."""
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
        """The path to `frame`, which is at work, from the beginning of its thread's stack.

        `end` is what is called there if one instruction may call this or that.
        """
        for stack, known_end, number in self._recent:
            if end == known_end and is_stack(stack, frame):
                return number
        number = self.of(frames_above(frame))
        self._recent = [(stack_above(frame), end, number), *self._recent[:3]]
        return number

    def of(self, frames: Sequence[FrameType], outermost: bool = True) -> int:
        """The path of these frames, the innermost first.

        `outermost` if what is around them is all of the program, else they are a part of a path.
        """
        key: tuple[Hashable, ...] = (outermost, *map(id, (each.f_code for each in frames)))
        key += tuple(each.f_lasti for each in frames)
        # One instruction may call this optimizer or that one, and this method or that one.
        key += tuple(_name_of(each) for each in frames if each.f_code.co_name in _KNOWN_CODES)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_STACKS:
                self._known = {}
            number = self.number(lines_of(frames, self._author_of, outermost, self.file))
            known = self._known[key] = number, [each.f_code for each in frames]
        return known[0]

    def line(self, path: int) -> str:
        """The innermost line of the program in a path: `train.py:12`; empty if there is none."""
        lines = () if path == UNKNOWN else self.rows[path]
        return next((f"{each.file}:{each.number}" for each in reversed(lines) if each.file), "")

    def file(self, file: str) -> str:
        """What `shown_file` said when it was asked for first: the program may change its folder."""
        shown = shown_file(file)
        return shown if is_cell(file) else self._shown.setdefault(file, shown)


def frames_above(frame: FrameType | None) -> list[FrameType]:
    """The frames from this one to the beginning of its stack."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


Stack = Sequence[tuple[CodeType, int]]
"""A stack without its frames: the code of each, and at which instruction it is."""


def stack_above(frame: FrameType | None) -> Stack:
    """What stands for the frames from this one on, the innermost first.

    Empty, which is no stack, if what one of them is called depends on more than its code.
    """
    frames = frames_above(frame)
    if any(each.f_code.co_name in _KNOWN_CODES and _is_own_name(each) for each in frames):
        return ()
    return tuple((each.f_code, each.f_lasti) for each in frames)


def _is_own_name(frame: FrameType) -> bool:
    """Whether people know the frame's method by the class of its object."""
    name = frame.f_code.co_name
    if name in ("wrapper", "_step_of_scaler") or _KNOWN_METHODS.get(name, ("",))[0]:
        return False  # of PyTorch, where `end` tells it, or always of one class
    return bool(_name_of(frame))


def is_stack(stack: Stack, at: Any) -> bool:
    """Whether it is the stack from the frame `at` on; asked at each step, so it is written out."""
    try:
        for code, instruction in stack:
            if at.f_code is not code or at.f_lasti != instruction:
                return False
            at = at.f_back
    except AttributeError:  # it ends before
        return False
    return at is None


def lines_of(
    frames: Sequence[FrameType],
    author_of: AuthorOf,
    outermost: bool = True,
    named: Callable[[str], str] = shown_file,
) -> list[Line]:
    """What is worth to be named of a stack, whose innermost frame is first.

    Packages of others that stand around the whole program, as pytest does, are left out if it is
    `outermost`; if there is no program, their lines are those of the program. `named` says what
    people call a file.
    """
    frames = list(takewhile(lambda frame: not starts_programs(frame), frames))[::-1]
    sorts = [sort_of(frame) for frame in frames]
    if outermost and "program" in sorts:
        around = sorts.index("program")
        sorts[:around] = ["other"] * around
    elif outermost:
        sorts = ["program" if sort == "package" else sort for sort in sorts]
    lines: list[Line] = []
    within = ""  # the file that AutoGraph wrote, or the package, that the last line is of
    for frame, sort in zip(frames, sorts, strict=True):
        code, now_within = frame.f_code, ""
        if sort == "package":
            now_within = _root_of(frame)
            line = Line(f"{now_within}: {qualified(code)}")
            if now_within == within:  # what a package calls in itself is not named
                continue
        elif sort == "other":
            line = Line(_name_of(frame))
            if not line.function:
                continue
        elif code.co_name in _COMPREHENSIONS:  # a part of the function around it
            continue
        else:
            file, number = code.co_filename, frame.f_lineno or code.co_firstlineno
            line = Line(qualified(code), file, number)
            if _is_generated(code):
                now_within, line = file, author_of(code, number) or line
                if now_within == within and _is_body(code, line.function):
                    lines.pop()  # that of the loop or the branch is not named
            line = replace(line, file=named(line.file))
        if lines[-1:] != [line]:  # what calls itself is named once
            lines.append(line)
        within = now_within
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES // 2 : -_MAX_LINES // 2] = [Line("...")]
    return lines


def _is_body(code: CodeType, author: str) -> bool:
    """Whether AutoGraph made a function of a loop or a branch in the author's function."""
    own = code.co_name
    return own != author.rpartition(".")[2] and not own.startswith(("tf__", "<"))


def starts_programs(frame: FrameType) -> bool:
    """Whether it is of what runs a program, `tracer run`, or a test, pytest.

    What runs that in turn, as pytest-xdist does in its processes, is no program either.
    """
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("tracer.cli.") or (
        module == "_pytest.runner" and frame.f_code.co_name.startswith("pytest_runtest_")
    )


def _root_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_generated(code: CodeType) -> bool:
    """Whether AutoGraph wrote it."""
    return "__autograph_generated_file" in code.co_filename


def sort_of(frame: FrameType) -> Literal["program", "package", "other"]:
    """Whether a frame is of the program, of a package of others, or of what runs them."""
    file, root = frame.f_code.co_filename, _root_of(frame)
    if root in FRAMEWORKS or root == "tracer" or _NO_SOURCE.search(file):
        return "other"
    if _is_generated(frame.f_code):
        return "program"
    if any(each in file for each in _PACKAGES):
        return "other" if root in _WRAPPERS else "package"
    return "other" if os.path.normcase(file).startswith((_LIBRARY, _SCRIPTS)) else "program"


_WRAPPERS = ("decorator", "pluggy", "six", "wrapt")
"""Packages that only call what they are given."""


def qualified(code: CodeType) -> str:
    """The name of a function; from Python 3.11 on with its class: `MyModel.train_step`."""
    resumed = _RESUMED.match(code.co_name)
    qualified = str(getattr(code, "co_qualname", code.co_name))
    return resumed[1] if resumed else qualified.rpartition("<locals>.")[2]


def _name_of(frame: FrameType) -> str:
    """What people know a method of the framework or of ours by; empty if they do not."""
    code, root = frame.f_code, _root_of(frame)
    if root == "tracer" and code.co_name == "_step_of_scaler":
        return "GradScaler.step"
    if root == "tracer" and code.co_name in _KNOWN_CODES:  # as AutoGraph has it, too
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
