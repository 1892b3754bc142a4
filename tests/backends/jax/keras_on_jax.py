"""What the tests of Keras on JAX train: an optimizer whose weights count, and a small model."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

X = np.random.default_rng(1).random((34, 4), "float32")
Y = np.random.default_rng(2).random((34, 1), "float32")
VARIABLES = ("a/kernel", "a/bias", "b/kernel", "b/bias")


class Odometer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adds exactly 1 to a weight each time that it is updated."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"learning_rate": 1.0, "name": "odometer", **kwargs})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(variable, keras.ops.ones(variable.shape, variable.dtype))


class OwnOdometer(Odometer):
    """The same, where under `vmap` each member has its own gradient, and so its own weight."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        one = keras.ops.ones(variable.shape, variable.dtype)
        self.assign_add(variable, keras.ops.where(gradient > 0, one, one))


def model(optimizer: Any, **kwargs: Any) -> Any:
    """A compiled model of four variables, which begin at 0."""
    zeros = {"kernel_initializer": "zeros"}
    layers = [keras.layers.Dense(4, name="a", **zeros), keras.layers.Dense(1, name="b", **zeros)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    made.compile(optimizer, "mse", **kwargs)
    return made


class Loop:
    """A loop of the program's own, without `fit`: its state is not in the variables."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.model = optimizer, model(optimizer)
        optimizer.build(self.model.trainable_variables)
        weights = [jnp.array(each.value) for each in self.model.trainable_variables]
        self.state: Any = (weights, [jnp.array(each.value) for each in optimizer.variables])

    def step(self, state: Any, x: Any, y: Any) -> Any:
        """One step of stochastic gradient descent."""
        weights, of_optimizer = state
        gradients = jax.grad(self.loss)(weights, x, y)
        return self.optimizer.stateless_apply(of_optimizer, gradients, weights)

    def loss(self, weights: Any, x: Any, y: Any) -> Any:
        """The mean square error."""
        out, _ = self.model.stateless_call(weights, [], x)
        return ((out - y) ** 2).mean()
