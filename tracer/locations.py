"""Where trace files are: a path, or a URL that fsspec knows, such as `s3://runs/1/`.

A URL is a `UPath` of universal_pathlib, which has the methods of `pathlib.Path`. Here stands what
differs between the two.
"""

import os
import re
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tracer.errors import MissingExtra, TraceFileError, to_install

T = TypeVar("T")

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def location(place: str | os.PathLike[str]) -> Path:
    """The path, or the `UPath` of a URL, with a file system of its own.

    Raises `MissingExtra`, an `ImportError`, if a package that the URL needs is not installed, and
    `tracer.TraceFileError` if it is a URL that fsspec cannot use.

    >>> location("runs/1.json").name, location("memory://runs/1.json").name
    ('1.json', '1.json')
    """
    if not is_remote(place) and not (isinstance(place, str) and _URL.match(place)):
        return Path(place)
    path: Any = place
    options: Any = getattr(place, "storage_options", {})
    try:
        if "skip_instance_cache" not in options:  # else it was made here
            from upath import UPath

            # A transaction is on all files of a file system, so it must not be the program's, too.
            path = UPath(str(place), **options, skip_instance_cache=True)
            _prepare_for_exit()
        path.fs.invalidate_cache()  # with its file system; the paths made of it have the same one
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{place}: a URL {to_install(error.name)}") from error
    except ImportError as error:
        raise MissingExtra(f"{place}: {error}") from error
    except Exception as error:  # some file systems connect to their server when they are made
        raise TraceFileError(f"{place}: {error}") from error
    return path  # type: ignore[no-any-return]


def is_remote(path: object) -> bool:
    """Whether the path is a `UPath` of a URL, also of one of the machine itself."""
    return hasattr(path, "fs") and not isinstance(path, Path)


def display(path: Path) -> str:
    """The URL, or the path from the current folder."""
    return str(path) if is_remote(path) else os.path.relpath(path)


def write(path: Any, content: bytes) -> None:
    """Put `content` at `path`: all of it, or what stood there before is kept.

    A link stays a link; and a device such as /dev/null, or a pipe, does not become a file.
    """
    if is_remote(path):
        with path.fs.transaction, path.fs.open(path.path, "wb") as file:
            file.write(content)
    elif path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        try:
            _replace(Path(os.path.realpath(path)), content)
        except OSError as error:
            error.filename = str(path)  # and not that of the temporary file
            raise


def _replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one go, by way of a temporary file next to it."""
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


def sizes(folder: Any, paths: Sequence[Any]) -> list[int]:
    """How many bytes the files of a remote folder have, by one question for all."""
    found = {each["name"]: each["size"] for each in folder.fs.ls(folder.path, detail=True)}
    return [found[each.path] for each in paths]


def read(paths: Sequence[Any]) -> Iterator[bytes]:
    """The contents of files of one remote folder: asked for at once, where that is faster."""
    found = paths[0].fs.cat([each.path for each in paths])
    return (found[each.path] for each in paths)


def when_written(path: Any) -> tuple[float, object] | None:
    """When a file, or the last one of a folder, was written; None if there is none yet.

    The second value is another one after each writing, also of two in one second.
    """
    if is_remote(path):
        path.fs.invalidate_cache()  # a list of files that is as old as the first question
    states = [each.stat() for each in (path.glob("*.json") if path.is_dir() else [path])]
    if not states:
        return None
    stamps = [each.as_info() for each in states] if is_remote(path) else []
    return max(each.st_mtime for each in states), repr(stamps)


python_ends = threading.Event()
"""Set once Python ends: from then on a file system may be closed while it is used."""


@cache
def _prepare_for_exit() -> None:
    """Have `python_ends` set before the executors end, and connections at `atexit`."""
    import concurrent.futures.thread  # noqa: F401  # what is registered first is called last

    with suppress(AttributeError, RuntimeError):  # it is private; or Python ends already
        threading._register_atexit(python_ends.set)  # type: ignore[attr-defined]


def work_at_exit() -> None:
    """Let remote files be written by what `atexit` calls.

    No executor takes work any more by then, and the event loop of fsspec gives some to its own: to
    look up the name of a host. (`concurrent.futures.thread` says so: "cannot schedule new futures
    after interpreter shutdown".) From now on such work is done before `submit` returns, by the
    thread that asked for it.
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
    # It would print that connections are not closed; the process ends, which closes them.
    loop.set_exception_handler(lambda *_: None)
