"""The processes of one `tracer run --children`: the program and all that it starts.

A child is reached in two ways. A new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, and
that calls `follow`. A fork is told of by `os.register_at_fork`.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from tracer.cli.autosave import Autosave
from tracer.cli.process import Process
from tracer.model.redaction import command_line

_VARIABLE = "TRACER_CHILDREN"
_STARTUP = Path(__file__).parent / "startup"


def keep_as_one_of(process: Process, folder: Path, **options: Any) -> None:
    """Keep the trace of the first process of a launch, and follow those that it starts."""
    os.environ[_VARIABLE] = json.dumps(
        [str(folder), options["seconds"], process.launch, process.effects]
    )
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *([path] if path else [])])
    _Followed(process, folder, **options)


def follow() -> None:
    """Trace this process, which a program started under `tracer run --children`."""
    settings = os.environ.get(_VARIABLE)
    if settings is not None:
        folder, seconds, launch, effects = json.loads(settings)
        command = command_line(sys.orig_argv[1:])
        process = Process(command, launch, child=True, effects=effects)
        _Followed(process, Path(folder), seconds=seconds, always=False)


class _Followed:
    """One of the processes of a launch, and then each of its forks."""

    def __init__(self, process: Process, folder: Path, *, seconds: float, **options: Any) -> None:
        self._process = process
        self._folder = folder
        self._seconds = seconds
        self._autosave: Autosave | None = process.keep(
            self._file(), folder=False, seconds=seconds, **options
        )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restart_as_fork)
        wrapt.register_post_import_hook(self._watch_processes, "multiprocessing.process")
        wrapt.register_post_import_hook(self._watch_pools, "multiprocessing.pool")

    def _file(self) -> Path:
        """A file of this process; an earlier one had the same number if it became this one."""
        path = self._folder / f"process-{os.getpid()}.json"
        again = 2
        while path.exists():
            path = self._folder / f"process-{os.getpid()}-{again}.json"
            again += 1
        return path

    def _restart_as_fork(self) -> None:
        self._autosave = None
        if self._process.restart_as_fork(f"{self._process.command} (a fork)"):
            self._autosave = self._process.keep(
                self._file(), folder=False, seconds=self._seconds, always=False
            )

    def _watch_processes(self, module: ModuleType) -> None:
        """Learn what a process of `multiprocessing` is called, and how it ends.

        It ends in `_bootstrap`, which prints and keeps what the program raises.
        """
        bootstrap = module.BaseProcess._bootstrap

        @functools.wraps(bootstrap)
        def _bootstrap(process: Any, *args: Any, **options: Any) -> int:
            self._process.command = f"{command_line(sys.argv)} ({process.name})"
            status: int = bootstrap(process, *args, **options)
            self._process.status = status
            return status

        module.BaseProcess._bootstrap = _bootstrap

    def _watch_pools(self, module: ModuleType) -> None:
        """Write the file before a worker of a pool hands over a result.

        For the program may end the pool as soon as it has them all, and does so by a signal.
        """
        worker: Callable[..., None] = vars(module)["worker"]

        @functools.wraps(worker)
        def saving(tasks: Any, results: Any, *args: Any, **options: Any) -> None:
            autosave = self._autosave
            in_child = sys.modules["multiprocessing"].parent_process() is not None
            if in_child and autosave is not None:  # and no pool of threads
                tasks, results = _Tasks(tasks, autosave), _Results(results, autosave)
            worker(tasks, results, *args, **options)

        vars(module)["worker"] = saving


class _Results(wrapt.ObjectProxy):  # type: ignore[type-arg]  # older ones have no argument
    """The queue in which a worker of a pool puts its results."""

    def __init__(self, queue: Any, autosave: Autosave) -> None:
        super().__init__(queue)
        self._self_autosave = autosave

    def put(self, result: Any) -> None:
        self._self_autosave.pause()
        self.__wrapped__.put(result)


class _Tasks(wrapt.ObjectProxy):  # type: ignore[type-arg]  # older ones have no argument
    """The queue from which a worker of a pool gets its tasks."""

    def __init__(self, queue: Any, autosave: Autosave) -> None:
        super().__init__(queue)
        self._self_autosave = autosave
        self._self_begun = False

    def get(self) -> Any:
        if not self._self_begun:  # what the initializer did; there may be no task for this worker
            self._self_begun = True
            self._self_autosave.pause()
        task = self.__wrapped__.get()
        self._self_autosave.resume()
        return task
