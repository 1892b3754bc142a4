"""Keras 3 on PyTorch, however it is run: each count against weights that count by themselves.

The optimizer is an odometer, which adds exactly 1 to a weight with each update, and the weights
begin at 0. So what a variable holds in the end is how often it was updated. Which steps updated is
arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import torch
from backends.keras_torch.keras_on_torch import (
    Odometer,
    ParallelOdometer,
    X,
    Y,
    model,
    moved,
    ones,
    step,
)

import tracer

scaled = keras.optimizers.LossScaleOptimizer


class Run(NamedTuple):
    """What ran, and what must have come of it."""

    optimizer: Any
    variables: Sequence[Any]
    per_step: list[int]
    """How many updates in each step, of all variables."""
    method: str = "update_step"


def fitted(optimizer: Any, per_step: list[int], x: Any = X, **kwargs: Any) -> Run:
    """What a model is fitted with, in batches of 8, or of 4 if there are 32 data."""
    epochs = kwargs.pop("epochs", 1)
    trained = model(tracer.wrap(optimizer), **kwargs)
    size = 4 if len(x) == 32 else 8
    trained.fit(x, Y[: len(x)], batch_size=size, epochs=epochs, shuffle=False, verbose=0)
    return Run(optimizer, trained.trainable_variables, per_step)


def fit() -> Run:
    return fitted(Odometer(), [4] * 15, epochs=3)


def fit_in_parallel() -> Run:
    run = fitted(ParallelOdometer(), [4] * 15, epochs=3)
    return run._replace(method="_parallel_update_step")


def run_eagerly() -> Run:
    return fitted(Odometer(), [4] * 5, run_eagerly=True)


def clipped() -> Run:
    return fitted(Odometer(clipnorm=0.1), [4] * 5)


def clipped_in_parallel() -> Run:
    run = fitted(ParallelOdometer(global_clipnorm=0.1), [4] * 5)
    return run._replace(method="_parallel_update_step")


def train_on_batch() -> Run:
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    for _ in range(6):
        trained.train_on_batch(X[:8], Y[:8])
    return Run(optimizer, trained.trainable_variables, [4] * 6)


def accumulation() -> Run:
    """16 steps of which every 4th updates."""
    optimizer = Odometer(gradient_accumulation_steps=4)
    return fitted(optimizer, [0, 0, 0, 4] * 4, X[:32], epochs=2)


def accumulation_in_parallel() -> Run:
    optimizer = ParallelOdometer(gradient_accumulation_steps=4)
    run = fitted(optimizer, [0, 0, 0, 4] * 4, X[:32], epochs=2)
    return run._replace(method="_parallel_update_step")


def not_finite() -> Any:
    """Eight batches of four, of which the 4th and the 6th are not finite."""
    x = X[:32].copy()
    x[12], x[20] = np.inf, np.nan
    return x


def loss_scale() -> Run:
    return fitted(scaled(Odometer()), [4, 4, 4, 0, 4, 0, 4, 4], not_finite())


def loss_scale_in_parallel() -> Run:
    run = fitted(scaled(ParallelOdometer()), [4, 4, 4, 0, 4, 0, 4, 4], not_finite())
    return run._replace(method="_parallel_update_step")


def loss_scale_and_accumulation() -> Run:
    """Steps 4 and 6 are skipped; of the six others every 2nd updates."""
    optimizer = scaled(Odometer(gradient_accumulation_steps=2))
    return fitted(optimizer, [0, 4, 0, 0, 4, 0, 0, 4], not_finite())


def moving_averages() -> Run:
    """With a momentum of 0 the average is the weight, so that overwriting moves nothing."""
    optimizer = Odometer(use_ema=True, ema_momentum=0.0, ema_overwrite_frequency=3)
    return fitted(optimizer, [4] * 8, X[:32])


def a_frozen_layer() -> Run:
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    trained.layers[0].trainable = False
    trained.compile(optimizer, "mse")
    trained.fit(X[:32], Y[:32], batch_size=4, verbose=0)
    return Run(optimizer, trained.variables[:4], [2] * 8)


def a_loop() -> Run:
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    for _ in range(6):
        step(optimizer, trained, X[:8], torch.from_numpy(Y[:8]))
    return Run(optimizer, trained.trainable_variables, [4] * 6)


def apply_without_variables() -> Run:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    for _ in range(3):
        optimizer.apply(ones(variables))
    return Run(optimizer, variables, [4] * 3, "_parallel_update_step")


def apply_gradients() -> Run:
    """From an iterator, which is there once."""
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    for _ in range(3):
        optimizer.apply_gradients(zip(ones(variables), variables, strict=True))
    return Run(optimizer, variables, [4] * 3)


def no_gradient() -> Run:
    """Two variables get None in each second step: Keras leaves them out."""
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    for number in range(4):
        gradients = ones(variables)
        if number % 2:
            gradients[0] = gradients[1] = None
        with pytest.warns(UserWarning) if number % 2 else nothing():
            optimizer.apply(gradients, variables)
    return Run(optimizer, variables, [4, 2, 4, 2], "_parallel_update_step")


def a_part_each_time() -> Run:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    for number in range(6):
        part = variables[:3] if number % 2 else variables[2:]
        optimizer.apply(ones(part), part)
    return Run(optimizer, variables, [2, 3] * 3, "_parallel_update_step")


def wrapped_late() -> Run:
    """What came before is not counted: nothing is compiled."""
    optimizer = Odometer()
    trained = model(optimizer)
    trained.fit(X, Y, batch_size=8, verbose=0)
    for each in trained.trainable_variables:
        each.assign(keras.ops.zeros(each.shape))
    tracer.wrap(optimizer)
    trained.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    return Run(optimizer, trained.trainable_variables, [4] * 10)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


nothing = _Nothing

RUNS: list[Callable[[], Run]] = [
    fit,
    fit_in_parallel,
    run_eagerly,
    clipped,
    clipped_in_parallel,
    train_on_batch,
    accumulation,
    accumulation_in_parallel,
    loss_scale,
    loss_scale_in_parallel,
    loss_scale_and_accumulation,
    moving_averages,
    a_frozen_layer,
    a_loop,
    apply_without_variables,
    apply_gradients,
    no_gradient,
    a_part_each_time,
    wrapped_late,
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_each_update_is_counted_in_its_step(run: Callable[[], Run]) -> None:
    optimizer, variables, per_step, method = run()
    trace = tracer.trace_of(optimizer)
    weights = moved(variables)
    assert trace.complete, trace.notes
    assert [
        trace.updates(variable=each) if n else 0 for each, n in zip(variables, weights, strict=True)
    ] == weights
    assert trace.updates() == trace.executions(method) == trace.calls(method) == sum(weights)
    assert trace.steps == len(per_step)
    assert [trace.updates(step=number + 1) for number in range(len(per_step))] == per_step


def test_a_call_that_raises_is_no_update() -> None:
    class Breaking(ParallelOdometer):
        """Fails in its third step."""

        count = 0

        def _parallel_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
            self.count += 1
            if self.count == 3:
                raise RuntimeError("the third")
            super()._parallel_update_step(grads, variables, learning_rate)

    optimizer = tracer.wrap(Breaking())
    variables = model(optimizer).trainable_variables
    for number in range(4):
        with pytest.raises(RuntimeError, match="the third") if number == 2 else nothing():
            optimizer.apply(ones(variables), variables)
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [3.0] * 4
    assert trace.updates() == 12
    assert trace.calls("_parallel_update_step") == 16
    assert trace.steps == 3
    (failure,) = trace.optimizers[0].failures
    assert "the third" in failure.error


def test_sparse_gradients_are_sparse() -> None:
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    gradients = ones(variables)
    gradients[0] = gradients[0].to_sparse()
    optimizer.apply(gradients, variables)
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [1.0] * 4
    assert (trace.updates("sparse"), trace.updates("dense")) == (1, 3)
    assert trace.updates("sparse", variable=variables[0]) == 1


def test_a_gradient_that_changes_its_layout_is_asked_for_as_what_it_is() -> None:
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    for number in range(4):
        gradients = ones(variables)
        if number % 2:
            gradients[0] = gradients[0].to_sparse()
        optimizer.apply(gradients, variables)
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [4.0] * 4
    for measure in ("requests", "updates"):
        by_step = trace.count(measure, by=("kind", "step"))
        assert [by_step.get(("sparse", step), 0) for step in range(1, 5)] == [0, 1, 0, 1]


BUILT_IN = {
    **dict.fromkeys(
        ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Nadam", "RMSprop", "SGD"),
        "_parallel_update_step",
    ),
    **dict.fromkeys(("Adafactor", "Ftrl", "Lamb", "Muon"), "update_step"),
}
"""Keras's optimizers, with the method by which each updates on PyTorch."""


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("derived", [False, True], ids=["its own", "derived"])
def test_built_in_optimizers_count_as_they_step(name: str, derived: bool) -> None:
    cls = getattr(keras.optimizers, name)
    if derived:
        cls = type("Derived", (cls,), {})
    optimizer = tracer.wrap(cls(0.1))
    trained = model(optimizer, "ones")
    before = [np.array(each) for each in trained.get_weights()]
    trained.fit(X, Y, batch_size=8, verbose=0)
    trace = tracer.trace_of(optimizer)
    method = "update_step" if derived else BUILT_IN[name]
    changed = sum(
        np.any(old != new) for old, new in zip(before, trained.get_weights(), strict=True)
    )
    assert changed == 4
    assert trace.steps == int(optimizer.iterations) == 5
    assert trace.updates() == trace.executions(method) == 4 * 5
    assert {each.name for each in trace.methods} == {"apply", method}


