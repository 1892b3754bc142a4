"""What is found of optax where states and programs are several; `twins` has the other programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from support.findings_of import bad
from twins.on_optax import Loop, X, params

import tracer


@pytest.mark.parametrize("silent", [0, 1])
def test_a_replica_that_never_stepped(silent: int) -> None:
    """The branch with the step is in the program of both devices, and one never takes it."""
    loop = Loop(optax.sgd(0.1))

    def step(state: Any) -> Any:
        takes = lax.axis_index("data") != silent
        return lax.cond(takes, lambda s: loop.step(s, X), lambda s: s, state)

    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    mapped = jax.pmap(step, axis_name="data")
    for _ in range(4):
        state = mapped(state)
    assert [bool((w == 1).all()) for w in state[0]["w"]] == [each == silent for each in (0, 1)]
    trace = tracer.trace_of(loop.tx)
    assert not trace.complete and "some replicas" in trace.notes[0]
    assert trace.count("updates", by="replica") == {(1 - silent,): 8}


@pytest.mark.parametrize("on_one", [jax.jit, lambda step: step])
def test_steps_on_one_replica_and_then_on_two(on_one: Any) -> None:
    """A plain program has no replicas, over however many devices its arrays are spread."""
    loop = Loop(optax.adam(0.1))
    step = on_one(loop.step)
    for _ in range(6):
        loop.state = step(loop.state, X)
    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    mapped = jax.pmap(loop.step, in_axes=(0, None), axis_name="data")
    for _ in range(5):
        state = mapped(state, X)
    assert state[1][0].count.tolist() == [11, 11]
    trace = tracer.trace_of(loop.tx)
    assert list(trace.steps_by_replica().values()) == [11, 5]
    assert not bad(trace)
    assert not trace.complete
    assert "some replicas" in trace.notes[0]


def test_a_step_count_that_the_first_step_moves_to_the_mesh() -> None:
    """`init` makes it on one device, and to JAX that is another type."""
    loop = Loop(optax.adam(0.1))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    weights = jax.device_put(params(), everywhere)
    loop.state = weights, loop.tx.init(weights)
    for _ in range(3):
        loop.run(X)
    trace = tracer.trace_of(loop.tx)
    assert [each.tracings for each in trace.graphs] == [1, 1]
    assert not bad(trace) and trace.complete and trace.steps == 3


@pytest.mark.parametrize("how", ["init in the step", "scan"])
@pytest.mark.parametrize("healthy", [False, True])
def test_a_state_that_is_dropped(how: str, healthy: bool) -> None:
    loop = Loop(optax.chain(optax.clip(1.0), optax.adamw(0.1)))
    weights, state = loop.state

    def step(carried: Any, x: Any) -> Any:
        weights, state = carried
        given = loop.tx.init(weights) if how == "init in the step" and not healthy else state
        weights, new = loop.step((weights, given), x)
        return weights, new if healthy or how == "init in the step" else state

    if how == "scan":
        carried, _ = jax.jit(
            lambda carried: lax.scan(lambda c, _: (step(c, X), None), carried, None, 6)
        )((weights, state))
    else:
        carried = (weights, state)
        for _ in range(6):
            carried = jax.jit(step)(carried, X)
    trace = tracer.trace_of(loop.tx)
    assert trace.steps == 6
    count = int(carried[1][1][0].count)
    assert count == (6 if healthy else how == "init in the step")
    assert [each.code for each in bad(trace)] == ["optimizer-renewed"] * (not healthy)
    assert all("started from zero in each of 6 steps" in each.text for each in bad(trace))


def test_gradients_that_are_numbers() -> None:
    """There are no weak references to them, by which a second step with the same one is found."""
    tx = tracer.wrap(optax.sgd(0.1))
    jax.jit(lambda state: tx.update({"w": 1.0}, state))(tx.init({"w": 1.0}))
    trace = tracer.trace_of(tx)
    assert trace.complete and trace.updates() == 1


@pytest.mark.parametrize("jitted", [False, True])
def test_a_model_with_functions_and_numbers_besides_its_weights(jitted: bool) -> None:
    """As one of Equinox, which is passed as it is: an activation, a rate, a size, a flag."""
    model = {"weight": jnp.ones(3), "activation": jax.nn.relu, "rate": 0.5, "size": 3, "on": True}
    gradients = {**dict.fromkeys(model), "weight": jnp.ones(3)}
    tx = tracer.wrap(optax.sgd(0.1))
    state = tx.init({"weight": model["weight"]})

    def step(gradients: Any) -> Any:
        return tx.update(gradients, state, model)[0]

    for _ in range(3):
        (jax.jit(step) if jitted else step)(gradients)
    trace = tracer.trace_of(tx)
    assert [each.name for each in trace.variables] == ["weight"]
    assert trace.updates() == 3
    assert not [each for each in trace.findings() if each.code != "retraced"]


def test_a_mask_is_called_as_often_as_without_the_tracer() -> None:
    calls = []

    def mask(params: Any) -> Any:
        calls.append(params)
        return {"w": True, "b": False}

    weights = {"w": jnp.ones(2), "b": jnp.ones(2)}
    tx = tracer.wrap(optax.adamw(0.1, weight_decay=0.01, mask=mask))
    state = tx.init(weights)
    for _ in range(3):
        _, state = tx.update(weights, state, weights)
    assert len(calls) == 4  # `init` and three steps
