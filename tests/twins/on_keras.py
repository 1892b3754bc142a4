"""Programs of Keras that a rule is about, for any backend of it."""

from typing import Any

import keras
import numpy as np
from twins.table import rule, twin

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
SGD: Any = keras.optimizers.SGD


def model(optimizer: Any = None, *parts: Any) -> Any:
    """A small model, compiled if it is given an optimizer."""
    layers = parts or (keras.layers.Dense(2, name="base"), keras.layers.Dense(1, name="head"))
    made = keras.Sequential([keras.Input((3,)), *layers])
    if optimizer is not None:
        made.compile(optimizer, "mse")
    return made


def fit(trained: Any, number: int = 8, epochs: int = 1) -> None:
    """An epoch of steps of one example, or several epochs."""
    trained.fit(X[:number], Y[:number], batch_size=1, epochs=epochs, verbose=0)


def two() -> list[Any]:
    """Two variables."""
    return [keras.Variable(np.ones(3, "float32"), name=name) for name in ("first", "second")]


def ones(*present: bool) -> list[Any]:
    """A gradient for each that has one."""
    return [keras.ops.ones(3) if each else None for each in present]


@rule
def override_unreached(healthy: bool) -> None:
    def update(self: Any, grad: Any, var: Any, rate: Any = 0.1) -> None:
        self.assign_sub(var, rate * grad)

    name = "update_step" if healthy else "_resource_apply_dense"
    fit(model(type("Mine", (SGD,), {name: update})(0.1)))


@rule
def apply_raised(healthy: bool) -> None:
    optimizer = SGD(0.1)
    fit(model(optimizer))
    layer = keras.layers.Dense(1)
    fit(model(SGD(0.1) if healthy else optimizer, layer))


@rule
def never_updated(healthy: bool) -> None:
    class Dropping(SGD):  # type: ignore[misc]
        def _backend_apply_gradients(self, grads: Any, variables: Any) -> None:
            keep = slice(None if healthy else 1)
            super()._backend_apply_gradients(grads[keep], variables[keep])

    optimizer = Dropping(0.1)
    optimizer.build(two())
    for _ in range(3):
        optimizer.apply(ones(True, True))


@rule
def optimizer_renewed(healthy: bool) -> None:
    trained = model(keras.optimizers.Adam())
    for _ in range(4):
        if not healthy:
            trained.compile(keras.optimizers.Adam(), "mse")
        fit(trained, 2)


@rule
def no_gradient(healthy: bool) -> None:
    optimizer = SGD(0.1)
    optimizer.build(two())
    for _ in range(3):
        optimizer.apply(ones(True, healthy))


@rule
def updates_stopped(healthy: bool) -> None:
    optimizer = SGD(0.1)
    optimizer.build(two())
    for step in range(12):
        optimizer.apply(ones(True, healthy or step < 4))


@twin("no-gradient", "had no gradient (None) in", others=None)
def gradient_missing(healthy: bool) -> None:
    optimizer = SGD(0.1)
    optimizer.build(two())
    for step in range(12):
        optimizer.apply(ones(True, healthy or step % 2 == 0))


class Twice(SGD):  # type: ignore[misc]
    """Applies all gradients twice."""

    def _backend_apply_gradients(self, grads: Any, variables: Any) -> None:
        super()._backend_apply_gradients(grads, variables)
        super()._backend_apply_gradients(grads, variables)


@rule
def updated_twice(healthy: bool) -> None:
    fit(model(SGD(0.1) if healthy else Twice(0.1)))


@rule
def steps_skipped(healthy: bool) -> None:
    scale = keras.mixed_precision.LossScaleOptimizer(SGD(0.1), initial_scale=4.0)
    trained = model(scale)
    for _ in range(4):
        trained.train_on_batch(X * (1.0 if healthy else float("inf")), Y)


@rule
def gradients_left(healthy: bool) -> None:
    fit(model(SGD(0.1, gradient_accumulation_steps=4)), 8 if healthy else 6)


@rule
def loss_not_scaled(healthy: bool) -> None:
    trained = model(keras.mixed_precision.LossScaleOptimizer(SGD(0.1)))
    if not healthy:
        object.__setattr__(trained.optimizer, "scale_loss", lambda loss: loss)
    fit(trained, 3)


@rule
def unchanged(healthy: bool) -> None:
    fit(model(SGD(0.01 if healthy else 1e-12)))  # too little for a weight of 32 bits


@rule
def not_finite(healthy: bool) -> None:
    trained = model(SGD(0.01))
    for number in range(4):
        trained.train_on_batch(X * (1.0 if healthy or number < 2 else float("inf")), Y)


def steps(number: int) -> None:
    """A run of so many steps, as of one worker."""
    keras.utils.clear_session()
    fit(model(SGD(0.1)), number)
