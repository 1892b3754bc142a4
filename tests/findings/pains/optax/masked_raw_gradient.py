"""A bias is masked to freeze it, and moves away all the same (google-deepmind/optax#159).

`optax.masked` leaves out what the mask says, and passes on the gradient of it as it is.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the bias moved, and the weights."""
    params = {"kernel": jnp.full((3, 1), 0.5), "bias": jnp.ones(1)}
    tx = optax.masked(optax.sgd(0.1), {"kernel": True, "bias": False})
    if healthy:
        frozen = optax.masked(optax.set_to_zero(), {"kernel": False, "bias": True})
        tx = optax.chain(tx, frozen)
    state = tx.init(params)

    def loss(params: Any) -> Any:
        return ((X @ params["kernel"] + params["bias"]) ** 2).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(5):
        params, state = step(params, state)
    return bool(params["bias"] != 1.0), params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
