"""What it costs to compare the weights before and after each step (`effects=True`).

    python benchmarks/effects.py            # about 3 minutes, 3 GB
    python benchmarks/effects.py --quick    # only what is added to the graph

A traced optimizer beside one that is traced with effects, each with weights and a graph of its own.
The gradients are there from the start, so the step is the update alone: nothing hides what is
added. The weights are ten matrices of float32.
"""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import bench
import keras
import steps
import tensorflow as tf
import tf_keras

import tracer

MATRICES = 10
ROUNDS = 12
OPTIMIZERS = {
    "SGD": lambda: tf_keras.optimizers.legacy.SGD(0.01),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What is added to the graph for a variable; and to a step, for more and more weights."""
    rows = []
    for matrices in (1, 10, 100):
        plain, seen = (
            step_of("SGD", matrices, matrices * 100, effects, xla=False)
            for effects in (False, True)
        )
        added = _ops(seen) - _ops(plain)
        rows.append([matrices, added, f"{added / matrices:.1f}"])
    yield bench.table(["variables", "ops added", "for each"], rows, left=0)
    if arguments.quick:
        return
    head = ["optimizer", "mode", "weights", "bytes read", "ms a step", "added, us", "ratio"]
    rows = []
    for name in OPTIMIZERS:
        for xla in (False, True):
            for weights in (10**6, 10**7, 10**8):
                if weights < 10**8 or not xla:
                    rows.append([name, "XLA" if xla else "plain", *cost(name, weights, xla)])
    yield bench.table(head, rows, left=2)


def cost(name: str, weights: int, xla: bool) -> list[str]:
    """The figures of one row."""
    arms = {}
    for effects in (False, True):
        step = step_of(name, MATRICES, weights, effects, xla)
        step()
        arms["effects" if effects else "traced"] = bench.timed(step, max(1, 10**7 // weights))
    taken = bench.interleaved(arms, ROUNDS)
    return [
        f"{weights:,}",
        f"{3 * 4 * weights:,}",  # the old ones, the new ones, and these again: are they finite?
        f"{1e3 * bench.spread(taken['traced']).median:.2f}",
        bench.added(taken, "effects", "traced").text(0),
        bench.ratios(taken, "effects", "traced").text(2),
    ]


def step_of(name: str, matrices: int, weights: int, effects: bool, xla: bool) -> Any:
    """A function of one update of all weights."""
    rows = math.isqrt(weights // matrices)
    variables = [
        tf.Variable(tf.zeros((rows, weights // matrices // rows))) for _ in range(matrices)
    ]
    optimizer = tracer.wrap(OPTIMIZERS[name](), effects=effects)
    if name == "Adam":
        optimizer.build(variables)
    gradient = tf.ones(variables[0].shape)

    def update() -> None:
        optimizer.apply_gradients([(gradient, each) for each in variables])

    return tf.function(update, autograph=False, jit_compile=xla)


def _ops(step: Any) -> int:
    return len(step.get_concrete_function().graph.get_operations())


if __name__ == "__main__":
    steps.prepare(1)
    bench.run(__doc__, tables)