def test_everything_is_recorded() -> None:
    before = Odometer()
    trained = model(before)
    with tracer.record() as recording:
        trained.fit(X, Y, batch_size=8, verbose=0)
        other = model(ParallelOdometer())
        other.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    trace = recording.trace()
    assert trace.complete, trace.notes
    assert moved(trained.trainable_variables) == [5.0] * 4
    assert moved(other.trainable_variables) == [2.0] * 4
    assert trace.updates() == 4 * 5 + 4 * 2
    assert not tracer.hooks.registry.is_traced(before)


def test_assertions_hold() -> None:
    optimizer = tracer.wrap(ParallelOdometer())
    trained = model(optimizer)
    with tracer.assert_updates(optimizer, dense=4, sparse=0, per_step=True):
        trained.fit(X, Y, batch_size=8, verbose=0)
    with pytest.raises(AssertionError), tracer.assert_updates(optimizer, dense=3, per_step=True):
        trained.train_on_batch(X, Y)
    assert moved(trained.trainable_variables) == [6.0] * 4


def test_the_answer_says_how_calls_for_many_variables_count() -> None:
    run = fit_in_parallel()
    assert tracer.trace_of(run.optimizer).answer() == (
        "_parallel_update_step ran 4 times a step: 60 executions in 15 steps. Its Python body was "
        "called 60 times, all eagerly, counted once for each variable of a call."
    )
