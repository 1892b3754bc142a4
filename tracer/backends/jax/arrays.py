"""Read the variables of Keras on JAX: arrays, which may be donated or missing."""

from contextlib import suppress
from typing import Any

import jax
import numpy as np


def value_of(variable: Any, most: int) -> Any:
    """The value of a variable of 1 to `most` elements; None for others, or if unreadable now.

    While `fit` trains, Keras keeps no value in a variable.
    """
    value = array_of(variable)
    if value is None or not 0 < value.size <= most:
        return None
    if not (value.is_fully_addressable or value.is_fully_replicated):  # other processes have parts
        return None
    with suppress(RuntimeError):  # it was donated meanwhile (`donate_argnums`)
        return np.asarray(value)
    return None


def array_of(variable: Any) -> Any:
    """The array of a Keras variable, or an array itself; None if it cannot be read now."""
    is_array = isinstance(variable, jax.Array)  # arrays have a `_value`, too
    value = variable if is_array else getattr(variable, "_value", variable)
    return value if _is_concrete(value) and not value.is_deleted() else None


def values_given(step: Any) -> dict[int, Any]:
    """The value that the call `step` of `stateless_apply` gets for each variable, by its `id`."""
    names = "optimizer_variables", "grads", "trainable_variables"
    given = {**step.kwargs, **dict(zip(names, step.args, strict=False))}
    return _by_variable(step, given.get("trainable_variables"), given.get("optimizer_variables"))


def values_returned(step: Any) -> dict[int, Any]:
    """The value that it returned for each variable; empty if unknown."""
    pair = isinstance(step.result, tuple | list) and len(step.result) == 2  # else it raised
    return _by_variable(step, *step.result) if pair else {}


def _by_variable(step: Any, weights: Any, of_optimizer: Any) -> dict[int, Any]:
    optimizer = step.original.__self__
    variables = *optimizer._trainable_variables, *optimizer.variables
    with suppress(TypeError, ValueError):  # Keras will refuse such a state
        return dict(zip(map(id, variables), (*weights, *of_optimizer), strict=True))
    return {}


def is_gone(array: Any) -> bool:
    """True for an array that was donated (`donate_argnums`), and so cannot be read."""
    return _is_concrete(array) and bool(array.is_deleted())


def _is_concrete(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
