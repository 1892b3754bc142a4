"""Programs of JAX, optax and Keras on JAX that were once counted wrong, or called complete wrongly.

The truth is arithmetic, or the weights: with the rate 1 and the gradient 1, SGD takes
1 off a parameter in each update.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from support.said import said

import tracer

NAN = float("nan")


def zeros() -> Any:
    return {"bias": jnp.zeros(2), "kernel": jnp.zeros((2, 2))}


def stepped(tx: Any, params: Any, gradients: Any, jit: bool = True) -> Any:
    """The parameters after a step for each of these gradients, which all elements have."""

    def step(params: Any, state: Any, gradient: Any) -> Any:
        updates, state = tx.update(jax.tree.map(lambda p: p * 0 + gradient, params), state, params)
        return optax.apply_updates(params, updates), state

    step, state = (jax.jit(step) if jit else step), tx.init(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params


# What came of the updates of optax.


def test_apply_every_is_one_update_of_many_steps() -> None:
    """Each step counted as an update, also those that only add to a sum."""
    tx = tracer.wrap(optax.chain(optax.sgd(1.0), optax.apply_every(3)))
    params = stepped(tx, zeros(), [1.0] * 8)
    assert params["bias"][0] == -6
    assert said(tracer.trace_of(tx)) == (8, 2 * 2, True)


def test_updates_that_something_around_multi_steps_adds_to() -> None:
    """What MultiSteps discards counted as discarded, although it was not 0 in the end."""
    inner = optax.MultiSteps(optax.sgd(1.0), 4)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda each: each - 1, updates), state

    tx = tracer.wrap(optax.GradientTransformation(inner.init, update))
    params = stepped(tx, zeros(), [0.0] * 6)
    assert params["bias"][0] == -6
    assert said(tracer.trace_of(tx)) == (6, 6 * 2, True)


def test_updates_by_0_where_apply_if_finite_gave_up() -> None:
    """Updates by 0 that apply_if_finite let through after its limit counted as left out."""
    tx = tracer.wrap(optax.apply_if_finite(optax.zero_nans(), 1))
    stepped(tx, {"bias": jnp.zeros(2)}, [NAN, NAN, 1.0])
    assert said(tracer.trace_of(tx)) == (3, 2, True)  # the first one is left out


# Leaves.


def test_numpy_arrays_and_those_of_jax_are_one_leaf() -> None:
    """Parameters that begin as NumPy's arrays were other leaves than those of later steps."""
    tx = tracer.wrap(optax.sgd(1.0))
    params = stepped(tx, {"bias": np.zeros(2)}, [1.0] * 3, jit=False)
    trace = tracer.trace_of(tx)
    assert params["bias"][0] == -3
    assert said(trace) == (3, 3, True)
    assert trace.count("updates", by="variable") == {("bias",): 3}


def test_the_leaves_of_two_transformations_have_one_path() -> None:
    """An assertion overlooked a leaf that was updated behind one of the same path."""
    first, second = tracer.wrap(optax.MultiSteps(optax.sgd(1.0), 5)), tracer.wrap(optax.sgd(1.0))
    for wrong in (tracer.assert_never_updated, tracer.assert_all_updated):
        with pytest.raises(AssertionError), wrong(zeros()):
            stepped(first, zeros(), [1.0])
            stepped(second, zeros(), [1.0])


def test_a_part_of_the_parameters_in_an_assertion() -> None:
    """A part has other paths than the whole: the assertion passed without looking."""
    tx = tracer.wrap(optax.sgd(1.0))
    with pytest.raises(AssertionError), tracer.assert_never_updated({"bias": jnp.zeros(2)}):
        stepped(tx, {"layer": zeros()}, [1.0])


# Programs of JAX.


def test_the_members_of_a_vmap() -> None:
    """Members whose gradients alone differ counted as one."""
    tx = tracer.wrap(optax.sgd(1.0))
    params = {"bias": jnp.zeros(2)}

    def member(gradient: Any) -> Any:
        updates, _ = tx.update({"bias": jnp.full(2, gradient)}, tx.init(params), params)
        return optax.apply_updates(params, updates)

    moved = jax.jit(jax.vmap(member))(jnp.arange(1.0, 4.0))
    assert moved["bias"][:, 0].tolist() == [-1, -2, -3]
    assert said(tracer.trace_of(tx)) == (1, 3, True)


# Keras on JAX.


def model(optimizer: Any, **options: Any) -> Any:
    """A model with two variables."""
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", **options)
    return made


def fit(trained: Any) -> None:
    """Two steps."""
    trained.fit(np.ones((4, 2), "f4"), np.ones((4, 1), "f4"), batch_size=2, verbose=0)


def state_of(optimizer: Any) -> Any:
    """The state of a loop that updates one weight: its value, and the optimizer's variables."""
    optimizer.build([keras.Variable(np.zeros(1, "f4"))])
    return [jnp.zeros(1)], [jnp.array(each.value) for each in optimizer.variables]


def test_a_loop_that_was_traced_before() -> None:
    """JAX reused what it had traced of the body of the loop before the wrap: nothing counted."""
    optimizer = keras.optimizers.SGD(1.0)
    state = state_of(optimizer)

    def body(state: Any, _: Any) -> Any:
        weights, own = state
        return optimizer.stateless_apply(own, [jnp.ones(1)], weights), None

    loop = jax.jit(lambda state: jax.lax.scan(body, state, None, length=2)[0])
    state = loop(state)
    tracer.wrap(optimizer)
    state = loop(state)
    assert state[0][0][0] == -4
    assert said(tracer.trace_of(optimizer)) == (2, 2, True)


def test_an_optimizer_that_is_wrapped_again() -> None:
    """Programs that were traced while the optimizer was unwrapped ran on uncounted."""
    optimizer = tracer.wrap(keras.optimizers.SGD())
    trained = model(optimizer)
    fit(trained)
    tracer.unwrap(optimizer, retrace=True)
    fit(trained)
    tracer.wrap(optimizer)
    fit(trained)
    assert int(optimizer.iterations.value) == 6
    assert said(tracer.trace_of(optimizer)) == (4, 8, True)


def test_steps_between_two_blocks() -> None:
    """Eager steps between the blocks made the trace of the second one incomplete."""
    one, other = model(keras.optimizers.SGD(), run_eagerly=True), model(keras.optimizers.SGD())
    for _ in range(3):
        with tracer.assert_updates(one.optimizer, total=4):
            fit(one)
        with tracer.assert_updates(other.optimizer, total=0):
            fit(one)


def test_two_states_that_step_in_one_program() -> None:
    """Both begin with the same count of steps: the parts of one counted for the other."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0)
    one = two = state_of(tracer.wrap(optimizer))

    def both(one: Any, two: Any, gradient: Any) -> Any:
        apply = optimizer.stateless_apply
        return apply(one[1], [gradient], one[0]), apply(two[1], [jnp.ones(1)], two[0])

    for gradient in (1.0, float("inf"), 1.0):
        one, two = jax.jit(both)(one, two, jnp.full(1, gradient))
    trace = tracer.trace_of(optimizer)
    assert said(trace) == (6, 5, True)
    assert sorted(trace.updates(step=number) for number in range(1, 7)) == [0, 1, 1, 1, 1, 1]
