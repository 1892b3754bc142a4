"""`tracer run`: a program as `python` runs it, with every optimizer traced."""

import os
import re
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tracer import api
from tracer.api import CallTrace
from tracer.cli import program
from tracer.cli.autosave import say
from tracer.cli.child_traces import Children, keep_as_one_of
from tracer.cli.process import Process
from tracer.errors import TraceFileError
from tracer.model.redaction import command_line
from tracer.reporters import console
from tracer.reporters.rows import By

FILE = "tracer.json"
"""Where the trace is written if nothing else is asked for."""
FOLDER = "traces"
"""The same for one of several processes, each of which writes its own file."""
_TRACE = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"optimizer-tracer"')


@dataclass(frozen=True)
class Launch:
    """A program, its arguments and what is wanted of its trace."""

    program: str
    arguments: Sequence[str]
    module: bool = False
    output: str | None = None
    """A trace file, or a folder (an existing one, or a path that ends in a slash)."""
    by: By | None = None
    quiet: bool = False
    seconds: float = 5.0
    """How far the file may be behind while the program runs."""
    children: bool = False
    """Whether the processes that the program starts are traced too: `output` is a folder then."""
    effects: bool = False
    """Whether the variables are compared before and after each step."""

    def check(self) -> None:
        """Raise `tracer.TraceFileError`, or `OSError` for the program, if this cannot begin."""
        path = self._path()
        if not self.module:
            os.stat(self.program)
            if _is_trace(Path(self.program)):
                raise TraceFileError(
                    f"{self.program} is a trace, not a program: did you mean tracer report "
                    f"{self.program}?"
                )
            if _may_overwrite(path, Path(self.program)):
                raise TraceFileError(
                    f"{path}: the trace would overwrite the program: choose another name"
                )
        if self.children:
            _check_folder(path)
        elif path.is_file() and not _may_replace(path):
            raise TraceFileError(
                f"{path}: is not a trace file, and would be overwritten: choose another name"
            )

    def __call__(self) -> None:
        """Run the program; what it raises goes on to the interpreter, the report comes after it.

        See `Process.keep` for when the trace ends.
        """
        path = self._path().absolute()  # the program may go to another folder
        folder = self.children or (self.output or "").endswith(("/", os.sep)) or path.is_dir()
        with suppress(OSError):  # writing the first file says why
            (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
        tell = partial(self._tell, Children())
        launch = uuid.uuid4().hex if self.children else ""
        process = Process(
            self._command(), launch, effects=self.effects, say=None if self.quiet else say
        )
        if self.children:
            keep_as_one_of(process, path, seconds=self.seconds, told=tell)
        else:
            workers = None if self.output else Path(FOLDER).absolute()
            process.keep(path, folder=folder, seconds=self.seconds, workers=workers, told=tell)
        try:
            program.run(self.program, self.arguments, module=self.module)
        except BaseException as error:
            process.note(error)
            raise

    def _path(self) -> Path:
        return Path(self.output or (FOLDER if self.children else FILE))

    def _command(self) -> str:
        return command_line([*(["-m"] if self.module else []), self.program, *self.arguments])

    def _tell(self, children: Children, trace: CallTrace, written: Path | None) -> None:
        """Print the report on standard error: standard output is the program's own."""
        if self.quiet:
            return
        with suppress(AttributeError, OSError, ValueError):  # Python says so when it exits
            sys.stdout.flush()
        if self.children and written is not None:
            trace = api.load(written.parent)
        try:
            print(file=sys.__stderr__)
            console.report(trace, by=self.by, file=sys.__stderr__, command=True)
            print(file=sys.__stderr__)
        except (OSError, ValueError):
            return
        if (names := children.names()) and not trace.optimizers:
            say(f"the program started {names}")
            say(
                "none of those that were followed used an optimizer"
                if self.children
                else "what other processes do is not traced: `tracer run --children` follows them"
            )
        if written is not None:
            say(f"wrote {os.path.relpath(written.parent if self.children else written)}")


def _is_trace(path: Path) -> bool:
    """Whether `path` is a trace file, by its first bytes."""
    try:
        with open(path, "rb") as file:
            return _TRACE.match(file.read(64)) is not None
    except OSError:  # a folder, or what cannot be read: Python says so when it runs it
        return False


def _may_overwrite(path: Path, program: Path) -> bool:
    """Whether the trace that is written to `path` may be the file of the program, by any path."""
    with suppress(OSError):
        if path.is_dir():  # what the file in it is called is known when the worker is
            return program.suffix == ".json" and path.samefile(program.parent)
        return path.samefile(program)
    return False  # there is nothing yet


def _may_replace(path: Path) -> bool:
    """Whether `path` is empty or a trace file: what else the user has is not overwritten."""
    with suppress(OSError):
        return not path.stat().st_size or _is_trace(path)
    return True  # the error comes when it is written


def _check_folder(path: Path) -> None:
    """Raise `tracer.TraceFileError` for what cannot be the folder of a new run."""
    if path.exists() and not path.is_dir():
        raise TraceFileError(f"{path}: is no folder, which --children needs: choose another name")
    if any(path.glob("*.json")):
        raise TraceFileError(
            f"{path}: holds the files of an earlier run, and a folder is one run: remove them, or "
            "choose another folder with -o"
        )
