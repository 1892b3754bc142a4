"""The options of optimizers, models and TensorFlow change what is trained, never what is counted.

Each is trained with and without the tracer, to the same bits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import keras2, keras3, library_of, optimizer_of
from support.twins import STEPS, assert_twins
from tensorflow.python.framework import config

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

ON_KERAS = ("legacy", "keras2", "keras3")
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"clipnorm": 0.5}) for kind in ON_KERAS),
    *((kind, {"global_clipnorm": 0.5}) for kind in ON_KERAS),
    *((kind, {"use_ema": True}) for kind in ("keras2", "keras3")),
    *((kind, {"use_ema": True, "ema_overwrite_frequency": 3}) for kind in ("keras2", "keras3")),
    *((kind, {"weight_decay": 0.01}) for kind in ("keras2", "keras3")),
    ("legacy", {"decay": 0.1}),
    ("keras3", {"loss_scale_factor": 8.0}),
    ("keras3", {"gradient_accumulation_steps": 4, "use_ema": True}),
]


DENSE_ONLY = {("keras3", "global_clipnorm"), ("keras3", "loss_scale_factor")}
"""Keras itself fails on sparse gradients with these."""


@pytest.mark.parametrize("effects", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"), [pytest.param(*each, id=f"{each[0]}-{each[1]}") for each in OPTIONS]
)
def test_options_of_optimizers(kind: str, options: dict[str, Any], effects: bool) -> None:
    assert_twins(
        lambda: optimizer_of(kind, "Adam", 0.1, **options),
        sparse=(kind, *options) not in DENSE_ONLY,
        every=options.get("gradient_accumulation_steps", 1),
        own_steps=lambda each: getattr(each, "_iterations", each.iterations),
        effects=effects,
    )


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    """A policy of mixed precision, in every Keras, while the test runs."""
    libraries = {id(each): each for each in (keras2, keras3) if each is not None}.values()
    before = [each.mixed_precision.global_policy() for each in libraries]
    for library in libraries:
        library.mixed_precision.set_global_policy(request.param)
    yield str(request.param)
    for library, old in zip(libraries, before, strict=True):
        library.mixed_precision.set_global_policy(old)


def fitted(kind: str) -> tuple[Any, Any]:
    """A model after 12 steps of `fit`, twice to the same end, and its optimizer."""
    library = library_of(kind)
    ends = []
    for traced in (False, True):
        keras2.utils.set_random_seed(1)
        layers = library.layers
        model = library.Sequential(
            [
                layers.Input((3,)),
                layers.Dense(4, activation="relu"),
                layers.BatchNormalization(),
                layers.Dense(1, dtype="float32"),
            ]
        )
        optimizer = optimizer_of(kind, "SGD", 0.1, momentum=0.5)
        model.compile(tracer.wrap(optimizer) if traced else optimizer, "mse")
        data = np.random.default_rng(1).normal(size=(8, 4)).astype("f4")
        model.fit(data[:, :3], data[:, 3:], batch_size=2, epochs=3, verbose=0)
        ends.append([np.asarray(each) for each in model.weights])
    for left, right in zip(*ends, strict=True):
        np.testing.assert_array_equal(left, right)
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, "mixed_float16") for kind in ON_KERAS),
        pytest.param("keras3", "mixed_bfloat16", marks=pytest.mark.long),
        pytest.param("keras2", "mixed_bfloat16", marks=pytest.mark.sweep),
        pytest.param("legacy", "mixed_bfloat16", marks=pytest.mark.sweep),
    ],
    indirect=["policy"],
)
def test_mixed_precision(kind: str, policy: str) -> None:
    """`compile` puts a loss scale around the wrapped optimizer if the policy is `mixed_float16`.

    It starts at 2 ** 15 and is halved at each step that it skips.
    """
    model, optimizer = fitted(kind)
    skipped = 0
    if policy == "mixed_float16":
        around = model.optimizer
        assert around is not optimizer
        scale = around.dynamic_scale if kind == "keras3" else around.loss_scale
        skipped = 15 - int(np.log2(np.asarray(scale)))
        assert 0 < skipped < 12
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.steps == 12
    assert trace.updates() == (12 - skipped) * len(model.trainable_variables)
    assert {each.name for each in trace.variables} == {
        getattr(each, "path", each.name).removesuffix(":0") for each in model.trainable_variables
    }


@pytest.mark.parametrize("kind", [*ON_KERAS, "v1"])
def test_op_determinism(kind: str) -> None:
    """It refuses each op that is not deterministic; the tracer has none."""
    own_steps = (lambda _: STEPS) if kind == "v1" else lambda each: each.iterations  # it has none
    tf.config.experimental.enable_op_determinism()
    try:
        assert_twins(lambda: optimizer_of(kind, "Adam", 0.1), own_steps=own_steps)
    finally:
        config.disable_op_determinism()
