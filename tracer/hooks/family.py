"""Which objects are optimizers, and which belong together: one and those nested in it."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from tracer.errors import UnsupportedOptimizer
from tracer.kinds import OptimizerKind, kind_of


def family(optimizer: object) -> Iterator[tuple[Any, OptimizerKind]]:
    """The optimizer and those nested in its attributes, each once, with their kinds."""
    kind = kind_to_trace(optimizer)
    seen = {id(optimizer)}
    todo: list[tuple[Any, OptimizerKind]] = [(optimizer, kind)]
    while todo:
        member, kind = todo.pop(0)
        yield member, kind
        for value in _attributes(member):
            nested = kind_of(type(value))
            if nested is not None and id(value) not in seen:
                seen.add(id(value))
                todo.append((value, nested))


def own_attributes(optimizer: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = object.__getattribute__(optimizer, "__dict__")
    return attributes


def _attributes(optimizer: Any) -> Iterator[Any]:
    """What hangs on the optimizer, in lists and dicts too, as deep as a list of dicts in one."""
    todo = [(value, 0) for value in list(own_attributes(optimizer).values())]
    while todo:
        value, depth = todo.pop()
        yield value
        if depth < 3 and isinstance(value, dict | list | tuple):
            items = value.values() if isinstance(value, dict) else value
            todo += [(each, depth + 1) for each in list(items)]


def kind_to_trace(optimizer: object) -> OptimizerKind:
    """The kind of `optimizer`; raises `UnsupportedOptimizer` with what would work."""
    if isinstance(optimizer, type):
        raise UnsupportedOptimizer(
            f"wrap takes an optimizer, not a class: use tracer.wrap({optimizer.__name__}(...))"
        )
    kind = kind_of(type(optimizer))
    if kind is None:
        raise UnsupportedOptimizer(
            f"cannot trace {described(optimizer)}: wrap takes a TensorFlow optimizer, that is one "
            "of keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy or "
            "tf.compat.v1.train"
        )
    backend = getattr(sys.modules.get("keras"), "backend", None)
    if kind.name == "keras3" and backend is not None and backend.backend() != "tensorflow":
        raise UnsupportedOptimizer(
            f"cannot trace {described(optimizer)}: Keras runs on the {backend.backend()} backend; "
            "set KERAS_BACKEND=tensorflow before keras is imported"
        )
    return kind


def described(optimizer: object) -> str:
    if inspect.isroutine(optimizer):
        return f"the function {optimizer.__name__}"
    cls = type(optimizer)
    return f"{'an' if cls.__name__[0] in 'AEIOUaeiou' else 'a'} {cls.__name__}"
