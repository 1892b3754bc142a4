"""What is found of optax: a program for each rule that can find anything there.

Each has a twin that is much alike and fine; the parameters say which of both it is, where they can.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from support.findings_of import bad, check
from support.rules_by_backend import rules_of

import tracer

PROGRAMS: dict[str, Callable[[bool], None]] = {}


def program(train: Callable[[bool], None]) -> Callable[[bool], None]:
    """`train(healthy)`, which the rule of that name is about."""
    PROGRAMS[train.__name__.replace("_", "-")] = train
    return train


def params() -> Any:
    return {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}


def loss(weights: Any, x: Any) -> Any:
    return ((x @ weights["w"] + weights["b"]) ** 2).mean()


class Loop:
    """A training loop, whose step is jitted once."""

    def __init__(self, tx: Any) -> None:
        self.tx = tracer.wrap(tx)
        self.state = (params(), self.tx.init(params()))
        self.jitted = jax.jit(self.step)

    def step(self, state: Any, x: Any) -> Any:
        return self.apply(state, jax.grad(loss)(state[0], x))

    def apply(self, state: Any, gradients: Any) -> Any:
        weights, of_tx = state
        updates, of_tx = self.tx.update(gradients, of_tx, weights)
        return optax.apply_updates(weights, updates), of_tx

    def run(self, x: Any) -> None:
        self.state = self.jitted(self.state, x)


X = jnp.ones((8, 4))


@program
def no_gradient(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for _ in range(3):
        gradients = jax.grad(loss)(loop.state[0], X)
        if not healthy:
            gradients["b"] = None
        loop.tx.update(gradients, loop.state[1], loop.state[0])


def _without_b(number: int) -> Any:
    return {"w": jnp.ones((4, 2)), "b": None if number else jnp.ones(2)}


@program
def gradient_missing(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for number in range(12):
        loop.tx.update(_without_b(0 if healthy else number % 2), loop.state[1], params())


@program
def updates_stopped(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for number in range(12):
        loop.tx.update(_without_b(0 if healthy else number > 2), loop.state[1], params())


@program
def never_updated(healthy: bool) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return {**updates, "b": updates["b"] if healthy else None}, state

    loop = Loop(optax.GradientTransformation(lambda params: (), update))
    for _ in range(3):
        loop.tx.update(params(), (), params())


@program
def steps_skipped(healthy: bool) -> None:
    loop = Loop(optax.apply_if_finite(optax.sgd(0.1), 50))
    for number in range(20):
        loop.run(X if healthy or number % 2 else X * np.nan)
    assert int(loop.state[1].total_notfinite) == (0 if healthy else 10)


@program
def gradients_left(healthy: bool) -> None:
    loop = Loop(optax.MultiSteps(optax.sgd(0.1), 4))
    for _ in range(8 if healthy else 7):
        loop.run(X)
    assert int(loop.state[1].mini_step) == (0 if healthy else 3)


@program
def replicas_disagree(healthy: bool) -> None:
    loop = Loop(optax.apply_if_finite(optax.sgd(0.1), 5))
    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    mapped = jax.pmap(loop.step, axis_name="data")
    for number in range(4):
        state = mapped(state, jnp.stack([X, X if healthy or number < 2 else X * np.nan]))
    jax.block_until_ready(state)  # what is dropped may not be counted yet


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


@program
def retraced(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for size in range(3, 9):
        loop.run(jnp.ones((8 if healthy else size, 4)))


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
    first, second = trace.graph_tracings
    assert (first.cause, second.cause) == ("first", "argument")
    assert second.detail.endswith("[0].count: int32[] -> int32[] over data=2")
    assert not bad(trace) and trace.complete and trace.steps == 3


@program
def traced_again(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    for _ in range(6):
        step = loop.jitted if healthy else jax.jit(lambda *given: loop.step(*given))
        loop.state = step(loop.state, X)


@program
def graph_never_ran(healthy: bool) -> None:
    loop = Loop(optax.sgd(0.1))
    jitted = loop.jitted if healthy else jax.jit(lambda *given: loop.step(*given))
    jitted.lower(loop.state, X)
    loop.run(X)


@program
def apply_raised(healthy: bool) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        if not healthy:
            raise ValueError("no parameters")
        return updates, state

    Loop(optax.GradientTransformation(lambda params: (), update)).run(X)


@program
def optimizer_renewed(healthy: bool) -> None:
    """The state is dropped, so that Adam is at its first step for ever."""
    loop = Loop(optax.adam(0.1))
    for _ in range(6):
        _, state = loop.state
        loop.run(X)
        if not healthy:
            loop.state = (loop.state[0], state)
    assert int(loop.state[1][0].count) == (6 if healthy else 0)


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


def test_candidates_that_begin_from_one_state() -> None:
    """As in training of a population: the best of them is kept, and no state is lost."""
    loop = Loop(optax.adam(0.1))
    candidates = [loop.step(loop.state, X * factor) for factor in range(1, 7)]
    assert [int(state[0].count) for _, state in candidates] == [1] * 6
    trace = tracer.trace_of(loop.tx)
    assert trace.steps == 6 and not bad(trace)


def test_a_state_for_each_of_two_networks_is_not_dropped() -> None:
    tx = tracer.wrap(optax.adam(0.1))
    states = [tx.init(params()) for _ in range(2)]
    for _ in range(6):
        for place, state in enumerate(states):
            _, states[place] = jax.jit(tx.update)(params(), state, params())
    assert [int(each[0].count) for each in states] == [6, 6]
    assert not [e for e in tracer.trace_of(tx).findings() if e.code == "optimizer-renewed"]


def test_each_rule_of_the_table_has_a_program() -> None:
    assert rules_of("optax") == PROGRAMS.keys()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, marks=pytest.mark.long if code == "replicas-disagree" else ())
        for code in sorted(PROGRAMS)
    ],
)
def test_it_is_said_and_nothing_of_its_twin(code: str) -> None:
    finding = check(code, PROGRAMS[code])
    said = finding.text + finding.advice
    others = ("tf.", "GradientTape", "TensorFlow", "apply_gradients", "Keras", "dataset")
    assert not any(word in said for word in others), said


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
    assert not [each for each in trace.findings() if each.code != "traced-again"]


def test_a_state_for_each_of_two_models() -> None:
    """One transformation and one program: each model is updated once."""
    tx = tracer.wrap(optax.sgd(0.1))
    models = [{"a": jnp.ones((4, 2))}, {"b": jnp.ones(7)}]

    @jax.jit
    def step(models: Any) -> Any:
        return [optax.apply_updates(m, tx.update(m, tx.init(m), m)[0]) for m in models]

    for _ in range(12):
        models = step(models)
    assert not tracer.trace_of(tx).findings()


def test_a_jitted_step_in_a_loop_that_is_differentiated() -> None:
    """It depends on what the loop changes, so it stays in the loop."""
    tx = tracer.wrap(optax.adam(0.1))

    @jax.jit
    def step(carry: Any, x: Any) -> Any:
        weights, state = carry
        updates, state = tx.update(jax.grad(loss)(weights, x), state, weights)
        return optax.apply_updates(weights, updates), state

    def after_five(x: Any) -> Any:
        carry = params(), tx.init(params())
        (weights, _), _ = lax.scan(lambda c, _: (step(c, x), None), carry, None, length=5)
        return loss(weights, x)

    jax.jit(jax.grad(after_five))(X)
    trace = tracer.trace_of(tx)
    assert trace.steps == 5 or not hasattr(jax, "shard_map")  # JAX 0.6 cannot keep it in the loop
    assert trace.complete or not hasattr(jax, "shard_map")


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
