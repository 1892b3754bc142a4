"""Assertions about Keras on PyTorch: a layer is a module, and its variables hold parameters."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import torch
from backends.keras_torch.keras_on_torch import X, Y, model

import tracer


def with_keras(trained: Any) -> Callable[[], Any]:
    return lambda: trained.fit(X, Y, batch_size=8, verbose=0)


def with_torch(trained: Any) -> Callable[[], Any]:
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], 0.1)

    def train() -> None:
        optimizer.zero_grad()
        ((trained(X) - torch.tensor(Y)) ** 2).mean().backward()
        optimizer.step()

    return train


@pytest.mark.parametrize("trains", [with_keras, with_torch])
def test_layers_their_variables_and_their_parameters(trains: Any) -> None:
    trained = model(keras.optimizers.SGD(0.1), "ones")
    frozen, head = trained.layers
    frozen.trainable = False
    train = trains(trained)
    with tracer.assert_all_updated(head), tracer.assert_all_updated([head.kernel]):
        train()
    for all_of in (trained, trained.layers):
        with pytest.raises(AssertionError, match="for 2 of"), tracer.assert_all_updated(all_of):
            train()
    with tracer.assert_never_updated(frozen), tracer.assert_never_updated(frozen.kernel.value):
        train()
    for each in (head, head.kernel, head.kernel.value):
        with pytest.raises(AssertionError, match="expected 0"), tracer.assert_never_updated(each):
            train()
    for each in (frozen.kernel, frozen.kernel.value):
        with pytest.raises(AssertionError, match="got none"), tracer.assert_all_updated([each]):
            train()
