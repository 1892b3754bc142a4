"""Reads and writes trace files; a file is written completely or not at all.

A trace file is one JSON object in UTF-8:

    {"format": "optimizer-tracer", "version": 3, "launch": {...},
     "optimizers": [...], "variables": [...], "methods": [...], "replicas": [...],
     "blocks": [{..., "entries": [{..., "variables": [0, 4]}], "runs": [[1, 1, 64, 1]]}],
     "calls": [{..., "variables": [0, 1, 2, 4], "eager": 0, "tracing": 2}],
     "graphs": [...], "notes": [{"text": ..., "kind": "missed", "worker": ""}],
     "environment": {"tensorflow": "2.21.0"}, ..., "lines": [...], "paths": [[0, 3]],
     "graph_tracings": [...], "effects": [{..., "variables": [0, 1], "runs": [[7, 1, 3, 1]]}],
     "rates": [{..., "variables": [0, 4], "runs": [[1, 64, 0.1, 0.001, 64]]}],
     "not_updated": [{..., "variables": [4, 6], "why": "frozen", "since": 0}]}

The fields are explained in `tracer.model.records`. The `variables` of these records are ranges:
`[0, 1, 2, 4]` are the variables 0, 2 and 3. So a list of 1,000 variables takes as much space as one
of 4. A run is `[first, stride, count, times]`, so a million regular steps take as much space as
ten. A merged trace has the traces of its workers instead: `"first": {"optimizers": ...}, "parts":
[{"replicas": ...}, ...]`, where each of the others has only the fields that differ from the first.

A reader may rely on this: every index is inside its table; every number is at most 2**63 - 1; the
steps of the runs of a block, an effect or a rate are ascending, and the runs of a block or an
effect sum to at most its total.

Fields that a reader may ignore can be added without a new version; readers skip unknown fields. Any
other change needs a new version, and `decode` refuses versions above its own.
"""

import codecs
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain, groupby, pairwise, starmap
from pathlib import Path
from typing import Any

import msgspec

from tracer import files
from tracer.errors import MergeError, TraceFileError
from tracer.model import launches
from tracer.model.evidence import GradientsAdded, GradientsLeft
from tracer.model.merge import merge
from tracer.model.records import (
    INDICES,
    Block,
    Calls,
    Effect,
    Entry,
    Graph,
    GraphTracing,
    Launch,
    Line,
    Note,
    NotUpdated,
    Optimizer,
    Program,
    Rate,
    RateRun,
    Replica,
    TraceData,
    Variable,
    with_indices,
)
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.model.words import first_of, some

FORMAT = "optimizer-tracer"
VERSION = 3

MAX_INDICES = 10_000_000
"""The most indices of variables in a file, equal lists once: a small file could fill the memory."""


class _Header(msgspec.Struct):
    format: Any = None
    version: Any = None
    parts: msgspec.Raw = msgspec.Raw()


class _File(TraceData, frozen=True, kw_only=True):
    """The trace of one process in a file, which requires `notes`."""

    notes: tuple[Note, ...]
    parts: tuple[()] = ()


_Part: Any = msgspec.defstruct(
    "_Part",
    [(f.name, f.type | msgspec.UnsetType, msgspec.UNSET) for f in msgspec.structs.fields(_File)],
)
"""The trace of another process in a file: the fields in which it differs from the first."""


class _Merged(msgspec.Struct):
    """A file with the traces of several processes."""

    first: _File
    parts: tuple[_Part, ...]


_ANY, _SOME = (0, 2**63 - 1), (1, 2**63 - 1)
_SECONDS = 0.0, 2.0**37  # since 1970: the year 6325

# `_BOUNDS` bounds the numbers, not `msgspec.Meta`: with that in a union, msgspec 0.22.0 crashed
# Python at the first garbage collection after an error (https://github.com/msgspec/msgspec/issues/717).

