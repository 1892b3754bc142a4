"""`GradScaler.step` is ours while an optimizer is traced or a recording runs.

It may leave out the step of the optimizer: that is a step that updates nothing.
"""

import functools
import sys
import threading
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of

_users: set[int] = set()
"""Who needs it, by number. A garbage collection may take one away at any moment: each change of a
set is atomic."""
_lock = threading.RLock()
_original: Any = None


def need(user: int) -> None:
    """Make `GradScaler.step` ours, at least until `let_go` is called with the same number."""
    _users.add(user)
    _change()


def let_go(user: int) -> None:
    """Make it PyTorch's own again if nobody else needs ours."""
    _users.discard(user)
    _change()


def _change() -> None:
    global _original
    with _lock:
        if bool(_users) == (_original is not None):
            return
        if _original is None:
            _original = vars(compat.GradScaler)["step"]
            functools.update_wrapper(_step_of_scaler, _original)
            compat.GradScaler.step = _step_of_scaler
        elif vars(compat.GradScaler)["step"] is _step_of_scaler:  # else another one is around it
            compat.GradScaler.step = _original
            _original = None


@dynamo.without_dynamo
def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    original = _original or compat.GradScaler.step
    counter = counter_of(optimizer)
    frame = None if counter is None else counter.asked(self, sys._getframe())
    failed = True
    try:
        result = original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if frame is not None:
            counter.answered(frame, optimizer, failed)
