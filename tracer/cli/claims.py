"""Claim trace files for workers, so that processes never overwrite each other's files.

While it lives, a process holds a lock on a hidden file next to its trace. Launchers send SIGTERM to
the other ranks when one has died, which writes a stack into the hidden file: `faulthandler` does
this even while the process waits in C, and the signal then has its usual effect.
"""

import faulthandler
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from tracer.model.tracefile import claim_of


def claim(
    path: Path, written: Path | None, *, only_new: bool
) -> tuple[Path, IO[bytes] | None, Path | None]:
    """Claim the trace file `path` until this process ends, or `NAME-2.json` if it is taken.

    Returns the file; the open hidden file, None if none can be made; and the new place of a file
    that an ended process left there, None if there was none or if `only_new`, which skips existing
    files. The file that this process has `written` stays.
    """
    for own in itertools.chain([path], other_names(path)):
        if only_new and own.exists():
            continue
        kept = None
        try:
            file = claim_of(own).open("ab", buffering=0)
            if (is_free := _lock(file)) and own.exists() and own != written:
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


def other_names(path: Path) -> Iterator[Path]:
    """The names for the trace of a further process: `NAME-2.json`, ..."""
    return (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))


def place_of_earlier(path: Path) -> Path:
    """Where the trace of an earlier run goes: the first free folder among `earlier-1`, ..."""
    folders = (path.parent / f"earlier-{number}" for number in itertools.count(1))
    return next(each / path.name for each in folders if not (each / path.name).exists())


def _set_aside(path: Path) -> Path:
    """Move a trace and its hidden file to the place of an earlier run."""
    kept = place_of_earlier(path)
    kept.parent.mkdir(exist_ok=True)
    claim_of(path).rename(claim_of(kept))
    return path.rename(kept)


def leave_to_parent(hidden: IO[bytes]) -> None:
    """Stop writing stacks from a fork, which inherits the SIGTERM handler of its parent."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), hidden.fileno())


def _note_termination(hidden: IO[bytes]) -> None:
    """Write a stack there at SIGTERM, unless the program handles the signal itself."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not _is_caught(signal.SIGTERM):
        with suppress(AttributeError):  # on Windows
            faulthandler.register(signal.SIGTERM, hidden, all_threads=False, chain=True)


def _is_caught(number: int) -> bool:
    """True if a signal has a handler, even one unknown to Python; False if that is unknown."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    return False


def _lock(file: IO[bytes]) -> bool:
    """True if no other process has locked the file, or if there are no locks."""
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        pass
    return True
