"""The treacherous ways of running: counted right, or said to be incomplete, never credited wrong.

Here the trace may say less than the odometer shows, but then it must say so: `complete` is False
and a note says why. What it says of a variable must be true in any case.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from libraries import library_of
from odometers import (
    KINDS,
    ODOMETERS,
    PythonCalls,
    Reading,
    gradients,
    make_variables,
    raw,
    read,
    reading,
)

import tracer

pytestmark = pytest.mark.wide

v1 = tf.compat.v1


class Boom(Exception):
    """What a broken apply method raises."""


class FailingCalls(PythonCalls):
    """Counts the calls of apply methods, and makes one of them fail when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.until_failure = -1

    def add(self, method: str) -> None:
        super().add(method)
        self.until_failure -= 1
        if self.until_failure == 0:
            raise Boom(method)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def calls() -> FailingCalls:
    return FailingCalls()


@pytest.fixture
def optimizer(kind: str, calls: FailingCalls) -> Any:
    """An odometer that is not yet traced."""
    return ODOMETERS[kind](calls=calls)


@pytest.fixture
def variables(kind: str) -> dict[str, Any]:
    return make_variables(kind)


@pytest.fixture
def apply(optimizer: Any, variables: dict[str, Any]) -> Callable[[], None]:
    """Apply a gradient to each variable."""

    def apply_all() -> None:
        optimizer.apply_gradients(gradients(variables))

    return apply_all


def counted(trace: Any, variable: Any) -> Reading:
    """What the trace says of a variable, as the odometer would; 0 if it never heard of it."""
    try:
        return Reading(*(trace.updates(kind=k, variable=variable) for k in ("dense", "sparse")))
    except tracer.UnknownName:
        return Reading(0)


def readings(variables: dict[str, Any]) -> dict[str, Reading]:
    return {label: read(variable)[0] for label, variable in variables.items()}


def minus(now: dict[str, Reading], then: dict[str, Reading]) -> dict[str, Reading]:
    return {
        label: Reading(now[label].dense - then[label].dense, now[label].sparse - then[label].sparse)
        for label in now
    }


def assert_right_or_incomplete(
    trace: Any, variables: dict[str, Any], truth: dict[str, Reading]
) -> None:
    """The trace has the truth of each variable, or it has less and says that it is incomplete."""
    said = {label: counted(trace, variable) for label, variable in variables.items()}
    if trace.complete:
        assert said == truth
    else:
        assert trace.notes
        for label, (dense, sparse) in said.items():
            assert dense <= truth[label].dense, label
            assert sparse <= truth[label].sparse, label


def assert_calls(trace: Any, calls: PythonCalls) -> None:
    for (method, context), number in calls.counts().items():
        assert trace.calls(method, context) == number, (method, context)


# Wrapped after its graphs were traced.


