"""Programs of TensorFlow that were once counted wrong, or whose trace was wrongly called complete.

The weights are the truth: SGD with the rate 1 and the gradient 1 takes 1 off a variable in each
update.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras2
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


def zero(name: str = "weight") -> Any:
    return tf.Variable([0.0], name=name)


def ran(weight: Any) -> int:
    """How often a variable was updated."""
    return -int(np.asarray(weight)[0])


def step(optimizer: Any, *weights: Any) -> None:
    """One step with the gradient 1 of each variable."""
    optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])


def function_of(optimizer: Any, *weights: Any) -> Any:
    """A `tf.function` that makes one step."""
    return tf.function(lambda: step(optimizer, *weights), autograph=False)


def ready(optimizer: Any, weight: Any) -> Any:
    """A legacy optimizer whose apply methods can be called."""
    optimizer._create_all_weights([weight])
    optimizer._prepare([weight])
    return optimizer


# Functions.


def test_a_trace_that_is_read_inside_of_a_step() -> None:
    """The step under way was taken for one that an error had ended."""
    weight, inner, traces = zero(), Legacy(1.0), []
    function = function_of(inner, weight)

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
    optimizer = tracer.wrap(ready(Legacy(1.0), weight))

    def train() -> None:
        for _ in tf.range(20_000):
            step(optimizer, weight)

    tf.function(train)()
    trace = tracer.trace_of(optimizer)
    assert said(trace) == (20_000, ran(weight), True) == (20_000, 20_000, True)
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


# Sessions and strategies.


@contextlib.contextmanager
def session_with(*names: str) -> Iterator[Any]:
    """Variables at 0 of a Session's graph, and a function that runs ops in it."""
    with tf.Graph().as_default(), v1.Session() as session:
        zeros: Any = {"shape": (1,), "initializer": v1.zeros_initializer(), "use_resource": True}
        weights = [v1.get_variable(name, **zeros) for name in names]
        session.run(v1.global_variables_initializer())
        yield (*weights, session.run)


def test_a_session_that_fetches_a_part_of_a_step() -> None:
    """Updates that a Session fetched without the train op were not counted in silence."""
    with session_with("first", "second") as (first, second, run):
        optimizer = tracer.wrap(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.apply_gradients([(tf.ones(1), first), (tf.ones(1), second)])
        ops = train.graph.get_operations()
        (part,) = (
            op
            for op in ops
            if op.type == "ResourceApplyGradientDescent" and op.inputs[0] is first.handle
        )
        for op in (part, train, part):
            run(op)
        assert (ran(run(first)), ran(run(second))) == (3, 1)
    assert said(tracer.trace_of(optimizer)) == (1, 2, False)


def test_a_train_op_under_a_strategy() -> None:
    """The first apply method in a v1 graph under a strategy ended the counting."""
    with tf.Graph().as_default(), v1.Session() as session:
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            weight = tf.Variable([0.0])
            optimizer = tracer.wrap(v1.train.GradientDescentOptimizer(1.0))
            halves = lambda: optimizer.apply_gradients([(tf.ones(1) / 2, weight)])  # noqa: E731
            trains = strategy.run(halves)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(strategy.experimental_local_results(trains))
        assert [ran(each) for each in session.run(list(weight.values))] == [3, 3]
    trace = tracer.trace_of(optimizer)
    assert [trace.updates(replica=replica) for replica in (0, 1)] == [3, 3]
    assert said(trace) == (3, 6, True)