_BOUNDS: Mapping[type, Mapping[str, tuple[float, float]]] = {
    Variable: {"shape": _ANY, "shards": _SOME},
    Replica: {"id": _ANY},
    Block: dict.fromkeys(("total", "graphs", "idle"), _ANY),
    Entry: {"times": _SOME},
    Run: dict.fromkeys(("first", "stride", "count", "times", "last"), _SOME),
    Calls: dict.fromkeys(("eager", "tracing"), _ANY),
    Graph: dict.fromkeys(("tracings", "idle", "steps", "after"), _ANY),
    GraphTracing: {"after": _ANY, "at": _SECONDS},
    Effect: {"total": _ANY},
    GradientsAdded: dict.fromkeys(("steps", "of"), _ANY),
    GradientsLeft: dict.fromkeys(("passes", "of", "every"), _ANY),
    Line: {"number": _ANY},
    Rate: {"group": _ANY, "looks": _ANY},
    NotUpdated: {"since": _ANY},
    RateRun: dict.fromkeys(("first", "count", "values"), _SOME),
    Program: {
        **dict.fromkeys(("started", "seconds"), _SECONDS),
    },
}
"""The least and the greatest value of a field."""


_PARTS: Mapping[type, Sequence[str]] = {
    Optimizer: ("evidence",),
    Block: ("entries", "runs"),
    Effect: ("runs",),
    Rate: ("runs",),
    GradientsLeft: ("numbers",),
}
"""The fields with records that have bounds."""

_INDEXED = {table for fields in INDICES.values() for table in fields.values()} | {"lines"}


def encode(data: TraceData) -> bytes:
    """Return `data` as the content of a trace file.

    Raises `ValueError` or another error, with the reason, if it cannot be written.

    >>> decode(encode(TraceData((), (), (), (), (), (), environment={"jax": "0.7"}))).environment
    {'jax': '0.7'}
    """
    head = {"format": FORMAT, "version": VERSION, "launch": data.launch}
    first, *others = [_fields(part) for part in data.parts or (data,)]
    parts = [{key: own for key, own in part.items() if own != first[key]} for part in others]
    body = {"first": first, "parts": parts} if data.parts else first
    content = msgspec.json.encode(head | body) + b"\n"
    _read(content, merged=bool(data.parts))  # raises unless it can be read
    return content


def _fields(data: TraceData) -> dict[str, Any]:
    fields = msgspec.structs.asdict(data)
    del fields["parts"]
    return fields | {table: _with_variables(fields[table], _to_ranges) for table in _LISTING}


