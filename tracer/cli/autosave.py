"""Keep the trace file of a running program up to date, in a separate thread."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from tracer.errors import TraceFileError, shown
from tracer.model import launches, tracefile
from tracer.model.trace import Trace

_LONGEST_WAIT = 30  # seconds for the last save at most

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; does nothing on systems without forks."""


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
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._warned = False
        self._written: Path | None = None
        self._last: Path | None = None
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Save the trace of the whole run; returns the path of the file, None without one."""
        self._ended.set()
        self._thread.join(timeout=_LONGEST_WAIT)
        if self._thread.is_alive():
            self._warn(f"the trace was not written: no answer in {_LONGEST_WAIT} s")
        return self._last

    def _run(self) -> None:
        pause = 0.05
        while not self._ended.is_set():
            began = time.monotonic()
            self._write(finished=False)
            took = time.monotonic() - began
            pause = min(2 * pause, max(took, self._seconds - 2 * took))  # short at first
            self._ended.wait(pause)
        self._last = self._write(finished=True)

    def _write(self, *, finished: bool) -> Path | None:
        """Save the file; returns its path, None if there is no trace or saving failed."""
        try:
            with self._reading:
                trace = self._snapshot()
            return None if trace is None else self._save(trace, finished)
        except Exception as error:  # no exception may reach the program
            self._warn(f"the trace was not written: {type(error).__name__}: {error}")
        return None

    def _save(self, trace: Trace, finished: bool) -> Path:
        path = self._place(trace)
        with tracefile.refused(path, "written"):
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
        before, self._written = self._written, path
        if before and before != path:
            before.unlink(missing_ok=True)  # then it was not known yet that there are several
        return path

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            say(f"{reason} (the program goes on; this is not said again)")

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._reading.release()


def say(line: str) -> None:
    """Print a line on standard error, if it is open."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe without a reader
        print(f"tracer: {shown(' '.join(line.split()))}", file=sys.__stderr__, flush=True)
