"""Long runs, each with and without the tracer in processes of their own: memory, time and counts.

python tests/support/endurance.py                            # all: about half an hour
python tests/support/endurance.py 0.02                       # that part of their lengths
python tests/support/endurance.py WHAT KIND NUMBER [traced]  # one: its figures as JSON
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTES = 20
"""By how much a traced run's resident size may exceed an untraced one's."""

FULL = (
    ("steps_in_one_loop", "legacy", 1_000_000),
    ("steps_in_one_loop", "keras3", 1_000_000),
    ("graph_tracings", "legacy", 10_000),
    ("graph_tracings", "keras2", 10_000),
    ("graph_tracings", "v1", 10_000),
)


def steps_in_one_loop(step: Callable[[], None], number: int) -> None:
    """So many steps in one while loop of one function."""
    import tensorflow as tf

    def train(steps: Any) -> None:
        for _ in tf.range(steps):
            step()

    tf.function(train)(tf.constant(number))


def graph_tracings(step: Callable[[], None], number: int) -> None:
    """So many functions, each traced, run once and dropped, as are their graphs."""
    import tensorflow as tf

    step()  # makes the optimizer's own variables
    for index in range(number - 1):
        tf.function(lambda: step(), autograph=False)()
        if index % 100 == 0:
            gc.collect()


RUNS = {each.__name__: each for each in (steps_in_one_loop, graph_tracings)}


def figures_of(what: str, kind: str, number: int, traced: bool) -> dict[str, Any]:
    """Run in this process: the steps and updates by the odometers and by the trace, time and size.

    Gradients are not summed over replicas.
    """
    from support.odometers import ODOMETERS, gradients, make_variables, read

    import tracer

    start = time.perf_counter()
    optimizer, variables = ODOMETERS[kind](), make_variables(kind)
    if traced:
        tracer.wrap(optimizer)
    pairs = gradients if what != "graph_tracings" else lambda _: [gradients(variables)[1]]
    options = {
        "legacy": {"experimental_aggregate_gradients": False},
        "keras2": {"skip_gradients_aggregation": True},
    }

    def step() -> None:
        optimizer.apply_gradients(pairs(variables), **options.get(kind, {}))

    RUNS[what](step, number)
    seconds = time.perf_counter() - start
    trace = tracer.trace_of(optimizer) if traced else None
    gc.collect()
    readings = [read(each)[0] for each in variables.values()]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "truth": [readings[1].dense, sum(map(sum, readings))],
        "counted": trace and [trace.steps, trace.updates()],
        "complete": trace and trace.complete,
        "seconds": seconds,
        "resident": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }


def run(what: str, kind: str, number: int) -> tuple[bool, str]:
    """Both runs, one after the other: whether they are as they must be, and a line about them."""
    found = []
    for traced in ((), ("traced",)):
        places = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
        done = subprocess.run(
            [sys.executable, __file__, what, kind, str(number), *traced],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    untraced, traced_run = found
    truth = traced_run["truth"]
    right = traced_run["complete"] and traced_run["counted"] == truth == untraced["truth"]
    more = traced_run["resident"] - untraced["resident"]
    return right and more <= MEGABYTES, f"{what} {kind} {number:,}, {more:.1f} MB more: {found}"


def main() -> int:
    """Print a line for each run; the exit status is 1 if one of them is not as it must be."""
    if len(sys.argv) > 2:
        what, kind, length, *traced = sys.argv[1:]
        print(json.dumps(figures_of(what, kind, int(length), bool(traced))))
        return 0
    part = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    failed = False
    for what, kind, number in FULL:
        right, line = run(what, kind, max(1, round(number * part)))
        failed |= not right
        print("right:" if right else "WRONG:", line, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
