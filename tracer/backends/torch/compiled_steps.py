"""Note that `torch.compile` compiled a step: compiled code calls no Python, so it is not counted.

Dynamo inlines the hooks of `optimizer_hooks` into a step that it compiles, and calls
`note_compiled` meanwhile; for Keras, `keras_compiled` does. From then on no step of this optimizer
is counted: some calls may still run in Python.
"""

from typing import Any
from weakref import ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of
from tracer.core.instances import instances
from tracer.core.registry import bindings, plain_classes

_COMPILED = (
    "torch.compile compiled a step of {name}: from then on, steps of this optimizer may not be "
    "counted; leave the step to Python, and compile only the model"
)
_compiled: dict[int, "ref[Any]"] = {}
"""By `id`, the optimizers with a compiled step."""


@dynamo.constant
def note_compiled(key: int) -> int:
    """Note that a step of the optimizer with this `id` is being compiled; returns 0.

    If it is 0, Dynamo hides whose step it is: this is noted for all traced optimizers of Keras.
    """
    bound = [binding.optimizer() for binding in list(bindings.values())]
    alive = [each for each in bound if each is not None]
    if key and key not in map(id, alive):
        alive = instances([compat.Optimizer])
    keras = [each for each in alive if id(type(each)) in plain_classes]
    for optimizer in [each for each in alive if id(each) == key] if key else keras:
        _compiled[id(optimizer)] = ref(optimizer)
        counter_of(optimizer)  # a recording may attach it now
        binding = bindings.get(id(optimizer))
        if binding is not None:
            binding.recorder.note(note_for(optimizer))
            if binding.observer is not None:
                binding.observer.stopped = True
    return 0


def note_for(optimizer: Any) -> str:
    """The note for an optimizer with a compiled step; empty for any other."""
    known = _compiled.get(id(optimizer), lambda: None)() is optimizer
    return _COMPILED.format(name=type(optimizer).__name__) if known else ""


def notes() -> list[str]:
    """The notes for all living optimizers: a program compiled earlier may run again."""
    alive = [known() for known in list(_compiled.values())]
    return [note_for(optimizer) for optimizer in alive if optimizer is not None]
