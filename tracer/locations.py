"""Read and write trace files at a path, or at a URL that fsspec supports, such as `s3://runs/1/`.

A URL is a `UPath` of universal_pathlib, which has the methods of `pathlib.Path`. This module
handles the differences.
"""

import os
import re
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tracer.errors import MissingExtra, TraceFileError, to_install

T = TypeVar("T")

_URL = re.compile(r"([a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def location(place: str | os.PathLike[str], *, fresh: bool = False) -> Path:
    """The path, or the `UPath` of a URL, which gets a file system of its own; a new one if `fresh`.

    The URL of a file of this machine, `file:///runs/1.json`, is its path.

    Raises `MissingExtra`, an `ImportError`, if a package that the URL needs is not installed, and
    `tracer.TraceFileError` for a URL that fsspec cannot use.

    >>> location("runs/1.json").name, location("memory://runs/1.json").name
    ('1.json', '1.json')
    """
    if not (is_remote(place) or is_url(place)):
        return Path(place)
    path: Any = place
    options: Any = getattr(place, "storage_options", {})
    try:
        if fresh or "skip_instance_cache" not in options:  # else it was made here
            from upath import UPath

            # A transaction affects all files of a file system, so do not share the program's.
            path = UPath(str(place), **{**options, "skip_instance_cache": True})
            if path.protocol in ("file", "local"):
                return Path(path.path)
            _prepare_for_exit()
        path.fs.invalidate_cache()  # paths derived from it share its file system
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{place}: a URL {to_install(error.name)}") from error
    except ImportError as error:
        raise MissingExtra(f"{place}: {error}") from error
    except Exception as error:  # some file systems connect to their server when they are created
        raise TraceFileError(f"{place}: {error}") from error
    return path  # type: ignore[no-any-return]


def is_url(place: object) -> bool:
    """True for the text of a URL, even of a file of this machine."""
    return isinstance(place, str) and _URL.match(place) is not None


def is_remote(path: object) -> bool:
    """True for a `UPath` of a URL, even of the local machine."""
    return hasattr(path, "fs") and not isinstance(path, Path)


def display(path: Path) -> str:
    """The URL, or the path from the current folder."""
    return str(path) if is_remote(path) else os.path.relpath(path)


def write(path: Any, content: bytes) -> None:
    """Write `content` to `path`: completely, or the old content is kept.

    A link stays a link; a device such as /dev/null, or a pipe, is not replaced by a file.
    """
    if is_remote(path):
        with path.fs.transaction:  # in an object store, one request without it
            path.fs.pipe_file(path.path, content)
    elif path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        try:
            _replace(Path(os.path.realpath(path)), content)
        except OSError as error:
            error.filename = str(path)  # instead of the temporary file's
            raise


def _replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, through a temporary file next to it."""
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


def content(path: Any) -> bytes | None:
    """The content of a file at a URL; None if there is none, or if it may not be read.

    S3 refuses to say that an object does not exist to somebody who may not list the bucket.
    """
    try:
        return path.fs.cat_file(path.path)  # type: ignore[no-any-return]
    except (FileNotFoundError, PermissionError):
        return None


def sizes(folder: Any, paths: Sequence[Any]) -> list[int]:
    """The sizes of files in a remote folder, in bytes, from one request; 0 if not known."""
    found = {each["name"]: each["size"] or 0 for each in folder.fs.ls(folder.path, detail=True)}
    return [found.get(each.path, 0) for each in paths]


def read(paths: Sequence[Any]) -> list[bytes]:
    """The contents of files in one remote folder, requested together for speed."""
    # `cat` would take names with brackets for patterns.
    contents: list[Any] = paths[0].fs.cat_ranges([each.path for each in paths], None, None)
    for each in contents:
        if isinstance(each, Exception):
            raise each
    return contents


def when_written(path: Any) -> tuple[float, object] | None:
    """When a file, or the newest file of a folder, was written; None if there is none.

    The second value changes with each write, even within a second.
    """
    if is_remote(path):
        path.fs.invalidate_cache()  # the cached list of files is old
    files = [e for e in path.iterdir() if e.name.endswith(".json")] if path.is_dir() else [path]
    states = [each.stat() for each in files]
    if not states:
        return None
    stamps = [each.as_info() for each in states] if is_remote(path) else []
    return max(each.st_mtime for each in states), repr(stamps)


python_ends = threading.Event()
"""Set when Python begins to end: from then on, file systems may be closed while in use."""


@cache
def _prepare_for_exit() -> None:
    """Have `python_ends` set before executors end, and before connections close at `atexit`."""
    import concurrent.futures.thread  # noqa: F401  # registered first, called last

    with suppress(AttributeError, RuntimeError):  # it is private; or Python is ending already
        threading._register_atexit(python_ends.set)  # type: ignore[attr-defined]


def work_at_exit() -> None:
    """Allow `atexit` functions to write remote files.

    By then executors accept no work, but the event loop of fsspec submits some to its executor,
    such as host name lookups. (`concurrent.futures.thread` raises "cannot schedule new futures
    after interpreter shutdown".) From now on, `submit` does such work itself, on the calling
    thread.
    """
    if "fsspec.asyn" not in sys.modules:
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    class AtOnce(ThreadPoolExecutor):
        def submit(self, do: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
            future: Future[T] = Future()
            try:
                future.set_result(do(*args, **options))
            except BaseException as error:
                future.set_exception(error)
            return future

    loop = sys.modules["fsspec.asyn"].get_loop()
    loop.set_default_executor(AtOnce())
    # It would print that connections are not closed; the end of the process closes them.
    loop.set_exception_handler(lambda *_: None)
