"""What the tests of Keras on PyTorch train: optimizers whose weights count, and a small model."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras.src.backend.torch.optimizers.torch_parallel_optimizer import TorchParallelOptimizer

from tracer.hooks.torch_compiled import COUNTS

counts_in_compiled_code = pytest.mark.skipif(
    not COUNTS, reason="in this PyTorch, steps in compiled code are not counted"
)
X = np.random.default_rng(1).random((34, 4), "float32")
Y = np.random.default_rng(2).random((34, 1), "float32")


@keras.saving.register_keras_serializable("tests")
class Odometer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adds exactly 1 to a weight each time that it is updated."""

    def __init__(self, learning_rate: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **{"name": "odometer", **kwargs})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(variable, keras.ops.ones(variable.shape, variable.dtype))


@keras.saving.register_keras_serializable("tests")
class ParallelOdometer(TorchParallelOptimizer, Odometer):  # type: ignore[misc]
    """The same for all variables at once, as Keras makes its own optimizers for PyTorch."""

    def _parallel_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        torch._foreach_add_([each.value for each in variables], 1.0)


def model(optimizer: Any, kernels: str = "zeros", **kwargs: Any) -> Any:
    """A compiled model of four variables, which begin at 0, but perhaps the `kernels`."""
    begin = {"kernel_initializer": kernels}
    layers = [keras.layers.Dense(3, name="a", **begin), keras.layers.Dense(1, name="b", **begin)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    made.compile(optimizer, "mse", **kwargs)
    return made


def moved(variables: Iterable[Any]) -> list[float]:
    """How far each variable is from 0; its elements are equal."""
    values = [np.ravel(keras.ops.convert_to_numpy(each.value)) for each in variables]
    assert all(np.all(each == each[0]) for each in values)
    return [float(each[0]) for each in values]


def ones(variables: Iterable[Any]) -> list[Any]:
    """A gradient for each variable."""
    return [torch.ones_like(each.value) for each in variables]


def step(optimizer: Any, trained: Any, x: Any, y: Any) -> None:
    """One step of a loop of the program's own."""
    loss = keras.ops.mean((trained(x) - y) ** 2)
    trained.zero_grad()
    loss.backward()
    variables = trained.trainable_variables
    with torch.no_grad():
        optimizer.apply([each.value.grad for each in variables], variables)
