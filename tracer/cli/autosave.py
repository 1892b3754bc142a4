"""Keeps the trace of a running program in a file, so that a kill loses little of it."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from tracer.errors import TraceFileError, shown
from tracer.model import tracefile
from tracer.model.trace import Trace

_LEAST = 0.05  # seconds between two writings, however long the last one took
_PATIENCE = 30  # seconds that the last writing of the thread may take
_HEAD = 1 << 16  # bytes of a trace file in which an empty list of optimizers is looked for
_EMPTY = re.compile(rb'"optimizers"\s*:\s*\[\s*\]')


class Autosave:
    """Writes what `snapshot` returns, if anything, to `path` again and again, by its own thread.

    `path` is a file or, if `folder`, a folder in which the file is named by the worker. A worker of
    several writes to the folder `workers`, if there is one, and not to the file `path`. The file is
    never more than `seconds` behind, unless a disk takes longer than that for one writing. A file
    that cannot be written is reported once on standard error, and tried again. A trace without
    optimizers does not replace a trace that has some.
    """

    def __init__(
        self,
        snapshot: Callable[[], Trace | None],
        path: Path,
        *,
        folder: bool,
        seconds: float,
        workers: Path | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._path = path
        self._folder = folder
        self._workers = workers
        self._kept: Path | None = None
        self._seconds = seconds
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._warned = False
        self._held = False
        self._written: Path | None = None
        self._writing = threading.Lock()
        self._paused = False

    def start(self) -> None:
        """Write a first file, and go on until `finish`."""
        # A child process must not inherit a lock that this thread held when the process was forked.
        if hasattr(os, "register_at_fork"):
            release = self._release
            os.register_at_fork(before=self._hold, after_in_parent=release, after_in_child=release)
        self._thread.start()

    def finish(self) -> Path | None:
        """Write the trace of the whole run; returns the path of the file, None if there is none."""
        self._ended.set()
        self._thread.join(timeout=_PATIENCE)
        if self._thread.is_alive():
            self._warn(f"{self._path}: cannot be written: the disk does not answer")
            return None
        written = self._write(finished=True)
        if self._kept is not None:
            kept = os.path.relpath(self._kept)
            say(f"kept {kept}, the trace of an earlier run: this run used no optimizer")
        return self._written if written else None

    def pause(self) -> None:
        """Write the file as that of a finished run, and no more until `resume`."""
        self._paused = True
        self._write(finished=True)

    def resume(self) -> None:
        """Keep the file up to date again."""
        self._paused = False

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            if not self._paused:
                self._write(finished=False)
            took = time.monotonic() - began
            # What is in the file is as old as the next file is late: one pause and two writings.
            if self._ended.wait(max(_LEAST, 0.8 * self._seconds - 2 * took)):
                return

    def _write(self, finished: bool) -> bool:
        """Write the file; returns False if that failed."""
        with self._writing:
            return self._put(finished or self._paused)

    def _put(self, finished: bool) -> bool:
        try:
            with self._reading:
                trace = self._snapshot()
            path = None if trace is None else self._file(trace, finished)
            if trace is None or path is None:
                return False
            self._kept = None if trace.optimizers else self._earlier(path)
            if self._kept is not None:
                return False
            if path.parent == self._workers:
                path.parent.mkdir(parents=True, exist_ok=True)
            tracefile.save(msgspec.structs.replace(trace.data, finished=finished), path)
            if self._written is not None and self._written != path:
                self._written.unlink(missing_ok=True)
            self._written = path
            return True
        except TraceFileError as error:
            self._warn(str(error))
        except Exception as error:  # whatever it is, it must not reach the program
            self._warn(f"the trace was not written: {type(error).__name__}: {error}")
        return False

    def _file(self, trace: Trace, finished: bool) -> Path | None:
        """The file to write; None as long as it is not known which worker this is."""
        several = ", " in trace.environment.get("cluster", "")
        folder = self._path if self._folder else self._workers if several else None
        if folder is None:
            return self._path
        named = any(each.worker for each in trace.programs)
        if not named and not trace.replicas and not finished:
            return None
        return folder / tracefile.file_name(trace)

    def _earlier(self, path: Path) -> Path | None:
        """The trace with optimizers that a trace without any would replace, or stand beside."""
        if self._folder and path.stem == "trace":  # no worker of the run in the folder
            return path.parent if any(map(_has_optimizers, path.parent.glob("*.json"))) else None
        return path if _has_optimizers(path) else None

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            say(f"{reason} (the program goes on; this is not said again)")

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._reading.release()


def _has_optimizers(path: Path) -> bool:
    """Whether there is a trace file at `path` that counted something, by its first bytes."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return bool(head) and _EMPTY.search(head) is None


def say(line: str) -> None:
    """Print one line on standard error, if there is one."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe that nobody reads
        print(f"tracer: {shown(' '.join(line.split()))}", file=sys.__stderr__, flush=True)
