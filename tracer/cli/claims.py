"""Who writes the trace of a worker: no process takes the file of another, and none is lost.

A process holds a lock on a hidden file next to its trace as long as it lives. SIGTERM, by which
launchers end the other ranks when one has died, leaves a stack in it: `faulthandler` writes that
also while the process waits in C, and the signal does what it does anyway.
"""

import faulthandler
import itertools
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import IO

from tracer.model.tracefile import claim_of


def claim(path: Path, *, only_new: bool) -> tuple[Path, IO[bytes] | None, Path | None]:
    """Take the trace file `path` until this process ends, or `NAME-2.json` if another has it.

    Returns the file, the hidden one, which must stay open and is None where none can be made, and
    where that went which stood there, of a process that had ended. None does if it is `only_new`.
    """
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    for own in itertools.chain([path], names):
        if only_new and own.exists():
            continue
        kept = None
        try:
            file = claim_of(own).open("ab", buffering=0)
            if (is_free := _lock(file)) and own.exists():
                kept = _set_aside(own)
                file.close()
                file = claim_of(own).open("ab", buffering=0)
                is_free = _lock(file)
        except OSError:
            return own, None, kept
        if is_free:
            file.truncate(0)
            _note_termination(file)
            return own, file, kept
        file.close()
    raise AssertionError("there is always another name")


def _set_aside(path: Path) -> Path:
    """Move a trace and its hidden file to the first of the folders `earlier-1`, ... without one."""
    folders = (path.parent / f"earlier-{number}" for number in itertools.count(1))
    kept = next(each / path.name for each in folders if not (each / path.name).exists())
    kept.parent.mkdir(exist_ok=True)
    claim_of(path).rename(claim_of(kept))
    return path.rename(kept)


def leave_to_parent(hidden: IO[bytes]) -> None:
    """Let SIGTERM leave no stack there in a fork, which has the handler of its parent."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), hidden.fileno())


def _note_termination(hidden: IO[bytes]) -> None:
    """Let SIGTERM leave a stack there, unless the program does something else at it."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not _is_caught(signal.SIGTERM):
        with suppress(AttributeError):  # on Windows
            faulthandler.register(signal.SIGTERM, hidden, all_threads=False, chain=True)


def _is_caught(number: int) -> bool:
    """Whether there is a handler, also one that Python does not know; False if none can tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    return False


def _lock(file: IO[bytes]) -> bool:
    """Whether no other process holds the file; where there are no locks, nobody does."""
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        pass
    return True
