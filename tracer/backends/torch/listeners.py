"""Find the counter of an optimizer's steps, and notify listeners of optimizers without one."""

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.core.instances import report_new
from tracer.core.interrupts import interrupt_in
from tracer.core.registry import bindings

Listener = Callable[..., None]
"""Called with an optimizer before its first step, and with `making=True` when it is made."""

listeners: list[Listener] = []
_notifying = threading.RLock()
_notified_of: set[int] = set()
"""By `id`, the optimizer whose listeners are being notified. A recording then notes the counts so
far; a step by another thread at the same time would be included in them.
"""


@dynamo.without_dynamo
def counter_of(optimizer: Any) -> Any:
    """The step counter of an optimizer, or of the one inside it; None without one.

    If there is none yet, listeners are notified first.
    """
    binding = bindings.get(id(optimizer))
    if binding is None or binding.observer is None:
        if not listeners:
            return None
        _notify(optimizer)
        binding = bindings.get(id(optimizer))
    elif id(optimizer) in _notified_of:
        with _notifying:
            pass
    return None if binding is None else binding.observer


@dynamo.left_alone
def _notify(optimizer: Any) -> None:
    """Notify all listeners of an optimizer; errors in the tracer become a warning."""
    if not compat.is_optimizer(optimizer):
        return
    try:
        with _notifying:
            _notified_of.add(id(optimizer))
            try:
                for listener in list(listeners):
                    listener(optimizer)
            finally:
                _notified_of.discard(id(optimizer))
    except Exception as error:
        if interrupt_in(error) is not None:
            raise
        text = f"{type(error).__name__}: {error}. This is a bug in tracer: please report it."
        with suppress(RuntimeWarning):  # if warnings are errors, training continues
            warnings.warn(
                f"tracer: an optimizer is not traced: {text}", RuntimeWarning, stacklevel=2
            )


@cache
def watch_new() -> None:
    """Notify listeners of new optimizers, from the first recording on."""
    report_new(compat.Optimizer, _made)


def _made(optimizer: Any) -> None:
    for listener in list(listeners):
        listener(optimizer, making=True)
