"""`tracer run`: a program as `python` runs it, with every optimizer traced."""

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tracer
from tracer.api import Recording
from tracer.cli import program
from tracer.cli.autosave import Autosave, say
from tracer.errors import TraceFileError
from tracer.reporters import console
from tracer.reporters.rows import By

DEFAULT = "tracer.json"
"""Where the trace is written if nothing else is asked for."""


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
        recording_ = tracer.record()
        recording = recording_.__enter__()
        autosave = Autosave(recording.trace, path, folder=folder, seconds=self.seconds)
        process = os.getpid()
        children = _count_forks()

        def end() -> None:
            if os.getpid() != process:
                return
            recording_.__exit__(None, None, None)
            written = autosave.finish()
            if not self.quiet:
                self._tell(recording, written, children() > 0)

        # Functions are called last come, first served: this one after all that the program adds.
        atexit.register(end)
        autosave.start()
        program.run(self.program, self.arguments, module=self.module)

    def _tell(self, recording: Recording, written: Path | None, forked: bool) -> None:
        """Print the report on standard error: standard output is the program's own."""
        trace = recording.trace()
        with suppress(AttributeError, OSError, ValueError):  # Python tells of it when it exits
            sys.stdout.flush()
        try:
            print(file=sys.__stderr__)
            console.report(trace, by=self.by, file=sys.__stderr__, command=True)
            print(file=sys.__stderr__)
        except (OSError, ValueError):
            return
        if forked and not trace.optimizers:
            say("the program started other processes; what those do is not traced")
        if written is not None:
            say(f"wrote {os.path.relpath(written)}")


def _may_replace(path: Path) -> bool:
    """Whether `path` is empty or a trace file: what else the user has is not overwritten."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return True  # it is told of when it is written
    return not start or b'"optimizer-tracer"' in start


def _make_folder(path: Path) -> None:
    with suppress(OSError):  # the first file that is written tells of it
        path.mkdir(parents=True, exist_ok=True)


def _count_forks() -> Callable[[], int]:
    """A function that says how many child processes were forked since."""
    forks: list[None] = []
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_parent=lambda: forks.append(None))
    return lambda: len(forks)