def decode(content: bytes) -> TraceData:
    """Return the records in the content of a trace file.

    Raises `ValueError` with the reason: no trace file, damaged, or from a newer tracer.
    """
    try:
        merged = bool(_header(content).parts)
        parts = _read(content, merged=merged)
        return merge(map(Trace, parts)).data if merged else parts[0]
    except MergeError as error:
        raise ValueError(f"is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError("is not a trace file: not UTF-8 text") from error
    except msgspec.ValidationError as error:
        raise ValueError(f"is damaged: {error}") from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise ValueError("is truncated: the end is missing") from error
        raise ValueError(f"is not a trace file: not JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("is not a trace file: nested too deeply") from error


def _header(content: bytes) -> _Header:
    header = msgspec.json.decode(content, type=_Header | list | str | int | float | None)
    if not isinstance(header, _Header) or header.format != FORMAT:
        raise ValueError("is JSON of another program, not a trace file")
    if type(header.version) is not int or header.version < 1:
        raise ValueError(f"is damaged: {header.version!r} is no version of the format")
    if header.version != VERSION:
        written, advice = "a newer", "update tracer"
        if header.version < VERSION:
            written, advice = "an older", "run the program again"
        raise ValueError(
            f"was written by {written} tracer: {advice} (the file has version {header.version} of "
            f"the format, this tracer reads {VERSION})"
        )
    return header


def _read(content: bytes, *, merged: bool) -> list[TraceData]:
    """Return the traces in `content`: one, or the parts of a merged one.

    Raises `msgspec.ValidationError` with the reason if their records contradict each other.
    """
    if merged:
        file = msgspec.json.decode(content, type=_Merged)
        parts = (file.first, *file.parts)
    else:
        parts = (msgspec.json.decode(content, type=_File),)
    lists = _Lists()
    checked: dict[tuple[object, ...], Any] = {}  # tables that several parts share are one
    traces = []
    for part in parts:
        fields = {
            field: getattr(parts[0] if getattr(part, field) is msgspec.UNSET else part, field)
            for field in TraceData.__struct_fields__
        }
        sizes = {table: len(fields[table]) for table in _INDEXED}
        for field, value in fields.items():
            key = field, id(value), *sizes.values()
            if key not in checked:
                for fault in _faults_in(field, value, sizes):
                    raise msgspec.ValidationError(fault)
                expand = partial(lists.expand, sizes["variables"])
                checked[key] = _with_variables(value, expand) if field in _LISTING else value
            fields[field] = checked[key]
        traces.append(TraceData(**fields))
    return traces


_LISTING = ("blocks", "calls", "effects", "rates", "not_updated")
"""The tables whose records list variables."""


def _with_variables(
    records: Iterable[msgspec.Struct], change: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> tuple[msgspec.Struct, ...]:
    return tuple(with_indices(records, {"variables": change}))


@cache
def _bounded(kind: type) -> tuple[tuple[str, str, float, float], ...]:
    """The fields of a record with bounds: name, the table of an index, least and greatest value."""
    tables = INDICES.get(kind, {}).items()
    return (
        *((field, of, 0, 0) for field, of in tables if of != "variables"),
        *((field, "", *ends) for field, ends in _BOUNDS.get(kind, {}).items()),
    )


def _faults_in(field: str, value: Any, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield each invalid value: `blocks[0].entries[0].times holds 0, outside 1 to ...`."""
    if field == "paths" and (outside := {*chain(*value)} - {*range(sizes["lines"])}):
        yield f"paths hold {min(outside)}, outside a table of {sizes['lines']}"
    for number, record in enumerate(value if isinstance(value, tuple) else ()):
        for fault in _faults(record, sizes):
            yield f"{field}[{number}]{fault}"


def _faults(record: Any, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield each invalid value of a record, as in `_faults_in`."""
    kind: Any = type(record)
    for field, of, least, most in _bounded(kind):
        value = getattr(record, field)
        most = sizes[of] - 1 if of else most
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not least <= number <= most:
                table = f"a table of {most + 1}" if of else f"{least} to {most}"
                yield f".{field} holds {number}, outside {table}"
    for field in _PARTS.get(kind, ()):
        for fault in _faults_in(field, getattr(record, field), sizes):
            yield f".{fault}"
    if kind is Graph and record.tracings < record.idle:
        yield f".tracings holds {record.tracings}, less than {record.idle}"
    if kind is Rate and any(a.first + a.count > b.first for a, b in pairwise(record.runs)):
        yield ".runs hold steps that do not rise"
    if kind is Block or kind is Effect:
        placed = sum(run.total for run in record.runs)
        if any(before.last >= after.first for before, after in pairwise(record.runs)):
            yield ".runs hold steps that do not rise"
        if placed > record.total:
            yield f".runs hold {placed:,}, more than the total, {record.total:,}"


def _to_ranges(indices: Iterable[int]) -> tuple[int, ...]:
    """Convert indices to ranges, `start, stop, start, stop...`, in the same order.

    >>> _to_ranges([0, 1, 2, 5, 9, 8])
    (0, 3, 5, 6, 9, 10, 8, 9)
    """
    rises = groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    parts = [[index for _, index in rise] for _, rise in rises]
    return tuple(chain.from_iterable((part[0], part[-1] + 1) for part in parts))


class _Lists:
    """The indices that the ranges of a file stand for; equal lists are one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._total = 0

    def expand(self, variables: int, ends: tuple[int, ...]) -> tuple[int, ...]:
        """The indices in a table of so many variables; checks the ranges and their size first."""
        if (variables, ends) not in self._known:
            ranges = [*zip(ends[::2], ends[1::2], strict=False)]
            if len(ends) % 2 or not all(0 <= start < stop <= variables for start, stop in ranges):
                table = f"a table of {some(variables, 'variable')}"
                raise msgspec.ValidationError(f"variables hold {[*ends]}, no ranges in {table}")
            self._total += sum(stop - start for start, stop in ranges)
            if self._total > MAX_INDICES:
                raise msgspec.ValidationError(f"variables hold more than {MAX_INDICES:,} indices")
            self._known[variables, ends] = tuple(chain.from_iterable(starmap(range, ranges)))
        return self._known[variables, ends]


# Files.

_STRANGE = re.compile(r"[^\w+-]", re.ASCII)
_MAX_NAME = 100  # characters of the name of a file or a folder
_MAX_NAMES = 4  # files that are not counted

MAX_BYTES = 1_000_000_000
"""A larger file is refused unread: it is no trace, or would take ten times as much memory."""

_BEGIN = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"optimizer-tracer"')


def file_name(trace: Trace) -> str:
    """The file name of a trace in a folder, by its workers: `worker-0.json`.

    A worker's name from a file is never used as a path: characters unusual in file names become
    `-`, and a digest distinguishes names that this makes equal.
    """
    return f"{_plain('+'.join(filter(None, trace.workers or trace.data.processes)))}.json"


def is_one_of_several(trace: Trace) -> bool:
    """True for the trace of one of several workers."""
    return ", " in trace.environment.get("cluster", "")


def file_in(folder: Path, trace: Trace) -> Path:
    """The file for the trace of one of several workers: in the folder of its launch."""
    launch = trace.data.launch or Launch()
    return folder / _plain(launch.run or launch.key) / file_name(trace)


def _plain(text: str) -> str:
    """The text as a name in a folder: no more than `_MAX_NAME` usual characters, and a digest."""
    plain = re.sub("[: ]", "-", text)
    name = _STRANGE.sub("-", plain)[:_MAX_NAME]
    if name != plain:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        name += f"-{digest[:8]}"
    return name or "trace"


def head(path: Path) -> bytes:
    """The first bytes of a file; empty for a folder, a pipe, or an unreadable file."""
    if path.is_file():  # reading a pipe would consume it
        with suppress(OSError), path.open("rb") as file:
            return file.read(1 << 12)
    return b""


def is_trace(path: Path) -> bool:
    """Whether the file at `path` is a trace file, by its first bytes."""
    return _BEGIN.match(head(path)) is not None


def launch_of(path: Path) -> Launch | None:
    """The launch of a trace file, by its first bytes; None if there is none."""
    return launches.launch_in(head(path))


def is_other(path: Path) -> bool:
    """Whether `path` is a file with other content, which must not be overwritten."""
    return path.is_file() and path.stat().st_size > 0 and not is_trace(path)


def file_at(path: str | Path, trace: Trace) -> Path:
    """The file for `trace` at a path; in a folder, named by the worker.

    A path that ends in a slash is a folder, which is made.
    """
    with refused(path, "written"):
        found = files.local_path(path)
        if str(path).endswith(("/", os.sep)):
            found.mkdir(parents=True, exist_ok=True)
        return found / file_name(trace) if found.is_dir() else found


def save(data: TraceData, path: Path) -> None:
    """Write `data` to `path` as a trace file, completely, or keep the earlier file.

    Raises `tracer.TraceFileError` if it cannot be written.

    >>> import tempfile
    >>> data = TraceData((), (), (), (), (), (), environment={"jax": "0.7"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(data, Path(folder, "run.json"))
    ...     load(Path(folder, "run.json")).environment
    {'jax': '0.7'}
    """
    with refused(path, "written"):
        content = encode(data)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it takes {len(content):,} bytes, more than {MAX_BYTES:,}")
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise ValueError(f"there is no folder {target.parent}")
        if target.exists():
            _require_file(path, target.stat())
        files.write(path, content)


@contextmanager
def refused(path: str | Path, done: str) -> Iterator[None]:
    """Raise `TraceFileError` with one line on why the file cannot be `done` (read or written)."""
    try:
        yield
    except TraceFileError:
        raise
    except Exception as error:  # a NUL in a path is a ValueError
        files.local_path(path)  # raises for a URL
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _error(path, f"cannot be {done}: {reason}") from error


def load(path: str | Path) -> Trace:
    """Read a trace file that `Trace.save` wrote, or a folder of such files.

    Of a folder and its folders, the files of the newest launch are one run: `tracer.merge` merges
    them. A note names the other files, which are not counted.

    Raises `tracer.MergeError` if the files of a launch are not of one run, and
    `tracer.TraceFileError` if there is no file, or if a file is damaged, is not a trace, is of a
    newer `tracer` or is larger than 1 GB.

    >>> load("no/such/file.json")
    Traceback (most recent call last):
    tracer.errors.TraceFileError: no/such/file.json: cannot be read: No such file or directory
    """
    with refused(path, "read"):
        given, path = path, Path(path)
        found = _files_in(path) if path.is_dir() else None
    if found is None:
        return _trace(given)
    if not found:
        raise _error(path, "is a folder without a trace file (*.json)")
    newest = launches.newest({each: launch_of(each) for each in found})
    folders = {path, *(each.parent for each in newest)}
    others = [
        each if each.parent in folders else each.parent for each in found if each not in newest
    ]
    names = first_of([*dict.fromkeys(e.relative_to(path).as_posix() for e in others)], _MAX_NAMES)
    note = Note(f"not counted, from another launch: {names}", "fact")
    left_out = [Trace(TraceData((), (), (), (), (), (), notes=(note,)))] if others else []
    try:
        return merge([*map(_trace, newest), *left_out])
    except MergeError as error:
        one = f"if they are of separate runs or tests, give one of them, as {newest[0]}"
        raise MergeError(f"{path}: {error}; {one}") from error


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, and the traces in its folders, which are of one launch each."""
    entries = sorted(folder.iterdir())  # glob() hides errors
    below = (each for entry in entries if entry.is_dir() for each in sorted(entry.glob("*.json")))
    return [e for e in entries if e.name.endswith(".json")] + [e for e in below if is_trace(e)]


def _trace(path: str | Path) -> Trace:
    with refused(path, "read"):
        status = os.stat(path)
        _require_file(path, status)
        if status.st_size > MAX_BYTES:
            large = f"{status.st_size:,} bytes, more than {MAX_BYTES:,}"
            raise _error(path, f"is too large for a trace file: {large}")
        content = Path(path).read_bytes()
    try:
        return Trace(decode(content.removeprefix(codecs.BOM_UTF8)))  # some editors add it
    except ValueError as error:
        program = f"is a program, not a trace file: did you mean tracer run {path}?"
        raise _error(path, program if Path(path).suffix == ".py" else error) from error


def load_run(path: str | Path) -> Trace:
    """Load the trace of a whole run; the trace of one of several workers is incomplete."""
    trace = load(path)
    return merge([trace]) if is_one_of_several(trace) and not trace.data.parts else trace


# Bytes and the file system.


def _error(path: str | Path, reason: object) -> TraceFileError:
    """The error with one line: the file and the reason."""
    line = " ".join(f"{path}: {reason}".split())
    return TraceFileError(line if len(line) <= 1000 else f"{line[:1000]}...")


def _require_file(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "folder" if stat.S_ISDIR(status.st_mode) else "device or a pipe"
        raise _error(path, f"is a {what}, not a trace file")
