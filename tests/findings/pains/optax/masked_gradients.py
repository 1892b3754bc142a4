"""The gradients of a frozen layer are multiplied by 0, and weight decay moves it all the same.

As in https://github.com/huggingface/diffusers/issues/1009, which is about PyTorch.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
TRAINED = {"base": 0.0, "head": 1.0}


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the base moved, and the weights."""
    params = {"base": jnp.full((3, 2), 0.5), "head": jnp.full((2, 1), 0.5)}
    base = params["base"]
    tx = optax.adamw(0.01, weight_decay=0.1)
    if healthy:
        labels = {"base": "frozen", "head": "trained"}
        tx = optax.partition({"trained": tx, "frozen": optax.set_to_zero()}, labels)
    state = tx.init(params)

    def loss(params: Any) -> Any:
        return ((X @ params["base"] @ params["head"] - 1.0) ** 2).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        gradients = jax.tree.map(jnp.multiply, jax.grad(loss)(params), TRAINED)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(20):
        params, state = step(params, state)
    return bool(jnp.any(params["base"] != base)), params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
