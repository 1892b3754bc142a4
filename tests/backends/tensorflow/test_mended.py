"""Programs that were once counted wrong, or whose trace was wrongly called complete.

The weights are the truth: SGD with the rate 1 and the gradient 1 takes 1 off a variable in each
update.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras2, keras3, needs_keras3
from support.said import said

import tracer

v1 = tf.compat.v1
Legacy: Any = keras2.optimizers.legacy.SGD

# Embedding layers of earlier tests may be alive.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* has no _resource_apply_sparse:tracer.OptimizerWarning"
)


class Own(Legacy):  # type: ignore[misc]
    """Calls `instead` in place of a step."""

    def __init__(self, instead: Callable[[], Any], inner: Any = None) -> None:
        super().__init__(1.0)
        self.inner = inner
        self.__dict__.update(instead=instead)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self.instead()


def zero() -> Any:
    return tf.Variable([0.0])


def ran(weight: Any) -> int:
    """How often a variable was updated."""
    return -int(np.asarray(weight)[0])


def step(optimizer: Any, *weights: Any) -> None:
    """One step with the gradient 1 of each variable."""
    optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])


def test_a_trace_that_is_read_inside_of_a_step() -> None:
    """The step under way was taken for one that an error had ended."""
    weight, inner, traces = zero(), Legacy(1.0), []
    function = tf.function(lambda: step(inner, weight), autograph=False)

    def read() -> None:
        function()
        traces.append(said(tracer.trace_of(outer)))

    outer = tracer.wrap(Own(instead=read, inner=inner))
    for _ in range(3):
        step(outer, weight)
    assert traces == [(0, 0, True), (1, 1, True), (2, 2, True)]


@pytest.mark.long
def test_a_loop_longer_than_what_a_graph_keeps() -> None:
    """The steps of a long loop in one call were lost, although only one block can have run them."""
    weight = zero()
    optimizer = tracer.wrap(Legacy(1.0))
    step(optimizer, weight)  # makes the optimizer's own variables

    def train() -> None:
        for _ in tf.range(20_000):
            step(optimizer, weight)

    tf.function(train)()
    trace = tracer.trace_of(optimizer)
    assert said(trace) == (20_001, ran(weight), True) == (20_001, 20_001, True)
    assert trace.updates(step=range(1, 101)) == 100


def test_an_optimizer_in_a_list_of_dicts_of_another() -> None:
    """An optimizer nested that deep was not found: its updates were not counted."""
    weight, inner = zero(), Legacy(1.0)
    outer = Own(instead=lambda: step(inner, weight))
    outer.__dict__["groups"] = [{"optimizer": inner, "weights": ["weight"]}]
    tracer.wrap(outer)
    for _ in range(3):
        step(outer, weight)
    assert said(tracer.trace_of(outer)) == (3, ran(weight), True) == (3, 3, True)


def test_a_session_that_fetches_a_part_of_a_step() -> None:
    """Updates that a Session fetched without the train op were not counted in silence."""
    zeros: Any = {"shape": (1,), "initializer": v1.zeros_initializer(), "use_resource": True}
    with tf.Graph().as_default(), v1.Session() as session:
        first, second = (v1.get_variable(name, **zeros) for name in ("first", "second"))
        session.run(v1.global_variables_initializer())
        optimizer = tracer.wrap(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.apply_gradients([(tf.ones(1), first), (tf.ones(1), second)])
        (part,) = (
            op
            for op in train.graph.get_operations()
            if op.type == "ResourceApplyGradientDescent" and op.inputs[0] is first.handle
        )
        for op in (part, train, part):
            session.run(op)
        assert [ran(each) for each in session.run([first, second])] == [3, 1]
    assert said(tracer.trace_of(optimizer)) == (1, 2, False)


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


def test_a_worker_that_trained_a_part_and_one_of_a_larger_run() -> None:
    """The merge refused a worker that died before its first step with an optimizer, and counted a
    file that remained of a run with more workers as one more worker.
    """
    merged = tracer.merge([trained(0, 2, (3, 2)), trained(1, 2, (1, 0))])
    assert said(merged) == (3, 3 + 2 + 1, True)
    assert merged.count("updates", by="worker") == {("worker:0",): 5, ("worker:1",): 1}
    mixed = [trained(0, 2, (3,)), trained(1, 2, (3,)), trained(2, 3, (3,))]
    assert not tracer.merge(mixed).complete


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
