"""What steps of Keras on PyTorch did to the variables: against odometers, and their bytes."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import torch
from backends.keras_programs import check_effects
from backends.keras_torch.keras_on_torch import (
    Odometer,
    X,
    Y,
    model,
    moved,
    ones,
)
from backends.keras_torch.test_truth_table import RUNS
from support.torch_bytes import ByBytes

import tracer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")

NAN = float("nan")
GRADIENTS = [1.0, 0.0, 1e-30, 0.5, float("inf"), 1.0, 0.0, NAN, NAN, 0.0]


@pytest.mark.parametrize("name", RUNS)
def test_what_an_odometer_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "wrap", functools.partial(tracer.wrap, effects=True))
    check_effects(RUNS[name]())


def named(variables: list[Any]) -> dict[str, Any]:
    return {each.path: each.value for each in variables}


def check_by_bytes(
    make: Callable[[], Any], prepare: Callable[[Any], Any] = lambda step: step
) -> None:
    """Steps with gradients that are zero, infinite and no number, and one without some of them."""
    optimizer = tracer.wrap(make(), effects=True)
    variables = model(optimizer, "ones").trainable_variables
    optimizer.build(variables)

    def update(gradients: list[Any]) -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    step = prepare(update)
    truth = ByBytes(named(variables))
    for amount in GRADIENTS:
        gradients = [torch.full_like(each.value, amount) for each in variables]
        gradients[1] = torch.zeros_like(gradients[1])
        truth.around(functools.partial(step, gradients))
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert truth.unchanged and truth.not_finite
    truth.agrees_with(trace)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "weight decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "one by one": lambda: keras.optimizers.Lamb(0.1),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_by_their_bytes(name: str) -> None:
    check_by_bytes(OPTIMIZERS[name])


def test_training_is_bit_for_bit_the_same() -> None:
    found = []
    for effects in (None, False, True):
        keras.utils.set_random_seed(1)
        optimizer = keras.optimizers.Adam(0.01)
        if effects is not None:
            tracer.wrap(optimizer, effects=effects)
        trained = model(optimizer, "glorot_uniform")
        trained.fit(X, Y, batch_size=8, epochs=2, verbose=0)
        of_optimizer = map(keras.ops.convert_to_numpy, optimizer.variables)
        found.append([each.tobytes() for each in (*trained.get_weights(), *of_optimizer)])
    assert found[0] == found[1] == found[2]


def test_what_a_loss_scale_left_out() -> None:
    """What it skipped changed nothing, and updated nothing: no update was ineffective."""
    inner = Odometer()
    optimizer = tracer.wrap(keras.optimizers.LossScaleOptimizer(inner, 1.0), effects=True)
    x = X[:32].copy()
    x[4:28] = np.inf
    trained = model(optimizer)
    trained.fit(x, Y[:32], batch_size=4, shuffle=False, verbose=0)
    trace = tracer.trace_of(optimizer)
    assert moved(trained.trainable_variables) == [2.0] * 4
    assert trace.count("unchanged", by=("step",)) == {(step,): 4 for step in range(2, 8)}
    assert "unchanged" not in {each.code for each in trace.findings()}


def test_a_rate_of_zero_and_a_loss_that_is_no_number() -> None:
    optimizer = tracer.wrap(keras.optimizers.SGD(0.0), effects=True)
    trained = model(optimizer, "ones")
    trained.fit(X, Y, batch_size=8, verbose=0)
    (finding,) = [
        each for each in tracer.trace_of(optimizer).findings() if each.code == "unchanged"
    ]
    assert finding.severity == "error" and "all of them were updated in 5 steps" in finding.text
    y = Y.copy()
    y[20] = np.nan
    optimizer = tracer.wrap(keras.optimizers.SGD(0.1), effects=True)
    trained.compile(optimizer, "mse")
    trained.fit(X, y, batch_size=8, shuffle=False, verbose=0)
    codes = {each.code: each.step for each in tracer.trace_of(optimizer).findings()}
    assert codes == {"not-finite": 3}


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
    assert ["nothing is compared" in note for note in trace.notes] == [True]
