"""Adam is no better than the sign of the gradient (google-deepmind/optax#424).

The state that `update` returns is not kept, so that each step is the first one.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether each step was as long as the first one, and the weights."""
    tx = optax.adam(0.1)
    params = jnp.array([1.0, 0.3])
    state, moves = tx.init(params), []
    for _ in range(8):
        updates, after = tx.update(jax.grad(lambda p: (p**2).sum())(params), state, params)
        if healthy:
            state = after
        moves.append(float(jnp.abs(updates).max()))
        params = optax.apply_updates(params, updates)
    return max(moves) - min(moves) < 1e-5, params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
