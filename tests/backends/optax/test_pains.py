"""Troubles with optax that people asked about in public, each a program that wraps nothing.

They are in `findings/pains/optax`. Each has `train(healthy)`, which returns whether the trouble is
there, by an oracle of its own, and the weights.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.findings_of import bad

import tracer

PAINS = Path(__file__).parents[2] / "findings" / "pains" / "optax"


class Pain(NamedTuple):
    """What is to be said of a program."""

    code: str
    facts: tuple[str, ...]
    """What the first screen says."""
    also: tuple[str, ...] = ()
    """What else is said, which is true of the program, too."""


SAID = {
    "masked_raw_gradient": Pain(
        "gradient-passed-on",
        ("masked, made in", "updated 1 of 2 parameters, and returned the raw gradient of bias"),
    ),
    "optimizer_as_static_argument": Pain(
        "optimizer-renewed",
        ("step was traced 8 times, each time for a new adam that", "adam to adam#8"),
    ),
    "flipped_mask": Pain(
        "decay-flipped",
        (
            "parameters have weight decay: bias and scale have it, kernel has none (adamw was made",
            "flipped_mask.py:23)",
        ),
        also=("moved-without-gradient",),  # its loss does not use the bias
    ),
    "init_in_each_solve": Pain(
        "optimizer-renewed",
        ("adam started from zero after steps 10, 20 and 30", "made a new state"),
    ),
    "state_dropped": Pain(
        "optimizer-renewed",
        (
            "in each of 8 steps",
            "the state that update returned was never passed to the next step",
            "state_dropped.py:20)",
        ),
    ),
    "gives_up_on_nan": Pain(
        "not-finite-kept",
        ("apply_if_finite let steps 9 and 10 through", "gives_up_on_nan.py:20)"),
    ),
    "loss_without_predictions": Pain(
        "gradient-always-zero",
        ("were 0 in all 20 steps of adam", "loss_without_predictions.py:28)"),
    ),
    "clipped_raw_gradient": Pain(
        "gradient-passed-on",
        ("chain, made in", "updated 1 of 2 parameters, and returned the raw gradient of bias"),
    ),
    "table_decays": Pain(
        "moved-without-gradient",
        (
            "table decayed in each of 20 updates",
            "gradient was always 0: weight decay moves weights",
        ),
    ),
    "masked_gradients": Pain(
        "moved-without-gradient",
        ("base decayed in each of 20 updates", "gradient was always 0: weight decay moves weights"),
    ),
}


def test_each_program_has_its_row() -> None:
    assert {each.stem for each in PAINS.glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("healthy", [False, True])
@pytest.mark.parametrize("name", SAID)
def test_it_is_said_and_nothing_of_its_twin(name: str, healthy: bool) -> None:
    train = runpy.run_path(str(PAINS / f"{name}.py"))["train"]
    hurts, plain = train(healthy)
    with tracer.record() as recording:
        traced_hurts, weights = train(healthy)
    trace = recording.trace()
    assert trace.complete, trace.notes
    assert trace.updates()
    assert hurts == traced_hurts == (not healthy)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(weights), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    if healthy:
        assert not bad(trace)
        return
    finding, *others = bad(trace)
    assert finding.code == SAID[name].code
    assert tuple(each.code for each in others) == SAID[name].also
    for fact in SAID[name].facts:
        assert fact in finding.text


PARAMS = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
TABLE = {"w": jnp.ones((4, 2)), "b": jnp.ones(2)}


def loss(params: Any, x: Any = 1.0) -> Any:
    return ((jnp.full((3, 4), x) @ params["w"] + params["b"] - 2.0) ** 2).mean()


def loop(tx: Any, of: Any = loss, params: Any = PARAMS, steps: int = 4) -> Any:
    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(of)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params


def without_bias(params: Any) -> Any:
    return loss({**params, "b": jax.lax.stop_gradient(params["b"])})


def gradients_are_clipped_by_another() -> None:
    clip, adam = optax.masked(optax.clip(1.0), {"w": True, "b": False}), optax.adam(0.1)
    of_clip, of_adam, params = clip.init(PARAMS), adam.init(PARAMS), PARAMS
    for _ in range(6):
        gradients, of_clip = clip.update(jax.grad(loss)(params), of_clip)
        updates, of_adam = adam.update(gradients, of_adam, params)
        params = optax.apply_updates(params, updates)


def no_gradient_reaches_what_is_masked() -> None:
    tx = optax.masked(optax.adam(0.1), {"w": True, "b": False})
    loop(tx, lambda params: loss({**params, "b": jax.lax.stop_gradient(params["b"])}))


def a_search_over_rates() -> None:
    for rate in (0.1, 0.2, 0.3, 0.4):
        loop(optax.adam(rate))


def the_best_of_several_guesses() -> None:
    tx = optax.adam(0.1)
    for guess in (0.5, 1.0, 10.0):
        loop(tx, params={"w": jnp.full((4, 2), guess), "b": jnp.full(2, -guess)})


def init_makes_templates_for_checkpoints(compiled: Any = jax.jit, back: int = 0) -> None:
    """Each time the run goes `back` to the checkpoint so many steps before."""
    tx, params = optax.adam(0.1), PARAMS
    step = compiled(lambda p, s: tx.update(jax.grad(loss)(p), s, p))
    state = tx.init(params)
    for _ in range(4):
        for number in range(3):
            if number == 3 - back:
                saved = params, jax.tree.leaves(state)
            updates, state = step(params, state)
            params = optax.apply_updates(params, updates)
        trained, leaves = saved if back else (params, jax.tree.leaves(state))
        state = jax.tree.unflatten(jax.tree.structure(tx.init(params)), leaves)
        params = trained


def init_makes_templates_for_rollbacks() -> None:
    init_makes_templates_for_checkpoints(back=1)


def init_makes_templates_in_eager_mode() -> None:
    init_makes_templates_for_checkpoints(lambda step: step)


def init_makes_a_state_without_arrays() -> None:
    tx, params = optax.sgd(0.0123), PARAMS
    for _ in range(4):
        updates, _ = tx.update(jax.grad(loss)(params, 0.7123), tx.init(params), params)
        params = optax.apply_updates(params, updates)


def steps_are_tried_from_one_state() -> None:
    tx, params = optax.adam(0.1), PARAMS
    state = tx.init(params)
    for _ in range(4):
        for x in (0.5, 1.0, 2.0):  # the last one is taken
            updates, after = tx.update(jax.grad(loss)(params, x), state, params)
        params, state = optax.apply_updates(params, updates), after


def the_first_gradients_are_zero() -> None:
    tx, params = optax.adam(0.1), PARAMS
    state = tx.init(params)
    for x in (0.0, 0.0, 0.0, 1.0, 1.0):
        gradients = jax.tree.map(lambda g: g * x, jax.grad(loss)(params))  # noqa: B023
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)


def nan_is_left_out() -> None:
    tx = optax.apply_if_finite(optax.adam(0.1), 5)
    state = tx.init(PARAMS)
    for factor in (1.0, np.nan, 1.0, np.nan, np.nan, 1.0, 1.0, 1.0, 1.0, 1.0):
        gradients = jax.tree.map(lambda p: p + factor, PARAMS)  # noqa: B023
        _, state = tx.update(gradients, state, PARAMS)


def what_is_frozen_gets_no_update_in_a_branch() -> None:
    freeze = optax.masked(optax.set_to_zero(), {"w": False, "b": True})
    tx = optax.apply_if_finite(optax.chain(optax.adamw(0.1, weight_decay=0.1), freeze), 3)
    weights = loop(tx, without_bias, TABLE, 10)
    assert (weights["b"] == TABLE["b"]).all()


HEALTHY = [
    what_is_frozen_gets_no_update_in_a_branch,
    gradients_are_clipped_by_another,
    no_gradient_reaches_what_is_masked,
    a_search_over_rates,
    the_best_of_several_guesses,
    init_makes_templates_for_checkpoints,
    init_makes_templates_for_rollbacks,
    init_makes_templates_in_eager_mode,
    init_makes_a_state_without_arrays,
    steps_are_tried_from_one_state,
    the_first_gradients_are_zero,
    nan_is_left_out,
]
NEW = {each.code for each in SAID.values()}


@pytest.mark.parametrize("train", HEALTHY)
def test_what_is_near_and_fine(train: Callable[[], None]) -> None:
    with tracer.record() as recording:
        train()
    trace = recording.trace()
    assert trace.updates()
    assert not NEW & {each.code for each in bad(trace)}


def test_gradients_of_0_in_eager_mode_may_be_those_of_a_flat_loss() -> None:
    with tracer.record() as recording:
        tx = optax.adam(0.1)
        state = tx.init(PARAMS)
        for _ in range(3):
            gradients = jax.grad(lambda params: jnp.maximum(0.0, -params["w"]).sum())(PARAMS)
            _, state = tx.update(gradients, state, PARAMS)
    (finding,) = bad(recording.trace())
    assert finding.code == "gradient-always-zero"
    assert "the loss does not depend on them, or is flat where they are" in finding.text


@pytest.mark.parametrize("as_transformation", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_mask_in_a_multi_steps(flipped: bool, as_transformation: bool) -> None:
    def mask(tree: Any) -> Any:
        return jax.tree.map(lambda each: (each.ndim < 2) == flipped, tree)

    with tracer.record() as recording:
        tx = optax.MultiSteps(optax.adamw(0.1, weight_decay=0.1, mask=mask), 2)
        loop(tx.gradient_transformation() if as_transformation else tx)
    assert [each.code for each in bad(recording.trace())] == ["decay-flipped"] * flipped


def test_how_often_what_has_no_gradient_decays_in_a_multi_steps() -> None:
    with tracer.record() as recording:
        tx = optax.MultiSteps(optax.adamw(0.1, weight_decay=0.1), 2)
        weights = loop(tx, without_bias, TABLE, 10)
    assert np.allclose(weights["b"], 0.99**5)  # a rate of 0.1 times a decay of 0.1, 5 times
    (finding,) = bad(recording.trace())
    assert (finding.code, finding.variables) == ("moved-without-gradient", ("b",))
    assert finding.text.startswith("b decayed in each of 5 updates, ")


@pytest.mark.long
@pytest.mark.parametrize("name", SAID)
def test_the_first_screen_of_a_run(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "run", str(PAINS / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    screen: Any = " ".join(" ".join(done.stderr.strip().split("\n")[:25]).split())
    for fact in SAID[name].facts:
        assert fact in screen
