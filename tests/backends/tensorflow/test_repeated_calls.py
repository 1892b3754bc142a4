"""A call of a function by the caller of the call before: few instructions, and no mistaken one."""

import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
from support.odometers import ODOMETERS

import tracer
from tracer.core.call_paths import frames_above


def instructions_of_tracer(function: Any) -> int:
    """How many instructions of Python the tracer takes in the last of many calls."""
    taken = Counter[bool]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        taken["/tracer/" in frame.f_code.co_filename] += event == "opcode"
        return trace

    before = sys.gettrace()
    try:
        for number in range(20):
            if number == 19:
                sys.settrace(trace)
            function()
    finally:
        sys.settrace(before)
    return taken[True]


def test_a_repeated_call_takes_few_instructions() -> None:
    """In a loop, and in no step: training waits for them, in cold caches."""
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["v1"]())

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(1), weights)])

    frames = 1 + len(frames_above(sys._getframe()))
    assert 0 < instructions_of_tracer(step) <= 120 + 18 * frames
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.complete) == (20, True)


def test_a_repeated_call_in_another_graph_is_another_one() -> None:
    """The instructions are the same, and what is traced there is part of it."""
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["v1"]())

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
