"""Recognizes exceptions of the program that are raised while the tracer's code runs.

A signal handler (such as a timeout by `signal.setitimer`) raises wherever Python happens to be.
Such an exception must never be swallowed.
"""

import signal
from contextlib import AbstractContextManager
from traceback import walk_tb
from types import CodeType, TracebackType


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
    codes = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of `functools.partial`
    code = getattr(function, "__code__", None)
    return code or getattr(type(function).__dict__.get("__call__"), "__code__", None)
