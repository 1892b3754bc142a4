"""Trace this process and the processes that it starts: commands, endings and trace files.

With `--children`, a new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, which calls
`follow`. Forks are not traced.
"""

import atexit
import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import wrapt
from msgspec.structs import replace

from tracer.api import recording_aloud
from tracer.cli.autosave import Autosave, at_fork
from tracer.errors import shown, without_credentials
from tracer.layout import cut
from tracer.model import launches
from tracer.model.records import Note, Program
from tracer.model.trace import Trace
from tracer.model.words import listed

_MAX_CELLS = 200  # cells of an exception's message
_ORNAMENTS = re.compile(r"\x1b\[[0-9;]*m|(?<!\S)([=-])\1{9,} ?")
"""Colors in messages of Keras exceptions, and rules in those of `torchrun`."""


class Process:
    """The current process, in which every optimizer is traced from now on.

    `command` is what the process runs; `place` and `seconds` are as for `Autosave`. A `child` was
    started by the program: its ending is not always known, and it has a file only if it used an
    optimizer, or forked. With `effects`, variables are compared before and after each step. `say`
    gets defects of an optimizer's class when it is made; `report` gets the trace and its file when
    the process ends. `unfollowed` lists processes that it started and that are not traced: see
    `note_children`.

    The trace ends when Python ends: after the program's other threads and `atexit` functions.
    """

    def __init__(
        self,
        command: str,
        place: Callable[[Trace], Path],
        *,
        seconds: float,
        child: bool = False,
        effects: bool = False,
        say: Callable[[str], None] | None = None,
        report: Callable[[Trace, Path | None], None] | None = None,
        unfollowed: Sequence[str] = (),
    ) -> None:
        self.command = command
        self.status: int | None = None
        self._error = ""
        self._unfollowed = unfollowed
        self._child = child
        self._report = report
        self._id = os.getpid()
        self._started = time.time()
        self._start = time.monotonic()
        self._tracing = ExitStack()
        self._recording = self._tracing.enter_context(recording_aloud(say, effects=effects))
        # `atexit` calls functions in reverse order: this one after all that the program registers.
        atexit.register(self._end)
        wrapt.wrap_function_wrapper(os, "_exit", self._exit)
        self.autosave = Autosave(self._snapshot, place, seconds=seconds)

    def trace(self) -> Trace:
        """The trace so far, with the program that it is of."""
        data = self._recording.trace().data
        if self._unfollowed and not data.optimizers:
            note = Note(f"{other_processes(self._unfollowed)}: {_UNFOLLOWED}")
            data = replace(data, notes=(*data.notes, note))
        program = Program(
            self.command,
            self._started,
            time.monotonic() - self._start,
            ", ".join(data.processes),
            self.status,
            self._error,
        )
        return Trace(replace(data, programs=(program,)))

    def _snapshot(self) -> Trace | None:
        trace = self.trace()
        return trace if trace.optimizers or self._unfollowed or not self._child else None

    def note(self, error: BaseException) -> None:
        """Note that this exception ended the program."""
        code = error.code if isinstance(error, SystemExit) else 1
        # Python prints a text, and exits with 1.
        self.status = int(code) if isinstance(code, int) else int(code is not None)
        if not isinstance(error, SystemExit):
            said = type(error).__name__
            with suppress(Exception):  # an exception of the program may not have a text
                text = _ORNAMENTS.sub("", " ".join(str(error).split()))
                said = ": ".join(filter(None, [said, without_credentials(text)]))
            self._error = cut(said, _MAX_CELLS, 0)
        self.autosave.hurry()  # a launcher may kill this process while it ends

    def _exit(self, leave: Callable[..., None], _: object, args: Any, options: Any) -> None:
        """End the trace before `os._exit`, after which Python calls no `atexit` functions."""
        try:
            self.status = args[0] if args else options["status"]
            self._end()
        finally:
            leave(*args, **options)

    def _end(self) -> None:
        if os.getpid() != self._id:  # a fork, or it has ended
            return
        self._id = 0
        if not self._child:
            self.status = self.status or 0
        elif self.status is None and (uncaught := getattr(sys, "last_value", None)) is not None:
            self.note(uncaught)  # Python has printed it
        try:
            self._tracing.close()
        finally:
            written = self.autosave.finish()
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
_Call = Callable[..., Any]


