"""What steps of Keras on PyTorch did to the variables: against odometers, and their bytes."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import pytest
import torch
from backends.keras_torch.keras_on_torch import (
    Odometer,
    model,
    moved,
    ones,
)
from support.torch_bytes import ByBytes

import tracer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")

NAN = float("nan")
GRADIENTS = [1.0, 0.0, 1e-30, 0.5, float("inf"), 1.0, 0.0, NAN, NAN, 0.0]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "one by one": lambda: keras.optimizers.Lamb(0.1),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_by_their_bytes(name: str) -> None:
    """Steps with gradients that are zero, infinite and no number, and one without some of them."""
    optimizer = tracer.wrap(OPTIMIZERS[name](), effects=True)
    variables = model(optimizer, "ones").trainable_variables
    optimizer.build(variables)
    truth = ByBytes({each.path: each.value for each in variables})
    for amount in GRADIENTS:
        gradients = [torch.full_like(each.value, amount) for each in variables]
        gradients[1] = torch.zeros_like(gradients[1])
        with torch.no_grad():
            truth.around(functools.partial(optimizer.apply, gradients, variables))
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert truth.unchanged and truth.not_finite
    truth.agrees_with(trace)


def test_gradients_from_an_iterator_are_said() -> None:
    class Lazy(Odometer):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply(list(grads), trainable_variables)

    optimizer = tracer.wrap(Lazy(), effects=True)
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    optimizer.apply(iter(ones(variables)), variables)
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [1.0] * 4 and trace.complete
    assert ["effects are unknown for 1 step" in note for note in trace.notes] == [True]
