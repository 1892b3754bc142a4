"""What counts the steps of an optimizer; and who is notified of one that nothing counts yet."""

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.core.interrupts import interrupt_in
from tracer.core.registry import bindings

Listener = Callable[[Any], None]
"""Is called with an optimizer before its first step, while a recording runs."""

listeners: list[Listener] = []
_notifying = threading.RLock()
_notified_of: set[int] = set()
"""By `id`, the optimizer whose listeners are notified now. A recording notes then what was
counted before: a step that another thread took meanwhile would be a part of that."""


@dynamo.without_dynamo
def counter_of(optimizer: Any) -> Any:
    """What counts the steps of an optimizer, or of the one in it; None if nothing does.

    Listeners are notified of one that nothing counted so far.
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
    """Notify all listeners of an optimizer; a fault of the tracer is not the program's."""
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
        with suppress(RuntimeWarning):  # where warnings are errors, training goes on all the same
            warnings.warn(
                f"tracer: an optimizer is not traced: {text}", RuntimeWarning, stacklevel=2
            )
