"""Files of this machine, which are written completely or not at all."""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from tracer.errors import TraceFileError

_URL = re.compile(r"[a-z][a-z0-9+.:-]+:/", re.IGNORECASE)  # a `Path` has one slash of the two


def local_path(place: str | os.PathLike[str]) -> Path:
    """The path. Raises `tracer.TraceFileError` for a URL.

    >>> local_path("runs/1.json").name
    '1.json'
    >>> local_path("s3://runs/1.json")
    Traceback (most recent call last):
    tracer.errors.TraceFileError: s3://runs/1.json: is a URL: ...
    """
    if isinstance(place, str) and _URL.match(place):
        raise TraceFileError(
            f"{place}: is a URL: use a file of this machine, and copy it with the tool of the "
            "store, as aws s3 cp"
        )
    return Path(place)


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path`: completely, or the old content is kept.

    A link stays a link; a device such as /dev/null, or a pipe, is not replaced by a file.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
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
