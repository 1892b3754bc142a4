"""Verdicts that were once wrong: merged traces, assertions, the command, and a finding.

The runs are of TensorFlow, but what is judged is not: SGD with the rate 1 and the
gradient 1 takes 1 off a variable in each update.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.libraries import keras2, keras3, needs_keras3
from support.said import said

import tracer

Legacy: Any = keras2.optimizers.legacy.SGD


def step(optimizer: Any, *weights: Any) -> None:
    """One step with the gradient 1 of each variable."""
    optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])


def command(*arguments: object) -> int:
    """The exit status of a command of the tracer."""
    made = [sys.executable, "-m", "tracer", *map(str, arguments)]
    return subprocess.run(made, capture_output=True, timeout=120, check=False).returncode


# Merged traces.


class Worker(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """A worker of a cluster, as far as its own trace knows."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__("cpu:0")
        names = [f"host:{port}" for port in range(count)]
        cluster = tf.train.ClusterSpec({"worker": names})
        self.resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="worker", task_id=index
        )

    cluster_resolver = property(lambda self: self.resolver)


def trained(index: int, count: int, steps: tuple[int, ...]) -> Any:
    """The trace of a worker with an optimizer, and a variable, for each number of steps."""
    worker = Worker(index, count)
    with worker.scope(), tracer.record() as recording:
        optimizers = [Legacy(1.0, name=f"sgd{number}") for number in range(len(steps))]
        for number, optimizer in enumerate(optimizers):
            weight = tf.Variable([0.0], name=f"weight{number}")
            for _ in range(steps[number]):
                worker.run(step, args=(optimizer, weight))
    return recording.trace()


def test_a_worker_that_trained_a_part() -> None:
    """A worker that died before its first step with an optimizer made the merge refuse the run."""
    merged = tracer.merge([trained(0, 2, (3, 2)), trained(1, 2, (1, 0))])
    assert said(merged) == (3, 3 + 2 + 1, True)
    assert merged.count("updates", by="worker") == {("worker:0",): 5, ("worker:1",): 1}


def test_a_worker_of_an_earlier_larger_run() -> None:
    """A file that remained of a run with more workers counted as one more worker of this run."""
    assert tracer.merge([trained(0, 2, (3,)), trained(1, 2, (3,))]).complete
    mixed = [trained(0, 2, (3,)), trained(1, 2, (3,)), trained(2, 3, (3,))]
    assert not tracer.merge(mixed).complete


# Assertions.


def test_an_assertion_on_a_name_that_nothing_has() -> None:
    """The assertion passed, because nothing with a misspelt name is ever updated."""
    weight = tf.Variable([0.0], name="embedding")
    with pytest.raises(AssertionError), tracer.assert_never_updated("embeding*"):
        step(Legacy(1.0), weight)


def test_an_assertion_on_the_calls_of_a_layer() -> None:
    """The assertion counted no call, because a layer was no variable for it."""
    layer = keras2.layers.Dense(1)
    layer.build((None, 1))
    optimizer = Legacy(1.0)
    with tracer.assert_calls("_resource_apply_dense", 2 * 3, variable=layer):
        for _ in range(3):
            optimizer.apply_gradients([(tf.ones_like(each), each) for each in layer.weights])


# The command.


def test_an_expectation_on_a_variable_of_a_step(tmp_path: Path) -> None:
    """The count was always 0, because a step runs once for all variables."""
    weight = tf.Variable([0.0], name="weight")
    with tracer.record() as recording:
        step(Legacy(1.0), weight)
    recording.trace().save(tmp_path / "trace.json")
    assert command("check", tmp_path / "trace.json", "-e", "updates[weight*]=1") == 0
    assert command("check", tmp_path / "trace.json", "-e", "apply_gradients[weight*]=0") == 2


# Findings.


@needs_keras3
def test_a_variable_that_its_gradient_replaces() -> None:
    """A scale of float8, which Keras assigns without an apply method, was "never updated"."""
    scale, weight = keras3.Variable([0.0], name="scale"), keras3.Variable([0.0], name="weight")
    scale.overwrite_with_gradient = True
    optimizer = tracer.wrap(keras3.optimizers.SGD(1.0))
    for _ in range(4):
        optimizer.apply([tf.ones(1), tf.ones(1)], [scale, weight])
    trace = tracer.trace_of(optimizer)
    assert (scale.numpy(), weight.numpy()) == ([1], [-4])
    assert said(trace) == (4, 4, True)
    assert not trace.findings()
