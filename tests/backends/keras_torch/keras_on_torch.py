"""What the tests of Keras on PyTorch train beside `keras_programs`: all variables at once."""

from typing import Any

import keras
import torch
from keras.src.backend.torch.optimizers.torch_parallel_optimizer import TorchParallelOptimizer
from truth.keras_programs import (
    Odometer as Odometer,
    X as X,
    Y as Y,
    model as model,
    moved as moved,
    ones as ones,
)


@keras.saving.register_keras_serializable("tests")
class ParallelOdometer(TorchParallelOptimizer, Odometer):  # type: ignore[misc]
    """The same for all variables at once, as Keras makes its own optimizers for PyTorch."""

    def _parallel_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        torch._foreach_add_([each.value for each in variables], 1.0)


def step(optimizer: Any, trained: Any, x: Any, y: Any) -> None:
    """One step of a loop of the program's own."""
    loss = keras.ops.mean((trained(x) - keras.ops.convert_to_tensor(y)) ** 2)
    trained.zero_grad()
    loss.backward()
    variables = trained.trainable_variables
    with torch.no_grad():
        optimizer.apply([each.value.grad for each in variables], variables)
