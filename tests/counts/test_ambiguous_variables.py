"""Variables that are arguments of functions: which one was updated is not always known."""

from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import counted, readings
from support.odometers import Reading

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


@pytest.mark.parametrize(
    ("how", "shown"),
    [("called", (3, 2)), ("in a function", (2, 4)), ("beside a closure", (2, 2))],
)
def test_variables_as_arguments(
    kind: str, optimizer: Any, how: str, shown: tuple[int, int]
) -> None:
    """One graph serves two variables of one shape: which one was updated Python cannot know.

    A variable that the function closes over keeps its name beside one that is an argument.
    """
    tracer.wrap(optimizer)
    variables = {name: tf.Variable(tf.zeros((2, 2)), name=name) for name in "ab"}
    if kind in ("keras2", "keras3"):
        optimizer.build(list(variables.values()))
    one, a, b = tf.ones((2, 2)), *variables.values()
    closed = [(one, a)] if how == "beside a closure" else []

    @tf.function
    def apply(g: Any, v: Any) -> None:
        optimizer.apply_gradients([(g, v), *closed])

    @tf.function
    def outer() -> None:
        for each in (a, b, b):
            apply(one, each)

    if how == "in a function":
        outer()
        outer()
    else:
        for each in (b, b) if closed else (a, a, b, a, b):
            apply(one, each)
        assert apply.experimental_get_tracing_count() <= 2
    assert readings(variables) == dict(zip("ab", map(Reading, shown), strict=True))
    for more in (0, 1):
        trace = tracer.trace_of(optimizer)
        assert trace.updates() == sum(shown) + more
        assert trace.updates(variable="argument v") == sum(shown) - 2 * len(closed)
        assert [each.argument for each in trace.variables if each.name == "argument v"] == [True]
        assert counted(trace, a) == Reading(2 * len(closed))
        assert counted(trace, b) == Reading(more)
        assert any("argument" in note for note in trace.notes)
        if not more:
            optimizer.apply_gradients([(one, b)])
