"""Programs of Keras 3 for any backend of it, with weights that count their updates themselves.

The optimizer is an odometer, which adds exactly 1 to a weight with each update, and the weights
begin at 0. So what a variable holds in the end is how often it was updated, whatever ran: graph
tracing, compiled programs, branches, loops, devices. Which steps updated is arithmetic.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import keras
import numpy as np
from support.ran import Ran

import tracer

X = np.random.default_rng(1).random((34, 4), "float32")
Y = np.random.default_rng(2).random((34, 1), "float32")
scaled = keras.optimizers.LossScaleOptimizer
DISCARDS = keras.backend.backend() == "jax"
"""Whether a step that only accumulates computes an update, and throws it away."""


@keras.saving.register_keras_serializable("tests")
class Odometer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adds exactly 1 to a weight each time that it is updated."""

    def __init__(self, learning_rate: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **{"name": "odometer", **kwargs})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(variable, keras.ops.ones(variable.shape, variable.dtype))


def model(optimizer: Any, kernels: str = "zeros", **kwargs: Any) -> Any:
    """A compiled model of four variables, which begin at 0, but perhaps the `kernels`."""
    begin = {"kernel_initializer": kernels}
    layers = [keras.layers.Dense(4, name="a", **begin), keras.layers.Dense(1, name="b", **begin)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    made.compile(optimizer, "mse", **kwargs)
    return made


def moved(variables: Iterable[Any]) -> list[float]:
    """How far each variable, or array, is from 0; its elements are equal."""
    values = [np.ravel(keras.ops.convert_to_numpy(each)) for each in variables]
    assert all(np.all(each == each[0]) for each in values)
    return [float(each[0]) for each in values]


def ones(variables: Iterable[Any]) -> list[Any]:
    """A gradient for each variable."""
    return [keras.ops.ones(each.shape, each.dtype) for each in variables]


def ran(optimizer: Any, variables: Any, per_step: list[int], discarded: int = 0) -> Ran:
    """What ran to the end, with the weights that its variables have now."""
    weights = dict(zip((each.path for each in variables), moved(variables), strict=True))
    return Ran(optimizer, per_step, weights, discarded=discarded)


def fitted(optimizer: Any, per_step: list[int], x: Any = X, **kwargs: Any) -> Ran:
    """What a model is fitted with, in batches of 8, or of 4 if there are 32 data."""
    epochs = kwargs.pop("epochs", 1)
    trained = model(tracer.wrap(optimizer), **kwargs)
    size = 4 if len(x) == 32 else 8
    trained.fit(x, Y[: len(x)], batch_size=size, epochs=epochs, shuffle=False, verbose=0)
    return ran(optimizer, trained.trainable_variables, per_step)


# What is trained, with an odometer of a class.


def fit(cls: Any) -> Ran:
    """The last of the batches is smaller, so there are two programs where it is compiled."""
    return fitted(cls(), [4] * 15, epochs=3)


def run_eagerly(cls: Any) -> Ran:
    return fitted(cls(), [4] * 5, run_eagerly=True)


def train_on_batch(cls: Any) -> Ran:
    optimizer = tracer.wrap(cls())
    trained = model(optimizer)
    for _ in range(6):
        trained.train_on_batch(X[:8], Y[:8])
    return ran(optimizer, trained.trainable_variables, [4] * 6)


def accumulation(cls: Any) -> Ran:
    """16 steps of which every 4th updates."""
    optimizer = cls(gradient_accumulation_steps=4)
    run = fitted(optimizer, [0, 0, 0, 4] * 4, X[:32], epochs=2)
    return run._replace(discarded=12 * 4 * DISCARDS)


def not_finite() -> Any:
    """Eight batches of four, of which the 4th and the 6th are not finite."""
    x = X[:32].copy()
    x[12], x[20] = np.inf, np.nan
    return x


def loss_scale(cls: Any) -> Ran:
    return fitted(scaled(cls()), [4, 4, 4, 0, 4, 0, 4, 4], not_finite())


def loss_scale_around_a_wrapped_optimizer(cls: Any) -> Ran:
    """As `compile` makes it: the steps that it skips are steps of the optimizer that is wrapped."""
    optimizer = tracer.wrap(cls())
    trained = model(scaled(optimizer))
    trained.fit(not_finite(), Y[:32], batch_size=4, shuffle=False, verbose=0)
    return ran(optimizer, trained.trainable_variables, [4, 4, 4, 0, 4, 0, 4, 4])


def loss_scale_and_accumulation(cls: Any) -> Ran:
    """Steps 4 and 6 are skipped; of the six others every 2nd updates."""
    optimizer = scaled(cls(gradient_accumulation_steps=2))
    run = fitted(optimizer, [0, 4, 0, 0, 4, 0, 0, 4], not_finite())
    return run._replace(discarded=3 * 4 * DISCARDS)


def moving_averages(cls: Any) -> Ran:
    """With a momentum of 0 the average is the weight, so that overwriting moves nothing."""
    optimizer = cls(use_ema=True, ema_momentum=0.0, ema_overwrite_frequency=3)
    return fitted(optimizer, [4] * 8, X[:32])


def a_frozen_layer(cls: Any) -> Ran:
    optimizer = tracer.wrap(cls())
    trained = model(optimizer)
    trained.layers[0].trainable = False
    trained.compile(optimizer, "mse")
    trained.fit(X[:32], Y[:32], batch_size=4, verbose=0)
    return ran(optimizer, trained.weights, [2] * 8)


def apply_eagerly(cls: Any) -> Ran:
    optimizer = tracer.wrap(cls())
    variables = model(optimizer).trainable_variables
    for _ in range(3):
        optimizer.apply(ones(variables), variables)
    return ran(optimizer, variables, [4] * 3)


def runs(cls: Any) -> dict[str, Callable[[], Ran]]:
    """All of them, by name."""
    programs = (
        fit,
        run_eagerly,
        train_on_batch,
        accumulation,
        loss_scale,
        loss_scale_around_a_wrapped_optimizer,
        loss_scale_and_accumulation,
        moving_averages,
        a_frozen_layer,
        apply_eagerly,
    )
    return {program.__name__: partial(program, cls) for program in programs}
