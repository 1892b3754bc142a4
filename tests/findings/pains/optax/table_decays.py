"""A fixed table is a leaf of the parameters behind stop_gradient, and weight decay shrinks it.

https://github.com/extropic-ai/sparse-transformers/pull/3
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

X = jnp.linspace(-1.0, 1.0, 24).reshape(2, 4, 3)


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the table moved, and the weights."""
    table = jnp.sin(jnp.arange(12.0).reshape(4, 3))
    params = {"kernel": jnp.full((3, 1), 0.5), "table": table}
    mask = {"kernel": True, "table": False} if healthy else None
    tx = optax.adamw(0.01, weight_decay=0.1, mask=mask)
    state = tx.init(params)

    def loss(params: Any) -> Any:
        placed = X + jax.lax.stop_gradient(params["table"])
        return ((placed @ params["kernel"] - 1.0) ** 2).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(20):
        params, state = step(params, state)
    return bool(jnp.any(params["table"] != table)), params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
