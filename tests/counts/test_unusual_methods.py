"""Step and apply methods that are decorated, overridden, nested or called in unusual ways."""

import functools
from typing import Any

import pytest
import tensorflow as tf
from support.against_odometers import assert_three_steps, three_steps
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


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        (kind, compiled)
        for kind in KINDS
        for compiled in (False, True)
        # A variable of Keras 3 can be no argument of a function that is called in a function.
        if kind != "v1" and (kind, compiled) != ("keras3", True)
    ],
)
def test_apply_methods_that_are_functions(kind: str, compiled: bool) -> None:
    """`@tf.function` on an apply method: the call is seen outside of it, with its variable."""
    base: Any = ODOMETERS[kind]
    if kind == "legacy":

        class Decorated(base):  # type: ignore[misc]
            @tf.function
            def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
                super()._resource_apply_dense(grad, var)
                return tf.constant(0)

            @tf.function
            def _resource_apply_sparse(
                self, grad: Any, var: Any, indices: Any, apply_state: Any = None
            ) -> Any:
                super()._resource_apply_sparse(grad, var, indices)
                return tf.constant(0)

    else:

        class Decorated(base):  # type: ignore[misc, no-redef]
            update_step = tf.function(base.update_step)

    optimizer = tracer.wrap(Decorated())
    assert_three_steps(*three_steps(kind, optimizer, compiled=compiled))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "keras3"])
@both
def test_a_step_method_that_is_a_function(kind: str, compiled: bool) -> None:
    base: Any = ODOMETERS[kind]

    class Decorated(base):  # type: ignore[misc]
        @tf.function
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            super().apply_gradients(grads_and_vars)
            return tf.constant(0)

    optimizer = tracer.wrap(Decorated())
    variables = make_variables(kind)
    pairs = gradients(variables)[1:]  # without the sparse one
    step = tf.function(lambda: optimizer.apply_gradients(pairs)) if compiled else None
    for _ in range(3):
        if step is None:
            optimizer.apply_gradients(pairs)
        else:
            step()
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 3
    assert trace.updates() == sum(read(each)[0].dense for each in variables.values()) == 9


@pytest.mark.parametrize("kind", ["legacy", "keras2"])
@both
def test_an_apply_method_that_steps_another_optimizer(kind: str, compiled: bool) -> None:
    """With AutoGraph, which then makes the calls: one update of each variable, and no note."""
    base: Any = ODOMETERS[kind]
    name = DENSE_METHOD[kind]

    class Outer(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = base()

        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            for gradient, variable in grads_and_vars:
                getattr(self, name)(gradient, variable)

    def apply(self: Any, gradient: Any, variable: Any) -> None:
        self.inner.apply_gradients([(gradient, variable)])

    setattr(Outer, name, apply)
    optimizer = tracer.wrap(Outer())
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
def test_an_apply_method_that_calls_its_super_twice(kind: str, compiled: bool) -> None:
    """One update: an execution of the outermost method, whatever it does inside."""
    base: Any = ODOMETERS[kind]
    name = DENSE_METHOD[kind]

    class Twice(base):  # type: ignore[misc]
        pass

    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = getattr(super(Twice, self), name)(*args, **kwargs)
        second = getattr(super(Twice, self), name)(*args, **kwargs)
        return tf.group(first, second) if kind in ("legacy", "v1") else None

    setattr(Twice, name, functools.wraps(getattr(base, name))(twice))
    optimizer = tracer.wrap(Twice())
    variables, trace = three_steps(kind, optimizer, compiled=compiled)
    table = variables.pop("table")
    assert_three_steps(variables, trace, times=2)
    assert trace.executions(name, kind="dense") == 9
    assert trace.updates(variable=table) == 3


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
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{number}" for number in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
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
