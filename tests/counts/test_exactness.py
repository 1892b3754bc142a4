"""Counts under attack: each program was once counted wrong in silence, or called incomplete.

The weights say what happened: plain SGD with a learning rate of 1 takes the gradient, 1, off the
variable. What is asserted of the trace is held against them, or is arithmetic.
"""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras2
from support.ran import by_step

import tracer
from tracer.backends.tensorflow import ledger

v1 = tf.compat.v1
SGD: Any = keras2.optimizers.legacy.SGD

# Embedding layers of earlier tests may be alive.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* has no _resource_apply_sparse:tracer.OptimizerWarning"
)


def zero(name: str = "weight") -> Any:
    return tf.Variable([0.0], name=name)


def ran(variable: Any) -> int:
    """How often it was updated."""
    return -int(np.asarray(variable)[0])


def one() -> Any:
    return tf.ones(1)


def assert_all_counted(optimizer: Any, variable: Any, steps: list[int], outside: int = 0) -> None:
    """The trace is complete, has the updates that the weights show, and these in its steps."""
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.updates() == ran(variable) == sum(steps) + outside
    assert trace.steps == len(steps)
    assert by_step(trace) == steps


def applying(optimizer: Any, variable: Any) -> Any:
    """A function that applies the gradient 1."""

    @tf.function(autograph=False)
    def apply(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, variable)])

    return apply


# Steps that overlap in time.


class Gate:
    """Two places where a thread waits until the other one has come to them as well."""

    def __init__(self) -> None:
        self.inside, self.done = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.inside.set()
        assert self.done.wait(20)


def test_an_eager_step_while_a_graph_step_is_past_its_branch() -> None:
    gate, weight = Gate(), zero()

    class Branching(SGD):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, **options: Any) -> None:
            pairs = list(grads_and_vars)
            if tf.executing_eagerly():
                super().apply_gradients(pairs, **options)
                return
            tf.cond(pairs[0][0][0] > 0, lambda: self._apply(pairs), lambda: 0)
            tf.py_function(gate.wait, [], [])

        def _apply(self, pairs: Any) -> int:
            super().apply_gradients(pairs)
            return 0

    optimizer = tracer.wrap(Branching(1.0))
    optimizer._create_all_weights([weight])
    function = applying(optimizer, weight)
    thread = threading.Thread(target=function, args=(one(),))
    thread.start()
    assert gate.inside.wait(60)
    optimizer.apply_gradients([(one(), weight)])
    gate.done.set()
    thread.join()
    assert_all_counted(optimizer, weight, [1, 1])


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
        weights = [zero("first"), zero("second")]
        optimizer._create_all_weights(weights)

    def run(weight: Any) -> None:
        strategy.run(lambda: (optimizer.apply_gradients([(one(), weight)]), None)[1])

    threads = [threading.Thread(target=run, args=(weight,)) for weight in weights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (2, 2, True)
    assert by_step(trace) == [1, 1]


def test_a_function_that_the_host_calls_before_the_step_that_calls_it() -> None:
    """In the step it is ready to run before the step begins, but for its stamp."""
    weight, other = zero(), zero("other")
    inner = SGD(1.0)
    inner._create_all_weights([other])
    inner._prepare([other])

    @tf.function
    def function() -> None:
        inner._resource_apply_dense(one(), other)

    class Calling(SGD):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            function()
            return super()._resource_apply_dense(grad, var, apply_state)

    outer = Calling(1.0)
    outer.inner = inner
    outer._create_all_weights([weight])
    tracer.wrap(outer)

    @tf.function
    def train() -> None:
        with tf.control_dependencies([tf.py_function(function, [], [])]):
            outer.apply_gradients([(one(), weight)])

    train()
    trace = tracer.trace_of(outer)
    assert (ran(weight), ran(other)) == (1, 2)
    assert trace.complete, trace.notes
    assert trace.updates(variable=other) == 1  # the other is part of that of `weight`


# Detail that is lost.


def test_an_overflowing_journal_puts_no_update_into_a_wrong_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "ROWS", 2047)
    first, second = zero("first"), zero("second")
    optimizer = tracer.wrap(SGD(1.0))
    optimizer._create_all_weights([first, second])
    count = 9004

    @tf.function
    def train() -> None:
        for index in tf.range(count):
            if index % 6 == 0 or index % 6 == 3 or index % 6 == 5:
                optimizer.apply_gradients([(one(), first)])
            else:
                optimizer.apply_gradients([(one(), second)])

    train()
    trace = tracer.trace_of(optimizer)
    expected = [int(index % 6 in (0, 3, 5)) for index in range(count)]
    assert (trace.updates(), trace.updates(variable=first)) == (count, sum(expected))
    assert not trace.complete
    counted = trace.count("updates", by=("step",), variable=first)
    wrong = [step for (step,), n in counted.items() if n != expected[step - 1]]
    assert not wrong
    assert len(counted) > 2000  # the last thousands of steps are known


# Functions that are older than the tracer.


def test_an_optimizer_of_somebody_else_says_nothing_of_a_recording() -> None:
    """A namesake that is alive, with an old graph, and does nothing in the block."""

    def make() -> Any:
        return v1.train.GradientDescentOptimizer(1.0, name="Namesake")

    theirs, their_weight = make(), zero("theirs")
    old = applying(theirs, their_weight)
    old(one())
    mine, weight = make(), zero()
    with tracer.record() as recording:
        mine.apply_gradients([(one(), weight)])
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete, trace.notes) == (1, 1, True, ())
    with tracer.record() as recording:
        mine.apply_gradients([(one(), weight)])
        old(one())
    trace = recording.trace()
    assert (trace.updates(), ran(their_weight), trace.complete) == (2, 2, True)


# Parts of a step.
