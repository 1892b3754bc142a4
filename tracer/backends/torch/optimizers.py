"""Which optimizers of PyTorch are traced: each has a hook before and a hook after its `step`.

Nothing of an optimizer is exchanged. While a recording runs, hooks around the steps of all
optimizers notify it of those that have none of their own.
"""

import threading
from typing import Any
from weakref import finalize

from tracer.backends.torch import compat, scaler
from tracer.backends.torch.listeners import Listener, listeners
from tracer.backends.torch.step_hooks import after_any, before_any
from tracer.backends.torch.steps import StepCounter
from tracer.core.registry import Binding, bindings


def attach(optimizer: Any, binding: Binding) -> None:
    """Give an optimizer its hooks."""
    counter = binding.former  # its hooks are those that programs were compiled for
    if counter is None or counter.recorder is not binding.recorder:
        counter = binding.former = StepCounter(binding)
        finalize(optimizer, scaler.let_go, counter.programs.number).atexit = False
    binding.watch = counter
    counter.attach(optimizer)
    scaler.need(counter.programs.number)
    for listener in list(listeners):
        listener(optimizer)


def is_proxy(optimizer: Any) -> bool:
    """Whether it is one around another, as that of Accelerate, whose own `step` calls no hooks."""
    return not compat.has_hooks(optimizer)


def detach(binding: Binding) -> None:
    """Take the hooks of an optimizer away."""
    counter = binding.watch
    for each in (*counter.proxies, counter.binding):
        each.watch = None
    counter.remove()
    scaler.let_go(counter.programs.number)


def watched() -> list[Any]:
    """The optimizers that have hooks now."""
    watches = dict.fromkeys(each.watch for each in list(bindings.values()))
    found = [each.optimizer() for each in watches if isinstance(each, StepCounter)]
    return [optimizer for optimizer in found if optimizer is not None]


_lock = threading.RLock()
_hooks = compat.HookPlace(before_any), compat.HookPlace(after_any)


def listen(listener: Listener) -> None:
    """Have it called with each optimizer that steps, before its first step, until `ignore`."""
    with _lock:
        if listener not in listeners:
            listeners.append(listener)
            for place, hooks in zip(_hooks, compat.global_hooks, strict=True):
                place.put_in(hooks)
            scaler.need(id(listener))


def ignore(listener: Listener) -> None:
    """Call it no more."""
    with _lock:
        if listener in listeners:
            listeners.remove(listener)
            for place, hooks in zip(_hooks, compat.global_hooks, strict=True):
                if not listeners:
                    place.take_out(hooks)
            scaler.let_go(id(listener))
