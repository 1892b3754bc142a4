"""What Keras and Dynamo do with a traced optimizer on PyTorch; see `truth/test_keras.py`, too."""

from typing import Any

import keras
import pytest
import torch
from backends.keras_torch.keras_on_torch import Odometer, X, Y, model, moved, ones

import tracer
from tracer.backends.torch import backend


def test_a_class_that_is_derived_from_a_traced_one_is_made_as_keras_makes_it() -> None:
    traced = type(tracer.wrap(keras.optimizers.Adam()))
    derived = type("Derived", (traced,), {})(0.1)
    made = model(derived, "glorot_uniform")
    made.fit(X, Y, batch_size=8, verbose=0)
    assert int(derived.iterations) == 5
    tracer.wrap(derived)
    made.fit(X, Y, batch_size=8, verbose=0)
    assert tracer.trace_of(derived).updates() == 20


def test_an_older_dynamo_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the program with an error if it got the `id` of an optimizer."""
    monkeypatch.setattr(backend, "KNOWS_IDS", False)
    torch._dynamo.reset()
    optimizer = tracer.wrap(type("Fresh", (Odometer,), {})())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)

    def step(gradients: list[Any]) -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        compiled(ones(variables))
    step(ones(variables))
    assert moved(variables) == [4.0] * 4
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (1, 4, False)
    assert any("torch.compile compiled a step of Fresh" in note for note in trace.notes)
    torch._dynamo.reset()
