"""A step whose gradients never come is no step: against odometers that add the gradient itself.

The odometers elsewhere add 1 whatever the gradient is, so their updates run even if the gradients
fail. These add the gradient, which is 1, so they wait for it as a real optimizer does.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import Keras3Optimizer, keras2, keras3, library_of

import tracer

# The odometers here need no sparse gradients, but Embedding layers of earlier tests may be alive.
pytestmark = [
    pytest.mark.wide(rest="sweep"),
    pytest.mark.filterwarnings("ignore:.* has no _resource_apply_sparse:tracer.OptimizerWarning"),
]


class Legacy(keras2.optimizers.legacy.Optimizer):  # type: ignore[misc]
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return var.assign_add(grad, read_value=False)


class Keras2(keras2.optimizers.Optimizer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="gradient_odometer", jit_compile=False)
        self._learning_rate = self._build_learning_rate(0.1)

    def update_step(self, gradient: Any, variable: Any) -> None:
        variable.assign_add(gradient)


class Keras3(Keras3Optimizer):  # type: ignore[misc]
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign_add(gradient)


class V1(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return handle.assign_add(grad, read_value=False)


MAKE: dict[str, Callable[[], Any]] = {
    "legacy": lambda: Legacy("GradientOdometer"),
    "keras2": Keras2,
    "keras3": lambda: Keras3(learning_rate=0.1),
    "v1": lambda: V1(use_locking=True, name="GradientOdometer"),
}
kinds = pytest.mark.parametrize("kind", MAKE)


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
    optimizer, weights = tracer.wrap(MAKE[kind]()), _weights(kind)

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
    optimizer, weights = tracer.wrap(MAKE[kind]()), _weights(kind)

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
        optimizer, weights = tracer.wrap(MAKE[kind]()), _weights(kind)
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

    optimizer = MAKE[kind]()
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


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")  # it is meant to
@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_a_generator_that_ends_in_fit(kind: str) -> None:
    library = library_of(kind)

    def batches() -> Iterator[Any]:
        for _ in range(5):
            yield np.ones((2, 3), "f4"), np.zeros((2, 1), "f4")

    signature = (tf.TensorSpec((2, 3)), tf.TensorSpec((2, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    optimizer = tracer.wrap(MAKE[kind]())
    model = library.Sequential([library.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer, loss=lambda true, predicted: predicted)  # the bias's gradient is 1
    model.fit(data, epochs=3, shuffle=False, verbose=0)
    bias = model.layers[0].bias
    assert int(np.asarray(bias)[0]) == 15
    trace = tracer.trace_of(optimizer)
    assert (trace.updates(variable=bias), trace.steps, trace.complete) == (15, 15, True)
