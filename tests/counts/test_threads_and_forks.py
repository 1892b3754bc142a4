"""Threads that share an optimizer, a function or a trace, and a process that forks."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import assert_readings, assert_totals, counted, readings
from support.odometers import ODOMETERS, Reading, gradients, make_variables, read

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


# Threads.


def run_in_threads(*runs: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; raises what one of them raises."""
    with ThreadPoolExecutor(len(runs)) as threads:
        for done in [threads.submit(run) for run in runs]:
            done.result()


def keep_built(kind: str, optimizer: Any) -> None:
    """Keras 2 empties its index of the variables in each `apply_gradients`: a race of its own."""
    if kind == "keras2":
        optimizer.build = lambda variables: None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_threads_with_one_step(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None], compiled: bool
) -> None:
    """Four threads run one graph at once, or step eagerly, each in frames of its own."""
    tracer.wrap(optimizer)
    step = tf.function(apply) if compiled else apply
    step()
    keep_built(kind, optimizer)
    steps = 100 if compiled else 25
    run_in_threads(*[lambda: [step() for _ in range(steps)]] * 4)
    assert_totals(tracer.trace_of(optimizer), variables, 1 + 4 * steps)


def test_snapshots_while_training(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """`trace_of` while another thread trains: never more than was done, and exact at the end."""
    tracer.wrap(optimizer)
    step = tf.function(apply)
    step()
    done = threading.Event()

    def run() -> None:
        for _ in range(300):
            step()
        done.set()

    worker = threading.Thread(target=run)
    worker.start()
    seen = [0]
    while not done.is_set():
        trace = tracer.trace_of(optimizer)
        seen.append(counted(trace, variables["kernel"]).dense)
        assert seen[-1] <= read(variables["kernel"])[0].dense
    worker.join()
    assert seen == sorted(seen)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert_totals(trace, variables, 301)


@pytest.mark.parametrize("kind", ["legacy", "keras3", "v1"])  # one of Keras 2 has no lock itself
def test_one_optimizer_shared_by_eight_threads(kind: str) -> None:
    """Each thread has variables and a function of its own, and reads traces meanwhile."""
    optimizer = ODOMETERS[kind]()
    sets = [make_variables(kind) for _ in range(8)]
    if kind == "keras3":  # or it takes no variables but those of its first step
        optimizer.build([each for variables in sets for each in variables.values()])
    tracer.wrap(optimizer)

    def train(variables: dict[str, Any]) -> None:
        def apply() -> None:
            optimizer.apply_gradients(gradients(variables))

        step = tf.function(apply)
        for index in range(10):
            step() if index % 2 else apply()
            if index == 5:
                tracer.trace_of(optimizer)

    run_in_threads(*(partial(train, variables) for variables in sets))
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 80
    for variables in sets:
        assert_readings(trace, variables)
        assert readings(variables)["kernel"] == Reading(10)


# Forks.

CHILD = """
    import json, os, signal, sys
    import tensorflow as tf
    from support.odometers import ODOMETERS, gradients, make_variables, read
    import tracer

    kind = sys.argv[1]
    optimizer, variables = tracer.wrap(ODOMETERS[kind]()), make_variables(kind)
    step = lambda: optimizer.apply_gradients(gradients(variables))

    @tf.function
    def compiled():
        step()

    def tell(who):
        trace = tracer.trace_of(optimizer)
        shown = [sum(read(each)[0]) for each in variables.values()]
        said = [trace.updates(variable=each) for each in variables.values()]
        print(json.dumps([who, trace.steps, said, shown, trace.complete]), flush=True)

    step()
    compiled()
    child = os.fork()
    if not child:
        signal.alarm(60)
        step()
        step()
        tell("child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    compiled()
    tell("parent")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("legacy", marks=pytest.mark.sweep),
        pytest.param("keras3", marks=pytest.mark.long),
    ],
)
def test_a_fork_counts_for_itself(kind: str) -> None:
    """A child trains in eager mode; what TensorFlow cannot do in one is to run a graph."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHILD), kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)])},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == [
        ["child", 4, [4] * 4, [4] * 4, True],
        ["parent", 3, [3] * 4, [3] * 4, True],
    ]
