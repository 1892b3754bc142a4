"""Trace this process and the processes that it starts: commands, endings and trace files.

A separate thread keeps the trace file up to date.

With `--children`, a new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, which calls
`follow`. Forks are not traced.
"""

import atexit
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracer.api import record
from tracer.errors import TraceFileError, in_one_line, shown
from tracer.model import launches, tracefile
from tracer.model.records import Note, Program
from tracer.model.trace import Trace

_LONGEST_WAIT = 30  # seconds for the last save at most

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; does nothing on systems without forks."""


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
            time.time() - self._started,
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
            if trace is not None:
                self._written = self._saved(trace, finished)
            if before and self._written not in (None, before):
                before.unlink(missing_ok=True)  # then it was not known yet that there are several
        except Exception as error:  # no exception may reach the program
            self._warn(f"{type(error).__name__}: {error}")

    def _saved(self, trace: Trace, finished: bool) -> Path:
        path = self._place(trace)
        path.parent.mkdir(parents=True, exist_ok=True)
        if tracefile.is_other(path):
            raise TraceFileError(f"{path}: is not a trace file, so it is not overwritten")
        if (other := tracefile.launch_of(path)) and other.saved and launches.is_running(other):
            path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
        launch = trace.data.launch and replace(trace.data.launch, saved=time.time())
        programs = tuple(replace(each, finished=finished) for each in trace.programs)
        tracefile.save(
            replace(trace.data, finished=finished, programs=programs, launch=launch), path
        )
        return path

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


# Child processes.

_STARTUP = Path(__file__).parent / "startup"
ELSEWHERE = (
    "this process used no optimizer, and processes that it forked, or started without "
    "`tracer run --children`, are not traced"
)


def follow_children(folder: Path, options: Mapping[str, Any]) -> None:
    """Trace the processes that the first process starts, with the same `options` of `Process`."""
    os.environ[launches.CHILDREN] = json.dumps([str(folder), options])
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path])


def follow() -> None:
    """Trace this process, started by a program under `tracer run --children`."""
    if settings := os.environ.get(launches.CHILDREN):
        folder, options = json.loads(settings)
        path = own_file(Path(folder))
        Process("", lambda trace: path, children=True, **options)


def own_file(folder: Path) -> Path:
    """A new file for this process; `exec` may have made it of one that has a file."""
    return folder / f"process-{os.getpid()}-{secrets.token_hex(2)}.json"
