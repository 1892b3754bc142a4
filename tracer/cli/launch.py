"""`tracer run`: run a program as `python` does, with every optimizer traced."""

import builtins
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tracer.cli.process import Process, follow_children, own_file, say
from tracer.errors import Mistake, near_file
from tracer.model.trace import Trace
from tracer.model.tracefile import (
    file_in,
    file_name,
    is_one_of_several,
    is_other,
    is_trace,
    load,
)
from tracer.reporters import formats


def run(program: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script, a folder or zip file with a `__main__.py`, or a module, as `__main__`.

    Raises the program's exceptions. After `hide_frames`, tracebacks begin below this function.
    """
    # Keep the replaced module alive: otherwise its globals would become None.
    run.replaced = before = sys.modules["__main__"]  # type: ignore[attr-defined]
    main = sys.modules["__main__"] = ModuleType("__main__")
    path = os.path.join(os.getcwd(), program)
    # The attributes that Python puts there first, which depend on its version.
    names = {"__annotations__": {}, "__builtins__": builtins, "__cached__": None}
    vars(main).update({name: value for name, value in names.items() if name in vars(before)})
    sys.argv = ["-m" if module else program, *arguments]
    if module:
        runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # as `-m` does
    elif pkgutil.get_importer(path) is not None:  # a folder or a zip file
        _set_path(path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _set_path(os.path.dirname(os.path.realpath(program)))
        vars(main).update(__file__=path, __loader__=SourceFileLoader("__main__", path))
        content = Path(path).read_bytes()  # only once: it may be a pipe, as `<(...)` in a shell
        exec(compile(content, path, "exec", dont_inherit=True), vars(main))


def _set_path(first: str) -> None:
    """Replace the folder of the `tracer` command in `sys.path` by the program's, as Python does."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = first


def hide_frames() -> None:
    """Have Python print the exception that ends the program from the program's first frame on."""
    hook = sys.excepthook

    def show(kind: Any, error: BaseException, traceback: TracebackType | None) -> None:
        while traceback is not None and traceback.tb_frame.f_code is not run.__code__:
            traceback = traceback.tb_next
        traceback = traceback and traceback.tb_next
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = show


# `tracer run`.

FILE, FOLDER = "tracer.json", "traces"
"""The default trace file, and the default folder for the files of several processes."""


def prepared(
    name: str,
    arguments: Sequence[str],
    *,
    module: bool,
    output: str | None,
    quiet: bool,
    seconds: float,
    children: bool,
    effects: bool,
) -> Callable[[], None]:
    """Trace this process, and return the function that runs a script or a `module` in it.

    `output` is a trace file, or a folder (an existing one, or a path that ends in a slash); the
    file is saved at least every `seconds`. With `children`, processes that the program starts are
    traced too, and `output` is a folder. With `effects`, variables are compared before and after
    each step. See `Process` for when the trace ends.

    Raises `Mistake` if the program cannot be run, or if a file would be overwritten.
    """
    path = Path(output or (FOLDER if children else FILE))
    in_folder = children or (output or "").endswith(("/", os.sep)) or path.is_dir()
    if module:
        _set_path(os.getcwd())
        if find_spec(name.partition(".")[0]) is None:
            raise Mistake(f"no module named {name}")
    elif not os.path.exists(name):
        raise Mistake(f"cannot open {name}: No such file or directory{near_file(Path(name))}")
    elif is_trace(Path(name)):
        raise Mistake(f"{name} is a trace, not a program: did you mean tracer report {name}?")
    if is_other(path) or (in_folder and path.is_file()):
        raise Mistake(f"{path}: is a file that tracer run does not overwrite")
    path = path.absolute()  # the program may change the current folder
    folder = path if in_folder else path.parent / FOLDER
    options: dict[str, Any] = {"seconds": seconds, "effects": effects}
    if children:
        folder /= f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        follow_children(folder, options)
        path = own_file(folder)

    def place(trace: Trace) -> Path:
        if is_one_of_several(trace) and not children:
            return file_in(folder, trace)
        return path / file_name(trace) if in_folder and not children else path

    process = Process(
        f"-m {name}" if module else name,
        place,
        report=None if quiet else partial(_report, children),
        children=children,
        **options,
    )

    return partial(_run_in, process, name, arguments, module=module)


def _run_in(process: Process, name: str, arguments: Sequence[str], *, module: bool) -> None:
    """Run a program, and note how it ended: its exceptions reach the interpreter."""
    try:
        run(name, arguments, module=module)
    except BaseException as error:
        process.note(error)
        hide_frames()
        raise


def _report(children: bool, trace: Trace, written: Path | None) -> None:
    """Print the report on standard error: standard output is the program's own."""
    with suppress(AttributeError, OSError, ValueError):  # Python reports it when it exits
        sys.stdout.flush()
    if children and written is not None:
        written = written.parent
        trace = load(written)
    with suppress(OSError, ValueError):  # standard error is closed
        print(file=sys.__stderr__)
        formats.print_report(trace, file=sys.__stderr__)
        print(file=sys.__stderr__)
    if written is not None:
        rest = ", a worker's part of the traces in its folder" * is_one_of_several(trace)
        say(f"wrote {os.path.relpath(written)}{rest}")
