"""transformers, TF Models and TensorFlow Recommenders, with and without the tracer."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.twins import STEPS, assert_twins

import tracer

if importlib.util.find_spec("official") is None:
    reason = "the nox session third_party has them, on TensorFlow 2.15"
    pytest.skip(reason, allow_module_level=True)

legacy: Any = tf.keras.optimizers.legacy
pytestmark = pytest.mark.filterwarnings("ignore")


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def optimizer_of(module: str, name: str) -> Callable[..., Any]:
    """A class that a module has, which is imported when an optimizer is made."""
    return lambda *args, **options: getattr(imported(module), name)(*args, **options)


TRANSFORMERS = "transformers.optimization_tf"
MODELS = "official.modeling.optimization"
RECOMMENDERS = "tensorflow_recommenders.experimental.optimizers"

PLAIN: dict[str, tuple[Callable[[], Any], bool]] = {
    "transformers AdamWeightDecay": (
        lambda: optimizer_of(TRANSFORMERS, "AdamWeightDecay")(
            0.01, weight_decay_rate=0.1, exclude_from_weight_decay=["rows"]
        ),
        True,
    ),
    "transformers create_optimizer": (
        lambda: optimizer_of(TRANSFORMERS, "create_optimizer")(
            0.01, STEPS, 5, weight_decay_rate=0.1
        )[0],
        True,
    ),
    "Models AdamWeightDecay": (
        lambda: optimizer_of(f"{MODELS}.legacy_adamw", "AdamWeightDecay")(
            0.01, weight_decay_rate=0.1, exclude_from_weight_decay=["rows"]
        ),
        True,
    ),
    "Models LAMB": (
        lambda: optimizer_of(f"{MODELS}.lamb", "LAMB")(0.01, weight_decay_rate=0.1),
        False,  # its sparse update is as large as the rows, and assigned to the whole variable
    ),
    "Models LARS": (
        lambda: optimizer_of(f"{MODELS}.lars", "LARS")(0.01, weight_decay_rate=0.1),
        False,  # it says so itself, by `NotImplementedError`
    ),
    "Recommenders ClippyAdagrad": (
        lambda: optimizer_of(RECOMMENDERS + ".clippy_adagrad", "ClippyAdagrad")(
            0.1, export_clipping_factors=True
        ),
        True,
    ),
}
"""How each is made, and whether it takes sparse gradients."""


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str) -> None:
    make, sparse = PLAIN[name]
    optimizer, trace = assert_twins(make, sparse=sparse)
    assert trace.findings() == []
    own = type(make())
    assert trace.optimizers[0].class_name == f"{own.__module__}.{own.__qualname__}"
    assert isinstance(optimizer, own)


# In fit, with checkpoints.

EPOCHS, BATCHES = 3, 6


def network() -> Any:
    """Three layers, six variables."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(5), layers.Dense(1)]
    )


def saved(folder: Path, **things: Any) -> dict[str, Any]:
    """What a checkpoint of these has: the values by their keys, and the graph of objects."""
    reader = tf.train.load_checkpoint(tf.train.Checkpoint(**things).write(str(folder / "saved")))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)) for name in names}


def fit_twins(
    make: Callable[[Any], Any], folder: Path, *, eagerly: bool = False
) -> tuple[Any, Any, Any]:
    """Fit a model without the tracer and with it, and effects.

    It must come to the same weights, slots and checkpoint, and have all effects. Returns the second
    model, its optimizer, and the trace.
    """
    found = []
    for traced in (False, True):
        tf.keras.utils.set_random_seed(1)
        tf.keras.backend.clear_session()
        model = network()
        optimizer = make(model)
        if traced:
            tracer.wrap(optimizer, effects=True)
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        data = np.random.default_rng(1).normal(size=(4 * BATCHES, 5)).astype("f4")
        model.fit(data[:, :4], data[:, 4:], batch_size=4, epochs=EPOCHS, verbose=0)
        found.append(saved(folder, model=model, optimizer=optimizer))
    without, with_tracer = found
    assert without.keys() == with_tracer.keys()
    for name, value in without.items():
        np.testing.assert_array_equal(value, with_tracer[name], err_msg=name)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.steps == EPOCHS * BATCHES
    for variable in model.trainable_variables:
        assert trace.updates(variable=variable) == EPOCHS * BATCHES
        assert trace.count("compared", by=(), variable=variable) == {(): EPOCHS * BATCHES}
    return model, optimizer, trace


def averaged(inner: Any, model: Any) -> Any:
    optimizer = optimizer_of(f"{MODELS}.ema_optimizer", "ExponentialMovingAverage")(
        inner, average_decay=0.9
    )
    optimizer.shadow_copy(model)
    return optimizer


@pytest.mark.parametrize("eagerly", [False, True])
def test_moving_average(eagerly: bool, tmp_path: Path) -> None:
    """Its averages are written in a function of its own, which steps nothing."""
    model, optimizer, trace = fit_twins(
        lambda model: averaged(legacy.Adam(0.01), model), tmp_path, eagerly=eagerly
    )
    assert int(optimizer.iterations) == trace.steps
    weights = model.get_weights()
    optimizer.assign_average_vars(model.trainable_variables)
    assert any((a != b).any() for a, b in zip(weights, model.get_weights(), strict=True))
    assert trace.findings() == []
