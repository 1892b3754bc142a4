"""What it costs to compare the variables of Keras on JAX before and after each step.

    KERAS_BACKEND=jax python benchmarks/jax_effects.py            # 5 minutes, 1 GB
    KERAS_BACKEND=jax python benchmarks/jax_effects.py --quick    # only what is held

A traced optimizer beside one that is traced with effects; `again` is a second one without. The
gradients are there from the start, so the step is the update alone: nothing hides what is added.
"""

import argparse
import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import bench
import jax
import jax.numpy as jnp
import jax_steps
import keras
import numpy as np

import tracer

ROUNDS = 12
MATRICES = 10
SMALL = {2: 400, 20: 200, 100: 60}
"""How many steps are a sample, by the number of variables of 8 x 8."""
OPTIMIZERS = {"SGD": keras.optimizers.SGD, "Adam": keras.optimizers.Adam}

Update = tuple[Any, tuple[Any, Any], Any]
"""A step, the state that it is given and gives back, and the gradients."""


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What is held while a step runs; and what is added to it."""
    head = ["weights, bytes", "held, if the state is donated", "held, if it is not"]
    sizes = [
        [f"{4 * count:,}", *(f"{held(count, donated=each):,}" for each in (True, False))]
        for count in (10**3, 10**5)
    ]
    yield bench.table(head, sizes, left=0)
    if arguments.quick:
        return
    head = ["time of", "ms a step", "again: added, us", "effects: added, us", "ratio"]
    rows: list[list[object]] = []
    for number, steps in SMALL.items():
        for cells in cost("Adam", number, (8, 8), steps):
            rows.append(["Adam", number, f"{64 * number:,}", *cells])
    for name in OPTIMIZERS:
        for weights in (10**6, 10**7):
            for cells in cost(name, MATRICES, shape_of(weights), max(2, 10**7 // weights)):
                rows.append([name, MATRICES, f"{weights:,}", *cells])
    yield bench.table(["optimizer", "variables", "weights", *head], rows)


def shape_of(weights: int) -> tuple[int, int]:
    """The shape of each of the matrices that so many weights are in."""
    rows = math.isqrt(weights // MATRICES)
    return rows, weights // MATRICES // rows


def held(weights: int, *, donated: bool) -> int:
    """How many bytes more a program holds while it runs, for the effects of so many weights."""
    bytes_of = []
    for effects in (False, True):
        step, state, gradients = update_of("SGD", MATRICES, (weights // MATRICES,), effects=effects)
        jitted = jax.jit(step, donate_argnums=(0, 1) if donated else ())
        memory: Any = jitted.lower(*state, gradients).compile().memory_analysis()
        bytes_of.append(memory.temp_size_in_bytes)
    return int(bytes_of[1] - bytes_of[0])


def cost(name: str, number: int, shape: tuple[int, ...], steps: int) -> Iterator[list[str]]:
    """The last cells of two rows, one for each clock."""

    def make(effects: bool) -> jax_steps.Steps:
        return jax_steps.Steps(*update_of(name, number, shape, effects=effects))

    makes = {arm: partial(make, arm == "effects") for arm in ("traced", "again", "effects")}
    for clock, taken in jax_steps.measured(makes, steps, ROUNDS).items():
        yield [
            clock,
            f"{1e3 * bench.spread(taken['traced']).median:.2f}",
            bench.added(taken, "again", "traced").text(0),
            bench.added(taken, "effects", "traced").text(0),
            bench.ratios(taken, "effects", "traced").text(2),
        ]


def update_of(name: str, number: int, shape: tuple[int, ...], *, effects: bool) -> Update:
    """The update of so many variables, each of which has a gradient."""
    variables = [keras.Variable(np.zeros(shape, "float32")) for _ in range(number)]
    optimizer: Any = tracer.wrap(OPTIMIZERS[name](0.001), effects=effects)
    optimizer.build(variables)

    def step(weights: Any, slots: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(slots, gradients, weights)

    weights, slots = (
        [jnp.array(each.value) for each in of] for of in (variables, optimizer.variables)
    )
    return step, (weights, slots), [jnp.ones(shape) for _ in range(number)]


if __name__ == "__main__":
    bench.run(__doc__, tables)
