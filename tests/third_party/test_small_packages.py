"""keras-adamw, adabelief-tf and gradient-accumulator, with and without the tracer."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.twins import STEPS, assert_twins

legacy: Any = tf.keras.optimizers.legacy
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def imported(name: str) -> Any:
    """The package, or a skip."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: the nox session third_party has it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@pytest.fixture
def keras_adamw(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(os.environ, "TF_KERAS", "1")  # its own switch; else it wants Keras 2.3
    return imported("keras_adamw")


@pytest.fixture
def adabelief(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It derives from `tf.keras.optimizers.Optimizer`, which TensorFlow 2.11 replaced."""
    monkeypatch.setattr(tf.keras.optimizers, "Optimizer", legacy.Optimizer)
    for name in ("adabelief_tf", "adabelief_tf.AdaBelief_tf"):  # looks for it when imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    package = imported("adabelief_tf")
    return lambda **options: package.AdaBeliefOptimizer(print_change_log=False, **options)


@pytest.mark.parametrize("name", ["AdamW", "NadamW"])
def test_keras_adamw(keras_adamw: Any, name: str) -> None:
    """It derives from the Keras inside TensorFlow; its decay is a second write to a variable."""

    def make() -> Any:
        return getattr(keras_adamw, name)(
            learning_rate=0.01,
            total_iterations=STEPS,
            weight_decays={"dense:0": (0.0, 0.1)},
            init_verbose=False,
        )

    assert_twins(make)


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"weight_decay": 0.01}, {"rectify": False}], ids=str
)
def test_adabelief(adabelief: Callable[..., Any], options: dict[str, Any]) -> None:
    assert_twins(lambda: adabelief(**options))


def test_gradient_accumulator_around_another() -> None:
    """It applies its inner optimizer at each step, with zeros until enough was accumulated.

    Its `iterations` count each fourth step twice; its `step` begins at 1.
    """
    package = imported("gradient_accumulator")
    _, trace = assert_twins(
        lambda: package.GradientAccumulateOptimizer(legacy.SGD(0.1, momentum=0.9), accum_steps=4),
        sparse=False,
        own_steps=lambda optimizer: optimizer.step - 1,
    )
    assert trace.executions("_resource_apply_dense") == 2 * 2 * STEPS
