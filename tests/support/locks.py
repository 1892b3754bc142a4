"""A lock that notes when its order is broken, or when code of the program runs under it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tracer.core import locks

_TESTS = str(Path(__file__).parents[1])


class _Held(threading.local):
    def __init__(self) -> None:
        self.locks: list[DebugLock] = []


_held = _Held()
_faults: list[str] = []
_taken: set[str] = set()


class DebugLock:
    def __init__(self, guards: locks.Guards) -> None:
        self.guards, self._lock = guards, threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        ranks = [locks.ORDER.index(each.guards) for each in _held.locks]
        if ranks and self not in _held.locks and locks.ORDER.index(self.guards) <= ranks[-1]:
            _faults.append(f"{self.guards} after {[each.guards for each in _held.locks]}")
        if not self._lock.acquire(blocking):
            return False
        _held.locks.append(self)
        _taken.add(self.guards)
        sys.setprofile(_note)
        return True

    def release(self) -> None:
        _held.locks.pop()
        if not _held.locks:
            sys.setprofile(None)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


def _note(frame: Any, event: str, argument: Any) -> None:
    """Note the call of a function that is in a file of the tests, but not in this one."""
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(_TESTS) and file != __file__:
        under = [each.guards for each in _held.locks]
        _faults.append(f"{frame.f_code.co_qualname} runs under {under}")


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, *guards: locks.Guards) -> Iterator[None]:
    """Watch each lock that is made in here; these ones must have been taken."""
    monkeypatch.setattr(locks, "new_lock", DebugLock)
    _faults.clear()
    _taken.clear()
    yield
    assert not _faults, "\n".join(sorted({*_faults}))
    assert not {*guards} - _taken, f"never taken: {[*{*guards} - _taken]}"
