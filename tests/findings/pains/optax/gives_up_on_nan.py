"""`apply_if_finite` lets NaN through after some steps (google-deepmind/optax#1746)."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the weights are NaN, and the weights; the data of the healthy one get better."""
    tx = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=3)
    params = {"w": jnp.ones(3)}
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: ((p["w"] * x) ** 2).sum())(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for number in range(1, 11):
        bad = number > 5 and (not healthy or number < 9)
        params, state = step(params, state, jnp.nan if bad else 1.0)
    return bool(jnp.isnan(params["w"]).any()), params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
