"""Optimizers that are wrapped late, or unwrapped in between: older graphs hold no counters.

Functions are traced again, so that what they run from then on counts; each way of running is in the
truth table. Of graphs that cannot be traced again, or must not be, the trace may say less than the
odometers show, but then it must say so: `complete` is False and a note says why. What it says of a
variable must be true in any case.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support.against_odometers import (
    assert_right_or_incomplete,
    counted,
    minus,
    readings,
)
from support.libraries import library_of, optimizer_of
from support.odometers import ODOMETERS, Reading, read, reading
from support.twins import slots

import tracer

pytestmark = pytest.mark.wide

v1 = tf.compat.v1


def test_wrapped_after_graph_tracing(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """They are traced again, at the next call and only then."""
    traced = []

    @tf.function
    def step() -> None:
        traced.append(step)
        apply()

    step()
    step()
    tracer.wrap(optimizer)
    usual = len(traced)  # twice where the first call makes slot variables
    before = readings(variables)
    for _ in range(3):
        step()
    truth = minus(readings(variables), before)
    assert truth["kernel"] == Reading(3)
    trace = tracer.trace_of(optimizer)
    assert_right_or_incomplete(trace, variables, truth)
    assert trace.complete, trace.notes
    assert len(traced) == usual + 1
    (note,) = trace.notes
    assert note.endswith(
        ": step, traced before the optimizer was wrapped, is traced again at the next call; its "
        "Python values are read again then, and its stateful random ops restart"
    )
    step()
    assert len(traced) == usual + 1


@pytest.mark.parametrize("how", ["kept", "held", "inside", "dataset", "under way", "being traced"])
def test_an_older_graph_that_runs_is_noted(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None], how: str
) -> None:
    """In the program's trace and in each block, and still when the graph is gone."""

    def wrap() -> None:
        if not wraps:
            tracer.wrap(optimizer, retrace=how != "kept")
        wraps.append(how)

    def steps() -> None:
        apply()
        if how == "being traced":
            wrap()
        elif how == "under way":
            tf.py_function(wrap, [], [])
        apply()

    wraps: list[str] = []
    tf.function(apply)()  # slot variables are made in the first call of a function
    run: Any = tf.function(steps)
    if how == "held" or how == "inside":
        run = run.get_concrete_function()
    elif how == "dataset":

        def in_dataset(element: Any) -> Any:
            apply()
            return element

        rows = tf.data.Dataset.range(1).map(in_dataset)
        run = partial(list, rows)
    run()
    if not wraps:
        wrap()
    if how == "inside":
        held = run
        run = tf.function(lambda: held())
    for block in range(2):
        before = readings(variables)
        with tracer.record() as recording:
            run()
        trace = recording.trace()
        truth = minus(readings(variables), before)
        assert truth["kernel"] == Reading(1 if how == "dataset" else 2)
        assert_right_or_incomplete(trace, variables, truth)
        assert not trace.complete, block
    run = held = rows = None
    with tracer.record() as recording:
        pass
    assert recording.trace().complete  # what cannot run again is in no later block
    wrapped = tracer.trace_of(optimizer)
    tracer.unwrap(optimizer)
    for trace in (wrapped, tracer.trace_of(optimizer)):
        assert not trace.complete
        assert any("and is not traced again: what it does" in note for note in trace.notes)


def test_what_made_its_variables_in_its_first_call() -> None:
    """Only the graphs are forgotten: a function that made variables makes no others."""
    made = []

    class Model(tf.Module):  # type: ignore[misc]
        weight: Any = None

        @tf.function
        def __call__(self) -> None:
            if self.weight is None:
                self.weight = tf.Variable([0.0, 0.0], name="weight")
                made.append(self.weight)
            optimizer.apply_gradients([(tf.ones(2), self.weight)])

    optimizer = ODOMETERS["legacy"]()
    model = Model()
    model()
    tracer.wrap(optimizer)
    model()
    model()
    trace = tracer.trace_of(optimizer)
    assert (trace.updates(), trace.complete, len(made)) == (2, True, 1)
    assert read(made[0])[0] == Reading(3)


def test_an_optimizer_that_only_the_code_of_a_function_shows() -> None:
    """The graph writes to none of its variables, and the name of its ops is the program's."""
    keras = library_of("keras3")
    first, second = keras.Variable([0.0]), keras.Variable([0.0])
    named, direct = v1.train.GradientDescentOptimizer(1.0), keras.optimizers.SGD(1.0)
    direct.build([second])

    @tf.function
    def step_named() -> None:
        named.apply_gradients([(tf.ones(1), first.value)], name="train")

    @tf.function
    def step_directly() -> None:
        direct.update_step(tf.ones(1), second, 1.0)

    step_named()
    step_directly()
    with tracer.record() as recording:
        step_named()
        step_directly()
    trace = recording.trace()
    assert list(trace.count("updates", "optimizer").values()) == [1, 1]
    assert trace.complete


def test_a_class_with_its_own_apply_leaves_the_functions_of_others() -> None:
    """They are not traced again, so their random draws go on."""

    class Own(library_of("keras3").optimizers.SGD):  # type: ignore[misc]
        def apply(self, *args: Any) -> None:
            super().apply(*args)

    count, traced = tf.Variable(0.0), []

    @tf.function
    def metric() -> None:
        traced.append(metric)
        count.assign_add(1.0)

    metric()
    optimizer, weight = Own(1.0), tf.Variable([0.0])
    optimizer.build([weight])
    tracer.wrap(optimizer)
    metric()
    optimizer.apply([tf.ones(1)], [weight])
    trace = tracer.trace_of(optimizer)
    assert (len(traced), trace.updates(), trace.complete) == (1, 1, True)


