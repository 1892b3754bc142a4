"""The errors that a user's mistake raises; exceptions of the program, and what is kept of them.

The message of a mistake says what would work. It may name what a trace file holds, so it is written
as `shown` writes a name.
"""

import difflib
import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

from tracer.words import shown


class Mistake(ValueError):
    """Raised for a mistake in the use of the `tracer` command; its text is the line printed."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message)[:1000])


class UnsupportedOptimizer(TypeError):
    """Raised by `tracer.wrap` for an optimizer that `tracer` cannot trace."""


class UnknownName(LookupError):
    """Raised by a query if the trace has nothing of the name in a filter."""

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(shown(message))
        self.instead = shown(instead or f"{message[:1].upper()}{message[1:]}.")
        """What the trace holds instead, in a sentence."""


class OptimizerWarning(UserWarning):
    """Issued by `tracer.wrap` if the class of an optimizer cannot work as written."""


class TraceFileError(Mistake):
    """Raised for a trace file that cannot be read or written; names the file and the reason."""


class MergeError(Mistake):
    """Raised by `tracer.merge` if the traces are not of one run; names the difference."""


def is_mistake(raised: Any) -> bool:
    """True if a user's mistake raised this, so that pytest hides frames of this package.

    For `__tracebackhide__` of a module, which applies to all its functions.
    """
    return bool(raised.errisinstance((UnsupportedOptimizer, UnknownName)))


_FEW = 8
"""So many known names are all said."""


def unknown_name(
    noun: str,
    name: object,
    known: Iterable[object],
    which: str = "the trace holds",
    meant: Sequence[str] = (),
) -> UnknownName:
    """The error for a `name` that is not in `known`; it lists similar names.

    `meant` are the most probable intentions: names, or patterns that match some.
    """
    names = [str(one) for one in known]
    near = difflib.get_close_matches(str(name), names, n=5, cutoff=0.4) or names[:5]
    near = [*dict.fromkeys([*near, *names])] if len(names) <= _FEW else near
    rest = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    there_is = f"{which} {', '.join(near)}{rest}" if names else f"the trace holds no {noun} at all"
    asked = f"did you mean {' or '.join(f'`{each}`' for each in meant)}?" if meant else ""
    said = f"{asked} {there_is[:1].upper()}{there_is[1:]}" if asked else there_is
    return UnknownName(f"no {noun} {str(name)!r}: {said}", f"{said[:1].upper()}{said[1:]}.")


def near_file(path: Path) -> str:
    """`: did you mean train.py?` if the folder has a file with a similar name; else empty."""
    with suppress(OSError):
        names = [each.name for each in path.parent.iterdir()]
        for name in difflib.get_close_matches(path.name, names, n=1, cutoff=0.75):
            return f": did you mean {path.with_name(name)}?"
    return ""


# Exceptions of the program that are raised while the tracer's code runs: a signal handler (such as
# a timeout by `signal.setitimer`) raises wherever Python happens to be. They are never swallowed.


def interrupt_in(error: BaseException) -> BaseException | None:
    """The exception of the program behind `error`: itself or a cause; None if there is none.

    Such exceptions are Ctrl-C, the end of the program, and exceptions of a signal handler, whose
    frame is in the traceback.
    """
    each: BaseException | None = error
    while each is not None:
        if not isinstance(each, Exception) or _raised_by_handler(each):
            return each
        each = each.__cause__
    return None


class suppress_faults(AbstractContextManager[None]):
    """`suppress(Exception)`, except for exceptions of the program."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return error is not None and interrupt_in(error) is None


def _raised_by_handler(error: BaseException) -> bool:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(handler, "func", handler) for handler in handlers]  # of `partial`
    callables = [*functions, *(vars(type(each)).get("__call__") for each in functions)]
    codes = {getattr(each, "__code__", None) for each in callables}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


# What a trace does not keep of the texts of errors.

_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/'\"]+(?=@)|"
    r"\b(?:sk-|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ)(?=[\w.-]{0,200}\d)[\w.-]{16,}"
)
"""Matches credentials in a URL, and keys of well-known services by their prefix."""


def without_credentials(text: str) -> str:
    """The text with `REDACTED` for credentials in URLs and keys of well-known services.

    >>> without_credentials("no login at https://me:pw@host with hf_abcdefghijklmnop1234")
    'no login at https://REDACTED@host with REDACTED'
    """
    return _CREDENTIALS.sub("REDACTED", text)


_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # in messages of Keras exceptions
_MAX_LENGTH = 200


def in_one_line(error: BaseException) -> str:
    """The class and the text of an exception, without credentials and colors."""
    text = ""
    with suppress(Exception):  # `str` of a program's exception may raise
        text = without_credentials(" ".join(_COLORS.sub("", str(error)).split()))
    text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
