"""What a trace file costs: its size, and the processor time to report and to merge it.

    python benchmarks/files.py            # all tables
    python benchmarks/files.py --quick    # only what is the same each time

The traces are made by hand, so that runs of 10^8 steps or of 4,096 workers fit here. There is no
TensorFlow in this script, as there is none in a process that reads a trace.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, get_args

import bench

from tracer.model import tracefile
from tracer.model.records import (
    Block,
    Calls,
    Entry,
    Method,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.timeline import Run, fold
from tracer.reporters import text

Pattern = Literal["regular", "accumulating", "skipping", "random"]
"""In which steps the variables are updated: in each; in each 4th; in all but 1 % at random; in
half of them at random."""

WORDS: dict[Pattern, str] = {
    "regular": "every step",
    "accumulating": "every 4th step",
    "skipping": "1 % of the steps skipped",
    "random": "half of the steps skipped",
}
MOST: dict[Pattern, int] = {
    "regular": 10**8,
    "accumulating": 10**8,
    "skipping": 10**8,
    "random": 10**6,
}
"""The steps of the longest run. At random there is a change in every few steps, and a run that is
traced would have forgotten the steps of most of them: it keeps 4,096 of those between two readings.
"""

REPORTED = 20_000
"""The runs of the longest trace that is reported and compared as well."""

_PARTS = ("attention/query/kernel", "attention/query/bias", "dense/kernel", "dense/bias")


Runs = tuple[Run, ...]


def updated(pattern: Pattern, steps: int) -> Runs:
    """The steps of a run in which the variables are updated."""
    if pattern == "regular":
        return (Run(1, 1, steps),)
    if pattern == "accumulating":
        return (Run(4, 4, steps // 4),)
    dice = random.Random(steps)
    if pattern == "random":
        chosen = [step for step in range(1, steps + 1) if dice.random() < 0.5]
        return tuple(fold(zip(chosen, repeat(1))))
    skipped = [0, *sorted(dice.sample(range(1, steps + 1), steps // 100)), steps + 1]
    return tuple(
        Run(before + 1, 1, after - before - 1)
        for before, after in pairwise(skipped)
        if after - before > 1
    )


def trace(
    pattern: Pattern = "regular",
    steps: int = 10**6,
    variables: int = 100,
    replicas: int = 1,
    worker: str = "",
) -> TraceData:
    """What is recorded of such a run."""
    every = tuple(range(variables))
    step, request = Entry(0, 0, "step", None, ()), Entry(0, 0, "request", "dense", every)
    update = Entry(0, 1, "update", "dense", every)
    runs = updated(pattern, steps)
    blocks: list[Block] = []
    always = (Run(1, 1, steps),)

    def block(
        replica: int, is_step: bool, entries: tuple[Entry, ...], of: tuple[Run, ...]
    ) -> Block:
        total = sum(run.total for run in of)
        return Block(0, replica, "graph", "train_function", is_step, entries, total, of, 1)

    for replica in range(replicas):
        if pattern == "regular":
            blocks.append(block(replica, True, (step, request, update), runs))
        else:
            blocks.append(block(replica, True, (step, request), always))
            blocks.append(block(replica, False, (update,), runs))
    names = (f"encoder/layer_{i // 4}/{_PARTS[i % 4]}" for i in range(variables))
    return TraceData(
        optimizers=(Optimizer("adam", "keras.src.optimizers.adam.Adam", "keras3", 0),),
        variables=tuple(Variable(name, (768, 768), "float32") for name in names),
        methods=(Method("apply_gradients", "step"), Method("update_step", "apply")),
        replicas=tuple(Replica(worker, i, f"GPU:{i}") for i in range(replicas)),
        blocks=tuple(blocks),
        calls=tuple(
            call
            for replica in range(replicas)
            for call in (
                Calls(0, 0, None, replica, (), 0, 1),
                Calls(0, 1, "dense", replica, every, 0, 1),
            )
        ),
        environment={"tensorflow": "2.21.0", "strategy": "MirroredStrategy" * (replicas > 1)},
    )


class Row(NamedTuple):
    """A trace and what it costs."""

    pattern: Pattern
    steps: int
    runs: int
    size: int
    seconds: float | None = None
    """To load and report it, if that is timed."""


def cost(folder: Path, pattern: Pattern, steps: int, timed: bool = True) -> Row:
    """What one trace costs."""
    data, path = trace(pattern, steps), folder / "trace.json"
    tracefile.save(data, path)
    runs, size = len(data.blocks[-1].runs), path.stat().st_size
    timed = timed and runs <= REPORTED
    taken = _seconds(lambda: text.render(tracefile.load(path))) if timed else None
    return Row(pattern, steps, runs, size, taken)


def _seconds(work: Callable[[], object]) -> float:
    """The median of up to 5 turns, which take no more than about 2 seconds together."""
    taken: list[float] = []
    while len(taken) < 5 and sum(taken) < 2:
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def _growth(rows: Iterable[Row], timed: bool) -> str:
    header = ["updates in", "steps", "runs", "bytes", *["load and report, ms"] * timed]
    return bench.table(
        header,
        (
            [
                *(WORDS[row.pattern], f"{row.steps:,}", f"{row.runs:,}", f"{row.size:,}"),
                *[_milliseconds(row.seconds)] * timed,
            ]
            for row in rows
        ),
    )


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f}"


# The two targets with a command in them.


def big(folder: Path) -> Path:
    """The file of 10^6 regular steps with 1,000 variables on 8 replicas."""
    path = folder / "big.json"
    tracefile.save(trace("regular", 10**6, 1000, 8), path)
    return path


def _command(path: Path, *arguments: str) -> float:
    """The seconds of processor time that a command of `tracer` takes, from its start to its end."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tracer", *arguments, str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def write_workers(folder: Path, workers: int, replicas: int, variables: int) -> None:
    """The files of so many workers of one run."""
    first = folder / "0.json"
    tracefile.save(trace("regular", 10**6, variables, replicas, "worker:0"), first)
    content = first.read_bytes()
    for number in range(1, workers):
        named = content.replace(b'"worker:0"', b'"worker:%d"' % number)
        (folder / f"{number}.json").write_bytes(named)


