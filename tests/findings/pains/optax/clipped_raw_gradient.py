"""A bias is masked to freeze it, and moves by its clipped gradient (google-deepmind/optax#159)."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the bias moved, and the weights."""
    params = {"kernel": jnp.full((3, 1), 0.5), "bias": jnp.ones(1)}
    masked = optax.masked(optax.adam(0.1), {"kernel": True, "bias": False})
    frozen = optax.masked(optax.set_to_zero(), {"kernel": False, "bias": True})
    tx = optax.chain(optax.clip_by_global_norm(0.5), masked, *([frozen] if healthy else []))
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
