"""The two hooks that PyTorch calls around each `step` of each optimizer, and `GradScaler.step`.

The hooks and the replaced `GradScaler.step` are in place while an optimizer is traced or a
recording runs; the optimizer itself is unchanged. No other method, such as `zero_grad`, calls a
hook. They call the `StepCounter` of the optimizer.

A step that a `GradScaler` skips updates nothing: it does not call `step`, or a fused kernel skips
its work because `found_inf` is not 0. If the program itself does not call `step`, there is no step.

Dynamo inlines the hooks into a step that `torch.compile` compiles, and calls `note_compiled`
meanwhile; for Keras, `TorchBackend` does. Compiled code calls no Python, and some calls may still
run in Python, so from then on no step of this optimizer is counted.
"""

import functools
import sys
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from tracer.backends.keras.backend import plain_classes
from tracer.backends.torch import compat
from tracer.backends.torch.steps import StepCounter
from tracer.core.instances import instances, report_new
from tracer.core.optimizers import Binding
from tracer.core.patches import Patch
from tracer.core.registry import bindings

listeners: list[Callable[..., None]] = []
"""Called with an optimizer before its first step, and with `making=True` when it is made."""
_notifying = threading.RLock()
"""Held while a recording notes the counts so far: these would include a step of another thread."""

_COMPILED = (
    "torch.compile compiled a step of {name}: from then on, steps of this optimizer may not be "
    "counted; leave the step to Python, and compile only the model"
)
compiled: "WeakValueDictionary[int, object]" = WeakValueDictionary()
"""By `id`, the optimizers with a compiled step."""


@compat.without_dynamo
def counter_of(optimizer: object) -> StepCounter | None:
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


@compat.left_alone
def _notify(optimizer: object, **making: bool) -> None:
    for listener in list(listeners) if compat.is_optimizer(optimizer) else ():
        listener(optimizer, **making)


# The steps, in Python.


def _calling(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that calls a method of an optimizer's `StepCounter` at each step."""

    def hook(optimizer: object, given: object, named: object) -> None:
        if compat.is_compiling():
            note_compiled(id(optimizer))
            return
        binding = bindings.get(id(optimizer))
        counter = counter_of(optimizer) if listeners else binding and binding.observer
        if counter is not None:
            method(counter, optimizer, given, named, sys._getframe(1))

    # Dynamo limits the programs for one code object.
    hook.__code__ = hook.__code__.replace()
    return hook


@compat.without_dynamo
def _step_of_scaler(
    self: compat.GradScaler, optimizer: object, *args: object, **kwargs: object
) -> object:
    counter = counter_of(compat.behind_proxies(optimizer))
    call = None if counter is None else counter.asked(self, args, kwargs, sys._getframe())
    failed = True
    try:
        result = _SCALER.original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if counter is not None and call is not None:
            counter.answered(optimizer, call, failed, sys._getframe())


# Compiled steps.


def note_compiled(key: int) -> int:
    """Note that a step of the optimizer with this `id` is being compiled; returns 0.

    If it is 0, Dynamo hides whose step it is: this is noted for all traced optimizers of Keras.
    """
    bound = [binding.optimizer() for binding in list(bindings.values())]
    found = [each for each in bound if id(type(each)) in plain_classes]
    if key:
        found = [each for each in (*bound, *instances([compat.Optimizer])) if id(each) == key][:1]
    for optimizer in found:
        compiled[id(optimizer)] = optimizer
        counter_of(optimizer)  # a recording may attach it now
        binding = bindings.get(id(optimizer))
        if binding is not None:
            stop(optimizer, binding)
    return 0


vars(note_compiled)["_dynamo_marked_constant"] = True
"""Dynamo calls it once, while it traces, and uses the result as a constant: as after
`torch.compiler.assume_constant_result` (`_dynamo/decorators.py`), whose import takes seconds."""


def stop(optimizer: object, binding: Binding) -> None:
    """Count no more steps of an optimizer with a compiled step."""
    binding.recorder.note(note_on(optimizer))
    if binding.observer is not None:
        binding.observer.stopped = True


def note_on(optimizer: object) -> str:
    """The note on an optimizer with a compiled step."""
    return _COMPILED.format(name=type(optimizer).__name__)


# When the hooks are in place.


def watched() -> list[compat.Optimizer]:
    """The optimizers whose steps are counted."""
    every = [(each.observer, each.optimizer()) for each in list(bindings.values())]
    return [own for by, own in every if isinstance(by, StepCounter) and own is not None]


@functools.cache
def watch_new() -> None:
    """Notify listeners of new optimizers, from the first recording on."""
    report_new(compat.Optimizer, functools.partial(_notify, making=True))


_lock = threading.RLock()
_SCALER = Patch(
    compat.GradScaler, "step", _step_of_scaler, "to see the steps that it skips", "traced"
)
functools.update_wrapper(_step_of_scaler, _SCALER.original)
_hooks = map(_calling, (StepCounter.before, StepCounter.after))
_patches = (*map(compat.Hook, compat.global_hooks, _hooks), _SCALER)


def put_in_place() -> None:
    """Install the hooks if an optimizer or a listener needs them, else remove them."""
    with _lock:
        for patch in _patches:
            patch.put(bool(listeners or watched()))  # a garbage collection may change it
