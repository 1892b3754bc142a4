"""What Keras 3 alone has on PyTorch; `truth/test_keras.py` has what each backend has."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from backends.keras_torch.keras_on_torch import ParallelOdometer
from truth.keras_programs import Odometer, X, Y, model, moved, ones

import tracer
from tracer.model.evidence import Failure


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
        with pytest.raises(RuntimeError, match="the third") if number == 2 else nullcontext():
            optimizer.apply(ones(variables), variables)
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [3.0] * 4
    assert trace.updates() == 12
    assert trace.calls("_parallel_update_step") == 16
    assert trace.steps == 3
    (failure,) = (e for e in trace.optimizers[0].evidence if isinstance(e, Failure))
    assert "the third" in failure.error


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


def test_everything_is_recorded(tmp_path: Path) -> None:
    """But not what Keras makes to save a model."""
    before = Odometer()
    trained = model(before)
    with tracer.record() as recording:
        trained.fit(X, Y, batch_size=8, verbose=0)
        other = model(ParallelOdometer())
        other.fit(X[:16], Y[:16], batch_size=8, verbose=0)
        trained.save(tmp_path / "model.keras")
    trace = recording.trace()
    assert trace.complete and len(trace.optimizers) == 2
    assert moved(trained.trainable_variables) == [5.0] * 4
    assert moved(other.trainable_variables) == [2.0] * 4
    assert trace.updates() == 4 * 5 + 4 * 2
    assert not tracer.core.registry.is_traced(before)


def test_a_class_that_is_derived_from_a_traced_one_is_made_as_keras_makes_it() -> None:
    traced = type(tracer.wrap(keras.optimizers.Adam()))
    derived = type("Derived", (traced,), {})(0.1)
    made = model(derived, "glorot_uniform")
    made.fit(X, Y, batch_size=8, verbose=0)
    assert int(derived.iterations) == 5
    tracer.wrap(derived)
    made.fit(X, Y, batch_size=8, verbose=0)
    assert tracer.trace_of(derived).updates() == 20


# Assertions: a layer is a module, and its variables hold parameters.


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
        with pytest.raises(AssertionError, match="got 0 for"), tracer.assert_all_updated([each]):
            train()


def test_the_parameters_of_models_that_are_gone_were_passed() -> None:
    """And what is frozen later has one row, not another one of the same name."""

    def train() -> None:
        for trainable in (True, False):
            net = keras.Sequential(
                [keras.Input((3,)), keras.layers.Dense(1), keras.layers.Dense(1)]
            )
            for layer_trains in (True, trainable):
                net.layers[0].trainable = layer_trains
                net.compile("sgd", "mse")
                net.train_on_batch(np.ones((4, 3)), np.ones((4, 1)))

    with tracer.record() as recording:
        train()
        gc.collect()
    rows = [(each.why, len(each.variables)) for each in recording.trace().data.not_updated]
    assert rows == [("frozen", 2)] and len(recording.trace().variables) == 8
