"""Note the steps of Keras on PyTorch that `torch.compile` compiles: they are not counted.

Dynamo traces a method without running it, and compiled code calls no method. So while Dynamo traces
a method of a traced class, the method leaves a note and calls the method of the plain class.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer.backends.torch.compiled_steps import note_compiled
from tracer.core.registry import plain_class
from tracer.kinds import AUXILIARY, OptimizerKind

KNOWS_IDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
"""Whether Dynamo supports the `id` of an optimizer, which makes a program one of this optimizer.

An older Dynamo would end the program with an error.
"""


def members(
    base: type, kind: OptimizerKind, methods: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    """The traced `methods` of `base`, by name, in a form that Dynamo can trace."""
    names = [*kind.step_methods, *(method.name for method in kind.apply_methods), *AUXILIARY]
    return {name: _noted(methods[name], base, name) for name in names if name in methods}


def _noted(method: Callable[..., Any], base: type, name: str) -> Callable[..., Any]:
    """Return a method that leaves a note while it is compiled, and runs untraced there."""
    original = getattr(base, name)

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return method(self, *args, **kwargs)
        note_compiled(id(self) if KNOWS_IDS else 0)
        return original(self, *args, **kwargs)

    # Dynamo limits the programs for one code object, which all methods would otherwise share.
    compiled.__code__ = compiled.__code__.replace()
    return compiled


def class_seen(optimizer: object) -> type:
    """The `__class__` of a traced optimizer: its plain class, but the traced class for Dynamo.

    Dynamo may look up methods in `__class__`, and would miss the traced methods.
    """
    cls = type(optimizer)
    return plain_class(cls) if torch._guards.CompileContext.try_get() is None else cls
