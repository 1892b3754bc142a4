"""Reads and writes trace files; a file is written completely or not at all.

A trace file is one JSON object in UTF-8:

    {"format": "optimizer-tracer", "version": 5,
     "optimizers": [...], "variables": [...], "methods": [...], "replicas": [...],
     "blocks": [{..., "entries": [{..., "variables": [0, 1, 4]}], "runs": [[1, 1, 64, 1]]}],
     "calls": [...], "effects": [...], "graphs": [...],
     "notes": [{"text": ..., "kind": "missed", "worker": ""}],
     "environment": {"tensorflow": "2.21.0"}, "launch": {...}, ...,
     "lines": [...], "paths": [[0, 3]],
     "rates": [{..., "variables": [0, 4], "runs": [[1, 64, 0.1, 0.001, 64]]}],
     "not_updated": [{..., "variables": [4, 5], "why": "frozen", "since": 0}], "parts": []}

The fields are explained in `tracer.model.records`. A run is `[first, stride, count, times]`, so a
million regular steps take as much space as ten. The `parts` of a merged trace are the traces that
it was made of.

A reader may rely on this: every index is inside its table, and no index or count is negative.

Fields that a reader may ignore can be added without a new version; readers skip unknown fields. Any
other change needs a new version, and `decode` refuses other versions than its own.
"""

import os
import re
import secrets
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from tracer.errors import MergeError, TraceFileError, near_file
from tracer.model import launches
from tracer.model.merge import merge
from tracer.model.records import Launch, Note, TraceData, with_indices
from tracer.model.trace import Trace
from tracer.words import listed

FORMAT = "optimizer-tracer"
VERSION = 5


class _Header(msgspec.Struct):
    format: object = None
    version: object = None
    launch: Launch | None = None


def encode(data: TraceData) -> bytes:
    """Return `data` as the content of a trace file.

    Raises `ValueError` or another error, with the reason, if it cannot be written.

    >>> decode(encode(TraceData((), (), (), (), (), (), environment={"jax": "0.7"}))).environment
    {'jax': '0.7'}
    """
    return msgspec.json.encode({"format": FORMAT, "version": VERSION} | asdict(data)) + b"\n"


