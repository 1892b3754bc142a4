"""Trace this process and the processes that it starts: commands, endings and trace files.

With `--children`, a new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, which calls
`follow`. Forks are not traced.
"""

import atexit
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracer.api import record
from tracer.cli.autosave import Autosave, at_fork
from tracer.errors import in_one_line
from tracer.model import launches
from tracer.model.records import Note, Program
from tracer.model.trace import Trace


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
        self._forked = False
        self._follows = children
        at_fork(after_in_parent=self._note_fork)
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
        if (self._forked or started) and not (data.optimizers or data.processes):
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
        return trace if trace.optimizers or self._forked or self._command else None

    def _note_fork(self) -> None:
        self._forked = True

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
