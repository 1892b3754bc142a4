"""A call of a function by the caller of the call before: few instructions, and no mistaken one."""

import sys
from collections import Counter
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
