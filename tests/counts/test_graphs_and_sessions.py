"""Graphs that never run, are gone or were left by an exception, and graphs of a session."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import (
    assert_right_or_incomplete,
    assert_totals,
    counted,
    readings,
)
from support.odometers import ODOMETERS, Boom, Reading, reading

import tracer
from tracer.model.trace import summaries_of
from tracer.reporters.columns import table

pytestmark = pytest.mark.wide(rest="sweep")

v1 = tf.compat.v1


def test_functions_that_are_gone(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Counts outlive the graphs they come from; a kept concrete function goes on counting."""
    tracer.wrap(optimizer)
    steps = 0
    for runs in (1, 3, 2):
        step = tf.function(apply)
        for _ in range(runs):
            step()
        steps += runs
        kept = step.get_concrete_function()
        del step
        gc.collect()
        kept()
        steps += 1
    del kept
    gc.collect()
    assert readings(variables)["kernel"] == Reading(steps)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert_totals(trace, variables, steps)


def test_exception_caught_while_tracing(
    optimizer: Any,
    variables: dict[str, Any],
    apply: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user's function catches it: what was in the graph by then runs with the graph."""
    tracer.wrap(optimizer)
    apply()
    calls, made = optimizer.calls, list[str]()
    add = calls.add

    def third_fails(method: str) -> None:
        add(method)
        made.append(method)
        if len(made) == 3:
            raise Boom(method)

    monkeypatch.setattr(calls, "add", third_fails)

    @tf.autograph.experimental.do_not_convert
    def careful() -> None:
        made.clear()
        with contextlib.suppress(Boom):
            apply()

    step = tf.function(careful)
    for _ in range(3):
        step()
    shown = readings(variables)
    assert shown["kernel"] == Reading(4)
    assert shown["twin"] == Reading(1)
    trace = tracer.trace_of(optimizer)
    assert {label: counted(trace, each) for label, each in variables.items()} == shown
    called = trace.count("calls", by=("method", "context"))
    assert calls.counts().items() <= called.items()


# Sessions.


@pytest.fixture
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("kind", ["v1", "legacy"], indirect=True)
def test_two_train_ops_in_one_run(kind: str, graph: Any) -> None:
    """Both ops of one `Session.run` count, though nobody can say which of them came first."""
    optimizer = tracer.wrap(ODOMETERS[kind]())
    names = ("a", "b")
    variables = {
        name: v1.get_variable(name, (2, 2), initializer=v1.zeros_initializer()) for name in names
    }
    ops = [optimizer.apply_gradients([(tf.ones((2, 2)), each)]) for each in variables.values()]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for fetches in (ops, ops[:1], ops, ops[1:], ops):
            session.run(fetches)
        shown = {name: reading(session.run(each)) for name, each in variables.items()}
    assert shown == {"a": Reading(4), "b": Reading(4)}
    trace = tracer.trace_of(optimizer)
    assert {name: counted(trace, each) for name, each in variables.items()} == shown
    assert trace.steps == 8


def _cond(apply: Callable[[], Any]) -> Any:
    return v1.cond(tf.constant(True), apply, v1.no_op)


def _thrice(apply: Callable[[], Any]) -> Callable[[Any], Any]:
    def body(number: Any) -> Any:
        with tf.control_dependencies([apply()]):
            return tf.identity(number + 1)

    return body


def _while_loop(apply: Callable[[], Any]) -> Any:
    begin = [tf.constant(0)]
    return v1.while_loop(lambda i: i < 3, _thrice(apply), begin, parallel_iterations=1)


def _function(apply: Callable[[], Any]) -> Any:
    return tf.function(_thrice(apply), autograph=False)(tf.constant(0))


@pytest.fixture(params=[True, False], ids=["control_flow_v2", "control_flow_v1"])
def control_flow_v2(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = v1.control_flow_v2_enabled()
    switch = {True: v1.enable_control_flow_v2, False: v1.disable_control_flow_v2}
    switch[request.param]()
    yield request.param
    switch[before]()


@pytest.mark.parametrize("grouped", [False, True], ids=["bare", "grouped"])
@pytest.mark.parametrize("way", [_cond, _while_loop, _function])
def test_apply_gradients_that_returns_control_flow(
    way: Callable[[Callable[[], Any]], Any], grouped: bool, control_flow_v2: bool, graph: Any
) -> None:
    """Each step has its updates; or a note says that steps are not counted, and updates are."""

    class Own(v1.train.GradientDescentOptimizer):  # type: ignore[misc, name-defined]
        def apply_gradients(self, pairs: Any, *_: Any) -> Any:
            result = way(lambda: super(Own, self).apply_gradients(pairs))
            return tf.group(result) if grouped else result

    optimizer = tracer.wrap(Own(-1.0))
    zero, names = v1.zeros_initializer(), ("a", "b")
    weights = [v1.get_variable(each, [1], initializer=zero, use_resource=True) for each in names]
    train = optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(6):
            session.run(train)
        [[a], [b]] = session.run(weights)
    times = 3 if way is _while_loop else 1
    assert a == b == 6 * times
    trace = tracer.trace_of(optimizer)
    assert trace.updates(variable="a") == trace.updates(variable="b") == 6 * times
    uncounted = (_function,) if control_flow_v2 else (_cond, _while_loop, _function)
    exact = grouped or way not in uncounted
    assert trace.complete == exact
    assert trace.steps == (6 if exact else 0)
    by_step = trace.count("updates", by="step", variable="a")
    assert by_step == ({(step,): times for step in range(1, 7)} if exact else {})
    assert exact or "tf.group(result)" in trace.notes[0]


def test_keras2_in_a_session(graph: Any) -> None:
    """The op that `apply_gradients` returns does not run the updates: they are no executions."""
    optimizer = tracer.wrap(ODOMETERS["keras2"]())
    kernel = v1.get_variable("kernel", (2, 2), initializer=v1.zeros_initializer())
    train = optimizer.apply_gradients([(tf.ones((2, 2)), kernel)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        session.run(train)
        shown = reading(session.run(kernel))
    assert shown == Reading(0)
    assert_right_or_incomplete(tracer.trace_of(optimizer), {"kernel": kernel}, {"kernel": shown})


def test_graphs_are_counted_and_not_their_parts() -> None:
    """Two steps in a function, or two branches, are parts of one graph that TensorFlow traced."""
    optimizer = tracer.wrap(ODOMETERS["v1"]())
    one, other = tf.Variable([0.0]), tf.Variable([0.0])

    @tf.function
    def twice() -> None:
        optimizer.apply_gradients([(tf.ones(1), one)])
        optimizer.apply_gradients([(tf.ones(1), one)])

    @tf.function
    def either(condition: tf.Tensor) -> None:
        if condition:
            optimizer.apply_gradients([(tf.ones(1), one)])
        else:
            optimizer.apply_gradients([(tf.ones(1), other)])

    for _ in range(3):
        twice()
    either(tf.constant(True))
    functions = (twice, either)
    traced = sum(each.experimental_get_tracing_count() for each in functions)
    trace = tracer.trace_of(optimizer)
    assert traced == sum(each.tracings for each in trace.graphs) == 2
    assert trace.answer().endswith(f"called 4 times, all while tracing {traced} graphs.")
    rows = [values for values, *_ in table(summaries_of(trace)[0], "method").rows]
    graphs = {row["method"]: row["graphs"] for row in rows}
    assert (graphs["_resource_apply_dense"], graphs["apply_gradients"]) == (2, 2)
    assert (one.numpy()[0], other.numpy()[0]) == (7, 0)
    with (
        pytest.raises(AssertionError, match=r"Variable#2 [0 ]+ never updated"),
        tracer.assert_updates(total=1, variable=other),
    ):
        tf.function(either.python_function)(tf.constant(True))
