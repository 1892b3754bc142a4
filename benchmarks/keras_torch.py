"""What tracing adds to a step of Keras 3 on PyTorch, eagerly and in compiled code.

    KERAS_BACKEND=torch python benchmarks/keras_torch.py

A model of layers of 8 units is stepped by `optimizer.apply`, with gradients that are there already.
`its own` is Keras's SGD, which updates all variables by one call; `derived` is a class derived from
it, of which `update_step` is called for each variable. Dynamo breaks the graph in Keras's own SGD,
which takes the learning rate as a number, and not in the others. Times are processor time.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
import keras
import torch

import tracer


class Derived(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras calls its `update_step` for each variable."""


class Counting(Derived):
    """The least that a count takes in Python."""

    updates = 0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.updates += 1
        super().update_step(gradient, variable, learning_rate)


def step_of(optimizer: Any, layers: int, compiled: bool) -> Callable[[], object]:
    """One step of an optimizer with two variables for each layer."""
    model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(layers))])
    variables = model.trainable_variables
    optimizer.build(variables)
    gradients = [torch.ones_like(each.value) for each in variables]

    def step() -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    step.__code__ = step.__code__.replace()  # Dynamo keeps what it compiles with the code
    made: Callable[[], object] = torch.compile(step) if compiled else step
    for _ in range(3):
        made()
    return made


CASES = [
    ("SGD, its own", keras.optimizers.SGD, (1, 10, 50), False),
    ("SGD, derived", Derived, (1, 10, 50), False),
    ("SGD, its own, compiled", keras.optimizers.SGD, (10,), True),
    ("Adam, its own, compiled", keras.optimizers.Adam, (1, 10), True),
    ("SGD, derived, compiled", Derived, (1, 10), True),
]


def rows(rounds: int, turns: int) -> Iterator[list[object]]:
    """A row for each case, with times if there are any rounds."""
    for name, cls, sizes, compiled in CASES:
        if compiled and not rounds:
            continue
        for layers in sizes:
            traced = tracer.wrap(cls(0.001))
            arms = {"plain": cls(0.001), "again": cls(0.001), "traced": traced}
            if cls is Derived and not compiled:
                arms["counting"] = Counting(0.001)
            steps = {arm: step_of(each, layers, compiled) for arm, each in arms.items()}
            row: list[object] = [name, 2 * layers]
            if rounds:
                many = max(2, turns // layers)
                samples = {
                    arm: bench.timed(step, many, time.process_time) for arm, step in steps.items()
                }
                taken = bench.interleaved(samples, rounds)
                row.append(f"{1e6 * bench.spread(taken['plain']).median:.0f}")
                for arm in ("again", "traced", "counting"):
                    known = arm in taken
                    row.append(bench.added(taken, arm, "plain").text(0) if known else "")
                made = 3 + rounds * many
            else:
                made = 3
            row += [tracer.trace_of(traced).updates(), made * 2 * layers]
            yield row


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The table."""
    torch.set_num_threads(1)
    times = [] if arguments.quick else ["us a step", "again, us", "traced, us", "counting, us"]
    header = ["optimizer", "variables", *times, "updates counted", "of"]
    yield bench.table(header, rows(0 if arguments.quick else 25, 60))


if __name__ == "__main__":
    bench.run(__doc__, tables)
