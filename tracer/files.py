"""Files of this machine, which are written completely or not at all."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


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
