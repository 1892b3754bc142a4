"""Troubles that show with packages others wrote, as users run them: `nox -s packages`.

Each program of `pains/packages` prints its result, and at last whether it hurts. Under `tracer run`
it prints the same, the first screen names the trouble, and nothing is said of the healthy twin.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PAINS = Path(__file__).parent / "pains" / "packages"


class Pain(NamedTuple):
    """What is said of a program."""

    packages: tuple[str, ...]
    facts: tuple[str, ...]
    """What stands in the first lines, and not in those of the twin."""


SAID = {
    "flax_state_dropped": Pain(
        ("flax", "optax"),
        (
            "warning[optimizer-renewed]: adam ",
            "from zero in each of 20 steps",
        ),
    ),
    "lightning_two_optimizers": Pain(
        ("torch", "lightning"),
        (
            "2 optimizers: 20 steps and 40 updates in all; the global_step of each Lightning",
            "lightning_two_optimizers.py:23",
        ),
    ),
    "peft_checkpointing": Pain(
        ("torch", "peft", "transformers"),
        ("ended with RuntimeError: element 0 of tensors does not require grad", "before the first"),
    ),
    "transformers_norms_decay": Pain(
        ("torch", "transformers"),
        (
            "weight decay 0.1 on 9 of 16 parameters, 3 of them one-dimensional "
            "(transformer.h.0.ln_1.weight",
            "transformers_norms_decay.py:21)",
        ),
    ),
}

pytestmark = pytest.mark.sweep


def test_each_program_has_its_row() -> None:
    assert {each.stem for each in PAINS.glob("*.py")} == SAID.keys()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("healthy", [False, True], ids=["ill", "healthy"])
@pytest.mark.parametrize("name", SAID)
def test_the_first_screen(name: str, healthy: bool, tmp_path: Path) -> None:
    for package in SAID[name].packages:
        pytest.importorskip(package)
    program = [str(PAINS / f"{name}.py"), *["healthy"] * healthy]
    plain = run(tmp_path, *program)
    traced = run(tmp_path, "-m", "tracer", "run", *program)
    assert (traced.returncode, traced.stdout) == (plain.returncode, plain.stdout)
    if plain.returncode:
        assert name == "peft_checkpointing" and not healthy, plain.stderr
    else:
        assert plain.stdout.splitlines()[-1] == f"hurts {not healthy}"
    _, asked, rest = traced.stderr.partition("How often did ")
    words = " ".join(" ".join(f"{asked}{rest}".split("\n")[:25]).split())
    facts = SAID[name].facts
    assert [fact in words for fact in facts] == [not healthy] * len(facts), words
    assert "INCOMPLETE" not in words
    assert not healthy or "What looks wrong" not in words
