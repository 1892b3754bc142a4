"""A jitted step of Keras on JAX beside the same step untraced, and beside `jax.debug.callback`.

    KERAS_BACKEND=jax python benchmarks/keras_on_jax.py

`again` is a second untraced step: what it differs by is the machine. The callback is called once a
step, as the tracer is, and does nothing but count. With `--quick` only what was counted is printed.
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import bench
import jax
import jax.numpy as jnp
import jax_steps
import keras
import numpy as np

import tracer

SIZES = {2: 400, 20: 200, 100: 60}
"""How many steps are a sample, by the number of variables."""

ROUNDS = 24


class Arm:
    """A step with variables of its own."""

    def __init__(self, variables: int, name: str) -> None:
        held = [keras.Variable(np.zeros((8, 8), "float32")) for _ in range(variables)]
        self.optimizer = keras.optimizers.Adam(0.001)
        if name == "tracer":
            tracer.wrap(self.optimizer)
        self.optimizer.build(held)
        self.called = 0

        def step(weights: Any, slots: Any, gradients: Any) -> Any:
            weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
            if name == "jax.debug.callback":
                jax.debug.callback(self._call, slots[0])
            return weights, slots

        weights, slots = (
            [jnp.array(each.value) for each in of] for of in (held, self.optimizer.variables)
        )
        gradients = [jnp.ones((8, 8)) for _ in range(variables)]
        self.steps = jax_steps.Steps(step, (weights, slots), gradients)

    def _call(self, _: Any) -> None:
        self.called += 1


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """A row for each number of variables and each arm."""
    rows, counted = [], []
    for variables, steps in SIZES.items():
        names = ("plain", "again", "tracer", "jax.debug.callback")
        arms = {name: Arm(variables, name) for name in names}
        for arm in arms.values():
            arm.steps.run(steps)  # compiles
        if not arguments.quick:
            samples = {n: a.steps.sample(steps, time.perf_counter) for n, a in arms.items()}
            taken = bench.interleaved(samples, ROUNDS)
            us = 1e6 * bench.spread(taken["plain"]).median
            cells = [bench.added(taken, name, "plain").text(0) for name in names[1:]]
            rows.append([variables, f"{us:.0f}", *cells])
        traced = arms["tracer"]
        updates = tracer.trace_of(traced.optimizer).updates()
        counted.append([variables, f"{updates:,}", f"{variables * traced.steps.number:,}"])
    if rows:
        heads = ("again", "tracer", "`jax.debug.callback`")
        header = ["variables", "us a step", *(f"{each}: added, us" for each in heads)]
        yield bench.table(header, rows, left=0)
    yield bench.table(["variables", "updates seen", "updates"], counted, left=0)


if __name__ == "__main__":
    bench.run(__doc__, tables)
