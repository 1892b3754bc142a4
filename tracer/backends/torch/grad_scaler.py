"""Find the steps that a `GradScaler` skips: it does not call `step`, or a fused kernel skips them.

`GradScaler.step` is replaced while the hooks of `optimizer_hooks` are in place. A step that it
skips updates nothing, nor does a fused step whose `found_inf` is not 0. If the program itself does
not call `step`, there is no step; if its own `step` skips updates, `writes` finds this by what it
wrote to.
"""

import functools
import sys
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of
from tracer.core.patches import Patch


@dynamo.without_dynamo
def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    counter = counter_of(compat.behind_proxies(optimizer))
    call = None if counter is None else counter.asked(self, sys._getframe())
    failed = True
    try:
        result = _STEP.original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if call is not None:
            counter.answered(call, optimizer, failed)


_STEP = Patch(
    compat.GradScaler, "step", _step_of_scaler, "to see the steps that it skips", "traced"
)
functools.update_wrapper(_step_of_scaler, _STEP.original)
replace_step = _STEP.put
"""Replaces `GradScaler.step`, or restores it; the caller holds a lock."""


def found_inf(optimizer: Any) -> Any:
    """The tensor by which a `GradScaler` tells a fused step to skip its work; else None.

    If no parameter has a gradient, the `GradScaler` sets the int 0 instead. Dynamo inlines this
    function.
    """
    found = getattr(optimizer, "found_inf", None)
    return None if isinstance(found, int) else found
