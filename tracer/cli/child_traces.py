"""The processes that a program starts: which they are and, for `--children`, their traces.

A child is reached in two ways. A new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, and
that calls `follow`. A fork is told of by `os.register_at_fork`.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from tracer.cli.autosave import Autosave
from tracer.cli.process import Process
from tracer.layout import cut, shown
from tracer.model.redaction import command_line, without_secrets
from tracer.model.wording import listed

_VARIABLE = "TRACER_CHILDREN"
_STARTUP = Path(__file__).parent / "startup"
_NAMED = 3
_LONGEST = 60  # cells of a command
_Call = Callable[..., Any]


class Children:
    """The processes that this one starts from now on."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._started: list[str] = []
        self._forks = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._count_fork)
        wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", self._run_subprocess)
        _wrap_process("start", self._start_process)

    def names(self) -> str:
        """How many there were, and the first of them; empty if there was none.

        >>> children = Children()
        >>> children._started += ["python worker.py --rank 0", "python worker.py --rank 1"]
        >>> children.names()
        '2 other processes: python worker.py --rank 0 and python worker.py --rank 1'
        """
        names = [*self._started, *["a fork"] * self._forks]
        distinct = list(dict.fromkeys(names))
        said = [cut(shown(name), _LONGEST, _LONGEST // 2) for name in distinct[:_NAMED]]
        if len(distinct) > _NAMED:
            said.append(f"{len(distinct) - _NAMED:,} more")
        noun = "other process" if len(names) == 1 else f"{len(names):,} other processes"
        return f"{noun}: {listed(said)}" if names else ""

    def _count_fork(self) -> None:
        self._forks += 1

    def _run_subprocess(self, run: _Call, _: object, given: Any, options: Any) -> None:
        run(*given, **options)
        args = given[0] if given else options["args"]
        if isinstance(args, str | bytes | os.PathLike):
            self._add(" ".join(without_secrets(os.fsdecode(args).split(" "))))
        else:
            self._add(command_line(map(os.fsdecode, args)))

    def _start_process(self, start: _Call, process: Any, args: Any, options: Any) -> None:
        forks = self._forks
        start(*args, **options)
        self._forks = forks  # where it was a fork
        self._add(f"{process.name} of multiprocessing")

    def _add(self, name: str) -> None:
        if os.getpid() == self._process:
            self._started.append(name)


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
        _wrap_process("_bootstrap", self._bootstrap)
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

    def _bootstrap(self, bootstrap: _Call, process: Any, args: Any, options: Any) -> int:
        """Learn what a process of `multiprocessing` is called, and how it ends.

        It ends in `_bootstrap`, which prints and keeps what the program raises.
        """
        self._process.command = f"{command_line(sys.argv)} ({process.name})"
        status: int = bootstrap(*args, **options)
        self._process.status = status
        return status

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
                tasks, results = _Queue(tasks, autosave), _Queue(results, autosave)
            worker(tasks, results, *args, **options)

        vars(module)["worker"] = saving


class _Queue(wrapt.ObjectProxy):  # type: ignore[type-arg]  # older ones have no argument
    """The queue from which a worker of a pool gets its tasks, or in which it puts its results."""

    def __init__(self, queue: Any, autosave: Autosave) -> None:
        super().__init__(queue)
        self._self_autosave = autosave
        self._self_begun = False

    def put(self, result: Any) -> None:
        self._self_autosave.pause()
        self.__wrapped__.put(result)

    def get(self) -> Any:
        if not self._self_begun:  # what the initializer did; there may be no task for this worker
            self._self_begun = True
            self._self_autosave.pause()
        task = self.__wrapped__.get()
        self._self_autosave.resume()
        return task


def _wrap_process(method: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a method of each process of `multiprocessing`, as soon as that is imported."""
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, f"BaseProcess.{method}", wrapper),
        "multiprocessing.process",
    )
