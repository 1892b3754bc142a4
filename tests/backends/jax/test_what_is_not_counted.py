"""What cannot be counted right, and that the trace says so; nothing of it ends the training."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y, model
from jax import lax
from truth.keras_programs import scaled

import tracer

P = jax.sharding.PartitionSpec


def shard_map(function: Any, axes: set[str]) -> Any:
    """Over these axes of a mesh with the axes `a` and `b`."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("a", "b"))
    specs = {"mesh": mesh, "in_specs": P(), "out_specs": P()}
    return jax.shard_map(function, check_vma=False, axis_names=axes, **specs)


def in_some_axes(loop: Loop) -> Any:
    mapped = jax.jit(shard_map(lambda state: loop.step(state, X[:8], Y[:8]), {"a"}))
    return mapped(loop.state)


def in_a_shard_map_without_jit(loop: Loop) -> Any:
    return shard_map(lambda state: loop.step(state, X[:8], Y[:8]), {"a", "b"})(loop.state)


def in_a_branch_that_some_members_take(loop: Loop) -> Any:
    def step(state: Any, wanted: Any) -> Any:
        return lax.cond(wanted, lambda: loop.step(state, X[:8], Y[:8]), lambda: state)

    states = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    stepped = jax.jit(jax.vmap(step))(states, jnp.array([True, False]))
    return jax.tree.map(lambda each: each[0], stepped)


def in_a_checkpoint(loop: Loop) -> Any:
    def loss(x: Any) -> Any:
        state = jax.checkpoint(loop.step)(loop.state, x, Y[:8])
        return loop.loss(state[0], x, Y[:8]), state

    return jax.jit(jax.grad(loss, has_aux=True))(X[:8])[1]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (in_a_checkpoint, "jax.checkpoint computes again"),
        (in_some_axes, "only some axes of a mesh"),
        pytest.param(in_a_shard_map_without_jit, "outside jax.jit", marks=pytest.mark.long),
        (in_a_branch_that_some_members_take, "that only some members take"),
    ],
)
def test_the_program_runs_and_the_trace_says_it(program: Any, said: str) -> None:
    loop = Loop(tracer.wrap(Odometer()))
    weights, _ = program(loop)
    assert float(np.asarray(weights[0])[0, 0]) == 1
    trace = tracer.trace_of(loop.optimizer)
    assert not trace.complete
    assert said in trace.notes[0]


def test_members_of_which_one_leaves_out_a_branch() -> None:
    """The second member's gradients are not finite, so its loss scale skips the step."""
    loop = Loop(tracer.wrap(scaled(Odometer())))
    states = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    x = np.stack([X[:8], np.full_like(X[:8], np.inf)])
    weights, _ = jax.jit(jax.vmap(loop.step, in_axes=(0, 0, None)))(states, x, Y[:8])
    assert np.asarray(weights[0])[:, 0, 0].tolist() == [1, 0]
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (1, 4, True)


def test_a_step_method_that_returns_what_it_likes() -> None:
    class Own(Odometer):
        def stateless_apply(self, *args: Any) -> Any:
            weights, of_optimizer = super().stateless_apply(*args)
            return {"weights": weights, "of_optimizer": of_optimizer}

    loop = Loop(tracer.wrap(Own()))
    step = jax.jit(loop.step)
    for _ in range(2):
        stepped = step(loop.state, X[:8], Y[:8])
        loop.state = stepped["weights"], stepped["of_optimizer"]
    assert float(loop.state[0][0][0, 0]) == 2
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.updates(step=2), trace.complete) == (4, True)


def in_a_loop(update: Any, values: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, values: update(values), values)


def in_a_branch(update: Any, values: Any) -> Any:
    return lax.cond(values[0][0, 0] >= 0, update, lambda values: values, values)


def in_a_jitted_function(update: Any, values: Any) -> Any:
    return jax.jit(update)(values)


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("around", [in_a_loop, in_a_branch, in_a_jitted_function])
def test_an_update_in_a_function_inside_a_step(around: Any, jitted: bool) -> None:
    class Own(Odometer):
        def _backend_apply_gradients(self, gradients: Any, variables: Any) -> None:
            def update(values: Any) -> Any:
                with keras.StatelessScope(zip(variables, values, strict=True)) as scope:
                    self.update_step(gradients[0], variables[0], 1.0)
                return [scope.get_current_value(each) for each in variables]

            values = around(update, [each.value for each in variables])
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    loop = Loop(tracer.wrap(Own()))
    weights, _ = (jax.jit(loop.step) if jitted else loop.step)(loop.state, X[:8], Y[:8])
    assert float(weights[0][0, 0]) == (3 if around is in_a_loop else 1)
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (1, 0, False)
    assert any("in a branch, a loop or a jitted function" in note for note in trace.notes)


def test_a_step_in_a_loop_inside_a_step() -> None:
    """The loop runs three times, and Python calls the step once."""

    class Three(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
        def stateless_apply(self, state: Any, gradients: Any, weights: Any) -> Any:
            def body(_: Any, both: Any) -> Any:
                return self.inner_optimizer.stateless_apply(both[1], gradients, both[0])

            inner = len(state) - len(self.inner_optimizer.variables)
            weights, of_inner = lax.fori_loop(0, 3, body, (weights, state[inner:]))
            return weights, [*state[:inner], *of_inner]

    loop = Loop(tracer.wrap(Three(Odometer())))
    weights, _ = jax.jit(loop.step)(loop.state, X[:8], Y[:8])
    assert float(weights[0][0, 0]) == 3
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.updates(), trace.complete) == (4, False)
    assert "several times" in trace.notes[0]


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("in_both", [True, False])
def test_of_two_steps_inside_a_step_one_is_in_a_branch_that_does_not_run(
    in_both: bool, jitted: bool
) -> None:
    """The step count moves by 1, whichever of them ran: both counted."""

    class Two(Odometer):
        def stateless_apply(self, state: Any, gradients: Any, weights: Any) -> Any:
            def apply(state: Any, weights: Any) -> Any:
                return [[*each] for each in apply_once(state, gradients, weights)]

            def other(state: Any, weights: Any) -> Any:
                return apply(state, weights) if in_both else [weights, state]

            apply_once = super().stateless_apply
            if not in_both:
                weights, state = apply(state, weights)
            return lax.cond(weights[0][0, 0] > 99, apply, other, state, weights)

    loop = Loop(tracer.wrap(Two()))
    weights, _ = (jax.jit(loop.step) if jitted else loop.step)(loop.state, X[:8], Y[:8])
    assert float(weights[0][0, 0]) == 1
    trace = tracer.trace_of(loop.optimizer)
    assert not trace.complete
    assert "one is in a branch" in trace.notes[0]


def test_a_variable_that_its_gradient_replaces_asks_for_no_update() -> None:
    """As the scales of layers in float8: no apply method gets them, and nothing is amiss."""
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    trained.trainable_variables[1].overwrite_with_gradient = True
    trained.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    trace = tracer.trace_of(optimizer)
    assert [float(np.ravel(each)[0]) for each in trained.get_weights()][::2] == [2, 2]
    assert (trace.updates(), trace.complete) == (2 * 3, True)
    assert not trace.findings()
