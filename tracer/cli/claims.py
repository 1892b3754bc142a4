"""Who writes the trace of a worker: no process takes the file of another, and none is lost.

A process holds a lock on a hidden file next to its trace as long as it lives. SIGTERM, by which
launchers end the other ranks when one has died, leaves a stack in it: `faulthandler` writes that
also while the process waits in C, and the signal does what it does anyway.
"""

import faulthandler
import itertools
import signal
from pathlib import Path
from typing import IO

from tracer.model.tracefile import claim_of


def claim(path: Path, *, only_new: bool) -> tuple[Path, IO[bytes] | None]:
    """Take the trace file `path` until this process ends, or `NAME-2.json` if another has it.

    What stands there is of a process that has ended, unless the file is to be `only_new`. The
    hidden file must stay open; it is None where none can be made.
    """
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    for own in itertools.chain([path], names):
        if only_new and own.exists():
            continue
        try:
            file = claim_of(own).open("ab", buffering=0)
        except OSError:
            return own, None
        if _lock(file):
            file.truncate(0)
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                _note_termination(file)
            return own, file
        file.close()
    raise AssertionError("there is always another name")


def set_aside(path: Path) -> Path:
    """Move a file to the first of the folders `earlier-1`, `earlier-2`, ... that has none so."""
    folders = (path.parent / f"earlier-{number}" for number in itertools.count(1))
    kept = next(each / path.name for each in folders if not (each / path.name).exists())
    kept.parent.mkdir(exist_ok=True)
    return path.rename(kept)


def forget_termination() -> None:
    """Let SIGTERM leave no stack any more: a fork has the handler of its parent."""
    if hasattr(faulthandler, "unregister"):
        faulthandler.unregister(signal.SIGTERM)


def _note_termination(file: IO[bytes]) -> None:
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGTERM, file, all_threads=False, chain=True)


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
