"""`tracer run`: a program as `python` runs it, with every optimizer traced."""

import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tracer.cli import program
from tracer.cli.child_traces import follow_children, note_children
from tracer.cli.process import Process, say
from tracer.errors import TraceFileError
from tracer.model.redaction import command_line
from tracer.model.trace import Trace
from tracer.model.tracefile import is_trace, load
from tracer.model.wording import first_true, listed
from tracer.reporters import printing
from tracer.reporters.columns import By

FILE = "tracer.json"
"""Where the trace is written if nothing else is asked for."""
FOLDER = "traces"
"""The same for one of several processes, each of which writes its own file."""
_MAX_NAMES = 3  # processes


def check(
    name: str, output: str | None = None, *, module: bool = False, children: bool = False
) -> None:
    """Raise `tracer.TraceFileError` if a launch with these arguments of `launch` cannot begin."""
    path, script = _path(output, children), Path(name)
    is_file = not module and script.exists()
    # In a folder, several processes write one file each, and a program there may have its name.
    hit = script.parent if path.is_dir() and script.suffix == ".json" else script
    reason = first_true(
        (not module and not is_file, f"cannot open {name}: No such file or directory"),
        (
            is_file and is_trace(script),
            f"{name} is a trace, not a program: did you mean tracer report {name}?",
        ),
        (
            is_file and path.exists() and path.samefile(hit),
            f"{path}: the trace would overwrite the program: choose another name",
        ),
        (
            not children and path.is_file() and path.stat().st_size > 0 and not is_trace(path),
            f"{path}: is not a trace file, and would be overwritten: choose another name",
        ),
        (
            children and path.exists() and not path.is_dir(),
            f"{path}: is no folder, which --children needs: choose another name",
        ),
        (
            children and any(path.glob("*.json")),
            f"{path}: holds the files of an earlier run, and a folder is one run: remove them, or "
            "choose another folder with -o",
        ),
    )
    if reason:
        raise TraceFileError(reason)


def launch(
    name: str,
    arguments: Sequence[str],
    *,
    module: bool,
    output: str | None,
    by: By | None,
    quiet: bool,
    seconds: float,
    children: bool,
    effects: bool,
) -> None:
    """Run a script or a `module`; what it raises goes on to the interpreter, the report follows it.

    `output` is a trace file, or a folder (an existing one, or a path that ends in a slash); the
    file is saved at least every `seconds`. With `children` the processes that the program starts
    are traced too, and `output` is a folder. With `effects` the variables are compared before and
    after each step. See `Process` for when the trace ends.
    """
    path = _path(output, children).absolute()  # the program may go to another folder
    in_folder = children or (output or "").endswith(("/", os.sep)) or path.is_dir()
    options: dict[str, Any] = {
        "launch": uuid.uuid4().hex if children else "",
        "seconds": seconds,
        "effects": effects,
    }
    process = Process(
        command_line([*(["-m"] if module else []), name, *arguments]),
        None if in_folder else path,
        path if in_folder else None if output else Path(FOLDER).absolute(),
        say=None if quiet else say,
        report=None if quiet else partial(_report, by, children, note_children()),
        **options,
    )
    if children:
        follow_children(process, path, options)
    try:
        program.run(name, arguments, module=module)
    except BaseException as error:
        process.note(error)
        program.hide_frames()
        raise


def _path(output: str | None, children: bool) -> Path:
    return Path(output or (FOLDER if children else FILE))


def _report(
    by: By | None, followed: bool, children: list[str], trace: Trace, written: Path | None
) -> None:
    """Print the report on standard error: standard output is the program's own."""
    with suppress(AttributeError, OSError, ValueError):  # Python says so when it exits
        sys.stdout.flush()
    if followed and written is not None:
        written = written.parent
        trace = load(written)
    with suppress(OSError, ValueError):  # standard error is closed
        print(file=sys.__stderr__)
        printing.report(trace, by=by, file=sys.__stderr__, command=True)
        print(file=sys.__stderr__)
    if children and not trace.optimizers:
        known = listed(list(dict.fromkeys(children)), _MAX_NAMES)
        say(f"the program started other processes: {known}")
        say(
            "none of those that were followed used an optimizer"
            if followed
            else "what other processes do is not traced: `tracer run --children` follows them"
        )
    if written is not None:
        say(f"wrote {os.path.relpath(written)}")
