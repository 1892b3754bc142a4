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


SAID = {
    "optimizer_as_static_argument": Pain(
        "optimizer-renewed",
        ("step was traced 8 times, each time for a new adam that", "adam to adam#8"),
    ),
    "state_dropped": Pain(
        "optimizer-renewed",
        (
            "in each of 8 steps",
            "the state that update returned was never passed to the next step",
            "state_dropped.py:20)",
        ),
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
    (finding,) = bad(trace)
    assert finding.code == SAID[name].code
    for fact in SAID[name].facts:
        assert fact in finding.text


PARAMS = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}


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


def a_search_over_rates() -> None:
    for rate in (0.1, 0.2, 0.3, 0.4):
        loop(optax.adam(rate))


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


HEALTHY = [a_search_over_rates, steps_are_tried_from_one_state, init_makes_a_state_without_arrays]
NEW = {each.code for each in SAID.values()}


@pytest.mark.parametrize("train", HEALTHY)
def test_what_is_near_and_fine(train: Callable[[], None]) -> None:
    with tracer.record() as recording:
        train()
    trace = recording.trace()
    assert trace.updates()
    assert not NEW & {each.code for each in bad(trace)}


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
