"""Rules that need effects, on programs that train: the trouble, and its healthy twin."""

from typing import Any

import numpy as np
import pytest
from support.findings_of import bad
from support.libraries import keras2, keras3, needs_keras3

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


def model_of(keras: Any) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu", name="hidden"),
            keras.layers.Dense(1, name="head"),
        ]
    )


def data(samples: int = 96) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    inputs = random.normal(size=(samples, 4)).astype("float32")
    return inputs, inputs.sum(axis=1, keepdims=True)


KERAS = [pytest.param("keras3", marks=needs_keras3), "keras2", "legacy"]


def trained(kind: str, learning_rate: float, spoil: Any = None) -> Any:
    """12 batches of `fit`, of a model and targets that `spoil` has changed."""
    keras = keras3 if kind == "keras3" else keras2
    optimizers = keras.optimizers.legacy if kind == "legacy" else keras.optimizers
    model = model_of(keras)
    inputs, targets = data()
    if spoil is not None:
        spoil(model, targets)
    optimizer = tracer.wrap(optimizers.SGD(learning_rate), effects=True)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0)
    return tracer.trace_of(optimizer)


def nan_in_batch_6(model: Any, targets: Any) -> None:
    targets[40] = np.nan


def nan_in_the_head(model: Any, targets: Any) -> None:
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([kernel * np.nan, bias])


def dead_units(model: Any, targets: Any) -> None:
    """All units are 0 for all data, so are their gradients: only the bias after them learns."""
    kernel, bias = model.get_layer("hidden").get_weights()
    model.get_layer("hidden").set_weights([kernel, bias - 100.0])


@pytest.mark.parametrize("kind", KERAS)
@pytest.mark.parametrize(
    ("rate", "spoil", "said", "variables", "words"),
    [
        (0.0, None, ("unchanged", "error", 1), 4, "learning rate"),
        (0.01, nan_in_batch_6, ("not-finite", "error", 6), 4, "Go back to an earlier checkpoint"),
        (0.01, nan_in_the_head, ("not-finite", "error", 1), 4, "checkpoint or the initial weights"),
        (0.01, dead_units, ("unchanged", "warning", 1), 3, "dead ReLU"),
    ],
)
def test_training_that_goes_wrong(
    kind: str, rate: float, spoil: Any, said: Any, variables: int, words: str
) -> None:
    (finding,) = bad(trained(kind, rate, spoil))
    assert (finding.code, finding.severity, finding.step) == said
    assert len(finding.variables) == variables
    assert {name.split("/")[-2] for name in finding.variables} == {"hidden", "head"}
    assert words in finding.advice
    assert "12 times" in finding.text or finding.code == "not-finite"


@pytest.mark.parametrize("kind", KERAS)
def test_training_that_goes_well(kind: str) -> None:
    assert bad(trained(kind, 0.01)) == []
