"""A step whose gradients never come is no step.

The odometers elsewhere add 1 whatever the gradient is, so their updates run even if the gradients
fail. Here SGD with the rate -1 adds the gradient, which is 1.
"""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support.libraries import keras3, optimizer_of
from support.odometers import KINDS, components

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

kinds = pytest.mark.parametrize("kind", KINDS)


def _weights(kind: str) -> list[Any]:
    if kind == "keras3":
        return [keras3.Variable(np.zeros(2, "f4")) for _ in range(3)]
    return [tf.Variable(tf.zeros(2)) for _ in range(3)]


def _check(optimizer: Any, weights: list[Any]) -> None:
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    for weight in weights:
        for replica, component in enumerate(components(weight)):
            assert {*component.numpy()} == {trace.updates(variable=weight, replica=replica)}
    assert trace.steps == components(weights[0])[0].numpy()[0]


@kinds
@pytest.mark.parametrize("way", ["function", "XLA", "mirrored"])
def test_gradients_that_fail(kind: str, way: str) -> None:
    strategy = strategy_of("mirrored 2" if way == "mirrored" else "default")
    with strategy.scope():
        optimizer, weights = tracer.wrap(optimizer_of(kind, "SGD", -1.0)), _weights(kind)
        if kind == "keras3":
            optimizer.build(weights)

    def apply(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weight) for weight in weights])

    function = apply if way == "mirrored" else tf.function(apply, jit_compile=way == "XLA")

    def replica(value: Any) -> None:
        one = value * tf.ones(2) / strategy.num_replicas_in_sync
        function(tf.debugging.check_numerics(one, "the gradient"))

    step = tf.function(lambda value: strategy.run(replica, (value,)))
    for value in (1.0, np.nan, 1.0, np.inf, np.nan):
        try:
            step(tf.constant(value))
        except tf.errors.InvalidArgumentError:
            assert not np.isfinite(value)
    assert components(weights[0])[-1].numpy()[0] == 2
    _check(optimizer, weights)


@kinds
@pytest.mark.parametrize("where", ["main thread", "ended thread", "living thread"])
def test_the_last_step_fails_half_way(kind: str, where: str) -> None:
    """The fourth step updates the first weight, whose constraint fails then."""

    def below_4(value: Any) -> Any:
        return tf.debugging.check_numerics(tf.where(value > 3.0, np.nan, value), "the weight")

    optimizer = optimizer_of(kind, "SGD", -1.0)
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