_MERGE = """
import json, sys, time
import bench, tracer
start = time.process_time()
trace = tracer.load(sys.argv[1])
seconds = time.process_time() - start
trace.save(sys.argv[2])
print(json.dumps([seconds, bench.peak_megabytes(), len(trace.workers), trace.updates()]))
"""


def merge(folder: Path, merged: Path) -> tuple[float, float, int, int]:
    """Merge the traces in a folder, in a process of its own.

    Returns the seconds and the megabytes that it took, the workers and the updates found.
    """
    done = subprocess.run(
        [sys.executable, "-c", _MERGE, str(folder), str(merged)],
        check=True,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    seconds, megabytes, workers, updates = json.loads(done.stdout)
    return seconds, megabytes, workers, updates


def _merging(folder: Path, counts: Sequence[int], replicas: int, variables: int) -> Iterator[Any]:
    for workers in counts:
        parts = folder / "workers"
        parts.mkdir()
        write_workers(parts, workers, replicas, variables)
        merged = folder / "merged.json"
        seconds, megabytes, found, _ = merge(parts, merged)
        if found != workers:
            raise AssertionError(f"{found} of {workers} workers were merged")
        report = _command(merged, "report")
        size = f"{merged.stat().st_size:,}"
        yield [f"{workers:,}", f"{seconds:.2f}", f"{megabytes:,.0f}", size, f"{report:.2f}"]
        shutil.rmtree(parts)


# The tables.


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """All tables; with `quick` the sizes."""
    quick = arguments.quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (
            cost(folder, pattern, steps, timed=not quick)
            for pattern in get_args(Pattern)
            if pattern != "accumulating"  # is stored as regular steps are
            for steps in (10**4, 10**6)
        )
        yield _growth(rows, not quick)
        path = big(folder)
        size = path.stat().st_size
        found = f"10^6 regular steps, 1,000 variables, 8 replicas: a file of {size:,} bytes"
        if quick:
            yield f"{found}."
            return
        taken = bench.spread(_command(path, "report") for _ in range(11))
        yield f"{found}; from the command `tracer report` to its end {taken.text(2)} s."
        header = ("workers", "load and merge, s", "peak MB", "bytes", "`tracer report`, s")
        yield bench.table(header, _merging(folder, (1, 64, 4096), 8, 100), left=0)


if __name__ == "__main__":
    bench.run(__doc__, tables)
