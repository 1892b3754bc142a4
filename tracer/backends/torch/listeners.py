"""Find the counter of an optimizer's steps, and notify listeners of optimizers without one."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.core.instances import report_new
from tracer.core.registry import bindings

Listener = Callable[..., None]
"""Called with an optimizer before its first step, and with `making=True` when it is made."""

listeners: list[Listener] = []
_notifying = threading.RLock()
"""Held while a recording notes the counts so far: these would include a step of another thread."""


@dynamo.without_dynamo
def counter_of(optimizer: Any) -> Any:
    """The step counter of an optimizer, or of the one inside it; None without one.

    If there is none yet, listeners are notified first.
    """
    if listeners:
        with _notifying:
            binding = bindings.get(id(optimizer))
            if binding is None or binding.observer is None:
                _notify(optimizer)
    binding = bindings.get(id(optimizer))
    return None if binding is None else binding.observer


@dynamo.left_alone
def _notify(optimizer: Any) -> None:
    if compat.is_optimizer(optimizer):
        for listener in list(listeners):
            listener(optimizer)


@cache
def watch_new() -> None:
    """Notify listeners of new optimizers, from the first recording on."""
    report_new(compat.Optimizer, _made)


def _made(optimizer: Any) -> None:
    for listener in list(listeners):
        listener(optimizer, making=True)
