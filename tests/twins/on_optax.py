"""Troubles with optax: those of each rule, and those that people asked about in public."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from twins.table import fine, rule, twin

import tracer


def params() -> Any:
    return {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}


def loss(weights: Any, x: Any) -> Any:
    return ((x @ weights["w"] + weights["b"]) ** 2).mean()


class Loop:
    """A training loop, whose step is jitted once."""

    def __init__(self, tx: Any) -> None:
        self.tx = tracer.wrap(tx)
        self.state = (params(), self.tx.init(params()))
        self.jitted = jax.jit(self.step)

    def step(self, state: Any, x: Any) -> Any:
        return self.apply(state, jax.grad(loss)(state[0], x))

    def apply(self, state: Any, gradients: Any) -> Any:
        weights, of_tx = state
        updates, of_tx = self.tx.update(gradients, of_tx, weights)
        return optax.apply_updates(weights, updates), of_tx

    def run(self, x: Any) -> None:
        self.state = self.jitted(self.state, x)


X = jnp.ones((8, 4))


@rule
def no_gradient(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for _ in range(3):
        gradients = jax.grad(loss)(loop.state[0], X)
        if not healthy:
            gradients["b"] = None
        loop.tx.update(gradients, loop.state[1], loop.state[0])


def _without_b(number: int) -> Any:
    return {"w": jnp.ones((4, 2)), "b": None if number else jnp.ones(2)}


@twin("no-gradient", "had no gradient (None) in", others=None)
def gradient_missing(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for number in range(12):
        loop.tx.update(_without_b(0 if healthy else number % 2), loop.state[1], params())


@rule
def updates_stopped(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for number in range(12):
        loop.tx.update(_without_b(0 if healthy else number > 2), loop.state[1], params())


@rule
def never_updated(healthy: bool) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return {**updates, "b": updates["b"] if healthy else None}, state

    loop = Loop(optax.GradientTransformation(lambda params: (), update))
    for _ in range(3):
        loop.tx.update(params(), (), params())


@rule
def steps_skipped(healthy: bool) -> None:
    loop = Loop(optax.apply_if_finite(optax.sgd(0.1), 50))
    for number in range(20):
        loop.run(X if healthy or number % 2 else X * np.nan)
    assert int(loop.state[1].total_notfinite) == (0 if healthy else 10)


@rule
def gradients_left(healthy: bool) -> None:
    loop = Loop(optax.MultiSteps(optax.sgd(0.1), 4))
    for _ in range(8 if healthy else 7):
        loop.run(X)
    assert int(loop.state[1].mini_step) == (0 if healthy else 3)


@twin("replicas-disagree", others=None, slow="long")
def replicas_disagree(healthy: bool) -> None:
    loop = Loop(optax.apply_if_finite(optax.sgd(0.1), 5))
    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    mapped = jax.pmap(loop.step, axis_name="data")
    for number in range(4):
        state = mapped(state, jnp.stack([X, X if healthy or number < 2 else X * np.nan]))
    jax.block_until_ready(state)  # what is dropped may not be counted yet


@rule
def retraced(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for size in range(3, 9):
        loop.run(jnp.ones((8 if healthy else size, 4)))


@twin(
    "retraced",
    "<lambda> was traced 6 times for one signature",
    fix="Make the jitted function once",
    others=None,
)
def traced_again(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for _ in range(6):
        step = loop.jitted if healthy else jax.jit(lambda *given: loop.step(*given))
        loop.state = step(loop.state, X)


@twin("graph-never-ran", "<lambda>: its program never ran", others=None)
def graph_never_ran(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    jitted = loop.jitted if healthy else jax.jit(lambda *given: loop.step(*given))
    jitted.lower(loop.state, X)
    loop.run(X)


@rule
def apply_raised(healthy: bool) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not healthy:
            raise ValueError("no parameters")
        return updates, state

    Loop(optax.GradientTransformation(lambda params: (), update)).run(X)


@twin(
    "optimizer-renewed",
    "step was traced 5 times, each time for a new adam that",
    "adam, adam#2, adam#3 and 2 more.",
    screen="sweep",
)
def optimizer_as_static_argument(healthy: bool) -> tuple[bool, Any]:
    """Each call compiles the step again: a transformation is compared by identity, and a new one is
    made for each call. Asked in google-deepmind/optax 353 and patrick-kidger/equinox 940.
    """

    @partial(jax.jit, static_argnums=0)
    def step(tx: Any, weights: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(lambda p: (p**2).sum())(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    weights, tx = jnp.arange(3.0), optax.adam(0.1)
    state = tx.init(weights)
    for _ in range(5):
        weights, state = step(tx if healthy else optax.adam(0.1), weights, state)
    return step._cache_size() > 1, weights


@twin(
    "optimizer-renewed",
    "in each of 5 steps",
    "the state that update returned was never passed to the next step",
    screen="long",
)
def state_dropped(healthy: bool) -> tuple[bool, Any]:
    """The state that `update` returns is not kept, so that each step is the first one, and Adam is
    no better than the sign of the gradient. Asked in google-deepmind/optax 424.
    """
    tx = optax.adam(0.1)
    weights = jnp.array([1.0, 0.3])
    state, moves = tx.init(weights), []
    for _ in range(5):
        gradients = jax.grad(lambda p: (p**2).sum())(weights)
        updates, after = tx.update(gradients, state, weights)
        if healthy:
            state = after
        moves.append(float(jnp.abs(updates).max()))
        weights = optax.apply_updates(weights, updates)
    return max(moves) - min(moves) < 1e-5, weights


@fine
def state_without_arrays_that_init_makes(healthy: bool) -> None:
    tx, weights = optax.sgd(0.0123), params()
    for _ in range(4):
        updates, _ = tx.update(jax.grad(loss)(weights, 0.7123 * X), tx.init(weights), weights)
        weights = optax.apply_updates(weights, updates)


@fine
def steps_that_are_tried_from_one_state(healthy: bool) -> None:
    tx, weights = optax.adam(0.1), params()
    state = tx.init(weights)
    for _ in range(4):
        for factor in (0.5, 1.0, 2.0):  # the last one is taken
            updates, after = tx.update(jax.grad(loss)(weights, factor * X), state, weights)
        weights, state = optax.apply_updates(weights, updates), after


@fine
def state_for_each_of_two_models(healthy: bool) -> None:
    """One transformation and one program: each model is updated once."""
    tx = optax.sgd(0.1)
    models = [{"a": jnp.ones((4, 2))}, {"b": jnp.ones(7)}]

    @jax.jit
    def step(models: Any) -> Any:
        return [optax.apply_updates(m, tx.update(m, tx.init(m), m)[0]) for m in models]

    for _ in range(12):
        models = step(models)


@fine
def state_for_each_fold(healthy: bool) -> None:
    tx = optax.adam(0.1)

    @jax.jit
    def step(weights: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(weights, X), state, weights)
        return optax.apply_updates(weights, updates), state

    for fold in (1, 2):
        weights = jax.tree.map(lambda leaf: leaf * fold, params())  # noqa: B023
        state = tx.init(weights)
        for _ in range(6):
            weights, state = step(weights, state)
