"""Trace this process and the processes that it starts: commands, endings and trace files.

With `--children`, a new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, which calls
`follow`. Forks are not traced.
"""

import atexit
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import wrapt
from msgspec.structs import replace

from tracer.api import record
from tracer.cli.autosave import Autosave, at_fork
from tracer.errors import shown, without_credentials
from tracer.model import launches
from tracer.model.records import Note, Program
from tracer.model.trace import Trace
from tracer.model.words import listed

_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # in messages of Keras exceptions


class Process:
    """The current process, in which every optimizer is traced from now on.

    `command` is what the process runs, and empty for a child, which the program started: its ending
    is not always known, and it has a file only if it used an optimizer, or forked. `place` and
    `seconds` are as for `Autosave`. With `effects`, variables are compared before and after each
    step. `report` gets the trace and its file when the process ends. `unfollowed` lists processes
    that it started and that are not traced: see `note_children`.

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
        unfollowed: Sequence[str] = (),
    ) -> None:
        self._command = command
        self._status: int | None = None
        self._error = ""
        self._unfollowed = unfollowed
        self._report = report
        self._id = os.getpid()
        self._started = time.time()
        self._start = time.monotonic()
        self._tracing = ExitStack()
        self._recording = self._tracing.enter_context(record(effects=effects))
        # `atexit` calls functions in reverse order: this one after all that the program registers.
        atexit.register(self._end)
        wrapt.wrap_function_wrapper(os, "_exit", self._exit)
        self._autosave = Autosave(self._snapshot, place, seconds=seconds)

    def trace(self) -> Trace:
        """The trace so far, with the program that it is of."""
        data = self._recording.trace().data
        if self._unfollowed and not data.optimizers:
            names = listed([*dict.fromkeys(self._unfollowed)], _MAX_NAMES)
            note = Note(f"the program started other processes ({names}): {_UNFOLLOWED}")
            data = replace(data, notes=(*data.notes, note))
        program = Program(
            self._command or sys.argv[0],
            self._started,
            time.monotonic() - self._start,
            ", ".join(data.processes),
            self._status,
            self._error,
        )
        return Trace(replace(data, programs=(program,)))

    def _snapshot(self) -> Trace | None:
        trace = self.trace()
        return trace if trace.optimizers or self._unfollowed or self._command else None

    def note(self, error: BaseException) -> None:
        """Note that this exception ended the program."""
        code = error.code if isinstance(error, SystemExit) else 1
        # Python prints a text, and exits with 1.
        self._status = int(code) if isinstance(code, int) else int(code is not None)
        if not isinstance(error, SystemExit):
            self._error = type(error).__name__
            with suppress(Exception):  # an exception of the program may not have a text
                text = without_credentials(_COLORS.sub("", " ".join(str(error).split())))
                self._error += f": {text[:199]}{'…' * (len(text) > 199)}" if text else ""

    def _exit(self, leave: Callable[..., None], _: object, args: Any, options: Any) -> None:
        """End the trace before `os._exit`, after which Python calls no `atexit` functions."""
        try:
            self._status = args[0] if args else options["status"]
            self._end()
        finally:
            leave(*args, **options)

    def _end(self) -> None:
        if os.getpid() != self._id:  # a fork, or it has ended
            return
        self._id = 0
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
_MAX_NAMES = 3  # processes in a list
_TOOLS = {"git", "hostname", "ldconfig", "lscpu", "nvidia-smi", "uname"}
"""Programs without training that frameworks or Python's `platform` start."""
_UNFOLLOWED = (
    "these are not traced; `tracer run --children` traces them, but no forks: use the start method "
    "spawn of multiprocessing"
)


def note_children(*, forks_only: bool = False) -> list[str]:
    """A list that gets the name of each process that this one starts, or forks, from now on."""
    started: list[str] = []

    def run_subprocess(run: Any, process: Any, args: Any, options: Any) -> None:
        run(*args, **options)
        command = process.args
        is_text = isinstance(command, str | bytes | os.PathLike)
        program = os.fsdecode(command if is_text else command[0]).partition(" ")[0]
        if (name := os.path.basename(program)) not in _TOOLS:
            started.append(shown(name))

    def start_process(start: Any, process: Any, args: Any, options: Any) -> None:
        start(*args, **options)
        started.append(f"{process.name} of multiprocessing")

    at_fork(after_in_parent=lambda: started.append("a fork"))
    if not forks_only:
        wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", run_subprocess)
        wrapt.register_post_import_hook(
            lambda module: wrapt.wrap_function_wrapper(module, "BaseProcess.start", start_process),
            "multiprocessing.process",
        )
    return started


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
        Process("", lambda trace: path, unfollowed=note_children(forks_only=True), **options)


def own_file(folder: Path) -> Path:
    """A new file for this process; `exec` may have made it of one that has a file."""
    return folder / f"process-{os.getpid()}-{secrets.token_hex(2)}.json"
