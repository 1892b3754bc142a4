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

_MIN_PAUSE = 0.05  # seconds between two writings, however long the last one took
_MAX_WAIT = 30  # seconds that the last writing of the thread may take
_EMPTY = re.compile(rb'"optimizers"\s*:\s*\[\s*\]')

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; nothing where there are no forks."""


class Autosave:
    """Writes what `snapshot` returns, if anything, to a file again and again until `finish`.

    It does so by a thread of its own. The file is `path`; without a `path`, or for a worker of
    several, it stands in `folder`, if one is given, and is named by the worker. It is never more
    than `seconds` behind, unless a disk takes longer than that for one writing. A file that cannot
    be written is reported once on standard error, and tried again. A trace without optimizers does
    not replace a trace that has some.
    """

    def __init__(
        self,
        snapshot: Callable[[], Trace | None],
        path: Path | None,
        folder: Path | None = None,
        *,
        seconds: float,
    ) -> None:
        self._snapshot = snapshot
        self._path = path
        self._folder = folder
        self._seconds = seconds
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._finished = False
        self._warned = False
        self._written: Path | None = None
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Write the trace of the whole run; returns the path of the file, None if there is none."""
        self._ended.set()
        self._thread.join(timeout=_MAX_WAIT)
        if self._thread.is_alive():
            self._warn(f"{self._path or self._folder}: cannot be written: the disk does not answer")
            return None
        self._finished = True
        return self._write()

    def pause(self) -> None:
        """Write the file as that of a finished run, and no more until `resume`."""
        if not self._finished:
            self._finished = True
            self._write()

    def resume(self) -> None:
        """Keep the file up to date again."""
        self._finished = False

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            began = time.monotonic()
            if not self._finished:
                self._write()
            # What is in the file is as old as the next file is late: one pause and two writings.
            wait = max(_MIN_PAUSE, 0.8 * self._seconds - 2 * (time.monotonic() - began))

    def _write(self) -> Path | None:
        """Write the file; returns its path, None if there is nothing to write or that failed."""
        try:
            with self._writing:
                return self._save()
        except TraceFileError as error:
            self._warn(str(error))
        except Exception as error:  # whatever it is, it must not reach the program
            self._warn(f"the trace was not written: {type(error).__name__}: {error}")
        return None

    def _save(self) -> Path | None:
        with self._reading:
            trace = self._snapshot()
        if trace is None or (path := self._file(trace)) is None:
            return None
        if not trace.optimizers and (earlier := self._earlier(path)) is not None:
            if self._finished:
                kept = os.path.relpath(earlier)
                say(f"kept {kept}, the trace of an earlier run: this run used no optimizer")
            return None
        with suppress(OSError):  # the writing says why
            path.parent.mkdir(parents=True, exist_ok=True)
        tracefile.save(msgspec.structs.replace(trace.data, finished=self._finished), path)
        if self._written is not None and self._written != path:
            self._written.unlink(missing_ok=True)
        self._written = path
        return path

    def _file(self, trace: Trace) -> Path | None:
        """The file to write; None as long as it is not known which worker this is."""
        several = ", " in trace.environment.get("cluster", "")
        if self._folder is None or (self._path is not None and not several):
            return self._path
        known = self._finished or trace.replicas or any(each.worker for each in trace.programs)
        return self._folder / tracefile.file_name(trace) if known else None

    def _earlier(self, path: Path) -> Path | None:
        """The trace with optimizers that a trace without any would replace, or stand beside."""
        of_no_worker = path != self._path and path.stem == "trace"
        files = path.parent.glob("*.json") if of_no_worker else [path]
        heads = ((each, head(each)) for each in files)
        return next((each for each, start in heads if start and not _EMPTY.search(start)), None)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            say(f"{reason} (the program goes on; this is not said again)")

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._reading.release()


def head(path: Path) -> bytes:
    """The first bytes of a file; none of a folder, or of what cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(1 << 16)
    return b""


def say(line: str) -> None:
    """Print one line on standard error, if there is one."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe that nobody reads
        print(f"tracer: {shown(' '.join(line.split()))}", file=sys.__stderr__, flush=True)
