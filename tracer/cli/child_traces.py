"""The processes that a program starts: which they are and, for `--children`, their traces.

A child is reached in two ways. A new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, and
that calls `follow`. A fork is reported by `os.register_at_fork`.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from tracer.cli.autosave import at_fork
from tracer.cli.process import Process
from tracer.layout import cut, shown
from tracer.model.redaction import command_line, without_secrets
from tracer.model.wording import listed, plural

_VARIABLE = "TRACER_CHILDREN"
_STARTUP = Path(__file__).parent / "startup"
_MAX_NAMES = 3
_MAX_CELLS = 60  # cells of a command
_Call = Callable[..., Any]


class Children:
    """The processes that this one starts from now on."""

    def __init__(self) -> None:
        self._started: list[str] = []
        at_fork(after_in_parent=functools.partial(self._started.append, "a fork"))
        wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", self._run_subprocess)
        _wrap_process("start", self._start_process)

    def names(self) -> str:
        """How many there were, and the first of them; empty if there was none.

        >>> children = Children()
        >>> children._started += ["python worker.py --rank 0", "python worker.py --rank 1"]
        >>> children.names()
        '2 other processes: python worker.py --rank 0 and python worker.py --rank 1'
        """
        names = [
            cut(shown(each), _MAX_CELLS, _MAX_CELLS // 2) for each in dict.fromkeys(self._started)
        ]
        noun = plural(
            len(self._started), "other process", f"{len(self._started):,} other processes"
        )
        return f"{noun}: {listed(names, _MAX_NAMES)}" if names else ""

    def _run_subprocess(self, run: _Call, _: object, args: Any, options: Any) -> None:
        run(*args, **options)
        command = args[0] if args else options["args"]
        if isinstance(command, str | bytes | os.PathLike):
            self._started.append(" ".join(without_secrets(os.fsdecode(command).split(" "))))
        else:
            self._started.append(command_line(map(os.fsdecode, command)))

    def _start_process(self, start: _Call, process: Any, args: Any, options: Any) -> None:
        before = len(self._started)
        start(*args, **options)
        self._started[before:] = [f"{process.name} of multiprocessing"]  # which may be a fork


def keep_as_one_of(process: Process, folder: Path) -> None:
    """Keep the trace of the first process of a launch, and follow those that it starts."""
    settings = [str(folder), process.launch, process.seconds, process.effects]
    os.environ[_VARIABLE] = json.dumps(settings)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *([path] if path else [])])
    _keep(process, folder)


def follow() -> None:
    """Trace this process, which a program started under `tracer run --children`."""
    settings = os.environ.get(_VARIABLE)
    if settings is not None:
        folder, launch, seconds, effects = json.loads(settings)
        command = command_line(sys.orig_argv[1:])
        process = Process(command, launch, seconds=seconds, child=True, effects=effects)
        _keep(process, Path(folder))


def _keep(process: Process, folder: Path) -> None:
    """Keep the trace of one of the processes of a launch, and then of each of its forks."""
    process.keep(_file(folder))
    at_fork(after_in_child=lambda: process.become_fork(_file(folder)))
    _wrap_process("_bootstrap", functools.partial(_bootstrap, process))
    wrapt.register_post_import_hook(
        functools.partial(_watch_pools, process), "multiprocessing.pool"
    )


def _file(folder: Path) -> Path:
    """A file of this process; an earlier one had the same number if it became this one."""
    names = (f"process-{os.getpid()}{'-again' * times}.json" for times in itertools.count())
    return next(folder / name for name in names if not (folder / name).exists())


def _bootstrap(process: Process, bootstrap: _Call, started: Any, args: Any, options: Any) -> Any:
    """Learn what a process of `multiprocessing` is called, and how it ends.

    It ends in `_bootstrap`, which prints and keeps what the program raises.
    """
    process.command = f"{command_line(sys.argv)} ({started.name})"
    process.status = bootstrap(*args, **options)
    return process.status


def _watch_pools(process: Process, module: ModuleType) -> None:
    """Write the file before a worker of a pool returns a result.

    For the program may end the pool as soon as it has them all, and does so by a signal.
    """
    worker: _Call = vars(module)["worker"]

    @functools.wraps(worker)
    def saving(tasks: Any, results: Any, *args: Any, **options: Any) -> None:
        take, give = tasks.get, results.put

        def get() -> Any:
            process.autosave.pause()  # the initializer may have trained
            task = take()
            process.autosave.resume()
            return task

        def put(result: Any) -> None:
            process.autosave.pause()
            give(result)

        if process.is_alive and hasattr(tasks, "_writer"):  # no queue of threads
            tasks.get, results.put = get, put
        worker(tasks, results, *args, **options)

    vars(module)["worker"] = saving


def _wrap_process(method: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a method of each process of `multiprocessing`, as soon as that is imported."""
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, f"BaseProcess.{method}", wrapper),
        "multiprocessing.process",
    )
