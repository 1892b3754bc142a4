"""What the variables of Keras hold on JAX: arrays, which may be given away or not there."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from tracer.recorder.backend import ENOUGH, SMALL, number_of
from tracer.recorder.interrupts import suppress_faults


def values_of(variables: Sequence[Any]) -> int | None:
    """A number made of the values of the first small variables; None if they cannot be read."""
    with suppress_faults():
        arrays = [each for each in map(array_of, variables) if each is not None]
        small = [each for each in arrays if 0 < each.size <= SMALL]
        return number_of([np.asarray(each) for each in small[:ENOUGH]])
    return None


def number_in(variable: Any) -> float | None:
    """What a variable of one element holds; None if there is none, or it cannot be read now.

    While `fit` trains, Keras keeps no value in it.
    """
    value = array_of(variable)
    if value is None or value.size != 1 or not value.is_fully_addressable:
        return None
    with suppress(RuntimeError):  # it was given away meanwhile (`donate_argnums`)
        return float(np.asarray(value).item())
    return None


def array_of(variable: Any) -> Any:
    """The array that a variable of Keras holds, or an array itself; None for what is none now."""
    value = getattr(variable, "_value", variable)
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or value.is_deleted():
        return None
    return value


def is_gone(array: Any) -> bool:
    """Whether it is an array that was given away (`donate_argnums`), so that nobody can read it."""
    return (
        isinstance(array, jax.Array)
        and not isinstance(array, jax.core.Tracer)
        and array.is_deleted()
    )