def decode(content: bytes) -> TraceData:
    """Return the records in the content of a trace file.

    Raises `ValueError` with the reason: no trace file, damaged, or of another version.
    """
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format != FORMAT:
            raise ValueError("is JSON of another program, not a trace file")
        if header.version != VERSION:
            raise ValueError(
                f"has version {header.version!r} of the format, and this tracer reads {VERSION}: "
                "run the program again, or update tracer"
            )
        data = msgspec.json.decode(content, type=TraceData)
        for part in (data, *data.parts):
            _check(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise ValueError(f"is not a trace file, or damaged: {error}") from error
    return data


def _check(data: TraceData) -> None:
    """Raise `IndexError` for an index of no record."""
    tables = {name: own for name, own in asdict(data).items() if isinstance(own, tuple)}
    change: dict[str, Callable[..., object]] = {
        name: own.__getitem__ for name, own in tables.items()
    }
    change["variables"] = lambda indices: [data.variables[index] for index in indices]
    for records in tables.values():
        deque(with_indices(records, change), maxlen=0)
    for number in range(len(data.paths)):
        data.lines_of(number)


# Files.

_BEGIN = re.compile(rb'\s*\{\s*"format"\s*:\s*"optimizer-tracer"')
_STRANGE = re.compile(r"[^\w+-]", re.ASCII)
_MAX_NAME = 100  # characters of the name of a file or a folder
_MAX_NAMES = 4  # of files


def file_name(trace: Trace) -> str:
    """The file name of a trace in a folder, by its workers: `worker-0.json`.

    A worker's name from a file is never used as a path: characters unusual in file names become
    `-`.
    """
    return f"{_plain('+'.join(filter(None, trace.workers or trace.data.processes)))}.json"


def is_one_of_several(trace: Trace) -> bool:
    """True for the trace of one of several workers."""
    return ", " in trace.data.environment.get("cluster", "")


def file_in(folder: Path, trace: Trace) -> Path:
    """The file for the trace of one of several workers: in the folder of its launch."""
    launch = trace.data.launch or Launch()
    return folder / _plain(launch.run or launch.key) / file_name(trace)


def _plain(text: str) -> str:
    """The text as a name in a folder: no more than `_MAX_NAME` usual characters."""
    return _STRANGE.sub("-", text)[:_MAX_NAME] or "trace"


def _header(path: Path) -> _Header:
    """The header of a trace file; an empty one for other content, a folder, or a pipe."""
    if not path.is_file():  # reading a pipe would consume it
        return _Header()
    errors = OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError
    with suppress(*errors), path.open("rb") as file:
        begin = file.read(100)
        if _BEGIN.match(begin):  # else it may be larger than the memory
            return msgspec.json.decode(begin + file.read(), type=_Header)
    return _Header()


def is_trace(path: Path) -> bool:
    """Whether the file at `path` is a trace file."""
    return bool(_header(path).format == FORMAT)


def launch_of(path: Path) -> Launch | None:
    """The launch of a trace file; None if there is none."""
    return _header(path).launch


def is_other(path: Path) -> bool:
    """Whether `path` is a file with other content, which must not be overwritten."""
    return path.is_file() and path.stat().st_size > 0 and not is_trace(path)


def file_at(path: str | Path, trace: Trace) -> Path:
    """The file for `trace` at a path; in a folder, named by the worker.

    A path that ends in a slash is a folder, which is made.
    """
    with refused(path, "written"):
        if str(path).endswith(("/", os.sep)):
            Path(path).mkdir(parents=True, exist_ok=True)
        return Path(path, file_name(trace)) if Path(path).is_dir() else Path(path)


def save(data: TraceData, path: Path) -> None:
    """Write `data` to `path` as a trace file, completely, or keep the earlier file.

    Raises `tracer.TraceFileError` if it cannot be written.

    >>> import tempfile
    >>> data = TraceData((), (), (), (), (), (), environment={"jax": "0.7"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(data, Path(folder, "run.json"))
    ...     load(Path(folder, "run.json")).data.environment
    {'jax': '0.7'}
    """
    with refused(path, "written"):
        write(path, encode(data))


@contextmanager
def refused(path: str | Path, done: str) -> Iterator[None]:
    """Raise `TraceFileError` with one line on why the file cannot be `done` (read or written)."""
    try:
        yield
    except Exception as error:  # a NUL in a path is a ValueError
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason += near_file(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise TraceFileError(f"{path}: cannot be {done}: {reason}") from error


def load(path: str | Path) -> Trace:
    """Read a trace file that `Trace.save` wrote, or a folder of such files.

    Of a folder and its folders, the files of the newest launch are one run: `tracer.merge` merges
    them. A note names the other files, which are not counted.

    Raises `tracer.MergeError` if the files of a launch are not of one run, and
    `tracer.TraceFileError` if there is no file, or if a file is damaged, is not a trace, or is of
    another version of `tracer`.

    >>> load("no/such/file.json")
    Traceback (most recent call last):
    tracer.errors.TraceFileError: no/such/file.json: cannot be read: No such file or directory
    """
    if not os.path.isdir(path):
        return _trace(path)
    with refused(path, "read"):
        found = {file: launch_of(file) for file in _files_in(Path(path))}
        if not found:
            raise ValueError("there is no trace file (*.json) in the folder")
    newest = launches.newest(found)
    names = {file: file.relative_to(path).as_posix() for file in found}
    try:
        trace = merge(map(_trace, newest))
    except MergeError as error:
        own = listed([names[file] for file in newest], _MAX_NAMES)
        raise MergeError(f"{path} ({own}): {error}") from error
    others = [names[file] for file in found if file not in newest]
    text = f"not counted, from another launch: {listed(others, _MAX_NAMES)}"
    notes = [*trace.data.notes, *([Note(text, "fact")] if others else [])]
    return Trace(replace(trace.data, notes=tuple(notes)))


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, and the traces in its folders, which are of one launch each."""
    entries = sorted(folder.iterdir())  # glob() hides errors
    below = (each for entry in entries if entry.is_dir() for each in sorted(entry.glob("*.json")))
    return [e for e in entries if e.name.endswith(".json")] + [e for e in below if is_trace(e)]


def _trace(path: str | Path) -> Trace:
    with refused(path, "read"):
        content = Path(path).read_bytes()
    try:
        return Trace(decode(content))
    except ValueError as error:
        program = f"is a program, not a trace file: did you mean tracer run {path}?"
        reason = program if Path(path).suffix == ".py" else error
        raise TraceFileError(f"{path}: {reason}") from error


def load_run(path: str | Path) -> Trace:
    """Load the trace of a whole run; the trace of one of several workers is incomplete."""
    trace = load(path)
    return merge([trace]) if is_one_of_several(trace) and not trace.data.parts else trace


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path`: completely, or the old content is kept.

    A link stays a link; a device such as /dev/null, or a pipe, is not replaced by a file.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".tracer-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        error.filename = str(path)  # instead of the temporary file's
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()
