"""What the tests of Keras on JAX train besides `keras_programs`: a loop of the program's own."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
from truth.keras_programs import Odometer as Odometer, X as X, Y as Y, model as model


class OwnOdometer(Odometer):
    """The same, where under `vmap` each member has its own gradient, and so its own weight."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        one = keras.ops.ones(variable.shape, variable.dtype)
        self.assign_add(variable, keras.ops.where(gradient > 0, one, one))


class Loop:
    """A loop of the program's own, without `fit`: its state is not in the variables."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.model = optimizer, model(optimizer)
        optimizer.build(self.model.trainable_variables)
        weights = [jnp.array(each.value) for each in self.model.trainable_variables]
        self.state: Any = (weights, [jnp.array(each.value) for each in optimizer.variables])
        self.batch = X[:8], Y[:8]

    def step(self, state: Any, x: Any, y: Any) -> Any:
        """One step of stochastic gradient descent."""
        weights, of_optimizer = state
        gradients = jax.grad(self.loss)(weights, x, y)
        return self.optimizer.stateless_apply(of_optimizer, gradients, weights)

    def loss(self, weights: Any, x: Any, y: Any) -> Any:
        """The mean square error."""
        out, _ = self.model.stateless_call(weights, [], x)
        return ((out - y) ** 2).mean()
