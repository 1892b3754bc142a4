"""`tracer run`: a program as `python` runs it, with every optimizer traced."""

import atexit
import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from tracer.api import CallTrace, Recording, recording_aloud
from tracer.cli import program
from tracer.cli.autosave import Autosave, say
from tracer.cli.children import Children
from tracer.errors import TraceFileError
from tracer.model.records import Program
from tracer.reporters import console
from tracer.reporters.layout import cut
from tracer.reporters.rows import By

DEFAULT = "tracer.json"
"""Where the trace is written if nothing else is asked for."""

_LONGEST = 200  # cells of what an exception says


@dataclass(frozen=True)
class Launch:
    """A program, its arguments and what is wanted of its trace."""

    program: str
    arguments: Sequence[str]
    module: bool = False
    output: str = DEFAULT
    """A trace file, or a folder (an existing one, or a path that ends in a slash)."""
    by: By | None = None
    quiet: bool = False
    seconds: float = 5.0
    """How far the file may be behind while the program runs."""

    def check(self) -> None:
        """Raise `tracer.TraceFileError`, or `OSError` for the program, if this cannot begin."""
        if not self.module:
            os.stat(self.program)
        path = Path(self.output)
        if path.is_file() and not _may_replace(path):
            raise TraceFileError(
                f"{self.output}: is not a trace file, and would be overwritten: choose another name"
            )

    def __call__(self) -> None:
        """Run the program; what it raises goes on to the interpreter, the report comes after it.

        The trace ends where Python does: after the program's other threads and `atexit` functions.
        """
        path = Path(self.output).absolute()  # the program may go to another folder
        folder = self.output.endswith(("/", os.sep)) or path.is_dir()
        _make_folder(path if folder else path.parent)
        process = Process(self._command())
        tracing = ExitStack()
        recording = tracing.enter_context(recording_aloud(None if self.quiet else say))
        autosave = Autosave(
            lambda: process.trace(recording), path, folder=folder, seconds=self.seconds
        )
        children = Children()

        def end() -> None:
            give_back()
            if os.getpid() != process.id or process.over:
                return
            process.over = True
            tracing.close()
            written = autosave.finish()
            if not self.quiet:
                self._tell(process.trace(recording), written, children.names())

        # Functions are called last come, first served: this one after all that the program adds.
        atexit.register(end)
        autosave.start()
        give_back = _end_before_exiting(process, end)
        try:
            program.run(self.program, self.arguments, module=self.module)
        except BaseException as error:
            process.note(error)
            raise

    def _command(self) -> str:
        return shlex.join([*(["-m"] if self.module else []), self.program, *self.arguments])

    def _tell(self, trace: CallTrace, written: Path | None, children: str) -> None:
        """Print the report on standard error: standard output is the program's own."""
        with suppress(AttributeError, OSError, ValueError):  # Python says so when it exits
            sys.stdout.flush()
        try:
            print(file=sys.__stderr__)
            console.report(trace, by=self.by, file=sys.__stderr__, command=True)
            print(file=sys.__stderr__)
        except (OSError, ValueError):
            return
        if children and not trace.optimizers:
            say(f"the program started {children}")
            say("what other processes do is not traced: start them with `tracer run -o FOLDER/`")
        if written is not None:
            say(f"wrote {os.path.relpath(written)}")


class Process:
    """What is known of the process: what it runs, since when, and how it ended."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.id = os.getpid()
        self.over = False
        self.status: int | None = None
        self.error = ""
        self._started = time.time()
        self._start = time.monotonic()

    def trace(self, recording: Recording) -> CallTrace:
        """What was recorded so far, with the process that it is of."""
        trace = recording.trace()
        status = 0 if self.over and self.status is None else self.status
        seconds = time.monotonic() - self._start
        worker = ", ".join(trace.workers)
        program = Program(self.command, self._started, seconds, worker, status, self.error)
        return CallTrace(msgspec.structs.replace(trace.data, programs=(program,)))

    def note(self, error: BaseException) -> None:
        """The program ended by this exception."""
        if isinstance(error, SystemExit):
            # What `sys.exit` was given: nothing is well, a text is printed and is 1.
            code = error.code
            self.status = 0 if code is None else int(code) if isinstance(code, int) else 1
        else:
            self.status = 1
            said = ""
            with suppress(Exception):  # an exception of the program may not even have a text
                said = " ".join(str(error).split())
            self.error = cut(f"{type(error).__name__}{': ' if said else ''}{said}", _LONGEST, 0)


def _end_before_exiting(process: Process, end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` before `os._exit`, at which Python calls nothing of what waits for its end.

    Returns a function that puts `os._exit` back.
    """
    leave = os._exit

    @functools.wraps(leave)
    def leave_at_once(status: int) -> NoReturn:
        try:
            if not process.over and os.getpid() == process.id:
                process.status = status
                end()
        finally:
            leave(status)

    os._exit = leave_at_once

    def give_back() -> None:
        if os._exit is leave_at_once:
            os._exit = leave

    return give_back


def _may_replace(path: Path) -> bool:
    """Whether `path` is empty or a trace file: what else the user has is not overwritten."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return True  # the error comes when it is written
    return not start or b'"optimizer-tracer"' in start


def _make_folder(path: Path) -> None:
    with suppress(OSError):  # writing the first file says why
        path.mkdir(parents=True, exist_ok=True)
