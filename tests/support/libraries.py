"""The Keras libraries beside the TensorFlow that is installed: tests take them from here.

From TensorFlow 2.16 on the package `keras` is Keras 3, and Keras 2 is the package `tf_keras`. With
TensorFlow 2.15 `keras` is Keras 2, as `tf.keras` is, and there is no Keras 3.
"""

import importlib
from typing import Any

import keras
import pytest
import tensorflow as tf

_IS_KERAS3 = not keras.__version__.startswith("2.")

keras3: Any = keras if _IS_KERAS3 else None
keras2: Any = importlib.import_module("tf_keras" if _IS_KERAS3 else "keras")
Keras3Optimizer: Any = keras3.optimizers.Optimizer if keras3 else object
"""The base class of tests' own optimizers of Keras 3; without it they are never used."""

needs_keras3 = pytest.mark.skipif(not _IS_KERAS3, reason="this TensorFlow has no Keras 3")
"""For a test that is about Keras 3. Those with `keras3` in their id get it from `conftest.py`."""


BROKEN: dict[str, str] = {}
"""Keras's own optimizers that fail by themselves in this version, and why."""
if _IS_KERAS3 and tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13):
    BROKEN["Muon"] = "Muon of Keras before 3.13 fails on TensorFlow (keras-team/keras#21793)"


def library_of(kind: str) -> Any:
    """The Keras that has the optimizers of `kind`; for `v1`, the one with models for them."""
    return keras3 if kind == "keras3" else keras2


def optimizer_of(kind: str, name: str, /, *given: Any, **options: Any) -> Any:
    """An optimizer of that kind, by the name that Keras has for it."""
    if kind == "v1":
        known_as = {"SGD": "GradientDescent"}.get(name, name)
        return getattr(tf.compat.v1.train, f"{known_as}Optimizer")(*given, **options)
    optimizers = library_of(kind).optimizers
    return getattr(optimizers.legacy if kind == "legacy" else optimizers, name)(*given, **options)


def is_keras3(thing: Any) -> bool:
    """Whether `thing` is a variable or an optimizer of Keras 3."""
    return keras3 is not None and isinstance(thing, keras3.Variable | keras3.optimizers.Optimizer)


def with_loss_scale(kind: str, optimizer: Any) -> Any:
    """`optimizer` in the loss-scaling optimizer of its kind."""
    if kind == "legacy":
        return keras2.mixed_precision.LossScaleOptimizer(optimizer)
    if kind == "keras2":
        scaled = keras2.mixed_precision.LossScaleOptimizer(optimizer)
        assert type(scaled).__name__ == "LossScaleOptimizerV3"
        return scaled
    if kind == "keras3":
        return keras3.optimizers.LossScaleOptimizer(optimizer)
    return tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
        optimizer, tf.compat.v1.mixed_precision.DynamicLossScale()
    )
