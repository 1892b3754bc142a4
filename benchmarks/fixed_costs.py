"""What tracing adds to a graph, and keeps in memory: figures that are the same on each machine.

    python benchmarks/fixed_costs.py

Ops are counted in the graph of a train function, and bytes in the variables that it captures, of a
function that is traced and of one that is not.
"""

import argparse
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import bench
import keras
import steps
import tensorflow as tf
from steps import Case

import tracer

COUNTS = (4, 100)
EVERY, FOURTH, EFFECTS = "every step", "every 4th step", "every step, with effects"


class Graph(NamedTuple):
    """A graph, with the functions that it holds."""

    ops: int
    bytes: int
    """Of the variables that it captures."""


def graph_of(case: Case, pattern: str, traced: bool) -> Graph:
    """The graph of a train function. Every 4th step is Keras 3's accumulation of gradients."""
    variables = steps.variables_of(case)
    make = _accumulating if pattern == FOURTH else None
    optimizer = steps.optimizer_of(case, make)
    if traced:
        tracer.wrap(optimizer, effects=pattern == EFFECTS)
    function = steps.train_function(case, optimizer, variables)
    concrete = function.get_concrete_function()
    definition = concrete.graph.as_graph_def()
    ops = len(definition.node) + sum(len(each.node_def) for each in definition.library.function)
    return Graph(ops, sum(map(_bytes, concrete.captured_inputs)))


def _accumulating() -> Any:
    return keras.optimizers.SGD(0.01, gradient_accumulation_steps=4)


def _bytes(tensor: Any) -> int:
    """The size of the variable behind a handle."""
    if tensor.dtype != tf.resource:
        return 0
    data = tensor._handle_data
    return sum(
        tf.TensorShape(each.shape).num_elements() * tf.dtypes.as_dtype(each.dtype).size
        for each in data.shape_and_type
    )


CASES = [
    (pattern, replicas, Case(kind, count, xla, replicas))
    for pattern, replicas, kinds in (
        (EVERY, 1, [*((kind, False) for kind in steps.SGD), ("legacy", True)]),
        (EVERY, 2, [("legacy", False)]),
        (FOURTH, 1, [("keras3", False)]),
        (EFFECTS, 1, [("legacy", False)]),
    )
    for kind, xla in kinds
    for count in COUNTS
]


def graphs() -> str:
    """What is added to graphs, equal rows as one."""
    rows: dict[tuple[object, ...], list[Case]] = {}
    for pattern, replicas, case in CASES:
        plain, traced = (graph_of(case, pattern, each) for each in (False, True))
        ops, size = traced.ops - plain.ops, traced.bytes - plain.bytes
        rows.setdefault((pattern, replicas, f"{ops:,}", f"{size:,}"), []).append(case)
    return bench.table(
        ["updates in", "kind", "variables", "replicas", "ops added", "bytes of counters"],
        (
            [pattern, _words(map(_kind, cases)), _words(c.variables for c in cases), *figures]
            for (pattern, *figures), cases in rows.items()
        ),
        2,
    )


def _kind(case: Case) -> str:
    return f"{case.kind} with XLA" if case.xla else case.kind


def _words(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


# Memory.


def memory(optimizer: Any, variables: Sequence[Any], number: int) -> int:
    """The bytes that Python objects made by the tracer take, after so many more eager steps."""
    pairs = [(tf.zeros(each.shape), each) for each in variables]
    for _ in range(number):
        optimizer.apply_gradients(pairs)
    only = tracemalloc.Filter(True, f"{Path(tracer.__file__).parent}/*")
    found = tracemalloc.take_snapshot().filter_traces([only])
    return sum(each.size for each in found.statistics("filename"))


def growth() -> str:
    """What is kept in one training that goes on."""
    case = Case("legacy", 4)
    variables = steps.variables_of(case)
    tracemalloc.start()
    optimizer = tracer.wrap(steps.optimizer_of(case))
    numbers = (100, 1000, 10_000)
    sizes = [memory(optimizer, variables, n - m) for m, n in pairwise((0, *numbers))]
    tracemalloc.stop()
    return bench.table(
        ["after eager steps", *(f"{number:,}" for number in numbers)],
        [["bytes of the tracer's Python objects", *(f"{size:,}" for size in sizes)]],
    )


def tables(_: argparse.Namespace) -> Iterator[str]:
    """All tables."""
    steps.prepare()
    yield graphs()
    yield growth()


if __name__ == "__main__":
    bench.run(__doc__, tables)
