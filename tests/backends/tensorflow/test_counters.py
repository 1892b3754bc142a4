"""What the tracer adds to a graph: few ops, however many variables there are."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from support.libraries import is_keras3, keras2, keras3

import tracer
from tracer.backends.tensorflow import ledger

legacy = keras2.optimizers.legacy


def _ops_added(make: Any, variables: int) -> tuple[int, set[str]]:
    """The ops that the tracer adds to a step over so many variables, and the types of all ops."""
    operations = []
    for traced in (False, True):
        optimizer = make()
        make_variable = keras3.Variable if is_keras3(optimizer) else tf.Variable
        weights = [make_variable([1.0, 2.0]) for _ in range(variables)]
        if traced:
            tracer.wrap(optimizer)

        @tf.function(autograph=False)
        def step() -> None:
            optimizer.apply_gradients([(tf.ones(2), each) for each in weights])  # noqa: B023

        operations.append(step.get_concrete_function().graph.get_operations())
    plain, counted = operations
    return len(counted) - len(plain), {op.type for op in counted}


@pytest.mark.parametrize(
    "make",
    [
        legacy.Adam,
        pytest.param(keras2.optimizers.Adam, marks=pytest.mark.sweep),
        pytest.param(keras.optimizers.Adam, marks=pytest.mark.long),
        pytest.param(tf.compat.v1.train.AdamOptimizer, marks=pytest.mark.sweep),
    ],
    ids=["legacy", "keras2", "keras3", "v1"],
)
@pytest.mark.parametrize("variables", [20, pytest.param(80, marks=pytest.mark.sweep)])
def test_a_block_costs_the_same_however_many_variables(make: Any, variables: int) -> None:
    few, types = _ops_added(make, 4)
    many, _ = _ops_added(make, variables)
    assert few == many
    assert few <= 21  # with four arguments
    assert not types & {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}


def test_journals_are_emptied_as_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many executions there are, and nobody asks for a trace: no step is lost."""
    monkeypatch.setattr(ledger, "ROWS", 1023)
    optimizer = tracer.wrap(legacy.SGD())
    weights = [tf.Variable([1.0, 2.0]) for _ in range(2)]

    @tf.function(autograph=False)
    def step(which: int) -> None:
        optimizer.apply_gradients([(tf.ones(2), weights[which])])

    @tf.function
    def steps(count: Any) -> None:
        for _ in tf.range(count):
            step(0)

    order = [number % 7 % 3 == 0 for number in range(3000)]
    for which in order:
        step(int(which))
    for _ in range(20):
        steps(tf.constant(200))
    trace = tracer.trace_of(optimizer)
    assert trace.complete
    truth = {number for number, which in enumerate(order, 1) if which}
    updates = trace.count("updates", by="step", variable=weights[1])
    assert {number for (number,) in updates} == truth
    assert trace.count("updates", by=()) == {(): 7000}


@pytest.mark.parametrize(
    "way",
    [
        "loop",
        pytest.param("dataset", marks=pytest.mark.sweep),  # half a minute: tf.data is slow here
        pytest.param("called in a loop", marks=pytest.mark.long),
        pytest.param("called by a dataset", marks=pytest.mark.sweep),
    ],
)
def test_short_calls_and_then_long_ones(way: str) -> None:
    """After many calls of few steps, the first calls of many steps lose none."""
    optimizer = tracer.wrap(tf.compat.v1.train.GradientDescentOptimizer(-1.0))
    even, odd = tf.Variable([0.0]), tf.Variable([0.0])

    def step(number: Any) -> None:
        if number % 2 == 0:
            optimizer.apply_gradients([(tf.ones(1), even)])
        else:
            optimizer.apply_gradients([(tf.ones(1), odd)])

    alone = int("called" in way)
    if alone:  # before, so it is traced outside of the loop
        step = tf.function(step)
        step(tf.constant(0, tf.int64))
        step(tf.constant(1, tf.int64))

    @tf.function
    def steps(count: Any) -> None:
        for number in tf.data.Dataset.range(count) if "dataset" in way else tf.range(count):
            step(number)

    for _ in range(256):
        steps(tf.constant(2, tf.int64))
    for _ in range(64):
        steps(tf.constant(1000, tf.int64))
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert even.numpy()[0] == odd.numpy()[0] == alone + 256 + 32_000
    updates = trace.count("updates", by="step", variable=odd)
    assert {number for (number,) in updates} == {*range(2, 2 * alone + 64_513, 2)}
    assert {*updates.values()} == {1}
