"""A command without its secrets, which no trace keeps. No TensorFlow."""

import re
import shlex
from collections.abc import Iterable, Iterator

_HIDDEN = "REDACTED"
_SAYS = (
    r"(?:passw|passphrase|webhook|(?<![a-z])pass(?![a-z])|pwd|secret|credential|signature|"
    r"(?<![a-z])sig(?![a-z])|keys?(?![a-z])|token(?!i[sz]|s(?![a-z]))|auth(?!ors?(?![a-z])))"
)
"""What the name of a secret says: `api-key` and `HF_TOKEN`; not `tokenizer` and `max_tokens`."""
_SECRET_NAME = re.compile(_SAYS, re.IGNORECASE)
_ASSIGNED = re.compile(r"([\w.+/~@-]{1,100}[=:])(?!//)(?=.)")
_INSIDE = re.compile(
    "(" + _SAYS + r"[\w.-]{0,40}['\"]?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&'\"})\]]+)",
    re.IGNORECASE,
)
"""`"api_key": "..."` or `?token=...` in an argument."""
_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/'\"]+(?=@)|(?<![^\s='\"])[\w.+-]{1,100}:[^\s/'\"@]{1,100}(?=@\w)"
)
"""Of a URL, or of `user:password@host` without a scheme."""
_KNOWN = re.compile(
    r"\b(?:sk-|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ)(?=[\w.-]{0,200}\d)[\w.-]{16,}"
)
"""What keys of well-known services begin with."""


_SAID = re.compile(
    r"((?:passw|pwd|secret|credential|api[-_ ]?key|\w[-_]key|\w[-_]token(?!s))[\w.-]{0,40}"
    r"['\"]?\s*[=:]\s*"
    r"|\b(?:bearer|basic)\s+(?=[\w.+/=-]{8}))(?:\"[^\"]*\"|'[^']*'|[^\s,;&'\"})\]]+)",
    re.IGNORECASE,
)
"""What a message calls a secret; `unexpected token: x` and `missing key: x` are none."""


def command_line(arguments: Iterable[str]) -> str:
    """The arguments as one types them in a shell, with `REDACTED` for each secret.

    A secret is the value of an option or a variable whose name says so, the credentials in a URL,
    and a key of a well-known service.

    >>> command_line(["train.py", "--api-key", "sk-1", "PASSWORD=x y", "s3://me:pw@bucket/x"])
    'train.py --api-key REDACTED PASSWORD=REDACTED s3://REDACTED@bucket/x'
    """
    return shlex.join(without_secrets(arguments))


def without_secrets(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments of a program, with `REDACTED` for each secret: see `command_line`."""
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
    """What an error says, with `REDACTED` for each secret in it.

    >>> message("login failed: password=x at https://me:pw@host")
    'login failed: password=REDACTED at https://REDACTED@host'
    """
    return _SAID.sub(rf"\g<1>{_HIDDEN}", without_credentials(text))


def without_credentials(text: str) -> str:
    """The text without the credentials in URLs and the keys of well-known services."""
    return _KNOWN.sub(_HIDDEN, _CREDENTIALS.sub(_HIDDEN, text))
