"""The processes that a program starts: which they are and, for `--children`, their traces.

A child is reached in two ways. A new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, and
that calls `follow`. A fork is reported by `os.register_at_fork`.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from tracer.cli.process import Process, at_fork
from tracer.layout import cut, shown
from tracer.model.redaction import command_line, without_secrets

_VARIABLE = "TRACER_CHILDREN"
_STARTUP = Path(__file__).parent / "startup"
_MAX_CELLS = 60  # cells of a command
_Call = Callable[..., Any]


def note_children() -> list[str]:
    """What the processes are called that this one starts from now on, each when it has started."""
    started: list[str] = []

    def run_subprocess(run: _Call, process: Any, args: Any, options: Any) -> None:
        run(*args, **options)
        command = process.args
        is_text = isinstance(command, str | bytes | os.PathLike)
        words = os.fsdecode(command).split(" ") if is_text else map(os.fsdecode, command)
        started.append(cut(shown(" ".join(without_secrets(words))), _MAX_CELLS, _MAX_CELLS // 2))

    def start_process(start: _Call, process: Any, args: Any, options: Any) -> None:
        before = len(started)
        start(*args, **options)
        started[before:] = [f"{process.name} of multiprocessing"]  # which may be a fork

    at_fork(after_in_parent=lambda: started.append("a fork"))
    wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", run_subprocess)
    _wrap_process("start", start_process)
    return started


def follow_children(process: Process, folder: Path, options: Mapping[str, Any]) -> None:
    """Trace what the first process of a launch starts, with the same `options` of `Process`."""
    os.environ[_VARIABLE] = json.dumps([str(folder), options])
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path])
    _watch_starts(process)


def follow() -> None:
    """Trace this process, which a program started under `tracer run --children`."""
    if settings := os.environ.get(_VARIABLE):
        folder, options = json.loads(settings)
        command = command_line(sys.orig_argv[1:])
        _watch_starts(Process(command, None, Path(folder), child=True, **options))


def _watch_starts(process: Process) -> None:
    """Trace the forks of a process, and learn what those of `multiprocessing` do."""
    at_fork(after_in_child=process.become_fork)
    _wrap_process("_bootstrap", functools.partial(_bootstrap, process))
    wrapt.register_post_import_hook(
        functools.partial(_watch_pools, process), "multiprocessing.pool"
    )


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
