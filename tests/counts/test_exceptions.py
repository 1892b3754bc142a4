"""Exceptions in an apply method while a graph is traced."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import (
    assert_calls,
    assert_readings,
    counted,
    readings,
)
from support.odometers import ODOMETERS, Boom, FailingCalls, Reading

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


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
