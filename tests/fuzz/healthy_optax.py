"""Healthy programs for optax: a transformation, what is around it, and a loop; none wraps any."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from fuzz.healthy import drawn, said

import tracer

STEPS = 8
PARAMS = {
    "body": {"kernel": jnp.ones((3, 4)) / 3, "bias": jnp.zeros(4) + 0.1},
    "norm": {"scale": jnp.ones(4)},
    "head": {"kernel": jnp.ones((4, 2)) / 4, "bias": jnp.zeros(2) + 0.1},
}
MATRICES = jax.tree.map(lambda leaf: leaf.ndim > 1, PARAMS)
OF_HEAD = {part: jax.tree.map(lambda _, p=part: p == "head", PARAMS[part]) for part in PARAMS}
LABELS = jax.tree.map(lambda train: "train" if train else "freeze", OF_HEAD)

BASES: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "adam": optax.adam,
    "adamw of matrices": lambda rate: optax.adamw(rate, mask=MATRICES),
    "by hand": lambda rate: optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(1e-3), optax.scale_by_learning_rate(rate)
    ),
    "injected": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate),
}
RATES: dict[str, Any] = {
    "a number": 0.05,
    "cosine": optax.cosine_decay_schedule(0.05, STEPS),
    "warmup": optax.warmup_cosine_decay_schedule(0.01, 0.05, 2, STEPS),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tx: tx,
    "clip": lambda tx: optax.chain(optax.clip_by_global_norm(1.0), tx),
    "accumulates": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "if finite": lambda tx: optax.apply_if_finite(tx, 3),
    "of the head": lambda tx: optax.partition({"train": tx, "freeze": optax.set_to_zero()}, LABELS),
    "masked": lambda tx: optax.chain(
        optax.masked(tx, OF_HEAD),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda train: not train, OF_HEAD)),
    ),
    "two rates": lambda tx: optax.partition({"train": tx, "freeze": optax.sgd(0.01)}, LABELS),
}
LOOPS = ("jit", "eager", "scan", "fori", "each fold", "members")
WAYS: dict[str, Any] = {"base": BASES, "rate": RATES, "around": AROUND, "loop": LOOPS}


def loss(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"])
    hidden = hidden * params["norm"]["scale"]
    return ((hidden @ params["head"]["kernel"] + params["head"]["bias"] - 0.7) ** 2).mean()


def run(program: dict[str, str], seed: int) -> int:
    """How many steps it made of the transformation that it makes."""
    loop = program["loop"]
    tx = AROUND[program["around"]](BASES[program["base"]](RATES[program["rate"]]))
    batches = jax.random.normal(jax.random.key(seed), (STEPS, 5, 3))
    made = 0

    def step(carry: Any, x: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, x)
        updates, state = tx.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    fast = step if loop == "eager" else jax.jit(step)
    carry = PARAMS, tx.init(PARAMS)
    if loop == "scan":
        jax.jit(lambda carry: jax.lax.scan(step, carry, batches))(carry)
        return STEPS
    if loop == "fori":
        jax.jit(lambda c: jax.lax.fori_loop(0, STEPS, lambda i, c: step(c, batches[i])[0], c))(
            carry
        )
        return STEPS
    if loop == "members":
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), PARAMS)
        carry = many, jax.vmap(tx.init)(many)
        fast = jax.jit(jax.vmap(step, in_axes=(0, None)))
    for fold in range(2 if loop == "each fold" else 1):
        if fold:
            start = jax.tree.map(lambda leaf: 1.1 * leaf, PARAMS)
            carry = start, tx.init(start)
        for x in batches:
            carry, _ = fast(carry, x)
            made += 1
    return made


def check(seed: int) -> list[str]:
    """What is said of a program."""
    program = drawn(WAYS, seed)
    with tracer.record() as recording:
        made = run(program, seed)
    found = said(recording.trace(), made)
    jax.clear_caches()
    return [str(program), *found] if found else []
