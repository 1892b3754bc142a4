"""Trains an optimizer and its twin, one of them traced, and holds one against the other.

The twins must end with the same bits in weights and slots. What the trace says is compared with
the optimizer's own `iterations` and with arithmetic: each step hands over one gradient for each
variable.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from support.libraries import is_keras3, keras3

import tracer

STEPS = 20

Arrays = list[np.ndarray[Any, Any]]


def variables_for(optimizer: Any) -> tuple[Any, Any]:
    """A variable for dense gradients and a table for sparse ones, of the class its users have."""
    make = keras3.Variable if is_keras3(optimizer) else tf.Variable
    dense = make(np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4), name="dense")
    return dense, make(np.ones((5, 2), "f4"), name="rows")


def train(
    optimizer: Any, variables: tuple[Any, Any], *, sparse: bool = True, steps: int = STEPS
) -> Arrays:
    """Weights and slots after some steps, each fourth one eager and the others in a function."""
    dense, rows = variables
    noise = np.random.default_rng(3).normal(size=(steps, 3, 4)).astype("f4")

    def step(gradient: Any) -> None:
        part: Any = gradient[:2, :2]
        if sparse:
            part = tf.IndexedSlices(part, tf.constant([1, 3]), tf.constant([5, 2]))
        else:
            part = tf.pad(part, [[0, 3], [0, 0]])
        optimizer.apply_gradients([(gradient, dense), (part, rows)])

    compiled = tf.function(step)
    for index, gradient in enumerate(noise):
        (compiled if index % 4 else step)(tf.constant(gradient))
    return [np.asarray(each) for each in (dense, rows, *slots(optimizer))]


def slots(optimizer: Any) -> list[Any]:
    """All that the optimizer keeps, and one around which it is."""
    found = getattr(optimizer, "weights", None) or optimizer.variables
    return list(found() if callable(found) else found)


def assert_twins(
    make: Callable[[], Any],
    *,
    sparse: bool = True,
    every: int = 1,
    own_steps: Callable[[Any], Any] = lambda optimizer: optimizer.iterations,
    effects: bool = False,
) -> tuple[Any, Any]:
    """Train both; returns the traced one and its trace, which must be complete.

    `every` so many steps there are updates; `own_steps` is the optimizer's own count of its steps.
    """
    ends = []
    for traced in (False, True):
        tf.keras.utils.set_random_seed(1)
        optimizer = make()
        variables = variables_for(optimizer)
        if traced:
            tracer.wrap(optimizer, effects=effects)
        ends.append(train(optimizer, variables, sparse=sparse))
    assert len(ends[0]) == len(ends[1]) >= 2
    for left, right in zip(*ends, strict=True):
        np.testing.assert_array_equal(left, right)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.steps == int(own_steps(optimizer)) == STEPS
    for variable in variables:
        assert trace.updates(variable=variable) == STEPS // every
    if every == 1:  # what was accumulated is dense
        assert trace.updates(kind="sparse") == (STEPS if sparse else 0)
    return optimizer, trace
