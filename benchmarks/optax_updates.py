"""A jitted step of optax beside the same step untraced.

    python benchmarks/optax_updates.py

`again` is a second untraced step: what it differs by is the machine.
`MultiSteps` and `apply_if_finite` have the tracer hand what their state says to Python, too. With
`--quick` only what was counted is printed.
"""

import argparse
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

ROUNDS = 12

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
    """Rows for each transformation and number of leaves."""
    rows, counted = [], []
    for name, (new, every) in KINDS.items():
        for leaves, steps in SIZES.items():
            traced: list[Arm] = []

            def plain(new: Callable[[], Any] = new, of: int = leaves) -> jax_steps.Steps:
                return Arm(of, new()).steps

            def under_tracer(
                new: Callable[[], Any] = new, of: int = leaves, made: list[Arm] = traced
            ) -> jax_steps.Steps:
                made.append(Arm(of, tracer.wrap(new())))
                return made[-1].steps

            if arguments.quick:
                under_tracer().run(steps)
            else:
                makes = {"plain": plain, "again": plain, "tracer": under_tracer}
                for clock, taken in jax_steps.measured(makes, steps, ROUNDS).items():
                    us = 1e6 * bench.spread(taken["plain"]).median
                    cells = [bench.added(taken, n, "plain").text(0) for n in ("again", "tracer")]
                    rows.append([name, clock, leaves, f"{us:.0f}", *cells])
            updates = sum(tracer.trace_of(arm.tx).updates() for arm in traced)
            expected = sum(leaves * arm.steps.number // every for arm in traced)
            counted.append([name, leaves, f"{updates:,}", f"{expected:,}"])
    if rows:
        header = ["", "time of", "leaves", "us a step", "again: added, us", "tracer: added, us"]
        yield bench.table(header, rows, left=2)
    yield bench.table(["", "leaves", "updates seen", "updates"], counted)


if __name__ == "__main__":
    bench.run(__doc__, tables)
