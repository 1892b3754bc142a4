"""A jitted step of Keras on JAX beside the same step untraced, and beside `jax.debug.callback`.

    KERAS_BACKEND=jax python benchmarks/keras_on_jax.py            # 5 minutes; needs valgrind
    KERAS_BACKEND=jax python benchmarks/keras_on_jax.py --quick    # only what was counted

`again` is a second untraced step: what it differs by is the machine. The callback is called once a
step, as the tracer is, and does nothing but count. Instructions are counted by
`valgrind --tool=callgrind`, of a step that is computed before the call of it returns.
"""

import argparse
import os
import sys
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

SIZES = {2: 400, 20: 200, 100: 60}
"""How many steps are a sample, by the number of variables."""

ROUNDS = 12
ARMS = ("plain", "again", "tracer", "jax.debug.callback")


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
    """Rows for each number of variables; with `quick` only of what was counted."""
    if arguments.instructed:
        instructed()
        sys.exit()
    rows, counted = [], []
    for variables, steps in SIZES.items():
        traced: list[Arm] = []

        def make(name: str, of: int = variables, made: list[Arm] = traced) -> jax_steps.Steps:
            arm = Arm(of, name)
            if name == "tracer":
                made.append(arm)
            return arm.steps

        if arguments.quick:
            make("tracer").run(steps)
        else:
            makes = {name: partial(make, name) for name in ARMS}
            for clock, taken in jax_steps.measured(makes, steps, ROUNDS).items():
                us = 1e6 * bench.spread(taken["plain"]).median
                cells = [bench.added(taken, name, "plain").text(0) for name in ARMS[1:]]
                rows.append([clock, variables, f"{us:.0f}", *cells])
        updates = sum(tracer.trace_of(arm.optimizer).updates() for arm in traced)
        expected = sum(variables * arm.steps.number for arm in traced)
        counted.append([variables, f"{updates:,}", f"{expected:,}"])
    if rows:
        heads = ("again", "tracer", "`jax.debug.callback`")
        header = ["time of", "variables", "us a step", *(f"{each}: added, us" for each in heads)]
        rows.sort(key=lambda row: list(jax_steps.CLOCKS).index(str(row[0])))
        yield bench.table(header, rows)
        yield bench.table(["variables", "instructions of a step", "added"], instructions(), left=0)
    yield bench.table(["variables", "updates seen", "updates"], counted, left=0)


def instructions() -> Iterator[list[Any]]:
    """The rows of instructions."""
    counts = iter(bench.instructions())
    for variables in SIZES:
        plain, traced = next(counts), next(counts)
        yield [variables, f"{plain:,}", f"{traced - plain:,}"]


def instructed() -> None:
    """What runs under valgrind."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    bench.count_instructions(
        partial(Arm(variables, name).steps.run, 1)
        for variables in SIZES
        for name in ("plain", "tracer")
    )


if __name__ == "__main__":
    bench.run(__doc__, tables)
