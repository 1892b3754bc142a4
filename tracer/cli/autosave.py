"""Keeps the trace file of a running program up to date, by a thread of its own."""

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

from tracer import locations
from tracer.cli.claims import claim, leave_to_parent
from tracer.errors import TraceFileError, shown
from tracer.model import tracefile
from tracer.model.redaction import message
from tracer.model.trace import Trace

_MIN_PAUSE = 0.05  # seconds between two writings, however long the last one took
_POLL = 0.1  # seconds between two looks whether the program has made a step
_MAX_WAIT = 30  # seconds that the last writing may take
FOLDER = "traces"
"""Where one of several processes writes its own file if nothing else is asked for."""
_EMPTY = re.compile(rb'"optimizers"\s*:\s*\[\s*\]')

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; nothing where there are no forks."""


class Autosave:
    """Writes what `snapshot` returns, if anything, to a file again and again until `finish`.

    It does so by a thread of its own. The file is `path`; without a `path`, or for a worker of
    several, it stands in `folder`, if one is given, and is named by the worker. It is written soon
    after the training has `begun`, then ever more rarely; it is never more than `seconds` behind,
    unless one writing takes longer than that. A file that cannot be written
    is reported once on standard error, and tried again; if that is a URL and the last writing
    fails, too, the trace goes to the folder `traces`. A trace without optimizers does not replace a
    trace that has some.
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
        # The file system of a URL cannot be used in a fork of the process that opened it.
        self._path, self._folder = (
            locations.location(str(each)) if locations.is_remote(each) else each
            for each in (path, folder)
        )
        self._spare = Path(FOLDER).absolute()
        self._seconds = seconds
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._finished = False
        self._warned = False
        self._failed = False  # also true of a writing that is not done
        self._written: Path | None = None
        self._last: Path | None = None
        self._own: dict[Path, Path] = {}  # by the name of a worker's file, the one that is written
        self._claims: list[Any] = []  # hidden files, which must stay open
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._forked)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Write the trace of the whole run; returns the path of the file, None if there is none."""
        place = self._path or self._folder
        if is_remote := locations.is_remote(place):
            locations.work_at_exit()
        self._ended = True
        self._woken.set()
        self._thread.join(timeout=_MAX_WAIT)
        if self._thread.is_alive():
            self._finished = True  # so that it is said, though Python ends
            self._warn(f"{place}: cannot be written: no answer for {_MAX_WAIT} s")
        if is_remote and self._failed:
            self._writing, self._written = threading.Lock(), None  # the thread may hold the lock
            self._path, self._folder, self._finished = None, self._spare, True
            self._warned = False
            self._last = self._write()
        for each in self._own.values() if self._last else ():
            with suppress(OSError):
                tracefile.claim_of(each).unlink()
        return self._last

    def pause(self) -> None:
        """Write the file as that of a finished run, and no more until `resume`."""
        if not self._finished:
            self._finished = True
            self._write()

    def resume(self) -> None:
        """Keep the file up to date again."""
        self._finished = False

    def hurry(self) -> None:
        """Have the file written soon, by the thread that does so."""
        self._woken.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._ended:
            began = time.monotonic()
            if not self._finished:
                self._write()
            took = time.monotonic() - began
            # What is in the file is as old as the next file is late: one pause and two writings.
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
        """Write the file; returns its path, None if there is nothing to write or that failed."""
        self._failed = True
        try:
            with self._writing:
                written = self._save()
            self._failed = False
            return written
        except TraceFileError as error:
            self._warn(str(error))
        except Exception as error:  # whatever it is, it must not reach the program
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
                kept = locations.display(earlier)
                say(f"kept {kept}, the trace of an earlier run: this run used no optimizer")
            return None
        if locations.is_remote(path):  # which was not looked at when the program was started
            if self._written is None and tracefile.is_other(path):
                raise TraceFileError(f"{path}: is not a trace file, and would be overwritten")
        else:
            with suppress(OSError):  # the writing says why
                path.parent.mkdir(parents=True, exist_ok=True)
            shared = _is_one_of_several(trace) or self._folder is self._spare
            if shared and path.parent == self._folder:
                path = self._own.get(path) or self._claim(path)
        programs = (replace(each, finished=self._finished) for each in trace.programs)
        data = replace(trace.data, finished=self._finished, programs=tuple(programs))
        tracefile.save(data, path)
        if self._written is not None and self._written != path:
            self._written.unlink(missing_ok=True)
        self._written = path
        return path

    def _file(self, trace: Trace) -> Path | None:
        """The file to write; None as long as it is not known which worker this is."""
        if self._folder is None or (self._path is not None and not _is_one_of_several(trace)):
            return self._path
        known = self._finished or trace.replicas or any(each.worker for each in trace.programs)
        return self._folder / tracefile.file_name(trace) if known else None

    def _claim(self, path: Path) -> Path:
        """The file of this worker: `path`, unless a process that lives has it; none is lost."""
        of_one_launch = self._path is not None and self._path.parent == self._folder
        own, hidden, kept = claim(path, only_new=of_one_launch)
        self._own[path] = own
        self._claims += filter(None, [hidden])
        place = locations.display(path)
        if kept is not None:
            say(f"{place} was of an earlier run: it is {locations.display(kept)} now")
        if own != path and not of_one_launch:
            say(f"{place} is of another process that runs: this one writes {own.name}")
        return own

    def _earlier(self, path: Path) -> Path | None:
        """The trace with optimizers that a trace without any would replace, or stand next to."""
        of_no_worker = path != self._path and path.stem == "trace"
        files = path.parent.glob("*.json") if of_no_worker else [path]
        return next(
            (each for each in files if (at := tracefile.head(each)) and not _EMPTY.search(at)), None
        )

    def _warn(self, reason: str) -> None:
        # While Python ends, a save may fail that is not the last one: the last one says so.
        if not self._warned and (self._finished or not locations.python_ends.is_set()):
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
    """Print one line on standard error, if there is one; without the secrets of a URL in it."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe that nobody reads
        text = shown(message(" ".join(line.split())))
        print(f"tracer: {text}", file=sys.__stderr__, flush=True)
