"""What the variables of Keras hold on JAX: arrays, which may be given away or not there."""

from contextlib import suppress
from typing import Any

import jax
import numpy as np


def value_of(variable: Any, most: int) -> Any:
    """What a variable of 1 to `most` elements holds; None if it is none, or cannot be read now.

    While `fit` trains, Keras keeps no value in it.
    """
    value = array_of(variable)
    if value is None or not 0 < value.size <= most:
        return None
    if not (value.is_fully_addressable or value.is_fully_replicated):  # else others have parts
        return None
    with suppress(RuntimeError):  # it was given away meanwhile (`donate_argnums`)
        return np.asarray(value)
    return None


def array_of(variable: Any) -> Any:
    """The array that a variable of Keras holds, or an array itself; None for what is none now."""
    is_array = isinstance(variable, jax.Array)  # which has a `_value`, too
    value = variable if is_array else getattr(variable, "_value", variable)
    return value if _is_concrete(value) and not value.is_deleted() else None


def values_given(step: Any) -> dict[int, Any]:
    """What `stateless_apply`, the call `step`, is given for each variable, by the `id` of that."""
    names = "optimizer_variables", "grads", "trainable_variables"
    given = {**step.kwargs, **dict(zip(names, step.args, strict=False))}
    return _by_variable(step, given.get("trainable_variables"), given.get("optimizer_variables"))


def values_returned(step: Any) -> dict[int, Any]:
    """The same of what it returned; empty if that is not known."""
    pair = isinstance(step.result, tuple | list) and len(step.result) == 2  # else it raised
    return _by_variable(step, *step.result) if pair else {}


def _by_variable(step: Any, weights: Any, of_optimizer: Any) -> dict[int, Any]:
    optimizer = step.original.__self__
    variables = *optimizer._trainable_variables, *optimizer.variables
    with suppress(TypeError, ValueError):  # Keras will refuse such a state
        return dict(zip(map(id, variables), (*weights, *of_optimizer), strict=True))
    return {}


def is_gone(array: Any) -> bool:
    """Whether it is an array that was donated (`donate_argnums`), so that nobody can read it."""
    return _is_concrete(array) and bool(array.is_deleted())


def _is_concrete(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
