"""Optimizers that are wrapped late, or unwrapped in between: older graphs hold no counters.

Here the trace may say less than the odometers show, but then it must say so: `complete` is False
and a note says why. What it says of a variable must be true in any case.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from against_odometers import assert_right_or_incomplete, counted, minus, readings
from libraries import library_of
from odometers import ODOMETERS, Reading, read, reading

import tracer

pytestmark = pytest.mark.wide

v1 = tf.compat.v1


# Wrapped after its graphs were traced.


def test_wrapped_after_graph_tracing(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Graphs from before hold no counters: the trace must not take their steps for none."""
    step = tf.function(apply)
    step()
    step()
    tracer.wrap(optimizer)
    before = readings(variables)
    for _ in range(3):
        step()
    truth = minus(readings(variables), before)
    assert truth["kernel"] == Reading(3)
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


def test_old_and_new_graphs(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Graphs from before run among graphs from after, which are counted all the same."""
    old, new = tf.function(apply), tf.function(apply)
    old()
    tracer.wrap(optimizer)
    before = readings(variables)
    for step in (new, old, new, apply, old, new):
        step()
    truth = minus(readings(variables), before)
    trace = tracer.trace_of(optimizer)
    assert_right_or_incomplete(trace, variables, truth)
    assert counted(trace, variables["kernel"]).dense >= 4


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3", "v1"], indirect=True)
def test_wrapped_between_two_fits(kind: str, optimizer: Any) -> None:
    """`model.fit` keeps the train function of the first `fit`."""
    keras_of_kind = library_of(kind)
    dense = keras_of_kind.layers.Dense(2, kernel_initializer="zeros")
    model = keras_of_kind.Sequential([keras_of_kind.Input((2,)), dense])
    model.compile(optimizer, "mse")
    x = tf.ones((8, 2))
    model.fit(x, x, batch_size=4, verbose=0)
    tracer.wrap(optimizer)
    variables = {"kernel": dense.kernel, "bias": dense.bias}
    before = readings(variables)
    model.fit(x, x, batch_size=4, verbose=0)
    truth = minus(readings(variables), before)
    assert truth == {"kernel": Reading(2), "bias": Reading(2)}
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


@pytest.mark.parametrize("kind", ["v1", "legacy"], indirect=True)
def test_wrapped_after_the_train_op(kind: str) -> None:
    """A train op of a session that was built before."""
    with tf.Graph().as_default():
        optimizer = ODOMETERS[kind]()
        kernel = v1.get_variable("kernel", (2, 2), initializer=v1.zeros_initializer())
        train = optimizer.apply_gradients([(tf.ones((2, 2)), kernel)])
        tracer.wrap(optimizer)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            session.run(train)
            shown = reading(session.run(kernel))
        assert shown == Reading(2)
        assert_right_or_incomplete(
            tracer.trace_of(optimizer), {"kernel": kernel}, {"kernel": shown}
        )


# Unwrapped and wrapped again.


def test_unwrapped_and_wrapped_again_eager(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """The trace goes on, without what ran in between."""
    tracer.wrap(optimizer)
    apply()
    tracer.unwrap(optimizer)
    apply()
    apply()
    assert counted(tracer.trace_of(optimizer), variables["kernel"]) == Reading(1)
    tracer.wrap(optimizer)
    for _ in range(3):
        apply()
    assert readings(variables)["kernel"] == Reading(6)
    trace = tracer.trace_of(optimizer)
    said = {label: counted(trace, variable) for label, variable in variables.items()}
    dense = Reading(4)
    assert said == {"table": Reading(0, 4), "kernel": dense, "twin": dense, "bias": dense}
    assert trace.steps == 4


def test_unwrapped_and_wrapped_again_in_a_function(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """A function keeps the graph of the first time, with its counters: all of its runs count."""
    step = tf.function(apply)
    tracer.wrap(optimizer)
    step()
    step()
    assert counted(tracer.trace_of(optimizer), variables["kernel"]) == Reading(2)
    tracer.unwrap(optimizer)
    step()
    untraced = tf.function(apply)
    untraced()
    tracer.wrap(optimizer)
    for _ in range(4):
        step()
    trace = tracer.trace_of(optimizer)
    assert readings(variables)["kernel"] == Reading(8)
    assert counted(trace, variables["kernel"]) == Reading(7)
    assert trace.steps == 7
    truth = readings(variables)
    untraced()
    untraced()
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_unwrapped_and_wrapped_again_in_one_fit(kind: str, eagerly: bool) -> None:
    library = library_of(kind)
    optimizer = tracer.wrap(ODOMETERS[kind]())

    callback: Any = library.callbacks.Callback

    class Switch(callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                tracer.unwrap(optimizer)
            if epoch == 2:
                tracer.wrap(optimizer)

    dense = library.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = library.Sequential([library.layers.Input((2,)), dense])
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    ones = np.ones((8, 2), "f4")
    model.fit(ones, ones, batch_size=2, epochs=3, callbacks=[Switch()], verbose=0)
    (truth,) = read(dense.kernel)
    assert truth == Reading(12)
    trace = tracer.trace_of(optimizer)
    said = trace.updates(variable=dense.kernel)
    # A graph that was traced while the optimizer was wrapped goes on counting.
    assert said == trace.steps == (8 if eagerly else 12)
