"""Which steps a `GradScaler` skips: it calls no `step`, or has a fused kernel leave out its work.

`GradScaler.step` is ours while the hooks of `optimizer_hooks` are in place. A step that it left out
is one that updates nothing, as is one of a fused optimizer whose `found_inf` is not 0. Code of the
program that leaves out `step` by itself makes no step, and what its own `step` leaves out is seen
by what it wrote to: `writes`.
"""

import functools
import sys
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of

_original: Any = None


def replace_step(wanted: bool) -> None:
    """Make `GradScaler.step` ours, or PyTorch's own again; the caller holds a lock."""
    global _original
    if wanted and _original is None:
        _original = vars(compat.GradScaler)["step"]
        functools.update_wrapper(_step_of_scaler, _original)
        compat.GradScaler.step = _step_of_scaler
    elif (
        not wanted and vars(compat.GradScaler)["step"] is _step_of_scaler
    ):  # else another is around it
        compat.GradScaler.step = _original
        _original = None


# `core.call_paths` knows it by this name.
@dynamo.without_dynamo
def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    original = _original or compat.GradScaler.step
    counter = counter_of(optimizer)
    call = None if counter is None else counter.asked(self, sys._getframe())
    failed = True
    try:
        result = original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if call is not None:
            counter.answered(call, optimizer, failed)


def found_inf(optimizer: Any) -> Any:
    """The tensor with which a `GradScaler` tells a fused step whether to skip; None if none does.

    Where no parameter has a gradient, the `GradScaler` sets the number 0 instead. Dynamo inlines
    this function.
    """
    found = getattr(optimizer, "found_inf", None)
    return None if isinstance(found, int) else found