def test_unwrapped_functions_can_be_traced_again(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    step = tf.function(apply)
    for retrace in (False, True):
        tracer.wrap(optimizer)
        step()
        tracer.unwrap(optimizer, retrace=retrace)
        step()
    assert counted(tracer.trace_of(optimizer), variables["kernel"]) == Reading(3)


@pytest.mark.parametrize("name", [None, "train"])
@pytest.mark.parametrize("kind", ["v1", "legacy"], indirect=True)
def test_wrapped_after_the_train_op(kind: str, name: str | None) -> None:
    """A train op of a session that was built before, under whichever name."""
    with tf.Graph().as_default():
        optimizer = ODOMETERS[kind]()
        kernel = v1.get_variable("kernel", (2, 2), initializer=v1.zeros_initializer())
        train = optimizer.apply_gradients([(tf.ones((2, 2)), kernel)], name=name)
        tracer.wrap(optimizer)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            session.run(train)
            shown = reading(session.run(kernel))
        assert shown == Reading(2)
        trace = tracer.trace_of(optimizer)
        assert not trace.complete
        assert_right_or_incomplete(trace, {"kernel": kernel}, {"kernel": shown})


def test_wrapped_after_a_named_step_in_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ops have the name of the call; those of a traced optimizer are left to it."""
    weight = tf.Variable(0.0)
    first, second = (v1.train.GradientDescentOptimizer(-1.0, name=n) for n in ("first", "second"))
    # Out of reach of the search in a function's code.
    monkeypatch.setattr(sys, "tracer_hidden", {1: first, 2: second}, raising=False)

    def function_of(number: int, **name: str) -> Any:
        def step() -> None:
            hidden = vars(sys)["tracer_" + "hidden"]
            hidden[number].apply_gradients([(tf.constant(1.0), weight)], **name)

        return tf.function(step).get_concrete_function()

    tracer.wrap(first)
    early = function_of(1)
    late = function_of(2, name="train")
    tracer.wrap(second)
    for function in (early, late, late):
        function()
    assert weight.numpy() == 3
    assert tracer.trace_of(first).updates() == 1 and tracer.trace_of(first).complete
    assert tracer.trace_of(second).updates() == 0 and not tracer.trace_of(second).complete


def test_what_is_no_update_of_a_v1_optimizer_is_left_alone() -> None:
    """The function of another one, and assignments in a scope like those of an update."""
    other, own = v1.train.AdamOptimizer(), v1.train.GradientDescentOptimizer(-1.0)
    weights, weight, traced = tf.Variable(tf.zeros(3)), tf.Variable(0.0), Counter[str]()

    @tf.function
    def of_other() -> None:
        traced["other"] += 1
        other.apply_gradients([(tf.ones(3), weights)])

    @tf.function
    def of_none() -> None:
        traced["none"] += 1
        with tf.name_scope("agent"), tf.name_scope("update_noise"):
            weights.assign_add(tf.ones(3))

    held = [function.get_concrete_function() for function in (of_other, of_none)]
    before = Counter(traced)
    tracer.wrap(own)
    for function in (of_other, of_none, *held):
        function()
    own.apply_gradients([(tf.ones(()), weight)])
    assert traced == before
    assert tracer.trace_of(own).updates() == 1 and tracer.trace_of(own).complete


def test_variables_of_a_strategy_in_a_function_are_asked_for_nothing() -> None:
    """They answer any name by an op in the current graph, or raise if it is that of a Session."""
    strategy = strategy_of("mirrored 2")
    with strategy.scope():
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        weight = tf.Variable(0.0)
    read = tf.function(lambda: (weight.assign_add(1.0), total.read_value()))
    read()
    with tf.Graph().as_default() as graph:
        tracer.wrap(library_of("legacy").optimizers.legacy.SGD(1.0))
        assert not graph.get_operations()


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_a_late_wrap_leaves_training_as_it_is(kind: str) -> None:
    """Losses, weights and slots have the same bits; Keras 3's seed generators go on."""
    library = library_of(kind)
    ends = []
    for traced in (False, True):
        library.utils.set_random_seed(1)
        dropout = [library.layers.Dropout(0.5)] if kind == "keras3" else []
        layers = [library.layers.Dense(4, activation="tanh"), *dropout, library.layers.Dense(1)]
        model = library.Sequential([library.Input((3,)), *layers])
        model.compile(optimizer_of(kind, "Adam", 0.1), "mse")
        x = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3)
        options = {"batch_size": 4, "epochs": 2, "verbose": 0, "shuffle": False}
        losses = model.fit(x, x[:, :1] ** 2, **options).history["loss"]
        if traced:
            tracer.wrap(model.optimizer)
        losses += model.fit(x, x[:, :1] ** 2, **options).history["loss"]
        ends.append(
            [np.asarray(losses), *model.get_weights(), *map(np.asarray, slots(model.optimizer))]
        )
    for left, right in zip(*ends, strict=True):
        np.testing.assert_array_equal(left, right)
    trace = tracer.trace_of(model.optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (8, 32, True)


def test_a_function_is_found_by_name_though_its_code_reaches_a_namesake() -> None:
    first, second = (ODOMETERS["v1"]() for _ in range(2))
    weight = tf.Variable([0.0])
    setattr(weight, "trained by", second)  # a name that no code has

    @tf.function
    def step() -> None:
        first.apply_gradients([(tf.ones(1), weight)])
        getattr(weight, "trained by").apply_gradients([(tf.ones(1), weight)])

    step()
    tracer.wrap(second)
    step()
    trace = tracer.trace_of(second)
    assert (trace.steps, trace.updates()) == (1, 1), trace.notes
