"""One long run in a process of its own: prints what it counted, the truth, and its resident size.

python tests/programs/endurance.py WHAT KIND NUMBER [--traced]
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf
from support.odometers import ODOMETERS, gradients, make_variables, read

import tracer

Truth = tuple[int, int]
"""Steps and updates, by the odometers."""


UNSUMMED: dict[str, dict[str, bool]] = {
    "legacy": {"experimental_aggregate_gradients": False},
    "keras2": {"skip_gradients_aggregation": True},
    "v1": {},
}
"""How `apply_gradients` is told not to sum gradients over the replicas."""


def function_of(optimizer: Any, pairs: Callable[[], Any], **options: bool) -> Any:
    """A function of its own that has one step."""

    @tf.function(autograph=False)
    def step() -> None:
        optimizer.apply_gradients(pairs(), **options)

    return step


def steps_in_one_loop(optimizer: Any, kind: str, number: int) -> Truth:
    """So many steps in one while loop of one function."""
    variables = make_variables(kind)

    @tf.function
    def train(steps: Any) -> None:
        for _ in tf.range(steps):
            optimizer.apply_gradients(gradients(variables))

    train(tf.constant(number))
    return shown(variables)


def calls_of_a_function(optimizer: Any, kind: str, number: int) -> Truth:
    """So many calls of one function that has one step."""
    variables = make_variables(kind)
    step = function_of(optimizer, lambda: gradients(variables))
    for _ in range(number):
        step()
    return shown(variables)


def graph_tracings(optimizer: Any, kind: str, number: int) -> Truth:
    """So many functions of one variable, each traced, run once and dropped, as are their graphs."""
    variables = make_variables(kind)
    pairs = [pair for pair in gradients(variables) if pair[1] is variables["kernel"]]
    optimizer.apply_gradients(pairs)  # makes its own variables
    for index in range(number - 1):
        function_of(optimizer, lambda: pairs, **UNSUMMED[kind])()
        if index % 100 == 0:
            gc.collect()
    gc.collect()
    return shown(variables)


def shown(variables: dict[str, Any]) -> Truth:
    """What the hand-made variables show."""
    readings = [read(each)[0] for each in variables.values()]
    return readings[1].dense, sum(each.dense + each.sparse for each in readings)


RUNS: dict[str, Callable[[Any, str, int], Truth]] = {
    each.__name__: each for each in (steps_in_one_loop, calls_of_a_function, graph_tracings)
}


def main() -> None:
    """Run, and print the figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("kind", choices=ODOMETERS)
    parser.add_argument("number", type=int)
    parser.add_argument("--traced", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    complete, counted = True, None
    optimizer = ODOMETERS[options.kind]()
    if options.traced:
        tracer.wrap(optimizer)
    truth = RUNS[options.what](optimizer, options.kind, options.number)
    seconds = time.perf_counter() - start
    if options.traced:
        trace = tracer.trace_of(optimizer)
        complete, counted = trace.complete, (trace.steps, trace.updates())
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    figures = {
        "truth": truth,
        "counted": counted,
        "complete": complete,
        "seconds": seconds,
        "resident": resident,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
