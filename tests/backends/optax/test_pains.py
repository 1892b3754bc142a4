"""Troubles with optax that people asked about in public, each a program that wraps nothing.

They are in `findings/pains/optax`. Each has `train(healthy)`, which returns whether the trouble is
there, by an oracle of its own, and the weights.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
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
    "masked_raw_gradient": Pain(
        "gradient-passed-on",
        ("Of 2 parameters masked, made in", "updated 1; the gradient of bias came back as it was"),
    ),
    "optimizer_as_static_argument": Pain(
        "optimizer-renewed",
        ("step was traced 8 times, each time for another adam, made in", "adam to adam#8"),
    ),
    "init_in_each_solve": Pain(
        "optimizer-renewed", ("adam began again after steps 10, 20 and 30", "count of 0")
    ),
    "state_dropped": Pain(
        "optimizer-renewed",
        ("in each of 8 steps", "the state that update returned was never passed in again"),
    ),
    "gives_up_on_nan": Pain(
        "not-finite-kept", ("steps 9 and 10 of apply_if_finite were not finite and let through",)
    ),
    "loss_without_predictions": Pain(
        "gradient-always-zero", ("Every gradient was 0 in all 20 steps of adam",)
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
