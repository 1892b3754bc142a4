"""The variables that an optimizer keeps for itself, as TensorFlow has them, and what they hold."""

from collections.abc import Iterator
from typing import Any

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.variables import canonical
from tracer.core.reachable import layers


def iterations_of(optimizer: Any) -> int | None:
    """The optimizer's own count of its steps; None if it has none yet or it cannot be read now."""
    count = value_of(getattr(optimizer, "_iterations", None), 1)
    return None if count is None else int(count)


def is_restored(optimizer: Any) -> bool:
    """Whether a checkpoint has set its iterations, as it does when they are made after it."""
    return getattr(canonical(optimizer._iterations), "_update_uid", -1) >= 0


def value_of(variable: Any, most: int) -> Any:
    """What a variable of 1 to `most` elements holds; None if it is none, or cannot be read now."""
    whole = canonical(variable)
    handle = getattr(getattr(whole, "_primary", whole), "handle", None)
    if not isinstance(handle, compat.EagerTensor):
        return None  # there is none, or one in a v1 graph
    size = whole.shape.num_elements()  # None if it may have any shape
    if size is not None and not 0 < size <= most:
        return None
    value = compat.value_in(handle, whole.dtype)
    return value if 0 < value.size <= most else None


_NOT_ITS_STATE = ("_hyper", "_learning_rate", "_trainable_variables")
"""Attributes with variables that others write to as well: schedules, and other optimizers."""


def own_handles(optimizer: Any) -> list[Any]:
    """The handles of the variables that only the optimizer writes to, as a rule."""
    own = object.__getattribute__(optimizer, "__dict__")
    shared = _handles([own.get(name) for name in _NOT_ITS_STATE])
    others = {id(handle) for handle in shared}
    found = _handles([value for name, value in own.items() if name not in _NOT_ITS_STATE])
    return [handle for handle in found if id(handle) not in others]


def _handles(values: list[Any]) -> Iterator[Any]:
    """The handles of the variables in `values`, in lists and dicts too, on each replica."""
    for layer in layers(values, depth=5):
        for value in layer:
            if hasattr(type(value), "dtype"):  # as every variable has
                whole = canonical(value)
                copies = getattr(whole, "values", None)  # others have a method of this name
                for item in copies if isinstance(copies, tuple) else (whole,):
                    if isinstance(item, compat.ResourceVariable):
                        yield item.handle
