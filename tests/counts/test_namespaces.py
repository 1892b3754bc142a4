"""All optimizers of `tf.keras` count, whichever Keras TF_USE_LEGACY_KERAS makes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.libraries import BROKEN, keras3

PROGRAM = Path(__file__).parents[1] / "programs" / "namespace_optimizers.py"
NAMES = {"Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD"}
"""The optimizers that every Keras has."""

NO_LEGACY = pytest.mark.skipif(keras3 is not None, reason="Keras 3 refuses keras.optimizers.legacy")
CELLS = [
    pytest.param("0", "optimizers", marks=pytest.mark.long),
    pytest.param("0", "optimizers.legacy", marks=[pytest.mark.long, NO_LEGACY]),
    pytest.param("1", "optimizers", marks=pytest.mark.sweep),
    pytest.param("1", "optimizers.legacy", marks=pytest.mark.sweep),
]


def lines(legacy: str, module: str) -> list[dict[str, Any]]:
    """What the program found in this module of `tf.keras`."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), module, *BROKEN],
        env={**os.environ, "TF_USE_LEGACY_KERAS": legacy},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("legacy", "module"), CELLS)
def test_every_optimizer_of_tf_keras(legacy: str, module: str) -> None:
    kind = {"optimizers.legacy": "legacy", "optimizers": "keras2"}[module]
    if keras3 and legacy == "0":
        kind = "keras3"
    found = lines(legacy, module)
    assert {line["optimizer"] for line in found} >= NAMES
    for line in found:
        said = {key: line[key] for key in ("package", "kind", "same weights", "notes")}
        package = "tf_keras" if legacy == "1" else "keras"
        assert said == {"package": package, "kind": kind, "same weights": True, "notes": []}, line
        steps = line["iterations"]  # a table with sparse gradients, a kernel and a bias
        assert (line["steps"], line["dense"], line["sparse"]) == (steps, 2 * steps, steps), line
        assert steps == 4, line
