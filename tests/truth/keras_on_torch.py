"""Ways to train with Keras that PyTorch alone has: all variables at once, loops of one's own."""

from contextlib import nullcontext

import keras
import pytest
import torch
from backends.keras_torch.keras_on_torch import ParallelOdometer, step
from support.ran import Ran, programs_in
from truth.keras_programs import Odometer, X, Y, fitted, model, ones, ran, runs

import tracer


def clipped() -> Ran:
    return fitted(Odometer(clipnorm=0.1), [4] * 5)


def clipped_in_parallel() -> Ran:
    return fitted(ParallelOdometer(global_clipnorm=0.1), [4] * 5)


def a_loop() -> Ran:
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    for _ in range(6):
        step(optimizer, trained, X[:8], torch.from_numpy(Y[:8]))
    return ran(optimizer, trained.trainable_variables, [4] * 6)


def apply_without_variables() -> Ran:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    for _ in range(3):
        optimizer.apply(ones(variables))
    return ran(optimizer, variables, [4] * 3)


def apply_gradients() -> Ran:
    """From an iterator, which is there once."""
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    for _ in range(3):
        optimizer.apply_gradients(zip(ones(variables), variables, strict=True))
    return ran(optimizer, variables, [4] * 3)


def no_gradient() -> Ran:
    """Two variables get None in each second step: Keras leaves them out."""
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    for number in range(4):
        gradients = ones(variables)
        if number % 2:
            gradients[0] = gradients[1] = None
        with pytest.warns(UserWarning) if number % 2 else nullcontext():
            optimizer.apply(gradients, variables)
    return ran(optimizer, variables, [4, 2, 4, 2])


def a_part_each_time() -> Ran:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    for number in range(6):
        part = variables[:3] if number % 2 else variables[2:]
        optimizer.apply(ones(part), part)
    return ran(optimizer, variables, [2, 3] * 3)


def wrapped_late() -> Ran:
    """What came before is not counted: nothing is compiled."""
    optimizer = Odometer()
    trained = model(optimizer)
    trained.fit(X, Y, batch_size=8, verbose=0)
    for each in trained.trainable_variables:
        each.assign(keras.ops.zeros(each.shape))
    tracer.wrap(optimizer)
    trained.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    return ran(optimizer, trained.trainable_variables, [4] * 10)


RUNS = programs_in(globals()) | {
    f"{name}_in_parallel": run for name, run in runs(ParallelOdometer).items()
}
