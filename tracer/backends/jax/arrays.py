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
    if value is None or not 0 < value.size <= most or not value.is_fully_addressable:
        return None
    with suppress(RuntimeError):  # it was given away meanwhile (`donate_argnums`)
        return np.asarray(value)
    return None


def array_of(variable: Any) -> Any:
    """The array that a variable of Keras holds, or an array itself; None for what is none now."""
    value = getattr(variable, "_value", variable)
    return value if _is_concrete(value) and not value.is_deleted() else None


def is_gone(array: Any) -> bool:
    """Whether it is an array that was donated (`donate_argnums`), so that nobody can read it."""
    return _is_concrete(array) and bool(array.is_deleted())


def _is_concrete(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
