"""`tracer run`: run a program as `python` does, with every optimizer traced.

A separate thread keeps the trace file up to date. With `--children`, a new Python finds
`startup/sitecustomize.py` by `PYTHONPATH`, which calls `follow`. Forks are not traced.
"""

import atexit
import builtins
import json
import os
import pkgutil
import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from msgspec.structs import replace

from tracer.api import record
from tracer.errors import Mistake, TraceFileError, in_one_line, near_file
from tracer.model import launches, tracefile
from tracer.model.records import Note, Program
from tracer.model.trace import Trace
from tracer.words import shown

FILE, FOLDER = "tracer.json", "traces"
"""The default trace file, and the default folder for the files of several processes."""
ELSEWHERE = (
    "this process used no optimizer, and processes that it forked, or started without "
    "`tracer run --children`, are not traced"
)
_STARTUP = Path(__file__).parent / "startup"
_LONGEST_WAIT = 30  # seconds for the last save at most

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; does nothing on systems without forks."""


# Running a program.


def run(program: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script, a folder or zip file with a `__main__.py`, or a module, as `__main__`.

    Raises the program's exceptions; `_show` prints their tracebacks from below this function.
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


def _show(
    hook: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Show the exception that ended the program, from the program's first frame on."""
    while traceback is not None and traceback.tb_frame.f_code is not run.__code__:
        traceback = traceback.tb_next
    traceback = traceback and traceback.tb_next
    hook(kind, error.with_traceback(traceback), traceback)


# The trace of a process.


class Process:
    """The current process, in which every optimizer is traced from now on.

    `command` is what the process runs, and empty for a child, which the program started: its ending
    is not always known, and it has a file only if it used an optimizer, or forked. `place` and
    `seconds` are as for `Autosave`. With `effects`, variables are compared before and after each
    step. `report` gets the trace and its file when the process ends. With `children`, new Python
    processes that it starts are traced, but no forks.

    The trace ends when Python ends: after the program's other threads and `atexit` functions.
    """

    def __init__(
        self,
        command: str,
        place: Callable[[Trace], Path],
        *,
        seconds: float,
        effects: bool = False,
        report: Callable[[Trace, Path | None], None] | None = None,
        children: bool = False,
    ) -> None:
        self._command = command
        self._status: int | None = None
        self._error = ""
        self._forked = threading.Event()
        self._follows = children
        at_fork(after_in_parent=self._forked.set)
        self._report = report
        self._id = os.getpid()
        self._started = time.time()
        self._tracing = ExitStack()
        self._recording = self._tracing.enter_context(record(effects=effects))
        # `atexit` calls functions in reverse order: this one after all that the program registers.
        atexit.register(self._end)
        self._autosave = Autosave(self._snapshot, place, seconds=seconds)

    def trace(self) -> Trace:
        """The trace so far, with the program that it is of."""
        data = self._recording.trace().data
        times = os.times()  # a process that took no time trained nothing
        started = not self._follows and times.children_user + times.children_system > 0
        if (self._forked.is_set() or started) and not (data.optimizers or data.processes):
            data = replace(data, notes=(*data.notes, Note(ELSEWHERE)))
        program = Program(
            self._command or sys.argv[0],
            self._started,
            ", ".join(data.processes),
            self._status,
            self._error,
        )
        return Trace(replace(data, programs=(program,)))

    def _snapshot(self) -> Trace | None:
        trace = self.trace()
        known = self._command or self._forked.is_set() or trace.optimizers
        return trace if known else None

    def note(self, error: BaseException) -> None:
        """Note that this exception ended the program."""
        code = error.code if isinstance(error, SystemExit) else 1
        # Python prints a text, and exits with 1.
        self._status = int(code) if isinstance(code, int) else int(code is not None)
        if not isinstance(error, SystemExit):
            self._error = in_one_line(error)

    def _end(self) -> None:
        if os.getpid() != self._id:  # a fork
            return
        if self._command:
            self._status = self._status or 0
        elif (uncaught := getattr(sys, "last_value", None)) is not None:
            self.note(uncaught)  # Python has printed it
        try:
            self._tracing.close()
        finally:
            written = self._autosave.finish()
        if self._report is not None:
            self._report(self.trace(), written)


# The trace file, while the program runs.


