"""Recognizes exceptions of the program that are raised while the tracer's code runs.

A signal handler (such as a timeout by `signal.setitimer`) raises wherever Python happens to be.
Such an exception must never be swallowed.
"""

import signal
from contextlib import AbstractContextManager
from traceback import walk_tb
from types import TracebackType


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
