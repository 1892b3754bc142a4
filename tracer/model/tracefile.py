"""Trace files: written whole or not at all, read from a file or a folder of them.

What stands in one is in `tracer.model.fileformat`.
"""

import codecs
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracer.errors import MergeError, TraceFileError
from tracer.model import fileformat
from tracer.model.merge import merge, of_whole_run
from tracer.model.records import TraceData
from tracer.model.trace import Trace

_STRANGE = re.compile(r"[^\w+-]", re.ASCII)
_LONGEST = 100  # characters of a worker's name in that of its file

MAX_BYTES = 1_000_000_000
"""A larger file is refused unread: it is no trace, or would take ten times that in memory."""

_BEGIN = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"optimizer-tracer"')


def file_name(trace: Trace) -> str:
    """What the file of a trace is called in a folder: `worker-0.json`, by its workers.

    A name that a file gave to a worker is never a path: what is unusual in a file's name becomes
    `-`, and a digest keeps apart what that makes equal.
    """
    workers = "+".join(trace.workers) or "+".join(each.worker for each in trace.programs)
    plain = workers.replace(":", "-")
    name = _STRANGE.sub("-", plain)[:_LONGEST]
    if name != plain:
        digest = hashlib.sha256(workers.encode("utf-8", "surrogatepass")).hexdigest()
        name += f"-{digest[:8]}"
    return f"{name or 'trace'}.json"


def head(path: Path) -> bytes:
    """The first bytes of a file; none of a folder, a pipe, or what cannot be read."""
    if path.is_file():  # what is read of a pipe would be gone
        with suppress(OSError), open(path, "rb") as file:
            return file.read(1 << 16)
    return b""


def is_trace(path: Path) -> bool:
    """Whether there is a trace file at `path`, by its first bytes."""
    return _BEGIN.match(head(path)) is not None


def save(data: TraceData, path: Path) -> None:
    """Write `data` to `path` as a trace file: all of it, or what stood there before is kept.

    Raises `tracer.TraceFileError` if it cannot be written.

    >>> import tempfile
    >>> data = TraceData((), (), (), (), (), (), notes=("nothing happened",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(data, Path(folder, "run.json"))
    ...     load(Path(folder, "run.json")).notes
    ('nothing happened',)
    """
    with _refused(path, "written"):
        content = fileformat.encode(data)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it takes {len(content):,} bytes, more than {MAX_BYTES:,}")
        # A link stays a link; and a device such as /dev/null must not become a file.
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise ValueError(f"there is no folder {target.parent}")
        if target.exists():
            _require_file(path, target.stat())
        _replace(target, content)


@contextmanager
def _refused(path: str | Path, done: str) -> Iterator[None]:
    """Say in one line why the file at `path` cannot be `done` (read or written)."""
    try:
        yield
    except TraceFileError:
        raise
    except (OSError, ValueError, TypeError, OverflowError) as error:  # ValueError: a NUL in a path
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be {done}: {reason}") from error


def load(path: str | Path) -> Trace:
    """The trace in the file at `path`, or in a folder of such files: see `tracer.load`."""
    if Path(path).is_dir():
        files = sorted(Path(path).glob("*.json"))
        if not files:
            raise _error(path, "is a folder without a trace file (*.json)")
        try:
            return merge(load(file) for file in files)
        except MergeError as error:
            one = f"if they are of separate runs or tests, give one of them, as {files[0]}"
            raise MergeError(f"{path}: {error}; {one}") from error
    with _refused(path, "read"):
        status = Path(path).stat()
        _require_file(path, status)
        if status.st_size > MAX_BYTES:
            size = f"{status.st_size:,} bytes, more than {MAX_BYTES:,}"
            raise _error(path, f"is too large for a trace file: {size}")
        content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)  # of some editors
    try:
        return Trace(fileformat.decode(content))
    except ValueError as error:
        program = f"is a program, not a trace file: did you mean tracer run {path}?"
        raise _error(path, program if Path(path).suffix == ".py" else error) from error


def load_run(path: Path) -> Trace:
    """The trace of a whole run: that of one of its workers alone is incomplete."""
    trace = load(path)
    return trace if path.is_dir() else of_whole_run(trace)


# Bytes and the file system.


def _error(path: str | Path, reason: object) -> TraceFileError:
    """The error that says in one line which file, and why."""
    line = " ".join(f"{path}: {reason}".split())
    return TraceFileError(line if len(line) <= 1000 else f"{line[:1000]}...")


def _require_file(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "folder" if stat.S_ISDIR(status.st_mode) else "device or a pipe"
        raise _error(path, f"is a {what}, not a trace file")


def _replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one go, by way of a temporary file beside it."""
    temporary = path.with_name(f".tracer-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
