"""The optimizers of TensorFlow Addons, all of them, with and without the tracer."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.odometers import LegacyOdometer, read
from support.twins import STEPS, assert_twins

import tracer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its end of life, and that it was made for an older TensorFlow
    addons: Any = pytest.importorskip(
        "tensorflow_addons", reason="TensorFlow Addons needs TensorFlow 2.15 at most"
    )

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
legacy = tf.keras.optimizers.legacy

OPTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "AdamW": ((), {"weight_decay": 0.01}),
    "SGDW": ((), {"weight_decay": 0.01, "momentum": 0.9}),
    "ConditionalGradient": ((), {"learning_rate": 0.1, "lambda_": 1.0}),
}
"""What an optimizer must be told."""

AROUND: dict[str, dict[str, Any]] = {
    "Lookahead": {"sync_period": 3, "slow_step_size": 1.0},
    "MovingAverage": {},
    "SWA": {"start_averaging": 2, "average_period": 3},
}
"""Those around another optimizer, to which they leave the weights."""
ABSTRACT = {"AveragedOptimizerWrapper", "KerasLegacyOptimizer", "MultiOptimizer"}
PLAIN = sorted(
    name
    for name, member in vars(addons.optimizers).items()
    if isinstance(member, type)
    and issubclass(member, legacy.Optimizer)
    and name not in AROUND.keys() | ABSTRACT
)
NO_SPARSE = {"COCOB"}
"""It says so itself, by `NotImplementedError`."""


def made(name: str, *arguments: Any) -> Any:
    """An optimizer of Addons."""
    more, options = OPTIONS.get(name, ((), {}))
    return getattr(addons.optimizers, name)(*arguments, *more, **options)


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str) -> None:
    assert_twins(lambda: made(name), sparse=name not in NO_SPARSE)


@pytest.mark.parametrize("inner", [lambda: legacy.SGD(0.1, momentum=0.9), lambda: legacy.Adam(0.1)])
@pytest.mark.parametrize("name", AROUND)
def test_around_another(name: str, inner: Callable[[], Any]) -> None:
    """An inner apply method that the outer one calls is an execution, and no second update."""
    _, trace = assert_twins(lambda: getattr(addons.optimizers, name)(inner(), **AROUND[name]))
    assert trace.executions("_resource_apply_dense") == 2 * STEPS


@pytest.mark.parametrize("name", AROUND)
def test_an_odometer_inside(name: str) -> None:
    optimizer = tracer.wrap(getattr(addons.optimizers, name)(LegacyOdometer(), **AROUND[name]))
    weight, table = tf.Variable(tf.zeros((2, 2))), tf.Variable(tf.zeros((3, 2)))

    @tf.function
    def steps(number: Any) -> None:
        for _ in tf.range(number):
            slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1, 1]), tf.constant([3, 2]))
            optimizer.apply_gradients([(tf.ones((2, 2)), weight), (slices, table)])

    optimizer.apply_gradients([(tf.ones((2, 2)), weight), (tf.ones((3, 2)), table)])
    steps(tf.constant(7))
    trace = tracer.trace_of(optimizer)
    for variable in (weight, table):
        (shown,) = read(variable)
        said = (
            trace.updates("dense", variable=variable),
            trace.updates("sparse", variable=variable),
        )
        assert said == shown
    assert (trace.steps, trace.complete) == (8, True)


@pytest.mark.parametrize("eagerly", [False, True])
def test_multi_optimizer_in_fit(eagerly: bool) -> None:
    """A step of all its optimizers is one step, and each variable has its own optimizer."""
    ends = []
    for traced in (False, True):
        tf.keras.utils.set_random_seed(1)
        tf.keras.backend.clear_session()
        layers = [tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.layers.Input((3,)), *layers])
        optimizer = addons.optimizers.MultiOptimizer(
            [(legacy.Adam(0.01), layers[0]), (addons.optimizers.LAMB(0.01), [layers[1]])]
        )
        if traced:
            tracer.wrap(optimizer)
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        data = np.random.default_rng(1).normal(size=(12, 4)).astype("f4")
        model.fit(data[:, :3], data[:, 3:], batch_size=2, epochs=3, verbose=0)
        inner = [spec["optimizer"] for spec in optimizer.optimizer_specs]
        ends.append(model.get_weights() + [w for each in inner for w in each.get_weights()])
    for left, right in zip(*ends, strict=True):
        np.testing.assert_array_equal(left, right)
    trace = tracer.trace_of(optimizer)
    assert trace.steps == int(optimizer.iterations) == 18
    assert trace.complete, trace.notes
    assert trace.count("updates", by=("optimizer",)) == {
        (each.name,): 2 * int(opt.iterations)
        for each, opt in zip(trace.optimizers[1:], inner, strict=True)
    }