def note_children(*, forks_only: bool = False) -> list[str]:
    """A list that gets the name of each process that this one starts, or forks, from now on."""
    started: list[str] = []

    def run_subprocess(run: _Call, process: Any, args: Any, options: Any) -> None:
        before = len(started)
        run(*args, **options)
        del started[before:]  # with `preexec_fn`, "a fork"
        command = process.args
        is_text = isinstance(command, str | bytes | os.PathLike)
        words = os.fsdecode(command).split() if is_text else [*map(os.fsdecode, command)]
        tool, *rest = [*itertools.dropwhile(lambda word: "=" in word, words), ""]
        name = os.path.basename(tool)
        if not forks_only and name not in _TOOLS:
            is_python = name.startswith("python")
            started.append(shown(f"{name} {program_of(rest)}" if is_python else name))

    def start_process(start: _Call, process: Any, args: Any, options: Any) -> None:
        before = len(started)
        start(*args, **options)
        if len(started) > before or not forks_only:
            started[before:] = [f"{process.name} of multiprocessing"]  # instead of "a fork"

    at_fork(after_in_parent=lambda: started.append("a fork"))
    wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", run_subprocess)
    _wrap_process("start", start_process)
    return started


def program_of(arguments: Sequence[str]) -> str:
    """The script or the module that Python runs with these arguments.

    >>> program_of(["-X", "dev", "-u", "-m", "pkg.train", "--epochs", "3"])
    '-m pkg.train'
    """
    parts = [*arguments]
    while parts and parts[0].startswith("-") and parts[0] not in ("-m", "-c"):
        del parts[: 2 if parts[0] in ("-W", "-X") else 1]
    return shlex.join(parts[: 2 if parts[:1] == ["-m"] else 1])


def other_processes(started: Sequence[str]) -> str:
    """A sentence that the program started these processes."""
    return f"the program started other processes ({listed([*dict.fromkeys(started)], _MAX_NAMES)})"


def follow_children(process: Process, folder: Path, options: Mapping[str, Any]) -> None:
    """Trace the processes that the first process starts, with the same `options` of `Process`."""
    os.environ[launches.CHILDREN] = json.dumps([str(folder), options])
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path])
    _wrap_process("_bootstrap", functools.partial(_bootstrap, process))


def follow() -> None:
    """Trace this process, started by a program under `tracer run --children`."""
    if settings := os.environ.get(launches.CHILDREN):
        folder, options = json.loads(settings)
        path = own_file(Path(folder))
        process = Process(
            program_of(sys.orig_argv[1:]),
            lambda trace: path,
            child=True,
            unfollowed=note_children(forks_only=True),
            **options,
        )
        _wrap_process("_bootstrap", functools.partial(_bootstrap, process))


def own_file(folder: Path) -> Path:
    """A new file for this process: `exec` may have made it of an earlier one."""
    name = f"process-{os.getpid()}"
    names = (f"{name}{'-again' * times}.json" for times in itertools.count())
    return next(folder / each for each in names if not (folder / each).exists())


def _bootstrap(process: Process, bootstrap: _Call, started: Any, args: Any, options: Any) -> Any:
    """Note the name of a process of `multiprocessing`, and its exit status.

    It ends in `_bootstrap`, which prints the program's exceptions and does not raise them.
    """
    process.command = f"{shlex.join(sys.argv[:1])} ({started.name})"
    process.status = bootstrap(*args, **options)
    return process.status


def _wrap_process(method: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a method of `multiprocessing` processes, once `multiprocessing` is imported."""
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, f"BaseProcess.{method}", wrapper),
        "multiprocessing.process",
    )
