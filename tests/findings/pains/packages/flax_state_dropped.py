"""The new state is dropped: each step begins from the same weights and moments (optax 424)."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import TrainState


@jax.jit
def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        return (state.apply_fn(params, x) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def train(healthy: bool) -> bool:
    model, x = linen.Dense(2), jnp.ones((4, 3))
    start = model.init(jax.random.key(0), x)
    state = TrainState.create(apply_fn=model.apply, params=start, tx=optax.adam(0.1))
    for _ in range(20):
        new, loss = step(state, x)
        state = new if healthy else state
    print(float(loss))
    return int(state.step) == 0


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
