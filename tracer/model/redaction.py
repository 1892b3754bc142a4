"""Removes secrets from every trace, and paths from a trace to be shared. No TensorFlow."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from tracer.model.trace import Trace

_HIDDEN = "REDACTED"
_SAYS = (
    r"(?:passw|passphrase|webhook|(?<![a-z])pass(?![a-z])|pwd|secret|credential|signature|"
    r"(?<![a-z])sig(?![a-z])|keys?(?![a-z])|token(?!i[sz]|s(?![a-z]))|auth(?!ors?(?![a-z])))"
)
"""Matches names of secrets: `api-key` and `HF_TOKEN`; not `tokenizer` and `max_tokens`."""
_SECRET_NAME = re.compile(_SAYS, re.IGNORECASE)
_ASSIGNED = re.compile(r"([\w.+/~@-]{1,100}[=:])(?!//)(?=.)")
_INSIDE = re.compile(
    "(" + _SAYS + r"[\w.-]{0,40}['\"]?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&'\"})\]]+)",
    re.IGNORECASE,
)
"""Matches `"api_key": "..."` or `?token=...` in an argument."""
_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/'\"]+(?=@)|(?<![^\s='\"])[\w.+-]{1,100}:[^\s/'\"@]{1,100}(?=@\w)|"
    r"\b(?:sk-|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ)(?=[\w.-]{0,200}\d)[\w.-]{16,}"
)
"""Matches credentials in a URL or in `user:password@host`, and keys of well-known services by their
prefix."""
_SAID = re.compile(
    r"((?:passw|pwd|secret|credential|api[-_ ]?key|\w[-_]key|\w[-_]token(?!s))[\w.-]{0,40}"
    r"['\"]?\s*[=:]\s*|[?&][\w.-]{0,40}" + _SAYS + r"[\w.-]{0,40}="
    r"|\b(?:bearer|basic)\s+(?=[\w.+/=-]{8}))(?:\"[^\"]*\"|'[^']*'|[^\s,;&'\"})\]]+(?<!:))",
    re.IGNORECASE,
)
"""Matches secrets in a message; not `unexpected token: x` and `missing key: x`."""


def command_line(arguments: Iterable[str]) -> str:
    """Join arguments as a shell command, with `REDACTED` for each secret.

    A secret is the value of an option or variable named like one, credentials in a URL, or a key of
    a well-known service.

    >>> command_line(["train.py", "--api-key", "sk-1", "PASSWORD=x y", "s3://me:pw@bucket/x"])
    'train.py --api-key REDACTED PASSWORD=REDACTED s3://REDACTED@bucket/x'
    """
    return shlex.join(without_secrets(arguments))


def without_secrets(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments of a program, with `REDACTED` for each secret: see `command_line`."""
    expected = False
    for argument in arguments:
        assigned = _ASSIGNED.match(argument)
        if expected and not argument.startswith("--"):
            yield _HIDDEN
        elif assigned and _SECRET_NAME.search(assigned[1]):
            yield assigned[1] + _HIDDEN
        else:
            yield _INSIDE.sub(rf"\g<1>{_HIDDEN}", without_credentials(argument))
        is_option = argument.startswith("-") and not expected
        expected = is_option and not assigned and _SECRET_NAME.search(argument) is not None


def message(text: str) -> str:
    """Return the text of an error, with `REDACTED` for each secret.

    >>> message("login failed: password=x at https://me:pw@host")
    'login failed: password=REDACTED at https://REDACTED@host'
    """
    return _SAID.sub(rf"\g<1>{_HIDDEN}", without_credentials(text))


def without_credentials(text: str) -> str:
    """The text without credentials in URLs and keys of well-known services."""
    return _CREDENTIALS.sub(_HIDDEN, text)


# A trace without folders and arguments.

_ABSOLUTE = re.compile(
    r"(?<![\w+.-])(?!file:)(?P<url>\w[\w+.-]{0,20}://[^\s'\"]*)|"
    r"(?<![^\s'\"=,;:(\[])(?:[A-Za-z]:|~|\.{1,2})?[/\\]+(?:[^\s'\"/\\]+[/\\]+)*"
)
"""Matches a URL, or the folders of an absolute, home or relative path; not `3/4` in an error."""


def without_paths(trace: Trace) -> Trace:
    """Return the trace with file names without folders: `train.py:41`.

    Covers the lines of callers, optimizers and remarks, notes, and errors. Commands keep only the
    program, without arguments. Functions, line numbers, variables and counts stay.
    """
    data = trace.data
    files = {each.file for each in data.lines} | {each.made for each in data.optimizers}
    files |= {remark.where for each in data.optimizers for remark in each.remarks}
    change = {"file": _name, "made": _name, "where": _name, "error": _error, "command": _program}
    tables = {
        table: _changed(getattr(data, table), change)
        for table in ("optimizers", "lines", "programs")
    }
    notes = data.notes
    for name in sorted(files - {""}, key=len, reverse=True):
        notes = tuple(note.replace(name, _name(name)) for note in notes)
    return Trace(replace(data, **tables, notes=notes, launch=None), trace.objects)


def _changed(value: Any, change: Mapping[str, Callable[[str], str]]) -> Any:
    """Return records, also nested ones, with the fields of these names changed."""
    if isinstance(value, tuple):
        return tuple(_changed(each, change) for each in value)
    new = {
        field: change[field](held) if field in change else _changed(held, change)
        for field in getattr(value, "__struct_fields__", ())
        for held in [getattr(value, field)]
    }
    return replace(value, **new) if new else value


def _name(file: str) -> str:
    """The name without folders; a pseudo-file such as `<stdin>` stays."""
    return file if file.startswith("<") else re.split(r"[/\\]", file)[-1]


def _error(text: str) -> str:
    """The text of an error without folders; URLs stay, without secrets."""
    return message(_ABSOLUTE.sub(lambda found: found["url"] or "", text))


def _program(command: str) -> str:
    """The program of a command, without Python's options and without arguments."""
    try:
        parts = shlex.split(command)
    except ValueError:  # written by another program
        return ""
    while parts and parts[0].startswith("-") and parts[0] not in ("-m", "-c"):
        del parts[: 2 if parts[0] in ("-W", "-X") else 1]
    return shlex.join(map(_name, parts[: 2 if parts[:1] == ["-m"] else 1]))
