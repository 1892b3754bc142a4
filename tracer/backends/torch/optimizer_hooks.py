"""The two hooks that PyTorch calls around each `step` of each optimizer.

They, and the replaced `GradScaler.step` and `load_state_dict`, are in place while an optimizer is
traced or a recording runs; the optimizer itself is unchanged. No other method, such as `zero_grad`,
calls a hook.

They call the `StepCounter` of the optimizer. `torch.compile` inlines them into a step that it
compiles: see `compiled_steps`.
"""

import sys
import threading
from typing import Any
from weakref import finalize

from tracer.backends.torch import compat, dynamo, grad_scaler, gradients
from tracer.backends.torch.compiled_steps import note_compiled, note_for
from tracer.backends.torch.listeners import Listener, counter_of, listeners, watch_new
from tracer.backends.torch.steps import StepCounter
from tracer.core.registry import Binding, bindings


def before_step(optimizer: Any, given: Any, named: Any) -> None:
    """Open the call of any optimizer's step; PyTorch calls this before the program's hooks."""
    if dynamo.is_compiling():
        note_compiled(id(optimizer))
        return
    counter = counter_of(optimizer)
    if counter is not None:
        counter.before(optimizer, given, named, sys._getframe(1))


def after_step(optimizer: Any, given: Any, named: Any) -> None:
    """Close the call of a step; PyTorch calls this after the program's hooks."""
    if dynamo.is_compiling():
        note_compiled(id(optimizer))
        return
    counter = counter_of(optimizer)
    if counter is not None:
        counter.after(optimizer, named, sys._getframe(1))


def attach(optimizer: Any, binding: Binding) -> None:
    """Count the steps of an optimizer from now on."""
    if binding.observer is not None:
        return
    counter = binding.former  # it knows how the steps write
    if counter is None or counter.recorder is not binding.recorder:
        counter = binding.former = StepCounter(binding)
        finalize(optimizer, _put_in_place).atexit = False
    if note := note_for(optimizer):
        counter.stopped = True
        binding.recorder.note(note)
    binding.observer = counter
    _put_in_place()


def detach(binding: Binding) -> None:
    """Stop counting the steps of an optimizer."""
    binding.observer = None
    _put_in_place()


def watched() -> list[Any]:
    """The optimizers whose steps are counted."""
    watches = dict.fromkeys(each.observer for each in list(bindings.values()))
    found = [each.optimizer() for each in watches if isinstance(each, StepCounter)]
    return [optimizer for optimizer in found if optimizer is not None]


def listen(listener: Listener | None) -> None:
    """Call `listener`, alone, with each new optimizer and before the first step of any.

    Nobody, if it is None.
    """
    watch_new()
    listeners[:] = [listener] if listener is not None else []
    _put_in_place()
    gradients.watch(bool(listeners))


_lock = threading.RLock()
_hooks = [*map(compat.Hook, compat.global_hooks, (before_step, after_step))]


def _put_in_place() -> None:
    """Install the hooks if an optimizer or a listener needs them, else remove them."""
    with _lock:
        for put in (*(hook.put for hook in _hooks), grad_scaler.replace_step):
            put(_is_needed())  # a garbage collection may change it


def _is_needed() -> bool:
    every = list(bindings.values())
    counted = (each for each in every if isinstance(each.observer, StepCounter))
    return bool(listeners) or any(each.optimizer() is not None for each in counted)
