"""Variables that are arguments of functions: which one was updated is not always known."""

from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import counted, readings
from support.odometers import Reading

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


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
    assert readings(variables) == {"a": Reading(2), "b": Reading(4)}
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == trace.updates(variable="argument v") == 6
    assert [counted(trace, variable) for variable in variables.values()] == [Reading(0)] * 2


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
