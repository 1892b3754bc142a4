"""Threads that share an optimizer, a function or a trace, and a process that forks."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import assert_totals, counted
from support.libraries import keras2
from support.odometers import read
from support.ran import by_step
from support.scripts import output_of

import tracer

SGD: Any = keras2.optimizers.legacy.SGD

pytestmark = pytest.mark.wide(rest="sweep")


def run_in_threads(*runs: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; raises what one of them raises."""
    with ThreadPoolExecutor(len(runs)) as threads:
        for done in [threads.submit(run) for run in runs]:
            done.result()


@pytest.mark.parametrize("way", ["eager", "function", "both"])
def test_threads_with_one_step(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None], way: str
) -> None:
    """Four threads run one graph at once, or step eagerly, each in frames of its own."""
    tracer.wrap(optimizer)
    compiled = tf.function(apply)
    runs = {"eager": [apply], "function": [compiled], "both": [apply, compiled]}[way]
    for run in runs:
        run()
    if kind == "keras2":  # it empties its index of the variables in each step: a race of its own
        optimizer.build = lambda variables: None
    times = 100 if way == "function" else 25
    run_in_threads(*[lambda: [run() for _ in range(times) for run in runs]] * 4)
    assert_totals(tracer.trace_of(optimizer), variables, (1 + 4 * times) * len(runs))


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


def test_an_eager_step_while_a_graph_step_is_past_its_branch() -> None:
    inside, done = threading.Event(), threading.Event()
    weight = tf.Variable([0.0])

    def wait() -> None:
        inside.set()
        assert done.wait(60)

    class Branching(SGD):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, **options: Any) -> None:
            pairs = list(grads_and_vars)
            if tf.executing_eagerly():
                super().apply_gradients(pairs, **options)
                return
            tf.cond(pairs[0][0][0] > 0, lambda: self._apply(pairs), lambda: 0)
            tf.py_function(wait, [], [])

        def _apply(self, pairs: Any) -> int:
            super().apply_gradients(pairs)
            return 0

    optimizer = tracer.wrap(Branching(1.0))
    optimizer._create_all_weights([weight])

    @tf.function(autograph=False)
    def function(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weight)])

    thread = threading.Thread(target=function, args=(tf.ones(1),))
    thread.start()
    assert inside.wait(60)
    optimizer.apply_gradients([(tf.ones(1), weight)])
    done.set()
    thread.join()
    trace = tracer.trace_of(optimizer)
    assert (trace.updates(), float(weight[0]), trace.complete) == (2, -2, True)
    assert by_step(trace) == [1, 1]


def test_two_threads_that_step_eagerly_under_a_strategy() -> None:
    barrier = threading.Barrier(2, timeout=60)

    class Meeting(SGD):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            barrier.wait()  # both threads are in a step now
            barrier.wait()
            return super()._resource_apply_dense(grad, var, apply_state)

    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        optimizer = tracer.wrap(Meeting(1.0))
        weights = [tf.Variable([0.0]) for _ in range(2)]
        optimizer._create_all_weights(weights)

    def run(weight: Any) -> None:
        strategy.run(lambda: (optimizer.apply_gradients([(tf.ones(1), weight)]), None)[1])

    run_in_threads(*(partial(run, weight) for weight in weights))
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (2, 2, True)
    assert by_step(trace) == [1, 1]


CHILD = """
import os, signal, sys
import tensorflow as tf
sys.path.insert(0, "tests")
from support.odometers import LegacyOdometer, gradients, make_variables, read
import tracer

optimizer, variables = tracer.wrap(LegacyOdometer()), make_variables("legacy")
step = lambda: optimizer.apply_gradients(gradients(variables))
compiled = tf.function(lambda: step() and None)

def check(steps):
    trace = tracer.trace_of(optimizer)
    counts = [(sum(read(each)[0]), trace.updates(variable=each)) for each in variables.values()]
    assert (counts, trace.steps, trace.complete) == ([(steps, steps)] * 4, steps, True)

step()
compiled()
child = os.fork()
if not child:
    signal.alarm(60)
    step()
    step()
    check(4)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
compiled()
check(3)
"""


@pytest.mark.sweep
def test_a_fork_counts_for_itself() -> None:
    """A child trains in eager mode; what TensorFlow cannot do in one is to run a graph."""
    output_of("-c", CHILD)
