"""Ways to train with Keras that JAX alone has: programs, loops in them, members and devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
from backends.jax.keras_on_jax import Loop, OwnOdometer
from jax import lax
from support.jax_ways import WAYS, Way, summed, two_devices
from support.ran import Ran, programs_in
from truth.keras_programs import Odometer, X, Y, fitted, model, moved, not_finite, scaled

import tracer


def steps_per_execution() -> Ran:
    return fitted(Odometer(), [4] * 10, epochs=2, steps_per_execution=3)


def without_compiling() -> Ran:
    return fitted(Odometer(), [4] * 5, jit_compile=False)


def accumulation_eagerly() -> Ran:
    optimizer = Odometer(gradient_accumulation_steps=2)
    run = fitted(optimizer, [0, 4], X[:16], run_eagerly=True)
    return run._replace(discarded=4)


def loss_scale_without_compiling() -> Ran:
    """Python runs the steps, and JAX the branch in them."""
    per_step = [4, 4, 4, 0, 4, 0, 4, 4]
    return fitted(scaled(Odometer()), per_step, not_finite(), jit_compile=False)


def in_a_loop(way: Way) -> Ran:
    loop = Loop(tracer.wrap(Odometer()))
    return came_to(loop, way.weights(loop), way.per_step(4), copies=way.copies, times=way.members)


def came_to(loop: Loop, weights: Any, per_step: list[int], **known: Any) -> Ran:
    """What ran, where the state of the loop has these weights."""
    paths = [each.path for each in loop.model.trainable_variables]
    weights = dict(zip(paths, moved(weights), strict=True))
    return Ran(loop.optimizer, per_step, weights, **known)


def members_that_share_a_count() -> Ran:
    """Each member begins with the same state, so the optimizer's own count is one for all."""
    loop = Loop(tracer.wrap(OwnOdometer(gradient_accumulation_steps=2)))

    def train(scale: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            return loop.step(state, X[:8] * scale, Y[:8]), None

        return lax.scan(body, loop.state, None, length=4)[0]

    weights, _ = summed(jax.jit(jax.vmap(train))(jnp.arange(3.0)), 3)
    return came_to(loop, weights, [0, 12, 0, 12], discarded=24, times=3)


def spread(distribution: Any, shard: tuple[int, ...] = (4, 4)) -> Ran:
    """What is fitted under a distribution, with a kernel of 4 x 4 of which each device has this."""
    keras.distribution.set_distribution(distribution)
    try:
        kernel = model("sgd").trainable_variables[0].value
        assert [each.data.shape for each in kernel.addressable_shards] == [shard] * 2
        return fitted(Odometer(), [4] * 8, X[:32])
    finally:
        keras.distribution.set_distribution(None)


def data_parallel() -> Ran:
    """One program for two devices: an update of a variable is one, wherever it is kept."""
    two_devices()
    devices = keras.distribution.list_devices()
    return spread(keras.distribution.DataParallel(devices=devices))


def model_parallel() -> Ran:
    two_devices()
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*a/kernel"] = (None, "model")
    return spread(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"), (4, 2)
    )


RUNS = programs_in(globals()) | {name: partial(in_a_loop, way) for name, way in WAYS.items()}
