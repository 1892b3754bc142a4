"""Which other processes a program starts."""

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from tracer.model.redaction import command_line, without_secrets
from tracer.model.wording import listed
from tracer.reporters.layout import cut, shown

_NAMED = 3
_LONGEST = 60  # cells of a command


class Children:
    """The processes that this one starts from now on."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._started: list[str] = []
        self._forks = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._count_fork)
        _tell_of_calls(subprocess.Popen, "__init__", self._of_subprocess)
        wrapt.register_post_import_hook(self._watch_multiprocessing, "multiprocessing.process")

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

    def _of_subprocess(self, popen: Any, args: Any = (), *_: Any, **__: Any) -> Iterator[None]:
        yield
        whole = isinstance(args, str | bytes | os.PathLike)
        if whole:
            self._add(" ".join(without_secrets(os.fsdecode(args).split(" "))))
        else:
            self._add(command_line(map(os.fsdecode, args)))

    def _watch_multiprocessing(self, module: ModuleType) -> None:
        _tell_of_calls(module.BaseProcess, "start", self._of_multiprocessing)

    def _of_multiprocessing(self, process: Any) -> Iterator[None]:
        forks = self._forks
        yield
        self._forks = forks  # where it was a fork
        self._add(f"{process.name} of multiprocessing")

    def _add(self, name: str) -> None:
        if os.getpid() == self._process:
            self._started.append(name)


def _tell_of_calls(cls: type, method: str, told: Callable[..., Iterator[None]]) -> None:
    """Run `told`, a generator, around each call of a method that does not raise."""
    original = getattr(cls, method)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        around = told(*args, **options)
        next(around)
        result = original(*args, **options)
        next(around, None)
        return result

    setattr(cls, method, call)
