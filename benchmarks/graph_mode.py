"""What tracing adds to a train step in graph mode.

    python benchmarks/graph_mode.py            # about 3 minutes
    python benchmarks/graph_mode.py --quick    # only the updates that were counted

A step is traced, not traced, and not traced once more, each with variables and a graph of its own,
in turn and many times over. The second untraced one shows how exact the comparison is: what it
differs by is the machine's doing.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import bench
import steps
import tensorflow as tf
from steps import Case

import tracer

NOT_TRACED, AGAIN, TRACED = "not traced", "not traced, again", "traced"

CASES: dict[Case, tuple[float, ...]] = {
    Case("legacy", 2): (0, 1, 50),
    Case("legacy", 20): (0, 1, 5, 50),
    Case("legacy", 100): (0, 5),
    Case("legacy", 400): (0, 50),
    Case("keras2", 20): (0, 5),
    Case("keras3", 20): (0, 5),
    Case("keras3", 400): (0, 50),
    Case("v1", 20): (0, 5),
    Case("v1", 400): (0, 50),
    Case("legacy", 20, xla=True): (0, 5),
    Case("legacy", 100, xla=True): (0, 5),
    Case("keras3", 20, xla=True): (0, 5),
    Case("v1", 20, xla=True): (0, 5),
    Case("legacy", 20, replicas=2): (0, 5),
    Case("legacy", 100, replicas=2): (0, 50),
    Case("keras3", 20, replicas=2): (0, 5),
    Case("v1", 20, replicas=2): (0, 5),
}
"""The steps that are measured, with their lengths in ms; 0 is a step without work beside it.

Not every product of the lists below is there. Each number of variables and each length is there for
the kind `legacy`, and each kind, XLA and two replicas for a model of 20 variables. XLA under
`MirroredStrategy` on CPUs fails in TensorFlow itself.
"""

QUICK = (
    Case("legacy", 4),
    Case("keras3", 4),
    Case("v1", 4, xla=True),
    Case("legacy", 4, replicas=2),
)

ROUNDS = 30


def measured(case: Case, lengths: tuple[float, ...], rounds: int = ROUNDS) -> Iterator[list[Any]]:
    """The rows of one case."""
    arms = {
        NOT_TRACED: steps.step_of(case),
        AGAIN: steps.step_of(case),
        TRACED: steps.step_of(case, tracer.wrap),
    }
    for length in lengths:
        turns = steps.turns_for(arms[NOT_TRACED], length)
        samples = {name: steps.sample_of(step, turns) for name, step in arms.items()}
        taken = bench.interleaved(samples, rounds)
        own = bench.spread(taken[NOT_TRACED]).median
        yield [
            *described(case),
            f"{1000 * own:.2f}",
            bench.added(taken, TRACED, NOT_TRACED).text(0),
            bench.added(taken, AGAIN, NOT_TRACED).text(0),
            bench.ratios(taken, TRACED, NOT_TRACED).text(3),
            bench.ratios(taken, AGAIN, NOT_TRACED).text(3),
        ]


def described(case: Case) -> list[Any]:
    """The first columns of a row."""
    return [case.kind, "XLA" if case.xla else "plain", case.replicas, case.variables]


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The table of times; with `quick` that of the updates."""
    steps.prepare()
    first = ("kind", "mode", "replicas", "variables")
    if arguments.quick:
        yield bench.table((*first, "updates in 3 steps", "expected"), map(counted, QUICK), 2)
        return
    header = ("ms a step", "added, us", "again, us", "ratio", "again")
    rows = (row for case, lengths in CASES.items() for row in measured(case, lengths))
    yield bench.table((*first, *header), rows, 2)


def counted(case: Case) -> list[Any]:
    """What is counted in 3 steps, beside what arithmetic says."""
    found: list[Any] = []

    def wrap(optimizer: Any) -> Any:
        found.append(tracer.wrap(optimizer))
        return optimizer

    step = steps.step_of(case, wrap)
    for _ in range(2):
        step(tf.constant(0))
    return [
        *described(case),
        tracer.trace_of(found[0]).updates(),
        3 * case.variables * case.replicas,
    ]


if __name__ == "__main__":
    bench.run(__doc__, tables)
