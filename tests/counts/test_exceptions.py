"""Exceptions in an apply method, while a graph is traced, before a step; and too little memory."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import (
    assert_calls,
    assert_readings,
    assert_right,
    assert_right_or_incomplete,
    counted,
    minus,
    readings,
)
from support.odometers import ODOMETERS, Boom, FailingCalls, Reading, gradients

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


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
    assert trace.steps == 3


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
    assert_readings(trace, variables)
    assert_calls(trace, calls)
    step()
    step()
    done = readings(variables)["kernel"].dense
    assert done == used + 2 or (done == 0 and isinstance(optimizer, ODOMETERS["legacy"]))
    trace = tracer.trace_of(optimizer)
    assert_readings(trace, variables)
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


# A step in eager mode that calls a function, and raises.


def _calling(kind: str, act: Callable[[], None]) -> Any:
    """An odometer whose `apply_gradients` only does this."""
    base: Any = ODOMETERS[kind]

    class Calling(base):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            act()

    return Calling()


def test_an_eager_step_that_raises_after_its_function(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """A step that ended counts with what its function ran; of the others the trace says so."""
    apply()  # slot variables are made outside of functions

    @tf.function
    def some(number: Any) -> None:
        if number > 0:
            apply()

    numbers = [1, 0, 2, 0, 0, 1]
    given = iter(numbers)

    def act() -> None:
        number = next(given)
        some(tf.constant(number))
        if number < 2:
            raise Boom

    outer = _calling(kind, act)
    outer.inner = optimizer
    tracer.wrap(outer)
    before = readings(variables)
    for _ in numbers:
        with contextlib.suppress(Boom):
            outer.apply_gradients(gradients(variables))
    assert minus(readings(variables), before)["kernel"] == Reading(3)
    trace = tracer.trace_of(outer)
    kernel = trace.count("updates", by="step", variable=variables["kernel"])
    assert (trace.steps, kernel) == (1, {(1,): 1})
    assert any("5 steps ended with an error" in note for note in trace.notes)
    assert not trace.complete, "it may have raised in the function"


def test_a_function_that_fails_half_way_in_an_eager_step(
    kind: str, optimizer: Any, variables: dict[str, Any], apply: Callable[[], None]
) -> None:
    """Which of its updates had run nobody can know: the trace says so, once it has happened."""
    apply()

    @tf.function
    def twice(number: Any) -> None:
        apply()
        with tf.control_dependencies([tf.debugging.assert_less(number, 2)]):
            optimizer.apply_gradients(gradients({"kernel": variables["kernel"]}))

    numbers = iter([0, 1, 2])
    outer = _calling(kind, lambda: twice(tf.constant(next(numbers))))
    outer.inner = optimizer
    tracer.wrap(outer)
    before = readings(variables)
    for _ in range(2):
        outer.apply_gradients(gradients(variables))
    assert_right(tracer.trace_of(outer), variables, minus(readings(variables), before))
    with pytest.raises(tf.errors.InvalidArgumentError):
        outer.apply_gradients(gradients(variables))
    trace = tracer.trace_of(outer)
    assert_right_or_incomplete(trace, variables, minus(readings(variables), before))
    assert not trace.complete
    assert "an eager step that called functions ended with an error" in trace.notes[0]
    with tracer.record() as later:
        apply()
    assert not later.trace().complete, "the note stays"
