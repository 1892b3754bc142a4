"""How much longer it takes to build a train function of 400 variables when it is traced.

    python benchmarks/graph_tracing.py            # about 2 minutes
    python benchmarks/graph_tracing.py --quick    # only the ops that are added

The function holds a forward pass, its gradients and a step of Adam. It is built again and again,
traced and not, in turn. The time is that of the thread that builds it.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
import keras
import steps
import tensorflow as tf
import tf_keras
from steps import Case

import tracer

VARIABLES, QUICK = 400, 6
ROUNDS = 7

NOT_TRACED, TRACED = "not traced", "traced"

ADAM: dict[str, Callable[[], Any]] = {
    "legacy": lambda: tf_keras.optimizers.legacy.Adam(0.01),
    "keras2": lambda: tf_keras.optimizers.Adam(0.01, jit_compile=False),
    "keras3": lambda: keras.optimizers.Adam(0.01),
    "v1": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
}


class Arm:
    """A train function that can be built anew."""

    def __init__(self, kind: str, variables: int, traced: bool) -> None:
        case = Case(kind, variables)
        self._variables = steps.variables_of(case)
        optimizer = steps.optimizer_of(case, ADAM[kind])
        if traced:
            tracer.wrap(optimizer)
        self._case, self._optimizer = case, optimizer
        self._build()(tf.constant(0))  # makes the optimizer's own variables

    def _build(self) -> Any:
        return steps.train_function(self._case, self._optimizer, self._variables)

    def graph(self) -> Any:
        """The function's graph, built anew."""
        return self._build().get_concrete_function(tf.constant(0)).graph

    def sample(self) -> float:
        """The seconds that it takes to build it, without those of the garbage collector.

        It comes when it will, and passes through all graphs that were built before.
        """
        function = self._build()
        gc.collect()
        gc.disable()
        try:
            start = time.thread_time()
            function.get_concrete_function(tf.constant(0))
            return time.thread_time() - start
        finally:
            gc.enable()


def arms_of(kind: str, variables: int) -> dict[str, Arm]:
    """Not traced, and traced."""
    return {arm: Arm(kind, variables, arm == TRACED) for arm in (NOT_TRACED, TRACED)}


def ops(graph: Any) -> int:
    """How many ops a graph holds, with those of the functions in it."""
    definition = graph.as_graph_def()
    return len(definition.node) + sum(len(each.node_def) for each in definition.library.function)


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The table of times; with `quick` of ops."""
    steps.prepare()
    variables = QUICK if arguments.quick else VARIABLES
    rows: list[list[Any]] = []
    for kind in ADAM:
        arms = arms_of(kind, variables)
        without, with_ = (ops(arm.graph()) for arm in arms.values())
        rows.append([kind, variables, f"{without:,}", with_ - without])
        if not arguments.quick:
            taken = bench.interleaved({name: arm.sample for name, arm in arms.items()}, ROUNDS)
            rows[-1] += [
                bench.spread(1000 * each for each in taken[NOT_TRACED]).text(0),
                bench.spread(each / 1000 for each in bench.added(taken, TRACED, NOT_TRACED)).text(
                    1
                ),
                bench.ratios(taken, TRACED, NOT_TRACED).text(3),
            ]
    header = ["kind", "variables", "ops", "ops added"]
    header += [] if arguments.quick else ["ms to build", "ms added", "ratio"]
    yield bench.table(header, rows)


if __name__ == "__main__":
    bench.run(__doc__, tables)
