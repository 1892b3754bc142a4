"""A step whose gradients never come is no step.

The odometers elsewhere add 1 whatever the gradient is, so their updates run even if the gradients
fail. Here SGD with the rate -1 adds the gradient, which is 1.
"""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras3, library_of
from support.odometers import KINDS

import tracer

# The odometers here need no sparse gradients, but Embedding layers of earlier tests may be alive.
pytestmark = [
    pytest.mark.wide(rest="sweep"),
    pytest.mark.filterwarnings("ignore:.* has no _resource_apply_sparse:tracer.OptimizerWarning"),
]


kinds = pytest.mark.parametrize("kind", KINDS)


def _make(kind: str) -> Any:
    if kind == "v1":
        return tf.compat.v1.train.GradientDescentOptimizer(-1.0)
    optimizers = library_of(kind).optimizers
    return (optimizers.legacy if kind == "legacy" else optimizers).SGD(-1.0)


def _weights(kind: str) -> list[Any]:
    if kind == "keras3":
        return [keras3.Variable(np.zeros(2, "f4")) for _ in range(3)]
    return [tf.Variable(tf.zeros(2)) for _ in range(3)]


def _check(optimizer: Any, weights: list[Any]) -> None:
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    for weight in weights:
        shown = {int(value) for value in np.asarray(weight)}
        assert {trace.updates(variable=weight)} == shown
    assert trace.steps == max(int(np.asarray(weight)[0]) for weight in weights)


@kinds
def test_data_that_ends_in_a_function(kind: str) -> None:
    optimizer, weights = tracer.wrap(_make(kind)), _weights(kind)

    @tf.function
    def step(iterator: Any) -> None:
        one = next(iterator)
        optimizer.apply_gradients([(one * tf.ones(2), weight) for weight in weights])

    for _ in range(5):
        iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones(4)))
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                step(iterator)
    assert np.asarray(weights[0])[0] == 20
    _check(optimizer, weights)


@kinds
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_fail(kind: str, compiled: bool) -> None:
    optimizer, weights = tracer.wrap(_make(kind)), _weights(kind)

    @tf.function(jit_compile=compiled)
    def apply(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weight) for weight in weights])

    @tf.function
    def step(value: Any) -> None:
        apply(tf.debugging.check_numerics(value * tf.ones(2), "the gradient"))

    for value in (1.0, np.nan, 1.0, np.inf, np.nan):
        try:
            step(tf.constant(value))
        except tf.errors.InvalidArgumentError:
            assert not np.isfinite(value)
    assert np.asarray(weights[0])[0] == 2
    _check(optimizer, weights)


@kinds
def test_mirrored_steps_that_fail(kind: str) -> None:
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        optimizer, weights = tracer.wrap(_make(kind)), _weights(kind)
        if kind == "keras3":
            optimizer.build(weights)

    @tf.function
    def step(value: Any) -> None:
        def replica(value: Any) -> None:
            one = tf.debugging.check_numerics(value * tf.ones(2), "the gradient") / 2.0
            optimizer.apply_gradients([(one, weight) for weight in weights])

        strategy.run(replica, args=(value,))

    for value in (1.0, np.nan, 1.0, np.inf):
        try:
            step(tf.constant(value))
        except tf.errors.InvalidArgumentError:
            assert not np.isfinite(value)
    trace = tracer.trace_of(optimizer)
    for weight in weights:
        values = weight.value.values if kind == "keras3" else weight.values
        for replica, copy in enumerate(values):
            assert trace.updates(variable=weight, replica=replica) == int(copy.numpy()[0]) == 2
    assert trace.steps == 2


@kinds
@pytest.mark.parametrize("where", ["main thread", "ended thread", "living thread"])
def test_the_last_step_fails_half_way(kind: str, where: str) -> None:
    """The fourth step updates the first weight, whose constraint fails then."""

    def below_4(value: Any) -> Any:
        return tf.debugging.check_numerics(tf.where(value > 3.0, np.nan, value), "the weight")

    optimizer = _make(kind)
    first, second = _weights(kind)[0], _weights(kind)[0]
    if kind == "keras3":
        first.constraint = below_4
    else:
        first = tf.Variable(tf.zeros(2), constraint=below_4)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(2), first), (tf.ones(2), second)])

    trained, seen = threading.Event(), threading.Event()

    def train() -> None:
        for _ in range(3):
            step()
        with pytest.raises(tf.errors.InvalidArgumentError):
            step()
        trained.set()
        if where == "living thread":
            seen.wait(60)

    with tracer.record() as recording:
        if where == "main thread":
            train()
        else:
            worker = threading.Thread(target=train)
            worker.start()
            trained.wait(60)
            if where == "ended thread":
                worker.join()
        inside = recording.trace()
    trace = recording.trace()
    seen.set()
    assert np.asarray(first)[0] == 4
    for each in (inside, trace):
        assert (each.steps, each.updates(variable=first), each.complete) == (3, 3, False)
        assert "1 step ended with an error" in " ".join(each.notes)
