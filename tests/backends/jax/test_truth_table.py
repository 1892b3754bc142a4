"""Keras 3 on JAX, however it is run: each count against weights that count by themselves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from backends.jax.keras_on_jax import Loop, OwnOdometer
from backends.keras_programs import (
    Odometer,
    Run,
    X,
    Y,
    check,
    fitted,
    moved,
    not_finite,
    runs,
    scaled,
)
from jax import lax

import tracer

P = jax.sharding.PartitionSpec


def steps_per_execution() -> Run:
    return fitted(Odometer(), [4] * 10, epochs=2, steps_per_execution=3)


def without_compiling() -> Run:
    return fitted(Odometer(), [4] * 5, jit_compile=False)


def accumulation_eagerly() -> Run:
    optimizer = Odometer(gradient_accumulation_steps=4)
    run = fitted(optimizer, [0, 0, 0, 4] * 2, X[:32], run_eagerly=True)
    return run._replace(discarded=6 * 4)


def loss_scale_without_compiling() -> Run:
    """Python runs the steps, and JAX the branch in them."""
    per_step = [4, 4, 4, 0, 4, 0, 4, 4]
    return fitted(scaled(Odometer()), per_step, not_finite(), jit_compile=False)


def looped(run: Callable[[Loop], Any], per_step: list[int], copies: int = 1) -> Run:
    loop = Loop(tracer.wrap(Odometer()))
    weights, _ = run(loop)
    return came_to(loop, weights, per_step, copies=copies)


def came_to(loop: Loop, weights: Any, per_step: list[int], **known: int) -> Run:
    """What ran, where the state of the loop has these weights."""
    paths = [each.path for each in loop.model.trainable_variables]
    return Run(loop.optimizer, dict(zip(paths, moved(weights), strict=True)), per_step, **known)


def jitted_step() -> Run:
    def run(loop: Loop) -> Any:
        step = jax.jit(loop.step, donate_argnums=0)
        for _ in range(7):
            loop.state = step(loop.state, X[:8], Y[:8])
        return loop.state

    return looped(run, [4] * 7)


def compiled_ahead() -> Run:
    def run(loop: Loop) -> Any:
        step = jax.jit(loop.step).lower(loop.state, X[:8], Y[:8]).compile()
        for _ in range(4):
            loop.state = step(loop.state, X[:8], Y[:8])
        return loop.state

    return looped(run, [4] * 4)


def batches() -> tuple[Any, Any]:
    return X[:32].reshape(8, 4, 4), Y[:32].reshape(8, 4, 1)


def scan() -> Run:
    def run(loop: Loop) -> Any:
        def epoch(state: Any, x: Any, y: Any) -> Any:
            return lax.scan(lambda s, batch: (loop.step(s, *batch), None), state, (x, y))[0]

        for _ in range(3):
            loop.state = jax.jit(epoch)(loop.state, *batches())
        return loop.state

    return looped(run, [4] * 24)


def cond_in_scan() -> Run:
    """Every third batch is trained on."""

    def run(loop: Loop) -> Any:
        def body(state: Any, batch: Any) -> Any:
            x, y, number = batch
            wanted = number % 3 == 0
            return lax.cond(wanted, lambda: loop.step(state, x, y), lambda: state), None

        def epoch(state: Any, x: Any, y: Any) -> Any:
            return lax.scan(body, state, (x, y, jnp.arange(8)))[0]

        for _ in range(3):
            loop.state = jax.jit(epoch)(loop.state, *batches())
        return loop.state

    return looped(run, [4] * 9)


def switch() -> Run:
    """None, one or two steps in turn."""

    def run(loop: Loop) -> Any:
        def step(state: Any, number: Any, x: Any, y: Any) -> Any:
            def twice(s: Any) -> Any:
                return loop.step(loop.step(s, x, y), x, y)

            return lax.switch(number, [lambda s: s, lambda s: loop.step(s, x, y), twice], state)

        compiled = jax.jit(step)
        for number in range(6):
            loop.state = compiled(loop.state, number % 3, X[:8], Y[:8])
        return loop.state

    return looped(run, [4] * 6)


def while_loop() -> Run:
    def run(loop: Loop) -> Any:
        def steps(state: Any, wanted: Any, x: Any, y: Any) -> Any:
            return lax.while_loop(
                lambda s: s[1] < wanted, lambda s: (loop.step(s[0], x, y), s[1] + 1), (state, 0)
            )[0]

        compiled = jax.jit(steps)
        for wanted in (3, 0, 5, 1):
            loop.state = compiled(loop.state, wanted, X[:8], Y[:8])
        return loop.state

    return looped(run, [4] * 9)


def ensemble() -> Run:
    """Three members in one program: a step is one step, with three updates of each variable."""

    def run(loop: Loop) -> Any:
        state = jax.tree.map(lambda each: jnp.stack([each] * 3), loop.state)
        step = jax.jit(jax.vmap(loop.step, in_axes=(0, None, None)))
        for _ in range(5):
            state = step(state, X[:8], Y[:8])
        return by_copy(state, 3)

    return looped(run, [12] * 5)


def ensemble_without_jit() -> Run:
    def run(loop: Loop) -> Any:
        state = jax.tree.map(lambda each: jnp.stack([each] * 3), loop.state)
        for _ in range(2):
            state = jax.vmap(loop.step, in_axes=(0, None, None))(state, X[:8], Y[:8])
        return by_copy(state, 3)

    return looped(run, [12] * 2)


def members_that_share_a_count() -> Run:
    """Each member begins with the same state, so the optimizer's own count is one for all."""
    loop = Loop(tracer.wrap(OwnOdometer(gradient_accumulation_steps=2)))

    def train(scale: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            return loop.step(state, X[:8] * scale, Y[:8]), None

        return lax.scan(body, loop.state, None, length=4)[0]

    weights, _ = by_copy(jax.jit(jax.vmap(train))(jnp.arange(3.0)), 3)
    return came_to(loop, weights, [0, 12, 0, 12], discarded=24)


def differentiated_loop() -> Run:
    """JAX takes out of a loop what does not depend on what is differentiated."""

    def run(loop: Loop) -> Any:
        def trained(x: Any, state: Any) -> Any:
            def body(state: Any, _: Any) -> Any:
                return loop.step(state, x, Y[:8]), None

            state = lax.scan(body, state, None, length=3)[0]
            return loop.loss(state[0], x, Y[:8]), state

        derived = jax.jit(jax.grad(trained, has_aux=True))
        for _ in range(2):
            loop.state = derived(X[:8], loop.state)[1]
        return loop.state

    return looped(run, [4] * 6)


def by_copy(state: Any, copies: int) -> Any:
    """The state with the weights of all copies summed, as if they were updates of one."""
    weights, of_optimizer = state
    return [np.asarray(each).reshape(copies, -1).sum(0) for each in weights], of_optimizer


def pmap() -> Run:
    def run(loop: Loop) -> Any:
        state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
        step = jax.pmap(loop.step, axis_name="data")
        for _ in range(5):
            state = step(state, X[:16].reshape(2, 8, 4), Y[:16].reshape(2, 8, 1))
        return by_copy(state, 2)

    return looped(run, [4] * 5, copies=2)


def shard_map() -> Run:
    """Each of two devices has the whole state, and updates it: two updates."""

    def run(loop: Loop) -> Any:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
        specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P()}
        if hasattr(jax, "shard_map"):
            mapped = jax.shard_map(loop.step, mesh=mesh, check_vma=False, **specs)
        else:  # before JAX 0.7
            from jax.experimental.shard_map import shard_map as older

            mapped = older(loop.step, mesh=mesh, check_rep=False, **specs)
        step = jax.jit(mapped)
        for _ in range(5):
            loop.state = step(loop.state, X[:16], Y[:16])
        weights, of_optimizer = loop.state
        return [2 * np.asarray(each) for each in weights], of_optimizer

    return looped(run, [4] * 5, copies=2)


def spread(distribution: Any) -> Run:
    keras.distribution.set_distribution(distribution)
    try:
        return fitted(Odometer(), [4] * 8, X[:32])
    finally:
        keras.distribution.set_distribution(None)


def data_parallel() -> Run:
    """One program for two devices: an update of a variable is one, wherever it is kept."""
    devices = keras.distribution.list_devices()
    return spread(keras.distribution.DataParallel(devices=devices))


def model_parallel() -> Run:
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*a/kernel"] = (None, "model")
    return spread(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))


OWN = [
    steps_per_execution,
    without_compiling,
    accumulation_eagerly,
    loss_scale_without_compiling,
    jitted_step,
    compiled_ahead,
    scan,
    cond_in_scan,
    switch,
    while_loop,
    ensemble,
    ensemble_without_jit,
    members_that_share_a_count,
    *([differentiated_loop] if jax.__version_info__ >= (0, 8) else []),
    pmap,
    shard_map,
    data_parallel,
    model_parallel,
]
RUNS: dict[str, Callable[[], Run]] = runs(Odometer) | {each.__name__: each for each in OWN}


@pytest.mark.parametrize("name", RUNS)
def test_counts_are_those_of_the_weights(name: str) -> None:
    check(RUNS[name]())
