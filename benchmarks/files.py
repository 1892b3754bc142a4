"""What a trace file costs: its size, and the processor time to report it.

    python benchmarks/files.py            # all tables
    python benchmarks/files.py --quick    # only what is the same each time

The traces are made by hand, so that runs of a million steps fit here. There is no TensorFlow in
this script, as there is none in a process that reads a trace.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import bench

from tracer.model import tracefile
from tracer.model.records import (
    Block,
    Entry,
    Method,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.timeline import Run
from tracer.reporters import text

_PARTS = ("attention/query/kernel", "attention/query/bias", "dense/kernel", "dense/bias")


def updated(steps: int, skips: bool) -> tuple[Run, ...]:
    """The steps that update the variables: each, or all but 1 % at random."""
    skipped = random.Random(steps).sample(range(1, steps + 1), steps // 100 if skips else 0)
    return tuple(
        Run(before + 1, 1, after - before - 1)
        for before, after in pairwise([0, *sorted(skipped), steps + 1])
        if after - before > 1
    )


def trace(
    steps: int = 10**6,
    variables: int = 100,
    replicas: int = 1,
    skips: bool = False,
) -> TraceData:
    """What is recorded of such a run."""
    every = tuple(range(variables))
    step, request = Entry(0, 0, "step", None, ()), Entry(0, 0, "request", "dense", every)
    update = Entry(0, 1, "update", "dense", every)
    blocks: list[Block] = []
    calls: list[Block] = []

    def block(replica: int, is_step: bool, entries: tuple[Entry, ...], skips: bool) -> Block:
        runs = updated(steps, skips)
        total = sum(run.total for run in runs)
        return Block(0, replica, "graph", "train_function", is_step, entries, total, runs)

    for replica in range(replicas):
        if skips:
            blocks.append(block(replica, True, (step, request), False))
            blocks.append(block(replica, False, (update,), True))
        else:
            blocks.append(block(replica, True, (step, request, update), False))
        for entry in (Entry(0, 0, "call", None, ()), Entry(0, 1, "call", "dense", every)):
            calls.append(Block(0, replica, "tracing", "", False, (entry,), 1, ()))
    names = (f"encoder/layer_{i // 4}/{_PARTS[i % 4]}" for i in range(variables))
    return TraceData(
        optimizers=(Optimizer("adam", "keras.src.optimizers.adam.Adam", "keras3", 0),),
        variables=tuple(Variable(name, (768, 768), "float32") for name in names),
        methods=(Method("apply_gradients", "step"), Method("update_step", "apply")),
        replicas=tuple(Replica("", i, f"GPU:{i}") for i in range(replicas)),
        blocks=tuple(blocks),
        calls=tuple(calls),
        environment={"tensorflow": "2.21.0", "strategy": "MirroredStrategy" * (replicas > 1)},
    )


def _growth(folder: Path, timed: bool) -> Iterator[list[str]]:
    path = folder / "trace.json"
    for skips in (False, True):
        for steps in (10**4, 10**6):
            data = trace(steps, skips=skips)
            tracefile.save(data, path)
            runs = len(data.blocks[-1].runs)
            words = "1 % of the steps skipped" if skips else "every step"
            row = [words, f"{steps:,}", f"{runs:,}", f"{path.stat().st_size:,}"]
            taken = _seconds(lambda: text.render(tracefile.load(path))) if timed else 0.0
            yield [*row, *[f"{1000 * taken:,.1f}"] * timed]


def _seconds(work: Callable[[], object]) -> float:
    """The median of up to 5 turns, which take no more than about 2 seconds together."""
    taken: list[float] = []
    while len(taken) < 5 and sum(taken) < 2:
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def big(folder: Path) -> Path:
    """The file of 10^6 regular steps with 1,000 variables on 8 replicas."""
    path = folder / "big.json"
    tracefile.save(trace(10**6, 1000, 8), path)
    return path


def _command(path: Path, *arguments: str) -> float:
    """The seconds of processor time that a command of `tracer` takes, from its start to its end."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tracer", *arguments, str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The table; with `quick` without times."""
    quick = arguments.quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        header = ["updates in", "steps", "runs", "bytes", *["load and report, ms"] * (not quick)]
        yield bench.table(header, _growth(folder, not quick))
        path = big(folder)
        size = path.stat().st_size
        found = f"10^6 regular steps, 1,000 variables, 8 replicas: a file of {size:,} bytes"
        if quick:
            yield f"{found}."
            return
        taken = bench.spread(_command(path, "report") for _ in range(11))
        yield f"{found}; from the command `tracer report` to its end {taken.text(2)} s."


if __name__ == "__main__":
    bench.run(__doc__, tables)
