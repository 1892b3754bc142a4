"""Methods that are decorated, overridden, nested or called in unusual ways, or in functions."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support.against_odometers import assert_three_steps, counted, readings, three_steps
from support.libraries import keras2
from support.odometers import (
    DENSE_METHOD,
    KINDS,
    ODOMETERS,
    SHAPES,
    Reading,
    gradients,
    make_variables,
    raw,
    read,
)

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

kinds = pytest.mark.parametrize("kind", KINDS)
both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])


def _apply_functions(kind: str, base: Any) -> Any:
    if kind != "legacy":
        return {"update_step": tf.function(base.update_step)}

    @tf.function
    def dense(self: Any, grad: Any, var: Any, apply_state: Any = None) -> Any:
        base._resource_apply_dense(self, grad, var)
        return tf.constant(0)

    @tf.function
    def sparse(self: Any, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        base._resource_apply_sparse(self, grad, var, indices)
        return tf.constant(0)

    return {"_resource_apply_dense": dense, "_resource_apply_sparse": sparse}


def _step_function(kind: str, base: Any) -> Any:
    @tf.function
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        base.apply_gradients(self, grads_and_vars)
        return tf.constant(0)

    return {"apply_gradients": apply_gradients}


def _super_twice(kind: str, base: Any) -> Any:
    name = DENSE_METHOD[kind]

    @functools.wraps(getattr(base, name))
    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        first, second = (getattr(base, name)(self, *args, **kwargs) for _ in range(2))
        return tf.group(first, second) if kind in ("legacy", "v1") else None

    return {name: twice}


@pytest.mark.parametrize(
    ("how", "kind", "compiled"),
    [
        (how, kind, compiled)
        for how in (_apply_functions, _step_function, _super_twice)
        for kind in KINDS
        for compiled in (False, True)
        # A variable of Keras 3 can be no argument of a function that is called in a function.
        if how is not _apply_functions or (kind != "v1" and (kind, compiled) != ("keras3", True))
        if how is not _step_function or kind != "keras3"
    ],
)
def test_methods_that_are_functions_or_update_twice(
    how: Callable[[str, Any], Any], kind: str, compiled: bool
) -> None:
    """An update is an execution of the outermost method, with its variable, whatever is inside."""
    base: Any = ODOMETERS[kind]
    optimizer = tracer.wrap(type("Unusual", (base,), how(kind, base))())
    labels = [*SHAPES][how is _step_function :]  # a function gets no sparse gradient here
    variables, trace = three_steps(kind, optimizer, labels, compiled=compiled)
    if how is _step_function:  # whose updates they are is unknown: the variables are arguments
        assert {read(each) for each in variables.values()} == {(Reading(3),)}
        assert (trace.steps, trace.updates()) == (3, 9)
        return
    if how is _super_twice:
        assert trace.executions(DENSE_METHOD[kind], kind="dense") == 9
        assert trace.updates(variable=variables.pop("table")) == 3
    assert_three_steps(variables, trace, times=1 + (how is _super_twice))


@pytest.mark.parametrize("kind", ["legacy", "keras2"])
@both
def test_an_apply_method_that_steps_another_optimizer(kind: str, compiled: bool) -> None:
    """With AutoGraph, which then makes the calls: one update of each variable, and no note."""
    base: Any = ODOMETERS[kind]
    name = DENSE_METHOD[kind]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> None:
        for gradient, variable in grads_and_vars:
            getattr(self, name)(gradient, variable)

    def apply(self: Any, gradient: Any, variable: Any) -> None:
        self.inner.apply_gradients([(gradient, variable)])

    optimizer = type("Outer", (base,), {"apply_gradients": apply_gradients, name: apply})()
    optimizer.inner = base()
    tracer.wrap(optimizer)
    variables = make_variables(kind)
    pairs = gradients(variables)[1:]  # without the sparse one
    optimizer.inner.apply_gradients(pairs)  # makes its own variables

    def step() -> None:
        optimizer.apply_gradients(pairs)

    run_step = tf.function(step) if compiled else step
    for _ in range(3):
        run_step()
    trace = tracer.trace_of(optimizer)
    assert (trace.complete, trace.updates()) == (True, 4 * len(pairs)), trace.notes
    assert sum(read(each)[0].dense for each in variables.values()) == trace.updates()
    assert trace.executions(name) == (1 + 2 * 3) * len(pairs)


@kinds
@both
@pytest.mark.parametrize("own", [SHAPES, ["bias"]], ids=["all", "part"])
def test_an_apply_gradients_that_assigns_by_itself(kind: str, compiled: bool, own: Any) -> None:
    """Its own assignment is no call of an apply method, and the trace or the report says so."""
    base: Any = ODOMETERS[kind]

    class Own(base):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            left = []
            for gradient, variable in grads_and_vars:
                if any(name in variable.name for name in own):
                    raw(variable).assign_add(tf.convert_to_tensor(gradient))
                else:
                    left.append((gradient, variable))
            return super().apply_gradients(left, *args, **kwargs) if left else None

    variables, trace = three_steps(kind, tracer.wrap(Own()), compiled=compiled)
    assert read(variables.pop("bias")) == (Reading(3),)
    if own is SHAPES:
        assert (trace.steps, trace.updates(), trace.complete) == (3, 0, False)
        assert "it applies them itself" in trace.notes[0]
    else:
        assert_three_steps(variables, trace)
        (found,) = [each for each in trace.findings() if each.code == "never-updated"]
        assert found.text.endswith("(what Own.apply_gradients assigns by itself is not seen).")


@both
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_method_taken_before_wrap(kind: str, compiled: bool, replicas: int) -> None:
    """A method that calls no other step method makes no step: a note, and no update is lost."""
    strategy = strategy_of(f"mirrored {replicas}")
    with strategy.scope():
        optimizer, variables = ODOMETERS[kind](), make_variables(kind)
        if kind == "keras3":
            optimizer.build([*variables.values()])
    pairs = gradients(variables)
    step = optimizer.apply if kind == "keras3" else optimizer.apply_gradients
    arguments = [*zip(*pairs, strict=True)] if kind == "keras3" else [pairs]
    tracer.wrap(optimizer)

    def steps() -> None:
        strategy.run(step, arguments)

    run = tf.function(steps) if compiled else steps
    if not compiled:
        strategy.run(optimizer.apply_gradients, [pairs])
    for _ in range(3):
        run()
    trace = tracer.trace_of(optimizer)
    assert trace.steps == (not compiled)
    assert trace.updates() == (3 + trace.steps) * replicas * len(variables)
    assert not trace.complete
    [note] = trace.notes
    assert note.startswith(f"{step.__name__} was called on the class, or as a method taken before")


def test_a_function_that_the_host_calls_before_the_step_that_calls_it() -> None:
    """In the step it is ready to run before the step begins, but for its stamp."""
    SGD: Any = keras2.optimizers.legacy.SGD
    weight, other, inner = tf.Variable([0.0]), tf.Variable([0.0]), SGD(1.0)
    inner._create_all_weights([other])
    inner._prepare([other])

    @tf.function
    def function() -> None:
        inner._resource_apply_dense(tf.ones(1), other)

    class Calling(SGD):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            function()
            return super()._resource_apply_dense(grad, var, apply_state)

    outer = Calling(1.0)
    outer.inner = inner
    outer._create_all_weights([weight])
    tracer.wrap(outer)

    @tf.function
    def train() -> None:
        with tf.control_dependencies([tf.py_function(function, [], [])]):
            outer.apply_gradients([(tf.ones(1), weight)])

    train()
    trace = tracer.trace_of(outer)
    assert (float(weight[0]), float(other[0])) == (-1, -2)
    assert trace.complete, trace.notes
    assert trace.updates(variable=other) == 1  # the other is part of that of `weight`


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
