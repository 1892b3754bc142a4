"""Recognizes exceptions of the program that are raised while the tracer's code runs.

A signal handler (such as a timeout by `signal.setitimer`) raises wherever Python happens to be, and
so does `PyThreadState_SetAsyncExc`. Such an exception must never be swallowed.
"""

import dis
import signal
from contextlib import AbstractContextManager
from types import CodeType, TracebackType
from typing import Any

_RAISE = {dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]}


def interrupt_in(error: BaseException) -> BaseException | None:
    """The exception of the program behind `error`: itself or a cause; None if there is none.

    Such exceptions are Ctrl-C, the end of the program, and exceptions of a signal handler, whose
    frame is in the traceback.
    """
    each: BaseException | None = error
    while each is not None:
        if not isinstance(each, Exception) or _raised_by_handler(each) or _asynchronous(each):
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
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of `functools.partial`
    code = getattr(function, "__code__", None)
    return code or getattr(type(function).__dict__.get("__call__"), "__code__", None)


def _asynchronous(error: BaseException) -> bool:
    """Whether `PyThreadState_SetAsyncExc` raised `error`, as far as can be known.

    It makes an instance without arguments, and executes no `raise`.
    """
    last = error.__traceback__
    if last is None or error.args or isinstance(error, StopIteration | MemoryError):
        return False  # C code raises these two without arguments
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISE
