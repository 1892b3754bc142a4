"""Which steps a `GradScaler` skips: it calls no `step`, or has a fused kernel leave out its work.

`GradScaler.step` is ours while the hooks of `optimizer_hooks` are in place. A step that it left out
is one that updates nothing, as is one of a fused optimizer whose `found_inf` is not 0. Code of the
program that leaves out `step` by itself makes no step, and what its own `step` leaves out is seen
by what it wrote to: `writes`.
"""

import sys
from typing import Any

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of


# `core.call_paths` knows it by this name.
@dynamo.without_dynamo
def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    counter = counter_of(optimizer)
    call = None if counter is None else counter.asked(self, sys._getframe())
    failed = True
    try:
        result = _STEP.original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if call is not None:
            counter.answered(call, optimizer, failed)


_STEP = compat.Exchange(compat.GradScaler, "step", _step_of_scaler)
replace_step = _STEP.put
"""Makes `GradScaler.step` ours, or PyTorch's own again; the caller holds a lock."""


def found_inf(optimizer: Any) -> Any:
    """The tensor with which a `GradScaler` tells a fused step whether to skip; None if none does.

    Where no parameter has a gradient, the `GradScaler` sets the number 0 instead. Dynamo inlines
    this function.
    """
    found = getattr(optimizer, "found_inf", None)
    return None if isinstance(found, int) else found
