"""The costs that are the same each time: ops, control edges, bytes of counters, and instructions.

    python benchmarks/fixed_costs.py            # about 3 minutes, needs valgrind
    python benchmarks/fixed_costs.py --quick    # without instructions

Ops and edges are counted in the graphs that TensorFlow has built, and bytes in the variables that
they capture, of a train function that is traced and of one that is not. Instructions are counted by
`valgrind --tool=callgrind`, with one thread and the executor that takes the ops in turn, so that
little depends on the machine.
"""

import argparse
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench
import keras
import steps
import tensorflow as tf
from steps import Case

import tracer

COUNTS = (4, 400)
EVERY, FOURTH = "every step", "every 4th step"


class Graph(NamedTuple):
    """What is in a graph and in the functions that it holds."""

    ops: int
    edges: int
    """Control edges."""
    bytes: int
    """Of the variables that it captures."""


def graph_of(case: Case, pattern: str, traced: bool) -> Graph:
    """The graph of a train function. Every 4th step is Keras 3's accumulation of gradients."""
    variables = steps.variables_of(case)
    make = _accumulating if pattern == FOURTH else None
    optimizer = steps.optimizer_of(case, make)
    if traced:
        tracer.wrap(optimizer)
    function = steps.train_function(case, optimizer, variables)
    concrete = function.get_concrete_function(tf.constant(0))
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    edges = sum(each.startswith("^") for node in nodes for each in node.input)
    return Graph(len(nodes), edges, sum(map(_bytes, concrete.captured_inputs)))


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


def added(case: Case, pattern: str) -> Graph:
    """What tracing adds to a graph."""
    plain, traced = (graph_of(case, pattern, each) for each in (False, True))
    return Graph(*(b - a for a, b in zip(plain, traced, strict=True)))


CASES = [
    (Case(kind, count, xla, replicas), pattern)
    for kind, xla, replicas, pattern in (
        ("legacy", False, 1, EVERY),
        ("legacy", True, 1, EVERY),
        ("legacy", False, 2, EVERY),
        ("keras2", False, 1, EVERY),
        ("keras3", False, 1, EVERY),
        ("keras3", False, 1, FOURTH),
        ("v1", False, 1, EVERY),
    )
    for count in COUNTS
]


def graphs(quick: bool) -> Iterator[list[Any]]:
    """The rows of graphs; with `quick` of those that are soon built."""
    for case, pattern in CASES:
        if not (quick and case.variables > COUNTS[0] and case.kind != "v1"):
            yield [
                *described(case),
                pattern,
                case.replicas,
                case.variables,
                *map(_figure, added(case, pattern)),
            ]


def _figure(number: int) -> str:
    return f"{number:,}"


def described(case: Case) -> list[str]:
    """The first columns."""
    return [case.kind, "XLA" if case.xla else "plain"]


# Memory.


def memory(optimizer: Any, variables: Sequence[Any], number: int) -> int:
    """The bytes that Python objects made by the tracer take, after so many more eager steps."""
    pairs = [(tf.zeros(each.shape), each) for each in variables]
    for _ in range(number):
        optimizer.apply_gradients(pairs)
    only = tracemalloc.Filter(True, f"{Path(tracer.__file__).parent}/*")
    found = tracemalloc.take_snapshot().filter_traces([only])
    return sum(each.size for each in found.statistics("filename"))


def growth(quick: bool) -> Iterator[list[Any]]:
    """The rows of memory, in one training that goes on."""
    case = Case("legacy", 4)
    variables = steps.variables_of(case)
    tracemalloc.start()
    optimizer = tracer.wrap(steps.optimizer_of(case))
    done = 0
    for number in (100, 1000) if quick else (100, 1000, 10_000):
        yield [f"{number:,}", f"{memory(optimizer, variables, number - done):,}"]
        done = number
    tracemalloc.stop()


# Instructions.

INSTRUCTED = tuple(Case("legacy", count) for count in (2, 40))


def instructed() -> None:
    """What runs under valgrind."""
    from tensorflow.python.eager import context

    with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        bench.count_instructions(_works())


def _works() -> Iterator[Callable[[], Any]]:
    for case in INSTRUCTED:
        for wrap in (lambda optimizer: optimizer, tracer.wrap):
            step, turns = steps.step_of(case, wrap), tf.constant(0)
            yield lambda step=step, turns=turns: step(turns)  # type: ignore[misc]
    for case in INSTRUCTED:
        for wrap in (lambda optimizer: optimizer, tracer.wrap):
            variables = steps.variables_of(case)
            pairs = [(tf.zeros(each.shape), each) for each in variables]
            optimizer = wrap(steps.optimizer_of(case))
            yield lambda o=optimizer, p=pairs: o.apply_gradients(p)  # type: ignore[misc]


def instructions() -> Iterator[list[Any]]:
    """The rows of instructions."""
    counts = iter(bench.instructions())
    for mode in ("graph", "eager"):
        for case in INSTRUCTED:
            plain, traced = next(counts), next(counts)
            yield [mode, case.variables, f"{plain:,}", f"{traced - plain:,}"]


# The tables.


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """All tables; with `quick` without the instructions."""
    steps.prepare()
    if arguments.instructed:
        instructed()
        sys.exit()
    header = ("kind", "mode", "updates in", "replicas", "variables")
    last = ("ops added", "control edges added", "bytes of counters")
    yield bench.table((*header, *last), graphs(arguments.quick), 3)
    yield bench.table(
        ("eager steps", "bytes of Python objects of the tracer"), growth(arguments.quick), 0
    )
    if not arguments.quick:
        columns = ("mode", "variables", "instructions of a step", "added")
        yield bench.table(columns, instructions())


if __name__ == "__main__":
    bench.run(__doc__, tables)
