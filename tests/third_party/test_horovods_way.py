"""Optimizers made the way Horovod makes them, written anew: Horovod itself needs MPI or Gloo.

`hvd.DistributedOptimizer` (horovod/_keras/__init__.py, 0.28) copies the members of a class into a
new subclass of the optimizer's own class, which has the same name, and makes an optimizer of it
from the config of the one it was given. Its methods call `super(self.__class__, self)`. That of
`horovod.tensorflow`, for optimizers of TensorFlow 1, holds the one it was given instead.
"""

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras2, library_of, needs_keras3
from support.odometers import ODOMETERS, read
from support.twins import assert_twins

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

KERAS = ("legacy", "keras2", pytest.param("keras3", marks=needs_keras3))


def distributed(optimizer: Any, passes: int = 1) -> Any:
    """What `hvd.DistributedOptimizer` gives back; `passes` gradients are added up for a step."""
    own = optimizer.__class__

    class Distributed(*own.__bases__):  # type: ignore[misc]
        _HAS_AGGREGATE_GRAD = True

        def __init__(self, **options: Any) -> None:
            super(self.__class__, self).__init__(**options)
            self.reduced = 0
            self.passes = tf.Variable(0, trainable=False) if passes > 1 else None

        def _aggregate_gradients(self, pairs: Any) -> Any:
            self.reduced += 1
            return super(self.__class__, self)._aggregate_gradients(pairs)

        def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(pairs)
            apply = super(self.__class__, self).apply_gradients
            if self.passes is None:
                return apply(pairs, *args, **kwargs)

            def step() -> Any:
                apply(pairs, *args, **kwargs)
                return tf.constant(0)

            def only_count() -> Any:
                self.iterations.assign_add(1)
                return tf.constant(0)

            count = self.passes.assign_add(1)
            return tf.cond(tf.equal(count % passes, 0), step, only_count)

    cls: Any = type(own.__name__, (own,), dict(vars(Distributed)))
    return cls.from_config(optimizer.get_config())


def optimizers_of(kind: str) -> Any:
    return keras2.optimizers.legacy if kind == "legacy" else library_of(kind).optimizers


@pytest.mark.parametrize("kind", KERAS)
def test_it_trains_as_without_the_tracer(kind: str) -> None:
    """Sparse and dense, eager and in functions."""
    _, trace = assert_twins(lambda: distributed(optimizers_of(kind).Adam(0.01)))
    assert trace.optimizers[0].class_name == f"{__name__}.Adam"
    assert not trace.findings()


@pytest.mark.parametrize("kind", KERAS)
def test_made_of_one_that_is_wrapped(kind: str) -> None:
    """The new class is derived from the optimizer's own, and traces if it is wrapped itself."""
    given = tracer.wrap(optimizers_of(kind).SGD(0.5, name="given"))
    optimizer = distributed(given)
    assert type(optimizer).__bases__ == (optimizers_of(kind).SGD,)
    assert optimizer.get_config() == given.get_config()
    weight = tf.Variable([1.0, 2.0])
    optimizer.apply_gradients([(tf.ones(2), weight)])
    assert tracer.trace_of(given).steps == 0
    tracer.wrap(optimizer).apply_gradients([(tf.ones(2), weight)])
    assert tracer.trace_of(optimizer).updates() == 1
    assert weight.numpy().tolist() == [0.0, 1.0]
    assert optimizer.get_config() == given.get_config()


def odometer(kind: str, passes: int) -> Any:
    """An odometer in Horovod's way; its config has the rate, which it does not take."""
    base: Any = ODOMETERS[kind]

    class Odometer(base):  # type: ignore[misc]
        @classmethod
        def from_config(cls, config: Any) -> Any:
            return cls(name=config["name"])

    return distributed(Odometer(), passes)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("kind", KERAS)
def test_an_odometer_counts_the_same_in_fit(kind: str, passes: int) -> None:
    """Of three steps two only count: no updates in them, and that is said."""
    library = library_of(kind)
    layers = [library.layers.Dense(2, kernel_initializer="zeros"), library.layers.Dense(1)]
    model = library.Sequential([library.layers.Input((3,)), *layers])
    optimizer = tracer.wrap(odometer(kind, passes))
    model.compile(optimizer, "mse")
    data = np.random.default_rng(1).normal(size=(14, 4)).astype("f4")
    model.fit(data[:, :3], data[:, 3:], batch_size=2, verbose=0)
    trace = tracer.trace_of(optimizer)
    (shown,) = read(layers[0].kernel)
    assert (trace.updates("dense", variable=layers[0].kernel), 0) == shown
    assert trace.updates() == 4 * (7 // passes) and shown.dense == 7 // passes
    assert trace.steps == int(optimizer.iterations) == 7
    assert trace.complete, trace.notes
    assert not trace.findings()


class Around(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """What `hvd.DistributedOptimizer` of `horovod.tensorflow` gives back."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(name=f"Distributed{type(optimizer).__name__}", use_locking=False)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)


@pytest.mark.parametrize("in_session", [False, True])
def test_around_an_optimizer_of_tensorflow_1(in_session: bool) -> None:
    """A step of both is one step, and an update of the inner one is the update."""
    optimizer = tracer.wrap(Around(ODOMETERS["v1"]()))
    with tf.Graph().as_default() if in_session else contextlib.nullcontext():
        weight = tf.Variable(tf.zeros(3), name="weight")

        def loss() -> Any:
            return tf.reduce_sum(weight**2)

        if in_session:
            counted = tf.compat.v1.train.create_global_step()
            train = optimizer.minimize(loss(), counted, [weight])
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                for _ in range(5):
                    session.run(train)
                ended = session.run([weight, counted])
            assert ended[1] == 5
        else:
            for _ in range(5):
                optimizer.minimize(loss, var_list=[weight])
            ended = [weight.numpy()]
    assert ended[0].tolist() == [5.0] * 3
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates("dense")) == (5, 5)
    assert trace.complete, trace.notes
    assert not trace.findings()
