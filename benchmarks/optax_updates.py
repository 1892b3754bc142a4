"""A jitted step of optax beside the same step untraced.

    python benchmarks/optax_updates.py

The time is that of the processors, on all threads: who else works on the machine changes it less
than that of the clock. `again` is a second untraced step: what it differs by is the machine.
`MultiSteps` and `apply_if_finite` have the tracer hand what their state says to Python, too. With
`--quick` only what was counted is printed.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
import jax
import jax.numpy as jnp
import jax_steps
import optax

import tracer

SIZES = {2: 400, 100: 60}
"""How many steps are a sample, by the number of leaves."""

ROUNDS = 24

KINDS: dict[str, tuple[Callable[[], Any], int]] = {
    "adam": (lambda: optax.adam(0.001), 1),
    "MultiSteps of adam": (lambda: optax.MultiSteps(optax.adam(0.001), 4), 4),
    "apply_if_finite of adam": (lambda: optax.apply_if_finite(optax.adam(0.001), 3), 1),
}
"""What makes each transformation, and every how many steps it keeps its updates."""


class Arm:
    """A step with parameters of its own."""

    def __init__(self, leaves: int, tx: Any) -> None:
        self.tx = tx

        def step(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        params = {f"{number}": jnp.zeros((8, 8)) for number in range(leaves)}
        gradients = jax.tree.map(jnp.ones_like, params)
        self.steps = jax_steps.Steps(step, (params, tx.init(params)), gradients)


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """A row for each transformation and number of leaves."""
    rows, counted = [], []
    for name, (make, every) in KINDS.items():
        for leaves, steps in SIZES.items():
            arms = {"plain": make(), "again": make(), "tracer": tracer.wrap(make())}
            made = {arm: Arm(leaves, tx) for arm, tx in arms.items()}
            for arm in made.values():
                arm.steps.run(steps)  # compiles
            if not arguments.quick:
                samples = {n: a.steps.sample(steps, time.process_time) for n, a in made.items()}
                taken = bench.interleaved(samples, ROUNDS)
                us = 1e6 * bench.spread(taken["plain"]).median
                cells = [bench.added(taken, n, "plain").text(0) for n in ("again", "tracer")]
                rows.append([name, leaves, f"{us:.0f}", *cells])
            traced = made["tracer"]
            updates = tracer.trace_of(traced.tx).updates()
            counted.append(
                [name, leaves, f"{updates:,}", f"{leaves * traced.steps.number // every:,}"]
            )
    if rows:
        header = ["", "leaves", "us a step", "again: added, us", "tracer: added, us"]
        yield bench.table(header, rows)
    yield bench.table(["", "leaves", "updates seen", "updates"], counted)


if __name__ == "__main__":
    bench.run(__doc__, tables)
