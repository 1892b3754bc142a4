"""A call of a function by the caller of the call before: few instructions, and no mistaken one."""

import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
from support.odometers import ODOMETERS

import tracer
from tracer.core.collectors import Throttle

_Odometer: Any = ODOMETERS["v1"]
_CALLS = Throttle.at_once + 3
"""In the first ones the learning rate is read each time."""
_MEASURED = 5


def instructions_of_tracer(function: Any) -> int:
    """How many instructions of Python the tracer takes in a call, after many calls.

    The fewest of some calls: now and then one looks at the journals, by the clock.
    """
    counts: list[int] = []
    taken = Counter[bool]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        taken["/tracer/" in frame.f_code.co_filename] += event == "opcode"
        return trace

    before = sys.gettrace()
    for _ in range(_CALLS):
        function()
    for _ in range(_MEASURED):
        taken.clear()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        counts.append(taken[True])
    return min(counts)


def test_a_repeated_call_takes_few_instructions() -> None:
    """In a loop, and in no step: training waits for them, in cold caches."""
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(_Odometer())

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(1), weights)])

    taken = instructions_of_tracer(step)
    assert 0 < taken <= 120, taken
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.complete) == (_CALLS + _MEASURED, True)


def test_a_repeated_call_in_another_graph_is_another_one() -> None:
    """The instructions are the same, and what is traced there is part of it."""
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(_Odometer())

    @tf.function
    def inner() -> None:
        optimizer.apply_gradients([(tf.ones(1), weights)])

    outer = tf.function(lambda: None).get_concrete_function().graph
    for graph in (None, None, None, outer, None):
        with nullcontext() if graph is None else graph.as_default():
            inner()
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, int(weights.numpy()[0])) == (4, 4)
    assert trace.complete, trace.notes


def test_a_repeated_call_by_an_apply_method_outside_of_steps() -> None:
    """The instructions are the same for an apply method of another recorder."""
    weights, inner = tf.Variable([0.0]), _Odometer(name="inner")
    step = tf.function(lambda: (inner._resource_apply_dense(tf.ones(1), weights), None)[1])

    class Outer(_Odometer):  # type: ignore[misc]
        def _resource_apply_dense(self, *_: Any) -> None:
            step()

    outer, other = Outer(name="outer"), Outer(name="other")
    outer.inner = inner
    for each in outer, other:
        tracer.wrap(each)
    for each in other, other, outer, other, outer:
        each._resource_apply_dense(tf.ones(1), weights)
    trace = tracer.trace_of(outer)
    # Twice it is part of an update by `outer`, and `other` is not of this trace.
    assert (trace.updates(), trace.executions("_resource_apply_dense")) == (5, 7)
    assert (int(weights.numpy()[0]), trace.complete) == (5, True)


def test_a_repeated_call_in_a_step_of_another_optimizer() -> None:
    """The instructions are the same for each class that inherits its step."""
    weights, inner = tf.Variable([0.0]), tracer.wrap(_Odometer(name="inner"))
    step = tf.function(lambda: (inner.apply_gradients([(tf.ones(1), weights)]), None)[1])

    class First(_Odometer):  # type: ignore[misc]
        def apply_gradients(self, *_: Any, **__: Any) -> None:
            step()

    class Second(First):
        pass

    first, second = tracer.wrap(First(name="first")), tracer.wrap(Second(name="second"))
    for each in first, first, second, first:
        each.apply_gradients([])
    trace = tracer.trace_of(inner)
    assert (trace.updates(), int(weights.numpy()[0]), trace.complete) == (4, 4, True)