class Autosave:
    """Writes the trace that `snapshot` returns to a file, again and again until `finish`.

    A separate thread does this: at once, then every `seconds` unless saving takes longer. `place`
    names the file for a trace. If another running process writes that file, this one writes
    `NAME-PID.json`. A failed save is reported once on standard error and retried.
    """

    def __init__(
        self,
        snapshot: Callable[[], Trace | None],
        place: Callable[[Trace], Path],
        *,
        seconds: float,
    ) -> None:
        self._snapshot, self._place, self._seconds = snapshot, place, seconds
        self._reading, self._ended = threading.Lock(), threading.Event()
        self._warned = False
        self._written: Path | None = None
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Save the trace of the whole run; returns the path of the file, None without one."""
        self._ended.set()
        self._thread.join(timeout=_LONGEST_WAIT)
        if self._thread.is_alive():
            self._warn(f"no answer in {_LONGEST_WAIT} s")
        return self._written

    def _run(self) -> None:
        pause = 0.05
        while not self._ended.is_set():
            began = time.monotonic()
            self._save(finished=False)
            took = time.monotonic() - began
            pause = min(2 * pause, max(took, self._seconds - 2 * took))  # short at first
            self._ended.wait(pause)
        self._save(finished=True)

    def _save(self, *, finished: bool) -> None:
        """Save the file and keep its path; None if there is no trace or saving failed."""
        before, self._written = self._written, None
        try:
            with self._reading:
                trace = self._snapshot()
            if trace is None:
                return
            path = self._place(trace)
            path.parent.mkdir(parents=True, exist_ok=True)
            if tracefile.is_other(path):
                raise TraceFileError(f"{path}: is not a trace file, so it is not overwritten")
            if (other := tracefile.launch_of(path)) and other.saved and launches.is_running(other):
                path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
            launch = trace.data.launch and replace(trace.data.launch, saved=time.time())
            programs = tuple(replace(each, finished=finished) for each in trace.data.programs)
            tracefile.save(
                replace(trace.data, finished=finished, programs=programs, launch=launch), path
            )
            self._written = path
            if before and before != path:
                before.unlink(missing_ok=True)  # then it was not known yet that there are several
        except Exception as error:  # no exception may reach the program
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            say(
                f"the trace was not written: {reason} (the program goes on; this is not said again)"
            )

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._reading.release()


def say(line: str) -> None:
    """Print a line on standard error, if it is open."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe without a reader
        print(f"tracer: {shown(' '.join(line.split()))}", file=sys.__stderr__, flush=True)


# `tracer run`, and the processes that a program starts.


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
    from tracer.reporters import formats  # before the program can hide a module

    if any(option == "-o" and value.endswith(".json") for option, value in pairwise(arguments)):
        say(f"-o goes to {name}: options of tracer run stand before the program")
    path = Path(output or (FOLDER if children else FILE))
    in_folder = children or (output or "").endswith(("/", os.sep)) or path.is_dir()
    if module:
        _set_path(os.getcwd())
        if find_spec(name.partition(".")[0]) is None:
            raise Mistake(f"no module named {name}")
    elif not os.path.exists(name):
        raise Mistake(f"cannot open {name}: No such file or directory{near_file(Path(name))}")
    elif tracefile.is_trace(Path(name)):
        raise Mistake(f"{name} is a trace, not a program: did you mean tracer report {name}?")
    if tracefile.is_other(path) or (in_folder and path.is_file()):
        raise Mistake(f"{path}: is a file that tracer run does not overwrite")
    path = path.absolute()  # the program may change the current folder
    folder = path if in_folder else path.parent / FOLDER
    options: dict[str, Any] = {"seconds": seconds, "effects": effects}
    if children:
        folder /= f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        os.environ[launches.CHILDREN] = json.dumps([str(folder), options])
        search = [str(_STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(search)
        path = own_file(folder)

    def place(trace: Trace) -> Path:
        if tracefile.is_one_of_several(trace) and not children:
            return tracefile.file_in(folder, trace)
        return path / tracefile.file_name(trace) if in_folder and not children else path

    process = Process(
        f"-m {name}" if module else name,
        place,
        report=None if quiet else partial(_report, formats.print_report, children),
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
        sys.excepthook = partial(_show, sys.excepthook)
        raise


def _report(
    print_report: Callable[..., None], children: bool, trace: Trace, written: Path | None
) -> None:
    """Print the report on standard error: standard output is the program's own."""
    with suppress(AttributeError, OSError, ValueError):  # Python reports it when it exits
        sys.stdout.flush()
    if children and written is not None:
        written = written.parent
        trace = tracefile.load(written)
    with suppress(OSError, ValueError):  # standard error is closed
        print(file=sys.__stderr__)
        print_report(trace, file=sys.__stderr__)
        print(file=sys.__stderr__)
    if written is not None:
        rest = ", a worker's part of the traces in its folder" * tracefile.is_one_of_several(trace)
        say(f"wrote {os.path.relpath(written)}{rest}")


def follow() -> None:
    """Trace this process, started by a program under `tracer run --children`."""
    if settings := os.environ.get(launches.CHILDREN):
        folder, options = json.loads(settings)
        path = own_file(Path(folder))
        Process("", lambda trace: path, children=True, **options)


def own_file(folder: Path) -> Path:
    """A new file for this process; `exec` may have made it of one that has a file."""
    return folder / f"process-{os.getpid()}-{time.time_ns():x}.json"
