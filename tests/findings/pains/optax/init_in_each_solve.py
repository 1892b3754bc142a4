"""Training in parts is worse than at once (pyro-ppl/numpyro#300).

Each part makes the state anew for weights that were trained, so that moments and count are lost.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

RANDOM = np.random.default_rng(3)
X = jnp.asarray(RANDOM.normal(size=(16, 3)), "float32")
Y = jnp.asarray(RANDOM.normal(size=(16, 1)), "float32")
SOLVES, STEPS = 4, 10


def fresh(seed: int) -> Any:
    """New weights."""
    kernel = jax.random.normal(jax.random.key(seed), (3, 1))
    return {"kernel": kernel, "bias": jnp.zeros(1)}


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the count was lost, and the weights; the healthy one trains folds of new weights."""
    tx = optax.adam(0.05)

    def loss(params: Any) -> Any:
        return ((X @ params["kernel"] + params["bias"] - Y) ** 2).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params, begun_again = fresh(0), 0
    for solve in range(SOLVES):
        if healthy:
            params = fresh(solve)
        begun_again += bool(jnp.any(params["bias"] != 0))
        state = tx.init(params)
        for _ in range(STEPS):
            params, state = step(params, state)
    return begun_again > 0, params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
