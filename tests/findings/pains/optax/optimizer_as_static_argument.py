"""Each call compiles the step again (google-deepmind/optax#353, patrick-kidger/equinox#940).

The transformation is a static argument, which `jax.jit` compares by identity, and a new one is made
for each call.
"""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax


@partial(jax.jit, static_argnums=0)
def step(tx: Any, params: Any, state: Any) -> Any:
    """One step on a bowl."""
    updates, state = tx.update(jax.grad(lambda p: (p**2).sum())(params), state, params)
    return optax.apply_updates(params, updates), state


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the step was compiled more than once, and the weights."""
    step.clear_cache()
    params, tx = jnp.arange(3.0), optax.adam(0.1)
    state = tx.init(params)
    for _ in range(8):
        params, state = step(tx if healthy else optax.adam(0.1), params, state)
    return step._cache_size() > 1, params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
