"""Programs of PyTorch, and of Keras on it, that were once counted wrong or called complete wrongly.

The weights are the truth: an odometer adds 1 to a parameter in each update.
"""

from typing import Any

import pytest
import torch
from support.said import said
from support.torch_odometers import Odometer, give, readings, zeros

import tracer


def step(optimizer: Any, parameters: Any, **given: Any) -> None:
    """One step with a gradient for each of these parameters."""
    give(parameters)
    optimizer.step(**given)


def sgd(parameters: Any, **options: Any) -> Any:
    """PyTorch's own SGD, which adds the gradient: with the gradient 1 an odometer."""
    return torch.optim.SGD(parameters, lr=1.0, maximize=True, **options)


def test_a_step_that_a_hook_steps_once_more() -> None:
    """Two updates of a parameter by PyTorch's own code in one step counted once."""
    parameters, again = zeros(), [True, False]
    optimizer = tracer.wrap(sgd(parameters))

    def hook(*_: Any) -> None:
        again.reverse()
        if not again[0]:
            optimizer.step()

    optimizer.register_step_pre_hook(hook)
    step(optimizer, parameters)
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [2, 2, 2]
    assert said(trace) == (1, 6, True)


def test_a_step_that_updates_some_of_its_parameters() -> None:
    """Each parameter with a gradient counted, also those that a custom step left alone."""

    class First(Odometer):
        @torch.no_grad()  # type: ignore[untyped-decorator]
        def step(self, closure: Any = None) -> None:
            self.param_groups[0]["params"][0].add_(1)

    parameters = zeros()
    optimizer = tracer.wrap(First(parameters))
    for _ in range(3):
        step(optimizer, parameters)
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [3, 0, 0]
    assert not trace.complete


def test_a_step_that_raises() -> None:
    """PyTorch calls no hook after a step that raises: its updates were not counted in silence."""

    class Failing(Odometer):
        def step(self, closure: Any = None) -> Any:
            super().step()
            raise ValueError("too late")

    parameters = zeros()
    optimizer = tracer.wrap(Failing(parameters))
    with pytest.raises(ValueError, match="too late"):
        step(optimizer, parameters)
    assert readings(parameters) == [1, 1, 1]
    trace = tracer.trace_of(optimizer)
    assert not trace.complete


def test_an_optimizer_that_is_wrapped_in_a_block() -> None:
    """After a block in which the optimizer was unused, its own trace counted nothing."""
    parameters = zeros(1)
    optimizer = sgd(parameters)
    with tracer.assert_updates(optimizer, dense=0):
        pass
    with tracer.record():
        tracer.wrap(optimizer)
    step(optimizer, parameters)
    step(optimizer, parameters)
    assert readings(parameters) == [2]
    assert said(tracer.trace_of(optimizer)) == (2, 2, True)


# Keras on PyTorch.


def fitted(optimizer: Any, frozen: bool = False) -> Any:
    """A Keras model of two layers after a `fit` of 3 steps."""
    import keras

    model = keras.Sequential([keras.Input((2,)), *map(keras.layers.Dense, (2, 1))])
    model.layers[0].trainable = not frozen
    model.compile(optimizer, "mse")
    fit(model)
    return model


def fit(model: Any) -> None:
    ones = torch.ones(6, 2)
    model.fit(ones, ones[:, :1], batch_size=2, verbose=0)


def test_a_layer_in_an_assertion_on_keras() -> None:
    """A layer was no variable for assertions: they passed, or failed, without looking."""
    import keras

    layer = keras.layers.Dense(1)
    layer.build((2, 2))
    parameters = list(layer.parameters())
    optimizer = sgd(parameters)
    with tracer.assert_all_updated(layer):
        step(optimizer, parameters)
    with pytest.raises(AssertionError), tracer.assert_never_updated(layer):
        step(optimizer, parameters)


def test_a_frozen_layer_among_those_that_must_be_updated() -> None:
    """The assertion passed if all others in the list had been updated."""
    import keras

    model = fitted(keras.optimizers.SGD(), frozen=True)
    with pytest.raises(AssertionError), tracer.assert_all_updated(model.layers):
        fit(model)
