"""Runs a program in this process as `python` would run it, and hides that it was not `python`.

What a program can see stays as it is: `sys.argv`, `sys.path[0]`, `__main__` (so that it can pickle
its classes and start other processes), standard input, and what ends it. Whatever it raises goes on
to the interpreter, which knows best what to print and with which status to exit.
"""

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def run(program: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script, a folder or zip file with a `__main__.py`, or a module, as `__main__`.

    Raises what the program raises. If that is let through to the interpreter, its traceback will
    be the one that `python` prints, after `hide_frames`: it begins below this function.
    """
    # The one that is replaced must live on: the names in it would become None.
    run.replaced = before = sys.modules["__main__"]  # type: ignore[attr-defined]
    main = sys.modules["__main__"] = ModuleType("__main__")
    path = os.path.join(os.getcwd(), program)
    # What Python puts there first; which of it there is depends on its version.
    names = {"__annotations__": {}, "__builtins__": builtins, "__cached__": None}
    vars(main).update({name: value for name, value in names.items() if name in vars(before)})
    sys.argv = ["-m" if module else program, *arguments]
    if module:
        _set_path(os.getcwd())
        runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # it is what `-m` calls
    elif pkgutil.get_importer(path) is not None:  # a folder or a zip file
        _set_path(path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _set_path(os.path.dirname(os.path.realpath(program)))
        vars(main).update(__file__=path, __loader__=SourceFileLoader("__main__", path))
        exec(_code(path), vars(main))


def _set_path(first: str) -> None:
    """Put the program's folder where that of the `tracer` command is, if Python puts any there."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = first


def _code(path: str) -> CodeType:
    with io.open_code(path) as file:
        content = file.read()  # once: it may be a pipe, as of `<(...)` in a shell
    compiled: CodeType | None = pkgutil.read_code(io.BytesIO(content))  # None for a source file
    return compiled or compile(content, path, "exec", dont_inherit=True)


# Tracebacks.


def hide_frames() -> None:
    """Let Python print what ends the program without the frames of this package."""
    hook = sys.excepthook

    def show(kind: Any, error: BaseException, traceback: TracebackType | None) -> None:
        error.__traceback__ = traceback
        _clean(error, set())
        hook(kind, error, error.__traceback__)

    sys.excepthook = show


def _clean(error: Any, seen: set[int]) -> None:
    """Take the frames of this package out of the tracebacks of an error and those chained to it."""
    if isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_ours(error.__traceback__)
        for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
            _clean(other, seen)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is run.__code__:
            entries.clear()
        elif not code.co_filename.startswith(_PACKAGE):
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry, following in zip(entries, [*entries[1:], None], strict=False):
        entry.tb_next = following
    return entries[0] if entries else None
