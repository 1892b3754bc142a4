"""The errors that a user's mistake raises; each message says what would work.

A message may name what a trace file holds, so it is written as `shown` writes a name.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def shown(text: str) -> str:
    r"""The text on one line, with what a terminal would act on or hide written as an escape.

    >>> print(shown("a" + chr(10) + "b" + chr(0x202E) + "c[red]"))
    a\nb\u202ec[red]
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class Mistake(ValueError):
    """Raised for a mistake in the use of the `tracer` command; its text is the line printed."""


class UnsupportedOptimizer(TypeError):
    """Raised by `tracer.wrap` for an optimizer that `tracer` cannot trace."""


class UnknownName(LookupError):
    """Raised by a query whose filter names what the trace does not hold."""

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(shown(message))
        self.instead = shown(instead or f"{message[:1].upper()}{message[1:]}.")
        """What the trace holds instead, in a sentence."""


class OptimizerWarning(UserWarning):
    """Issued by `tracer.wrap` for an optimizer whose class cannot work as it is written."""


class TraceFileError(ValueError):
    """Raised for a trace file that cannot be read or written; names the file and the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


class MissingExtra(ImportError):
    """Raised for what needs packages of an extra which is not installed; names the extra."""


class MergeError(ValueError):
    """Raised by `tracer.merge` for traces that are not of one run; names the difference."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


def is_mistake(raised: Any) -> bool:
    """Whether pytest leaves out frames of ours: what was raised is a user's mistake, no bug here.

    For `__tracebackhide__`, which a module may have for all of its functions.
    """
    return bool(raised.errisinstance((UnsupportedOptimizer, UnknownName)))


def unknown_name(
    noun: str,
    name: object,
    known: Iterable[object],
    which: str = "the trace holds",
    meant: Sequence[str] = (),
) -> UnknownName:
    """The error for a `name` that is not in `known`, with the near ones listed.

    `meant` is what was most probably meant: names, or patterns that match some.
    """
    names = [str(one) for one in known]
    if names:
        near = difflib.get_close_matches(str(name), names, n=5, cutoff=0.4)
        shown = near or names[:5]
        rest = len(names) - len(shown)
        there_is = f"{which} {', '.join(shown)}" + (f" and {rest} more" if rest else "")
    else:
        there_is = f"the trace holds no {noun} at all"
    instead = f"{there_is[:1].upper()}{there_is[1:]}."
    if not meant:
        return UnknownName(f"no {noun} {str(name)!r}: {there_is}", instead)
    asked = f"did you mean {' or '.join(f'`{each}`' for each in meant)}?"
    message = f"no {noun} {str(name)!r}: {asked} {instead.removesuffix('.')}"
    return UnknownName(message, f"{asked[:1].upper()}{asked[1:]} {instead}")
