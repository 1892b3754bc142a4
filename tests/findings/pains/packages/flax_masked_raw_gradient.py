"""`optax.masked` passes the gradient of what it masks on as it is (optax 159)."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import TrainState


class Net(linen.Module):  # type: ignore[misc]
    @linen.compact
    def __call__(self, x: jax.Array) -> Any:
        return linen.Dense(1, name="head")(linen.tanh(linen.Dense(3, name="body")(x)))


@jax.jit
def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        return ((state.apply_fn({"params": params}, x) - 1.0) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def train(healthy: bool) -> bool:
    model, x = Net(), jnp.ones((4, 3))
    params = model.init(jax.random.key(0), x)["params"]
    of_head = {part: jax.tree.map(lambda _, p=part: p == "head", params[part]) for part in params}
    transformation = optax.masked(optax.adam(0.01), of_head)
    if healthy:
        of_body = jax.tree.map(lambda masked: not masked, of_head)
        transformation = optax.chain(transformation, optax.masked(optax.set_to_zero(), of_body))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=transformation)
    for _ in range(10):
        state, loss = step(state, x)
    print(float(loss))
    return bool((state.params["body"]["kernel"] != params["body"]["kernel"]).any())


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
