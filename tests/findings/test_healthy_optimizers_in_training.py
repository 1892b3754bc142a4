"""Healthy optimizers in many styles: no warning when they are wrapped, none when they trained."""

import warnings
from typing import Any

import pytest
import tensorflow as tf
from support import healthy_optimizers
from support.findings_of import bad
from support.libraries import Keras3Optimizer, keras3

import tracer

CASES = [
    pytest.param(cls, id=cls.__name__, marks=[pytest.mark.long] if number % 8 else [])
    for number, cls in enumerate(healthy_optimizers.ALL)
]


@pytest.mark.parametrize("cls", CASES)
def test_nothing_is_said(cls: Any) -> None:
    of_keras3 = keras3 is not None and issubclass(cls, Keras3Optimizer)
    optimizer = cls(learning_rate=0.1) if of_keras3 else cls()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tracer.OptimizerWarning)
        tracer.wrap(optimizer)
    start = tf.ones((2, 2))
    make = keras3.Variable if of_keras3 else tf.Variable
    variables = [make(start, name=name) for name in ("a", "b", "c")]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones((2, 2)), each) for each in variables])

    for _ in range(4):
        step()
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 12
    assert all((each.numpy() != start.numpy()).any() for each in variables)
    assert not bad(trace)
