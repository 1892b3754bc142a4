"""A mask of weight decay that says what to leave out (huggingface/transformers#11936).

`optax.adamw(mask=...)` wants True for what is to decay.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def train(healthy: bool) -> tuple[bool, Any]:
    """Whether the biases decayed, and the weights."""
    params = {"kernel": jnp.full((3, 2), 0.5), "bias": jnp.ones(2), "scale": jnp.ones(2)}

    def mask(tree: Any) -> Any:
        return jax.tree.map(lambda each: each.ndim > 1 if healthy else each.ndim < 2, tree)

    tx = optax.adamw(0.1, weight_decay=0.1, mask=mask)
    state = tx.init(params)

    def loss(params: Any) -> Any:
        return ((X @ params["kernel"] * params["scale"]) ** 2).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(5):
        params, state = step(params, state)
    return bool((params["bias"] != 1.0).any()), params


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
