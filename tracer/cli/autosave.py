"""Keep the trace file of a running program up to date, in a separate thread."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracer.cli.claims import claim, leave_to_parent
from tracer.errors import TraceFileError, shown
from tracer.model import tracefile
from tracer.model.trace import Trace

_MIN_PAUSE = 0.05  # seconds between two saves at least
_POLL = 0.1  # seconds between two checks for a first step
_MAX_WAIT = 30  # seconds for the last save at most
FOLDER = "traces"
"""The default folder for the files of several processes."""
_EMPTY = re.compile(rb'"optimizers"\s*:\s*\[\s*\]')

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; does nothing on systems without forks."""


class Autosave:
    """Saves the trace that `snapshot` returns to a file, again and again until `finish`.

    A separate thread does this. The file is `path`; without a `path`, or for one of several
    workers, it is in `folder` if given, named by the worker. It is saved soon after training has
    `begun`, then less and less often, but at least every `seconds` unless saving takes longer. A
    failed save is reported once on standard error and retried. A trace without optimizers never
    replaces one with optimizers.
    """

    def __init__(
        self,
        snapshot: Callable[[], Trace | None],
        path: Path | None,
        folder: Path | None = None,
        *,
        seconds: float,
        begun: Callable[[], bool] = lambda: True,
    ) -> None:
        self._snapshot = snapshot
        self._begun = begun
        self._path, self._folder = path, folder
        self._seconds = seconds
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._finished = False
        self._warned = False
        self._written: Path | None = None
        self._last: Path | None = None
        self._own: dict[Path, Path] = {}  # by the name of a worker's file, the file it writes
        self._claims: list[Any] = []  # hidden files, which must stay open
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._forked)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Save the trace of the whole run; returns the path of the file, None without one."""
        self._ended = True
        self._woken.set()
        self._thread.join(timeout=_MAX_WAIT)
        if self._thread.is_alive():
            self._finished = True  # so that it is reported, although Python ends
            place = self._path or self._folder
            self._warn(f"{place}: cannot be written: no answer in {_MAX_WAIT} s")
        for each in self._own.values() if self._last else ():
            with suppress(OSError):
                tracefile.claim_of(each).unlink()
        return self._last

    def hurry(self) -> None:
        """Wake the thread, to save the file soon."""
        self._woken.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._ended:
            began = time.monotonic()
            if not self._finished:
                self._write()
            took = time.monotonic() - began
            # At worst, the file is as old as one pause and two saves.
            longest = max(_MIN_PAUSE, 0.8 * self._seconds - 2 * took)
            if self._begun():  # short pauses first: the program may be killed in its first second
                pause = min(longest, max(_MIN_PAUSE, 2 * pause, 10 * took))
                self._woken.wait(pause)
            else:
                until = time.monotonic() + longest
                while not (self._woken.wait(_POLL) or self._begun() or time.monotonic() > until):
                    pass
            self._woken.clear()
        self._finished = True
        self._last = self._write()

    def _write(self) -> Path | None:
        """Save the file; returns its path, None if there is no trace or saving failed."""
        try:
            with self._writing:
                return self._save()
        except TraceFileError as error:
            self._warn(str(error))
        except Exception as error:  # no exception may reach the program
            place = self._path or self._folder
            self._warn(f"{place}: the trace was not written: {type(error).__name__}: {error}")
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
        with suppress(OSError):  # saving reports the reason
            path.parent.mkdir(parents=True, exist_ok=True)
        if _is_one_of_several(trace):
            path = self._own.get(path) or self._claim(path)
        programs = (replace(each, finished=self._finished) for each in trace.programs)
        data = replace(trace.data, finished=self._finished, programs=tuple(programs))
        tracefile.save(data, path)
        if self._written is not None and self._written != path:
            self._written.unlink(missing_ok=True)
        self._written = path
        return path

    def _file(self, trace: Trace) -> Path | None:
        """The file to write; None until the worker is known."""
        if self._folder is None or (self._path is not None and not _is_one_of_several(trace)):
            return self._path
        known = self._finished or trace.replicas or any(each.worker for each in trace.programs)
        return self._folder / tracefile.file_name(trace) if known else None

    def _claim(self, path: Path) -> Path:
        """The file of this worker: `path`, unless another living process has claimed it."""
        of_one_launch = self._path is not None and self._path.parent == self._folder
        own, hidden, kept = claim(path, self._written, only_new=of_one_launch)
        self._own[path] = own
        self._claims += filter(None, [hidden])
        place = os.path.relpath(path)
        if kept is not None:
            say(f"{place} belonged to an earlier run: it is {os.path.relpath(kept)} now")
        if own != path and not of_one_launch:
            say(f"{place} belongs to another running process: this one writes {own.name}")
        return own

    def _earlier(self, path: Path) -> Path | None:
        """An existing trace with optimizers that a trace without any would replace, or join."""
        of_no_worker = path != self._path and path.stem == "trace"
        files = path.parent.glob("*.json") if of_no_worker else [path]
        with tracefile.refused(path, "written"):
            heads = ((each, tracefile.head(each)) for each in files)
            return next((each for each, at in heads if at and not _EMPTY.search(at)), None)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            say(f"{reason} (the program goes on; this is not said again)")

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._reading.release()

    def _forked(self) -> None:
        self._release()
        for each in self._claims:
            leave_to_parent(each)


def _is_one_of_several(trace: Trace) -> bool:
    return ", " in trace.environment.get("cluster", "")


def say(line: str) -> None:
    """Print a line on standard error, if it is open."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe without a reader
        text = shown(" ".join(line.split()))
        print(f"tracer: {text}", file=sys.__stderr__, flush=True)
