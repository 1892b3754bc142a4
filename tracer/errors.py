"""The errors that a user's mistake raises; each message says what would work."""

import difflib
from collections.abc import Iterable


class UnsupportedOptimizer(TypeError):
    """Raised by `tracer.wrap` for an optimizer that `tracer` cannot trace."""


class UnknownName(LookupError):
    """Raised by a query whose filter names what the trace does not hold."""


class OptimizerWarning(UserWarning):
    """Issued by `tracer.wrap` for an optimizer whose class cannot work as it is written."""


class TraceFileError(ValueError):
    """Raised for a trace file that cannot be read or written; names the file and the reason."""


class MissingExtra(ImportError):
    """Raised for a report that needs packages of an extra which is not installed; names it."""


class MergeError(ValueError):
    """Raised by `tracer.merge` for traces that are not of one run; names the difference."""


def unknown_name(
    noun: str, name: object, known: Iterable[object], which: str = "the trace holds"
) -> UnknownName:
    """The error for a `name` that is not in `known`, with the near ones listed."""
    names = [str(each) for each in known]
    if not names:
        return UnknownName(f"no {noun} {str(name)!r}: the trace holds no {noun} at all")
    near = difflib.get_close_matches(str(name), names, n=5, cutoff=0.4)
    shown = near or names[:5]
    rest = len(names) - len(shown)
    more = f" and {rest} more" if rest else ""
    return UnknownName(f"no {noun} {str(name)!r}: {which} {', '.join(shown)}{more}")