def test_wrapped_after_graph_tracing(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Graphs from before hold no counters: the trace must not take their steps for none."""
    step = tf.function(apply)
    step()
    step()
    tracer.wrap(optimizer)
    before = readings(variables)
    for _ in range(3):
        step()
    truth = minus(readings(variables), before)
    assert truth["kernel"] == Reading(3)
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


def test_old_and_new_graphs(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Graphs from before run among graphs from after, which are counted all the same."""
    old, new = tf.function(apply), tf.function(apply)
    old()
    tracer.wrap(optimizer)
    before = readings(variables)
    for step in (new, old, new, apply, old, new):
        step()
    truth = minus(readings(variables), before)
    trace = tracer.trace_of(optimizer)
    assert_right_or_incomplete(trace, variables, truth)
    assert counted(trace, variables["kernel"]).dense >= 4


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3", "v1"], indirect=True)
def test_wrapped_between_two_fits(kind: str, optimizer: Any) -> None:
    """`model.fit` keeps the train function of the first `fit`."""
    keras_of_kind = library_of(kind)
    dense = keras_of_kind.layers.Dense(2, kernel_initializer="zeros")
    model = keras_of_kind.Sequential([keras_of_kind.Input((2,)), dense])
    model.compile(optimizer, "mse")
    x = tf.ones((8, 2))
    model.fit(x, x, batch_size=4, verbose=0)
    tracer.wrap(optimizer)
    variables = {"kernel": dense.kernel, "bias": dense.bias}
    before = readings(variables)
    model.fit(x, x, batch_size=4, verbose=0)
    truth = minus(readings(variables), before)
    assert truth == {"kernel": Reading(2), "bias": Reading(2)}
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


@pytest.mark.parametrize("kind", ["v1", "legacy"], indirect=True)
def test_wrapped_after_the_train_op(kind: str) -> None:
    """A train op of a session that was built before."""
    with tf.Graph().as_default():
        optimizer = ODOMETERS[kind]()
        kernel = v1.get_variable("kernel", (2, 2), initializer=v1.zeros_initializer())
        train = optimizer.apply_gradients([(tf.ones((2, 2)), kernel)])
        tracer.wrap(optimizer)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            session.run(train)
            shown = reading(session.run(kernel))
        assert shown == Reading(2)
        assert_right_or_incomplete(
            tracer.trace_of(optimizer), {"kernel": kernel}, {"kernel": shown}
        )


# Unwrapped and wrapped again.


def test_unwrapped_and_wrapped_again_eager(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """The trace goes on, without what ran in between."""
    tracer.wrap(optimizer)
    apply()
    tracer.unwrap(optimizer)
    apply()
    apply()
    assert counted(tracer.trace_of(optimizer), variables["kernel"]) == Reading(1)
    tracer.wrap(optimizer)
    for _ in range(3):
        apply()
    assert readings(variables)["kernel"] == Reading(6)
    trace = tracer.trace_of(optimizer)
    said = {label: counted(trace, variable) for label, variable in variables.items()}
    dense = Reading(4)
    assert said == {"table": Reading(0, 4), "kernel": dense, "twin": dense, "bias": dense}
    assert trace.steps == 4


def test_unwrapped_and_wrapped_again_in_a_function(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """A function keeps the graph of the first time, with its counters: all of its runs count."""
    step = tf.function(apply)
    tracer.wrap(optimizer)
    step()
    step()
    assert counted(tracer.trace_of(optimizer), variables["kernel"]) == Reading(2)
    tracer.unwrap(optimizer)
    step()
    untraced = tf.function(apply)
    untraced()
    tracer.wrap(optimizer)
    for _ in range(4):
        step()
    trace = tracer.trace_of(optimizer)
    assert readings(variables)["kernel"] == Reading(8)
    assert counted(trace, variables["kernel"]) == Reading(7)
    assert trace.steps == 7
    truth = readings(variables)
    untraced()
    untraced()
    assert_right_or_incomplete(tracer.trace_of(optimizer), variables, truth)


# Variables as arguments.


def argument_variables(kind: str, optimizer: Any) -> dict[str, Any]:
    """Two variables of one shape, `a` and `b`, that the optimizer knows."""
    variables = {name: tf.Variable(tf.zeros((2, 2)), name=name) for name in "ab"}
    if kind in ("keras2", "keras3"):
        optimizer.build(list(variables.values()))
    return variables


def test_variables_as_arguments(kind: str, optimizer: Any) -> None:
    """One graph serves `a` and `b`: which of them was updated cannot be known from Python."""
    tracer.wrap(optimizer)
    variables = argument_variables(kind, optimizer)

    @tf.function
    def apply(g: Any, v: Any) -> None:
        optimizer.apply_gradients([(g, v)])

    for label in "aabab":
        apply(tf.ones((2, 2)), variables[label])
    assert readings(variables) == {"a": Reading(3), "b": Reading(2)}
    assert apply.experimental_get_tracing_count() <= 2
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 5
    assert trace.updates(variable="argument v") == 5
    assert [each.argument for each in trace.variables if each.name == "argument v"] == [True]
    assert counted(trace, variables["a"]) == counted(trace, variables["b"]) == Reading(0)
    assert any("argument" in note for note in trace.notes)

    optimizer.apply_gradients([(tf.ones((2, 2)), variables["b"])])
    trace = tracer.trace_of(optimizer)
    assert counted(trace, variables["b"]) == Reading(1)
    assert trace.updates(variable="argument v") == 5


def test_arguments_of_an_inner_function(kind: str, optimizer: Any) -> None:
    """An outer function that calls the function with one variable and then with the other."""
    tracer.wrap(optimizer)
    variables = argument_variables(kind, optimizer)

    @tf.function
    def apply(g: Any, v: Any) -> None:
        optimizer.apply_gradients([(g, v)])

    @tf.function
    def outer() -> None:
        apply(tf.ones((2, 2)), variables["a"])
        apply(tf.ones((2, 2)), variables["b"])
        apply(tf.ones((2, 2)), variables["b"])

    outer()
    outer()
    shown = readings(variables)
    assert shown == {"a": Reading(2), "b": Reading(4)}
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 6
    for label, variable in variables.items():
        assert counted(trace, variable).dense in (0, shown[label].dense)


def test_closures_beside_arguments(kind: str, optimizer: Any) -> None:
    """A variable that the function closes over keeps its name beside one that is an argument."""
    tracer.wrap(optimizer)
    variables = argument_variables(kind, optimizer)

    @tf.function
    def apply(g: Any, v: Any) -> None:
        optimizer.apply_gradients([(g, v), (g, variables["a"])])

    apply(tf.ones((2, 2)), variables["b"])
    apply(tf.ones((2, 2)), variables["b"])
    assert readings(variables) == {"a": Reading(2), "b": Reading(2)}
    trace = tracer.trace_of(optimizer)
    assert counted(trace, variables["a"]) == Reading(2)
    assert counted(trace, variables["b"]) == Reading(0)
    assert trace.updates(variable="argument v") == 2


# Threads.


def run_in_threads(run: Callable[[], None], threads: int = 4) -> None:
    start, errors = threading.Barrier(threads), []

    def work() -> None:
        start.wait()
        try:
            run()
        except Exception as error:  # shown by the main thread
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors


def keep_built(kind: str, optimizer: Any) -> None:
    """Keras 2 empties its index of the variables in each `apply_gradients`: a race of its own."""
    if kind == "keras2":
        optimizer.build = lambda variables: None


def assert_totals(trace: Any, variables: dict[str, Any], steps: int) -> None:
    """Totals are exact; the detail of steps may be lost, if the trace says so."""
    assert readings(variables)["kernel"] == Reading(steps)
    assert {label: counted(trace, each) for label, each in variables.items()} == readings(variables)
    assert trace.steps == steps
    by_step = sum(trace.count("updates", by=("step",)).values())
    assert by_step == trace.updates() or (not trace.complete and trace.notes)


def test_threads_in_one_function(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Four threads run one graph at once."""
    tracer.wrap(optimizer)
    step = tf.function(apply)
    step()

    def run() -> None:
        for _ in range(100):
            step()

    run_in_threads(run)
    assert_totals(tracer.trace_of(optimizer), variables, 401)


def test_threads_with_their_own_functions(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Four threads trace and run a function each, of one optimizer."""
    tracer.wrap(optimizer)
    apply()
    keep_built(kind, optimizer)

    def run() -> None:
        step = tf.function(apply)
        for _ in range(25):
            step()

    run_in_threads(run)
    assert_totals(tracer.trace_of(optimizer), variables, 101)


def test_threads_eager(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Four threads apply eagerly: each thread has frames of its own."""
    tracer.wrap(optimizer)
    apply()
    keep_built(kind, optimizer)

    def run() -> None:
        for _ in range(25):
            apply()

    run_in_threads(run)
    assert_totals(tracer.trace_of(optimizer), variables, 101)


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


# Exceptions.


def test_exception_in_eager_apply(
    optimizer: Any,
    variables: dict[str, Any],
    apply: Callable[[], None],
    calls: FailingCalls,
) -> None:
    """What was applied before the exception counts; the call that failed is a call only."""
    tracer.wrap(optimizer)
    apply()
    calls.until_failure = 3  # table, kernel, then twin fails
    with pytest.raises(Boom):
        apply()
    apply()
    shown = readings(variables)
    assert shown["kernel"] == shown["twin"].plus(Reading(1)) == Reading(3)
    trace = tracer.trace_of(optimizer)
    assert {label: counted(trace, each) for label, each in variables.items()} == shown
    assert_calls(trace, calls)
    assert trace.steps in (2, 3)


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_exception_while_tracing(
    optimizer: Any,
    variables: dict[str, Any],
    apply: Callable[[], None],
    calls: FailingCalls,
    used: bool,
) -> None:
    """The graph is never finished: called, not executed. The next graph counts as ever.

    (A function whose first graph tracing failed after it made variables, as a new optimizer of the
    kind `legacy` does, does nothing from then on in TensorFlow 2.21: then nothing is counted.)
    """
    tracer.wrap(optimizer)
    if used:
        apply()
    step = tf.function(apply)
    calls.until_failure = 3
    with pytest.raises(Boom):
        step()
    trace = tracer.trace_of(optimizer)
    assert trace.steps == used
    assert {label: counted(trace, each) for label, each in variables.items()} == readings(variables)
    assert_calls(trace, calls)
    step()
    step()
    done = readings(variables)["kernel"].dense
    assert done == used + 2 or (done == 0 and isinstance(optimizer, ODOMETERS["legacy"]))
    trace = tracer.trace_of(optimizer)
    assert {label: counted(trace, each) for label, each in variables.items()} == readings(variables)
    assert trace.steps == done
    assert trace.complete, trace.notes
    assert_calls(trace, calls)


def test_exception_caught_while_tracing(
    optimizer: Any,
    variables: dict[str, Any],
    apply: Callable[[], None],
    calls: FailingCalls,
) -> None:
    """The user's function catches it: what was in the graph by then runs with the graph."""
    tracer.wrap(optimizer)
    apply()

    @tf.autograph.experimental.do_not_convert
    def careful() -> None:
        calls.until_failure = 3
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
    assert_calls(trace, calls)


def test_graph_that_fails_before_the_step(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """A failed assertion that the step waits for: neither the update nor its count happen."""
    tracer.wrap(optimizer)

    @tf.function
    def step(number: Any) -> None:
        with tf.control_dependencies([tf.debugging.assert_less(number, 3)]):
            apply()

    for number in (1, 3, 2, 5):
        if number < 3:
            step(tf.constant(number))
        else:
            with pytest.raises(tf.errors.InvalidArgumentError):
                step(tf.constant(number))
    assert readings(variables)["kernel"] == Reading(2)
    trace = tracer.trace_of(optimizer)
    assert {label: counted(trace, each) for label, each in variables.items()} == readings(variables)
    assert trace.steps == 2


# Graphs and variables that come and go, or look like others.


def test_graph_that_never_runs(
    optimizer: Any, variables: dict[str, Any], apply: Callable[[], None], calls: FailingCalls
) -> None:
    """A concrete function that nobody calls: calls, and no executions."""
    tracer.wrap(optimizer)
    tf.function(apply).get_concrete_function()
    assert set(readings(variables).values()) == {Reading(0)}
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == trace.executions() == trace.steps == 0
    assert trace.complete
    assert_calls(trace, calls)


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


def test_variable_listed_twice(kind: str, optimizer: Any) -> None:
    """Two gradients for one variable are two updates of it in each step."""
    tracer.wrap(optimizer)
    variables = {name: tf.Variable(tf.zeros((2, 2)), name=name) for name in "ab"}
    if kind in ("keras2", "keras3"):
        optimizer.build(list(variables.values()))
    one = tf.ones((2, 2))

    def apply() -> None:
        optimizer.apply_gradients([(one, variables[label]) for label in "aba"])

    step = tf.function(apply)
    for run in (apply, step, step):
        run()
    assert readings(variables) == {"a": Reading(6), "b": Reading(3)}
    trace = tracer.trace_of(optimizer)
    assert counted(trace, variables["a"]) == Reading(6)
    assert counted(trace, variables["b"]) == Reading(3)
    assert list(trace.per_step("updates", variable=variables["a"])) == [(1, 3, 2)]
    assert trace.steps == 3


def test_variables_of_one_name(kind: str, optimizer: Any) -> None:
    """Variables are told apart by identity; the second of a name is called `#2`."""
    tracer.wrap(optimizer)
    first, second = (make_variables(kind)["kernel"] for _ in range(2))
    if kind in ("keras2", "keras3"):
        optimizer.build([first, second])
    one = tf.ones((2, 2))

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(one, first), (one, second)])

    step()
    optimizer.apply_gradients([(one, second)])
    shown = {"first": read(first)[0], "second": read(second)[0]}
    assert shown == {"first": Reading(1), "second": Reading(2)}
    trace = tracer.trace_of(optimizer)
    assert counted(trace, first) == Reading(1)
    assert counted(trace, second) == Reading(2)
    assert trace.updates(variable="kernel") == 1
    assert trace.updates(variable="kernel#2") == 2


def test_two_optimizers_with_one_set_of_variables(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Each trace has its own optimizer's updates; together they are what the odometer shows."""
    other = ODOMETERS[kind](name="other")
    tracer.wrap(optimizer)
    tracer.wrap(other)

    def both() -> None:
        apply()
        other.apply_gradients(gradients(variables))

    for run in (both, tf.function(both), apply):
        run()
    assert readings(variables)["kernel"] == Reading(5)
    mine, theirs = tracer.trace_of(optimizer), tracer.trace_of(other)
    assert (mine.steps, theirs.steps) == (3, 2)
    for label, variable in variables.items():
        assert counted(mine, variable).plus(counted(theirs, variable)) == read(variable)[0], label


def test_apply_method_called_directly(kind: str, optimizer: Any, variables: dict[str, Any]) -> None:
    """An apply method without `apply_gradients` around it is an update outside of all steps."""
    tracer.wrap(optimizer)
    optimizer.apply_gradients(gradients(variables))
    kernel = raw(variables["kernel"])

    def apply() -> None:
        one = tf.ones((2, 2))
        if kind in ("legacy", "v1"):
            optimizer._resource_apply_dense(one, kernel)
        elif kind == "keras2":
            optimizer.update_step(one, kernel)
        else:
            optimizer.update_step(one, kernel, 0.1)

    step = tf.function(apply)
    for run in (apply, step, step):
        run()
    assert readings(variables)["kernel"] == Reading(4)
    trace = tracer.trace_of(optimizer)
    assert counted(trace, variables["kernel"]) == Reading(4)
    assert trace.steps == 1
    assert trace.updates(variable=variables["kernel"], step=1) == 1


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
