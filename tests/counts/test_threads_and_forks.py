"""Hostile surroundings: forks, threads, memory that runs out, wrapping in the middle of `fit`.

And long runs, in small: `tests/support/endurance.py` has the lengths that count.
"""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import endurance
import numpy as np
import pytest
import tensorflow as tf
from libraries import library_of
from odometers import ODOMETERS, Reading, gradients, make_variables, read

import tracer

pytestmark = pytest.mark.wide

SUPPORT = Path(__file__).parents[1] / "support"
ROOT = SUPPORT.parents[1]


def shown(variables: dict[str, Any]) -> dict[str, Reading]:
    """What the odometers show."""
    return {label: read(each)[0] for label, each in variables.items()}


def counted(trace: Any, variables: dict[str, Any]) -> dict[str, Reading]:
    """What the trace says of them."""
    return {
        label: Reading(*(trace.updates(kind=kind, variable=each) for kind in ("dense", "sparse")))
        for label, each in variables.items()
    }


# Memory.


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "kind", "number"),
    [
        ("steps_in_one_loop", "legacy", 20_000),
        ("graph_tracings", "v1", 500),
        ("many_optimizers", "legacy", 40),
    ],
)
def test_long_runs(what: str, kind: str, number: int) -> None:
    outcome = endurance.run(what, kind, number)
    assert outcome.right(), outcome
    # Each optimizer that is used in graphs has 160 KiB of its own.
    allowed = endurance.MEGABYTES + (0.3 * number if what == "many_optimizers" else 0)
    assert outcome.more < allowed, outcome


# Memory that runs out.

ENDLESS = 2**46
"""So many floats no machine has the addresses for."""


@pytest.mark.parametrize(
    ("kind", "compiled"), [("legacy", False), ("keras3", True)]
)  # few: TensorFlow tries for 10 s to get the memory
def test_no_memory_for_an_update(kind: str, compiled: bool) -> None:
    """The error is TensorFlow's; the update was called, and not executed; what follows counts.

    In a graph nobody can know which updates of the step had run when it failed: the trace says so.
    """
    size = tf.Variable(1, dtype=tf.int64)

    base: Any = ODOMETERS[kind]

    class Large(base):  # type: ignore[misc]
        def take(self) -> Any:
            with tf.device("/cpu:0"):
                return tf.debugging.assert_all_finite(tf.fill([size], 1.0), "")

        def _resource_apply_dense(self, grad: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
            with tf.control_dependencies([self.take()]):
                return super()._resource_apply_dense(grad, var)

        def update_step(self, gradient: Any, variable: Any, *args: Any) -> Any:
            with tf.control_dependencies([self.take()]):
                return super().update_step(gradient, variable, *args)

    optimizer = tracer.wrap(Large())
    variables = {"kernel": make_variables(kind)["kernel"]}

    def step() -> None:
        optimizer.apply_gradients(gradients(variables))

    run = tf.function(step) if compiled else step
    run()
    size.assign(ENDLESS)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        run()
    size.assign(1)
    run()
    assert shown(variables) == {"kernel": Reading(2)}
    trace = tracer.trace_of(optimizer)
    assert counted(trace, variables) == shown(variables)
    assert trace.complete is not compiled, trace.notes
    if compiled:
        assert "1 step began in a graph and was ended by an error" in trace.notes[0]
    method = next(each.name for each in trace.methods if each.role == "apply")
    if not compiled:
        assert (trace.calls(method), trace.executions(method)) == (3, 2)


# Threads.


@pytest.mark.parametrize("kind", ["legacy", "keras3", "v1"])  # one of Keras 2 has no lock itself
def test_one_optimizer_shared_by_eight_threads(kind: str) -> None:
    """Each thread has variables and a function of its own, and reads traces meanwhile."""
    optimizer = ODOMETERS[kind]()
    sets = [make_variables(kind) for _ in range(8)]
    if kind == "keras3":  # or it takes no variables but those of its first step
        optimizer.build([each for variables in sets for each in variables.values()])
    tracer.wrap(optimizer)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(variables: dict[str, Any]) -> None:
        @tf.function
        def step() -> None:
            optimizer.apply_gradients(gradients(variables))

        try:
            barrier.wait()
            for index in range(10):
                step() if index % 2 else optimizer.apply_gradients(gradients(variables))
                if index == 5:
                    tracer.trace_of(optimizer)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(variables,)) for variables in sets]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 80
    for variables in sets:
        assert counted(trace, variables) == shown(variables)
        assert shown(variables)["kernel"] == Reading(10)


# In the middle of training.


@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_unwrapped_and_wrapped_again_in_one_fit(kind: str, eagerly: bool) -> None:
    library = library_of(kind)
    optimizer = tracer.wrap(ODOMETERS[kind]())

    callback: Any = library.callbacks.Callback

    class Switch(callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                tracer.unwrap(optimizer)
            if epoch == 2:
                tracer.wrap(optimizer)

    dense = library.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = library.Sequential([library.layers.Input((2,)), dense])
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    ones = np.ones((8, 2), "f4")
    model.fit(ones, ones, batch_size=2, epochs=3, callbacks=[Switch()], verbose=0)
    (truth,) = read(dense.kernel)
    assert truth == Reading(12)
    trace = tracer.trace_of(optimizer)
    said = trace.updates(variable=dense.kernel)
    # A graph that was traced while the optimizer was wrapped goes on counting.
    assert said == trace.steps == (8 if eagerly else 12)


# Forks.

CHILD = """
    import json, os, signal, sys
    import tensorflow as tf
    from odometers import ODOMETERS, gradients, make_variables, read
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


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["legacy", "keras3"])
def test_a_fork_counts_for_itself(kind: str) -> None:
    """A child trains in eager mode; what TensorFlow cannot do in one is to run a graph."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHILD), kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)])},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == [
        ["child", 4, [4] * 4, [4] * 4, True],
        ["parent", 3, [3] * 4, [3] * 4, True],
    ]
