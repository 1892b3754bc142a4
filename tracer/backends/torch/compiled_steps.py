"""Note that `torch.compile` compiled a step: compiled code calls no Python, so it is not counted.

Dynamo inlines the hooks of `optimizer_hooks` into a step that it compiles, and calls
`note_compiled` meanwhile. From then on no step of this optimizer is counted: some calls may still
run in Python.
"""

from typing import Any
from weakref import finalize, ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of
from tracer.core.instances import instances
from tracer.core.registry import bindings

_COMPILED = (
    "torch.compile compiled a step of {name}: from then on, steps of this optimizer may not be "
    "counted; leave the step to Python, and compile only the model"
)
_compiled: dict[int, "ref[Any]"] = {}
"""By `id`, the optimizers with a compiled step."""


@dynamo.constant
def note_compiled(key: int) -> int:
    """Note that a step of the optimizer with this `id` is being compiled; returns 0."""
    binding = bindings.get(key)
    optimizer = None if binding is None else binding.optimizer()
    if optimizer is None:
        living = instances([compat.Optimizer])
        optimizer = next((each for each in living if id(each) == key), None)
    if optimizer is not None and key not in _compiled:
        counter = counter_of(optimizer)  # first: a recording that attaches it now gets the note
        remember(optimizer)
        if counter is not None:
            counter.stop(note_for(optimizer))
    return 0


def remember(optimizer: Any) -> None:
    """Have later recordings note that `torch.compile` compiled a step of this optimizer."""
    if id(optimizer) not in _compiled:
        _compiled[id(optimizer)] = ref(optimizer)
        finalize(optimizer, _compiled.pop, id(optimizer), None).atexit = False


def note_for(optimizer: Any) -> str:
    """The note for an optimizer with a compiled step; empty for any other."""
    return _COMPILED.format(name=type(optimizer).__name__) if id(optimizer) in _compiled else ""


def notes() -> list[str]:
    """The notes for all living optimizers: a program compiled earlier may run again."""
    alive = [optimizer for known in list(_compiled.values()) if (optimizer := known()) is not None]
    return [note_for(optimizer) for optimizer in alive]
