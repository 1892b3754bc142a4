"""A traced optimizer of Keras on PyTorch is to the program what it was before."""

import copy
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
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
)

import tracer
from tracer.backends.torch import keras_compiled


@keras.saving.register_keras_serializable("tests")
class Registered(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer that Keras's registry knows by its class."""


_ADDRESS = re.compile(rb'"shared_object_id": \d+')
"""Another one for each object."""

CLASSES = [keras.optimizers.Adam, keras.optimizers.Lamb, Registered, ParallelOdometer]


def trained(optimizer: Any) -> Any:
    """A model that made some steps."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    made = model(optimizer, "glorot_uniform")
    made.fit(X, Y, batch_size=8, verbose=0)
    return made


@pytest.mark.parametrize(
    "name",
    [
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Ftrl",
        "Lamb",
        "Lion",
        "Muon",
        "Nadam",
        "RMSprop",
        "SGD",
    ],
)
def test_training_is_bit_for_bit_the_same(name: str) -> None:
    cls = getattr(keras.optimizers, name)
    options = {"clipnorm": 0.5, "use_ema": True, "weight_decay": 0.01}
    runs = []
    for optimizer in (cls(0.1, **options), tracer.wrap(cls(0.1, **options))):
        made = trained(optimizer)
        runs.append([each.numpy().tobytes() for each in made.variables + optimizer.variables])
    assert runs[0] == runs[1]
    assert tracer.trace_of(optimizer).updates() == 20


@pytest.mark.parametrize("cls", CLASSES)
def test_the_object_and_its_class_stay(cls: Any) -> None:
    optimizer = cls()
    plain = type(optimizer)
    assert tracer.wrap(optimizer) is optimizer
    assert optimizer.__class__ is plain
    assert type(optimizer) is not plain
    assert issubclass(type(optimizer), plain)
    assert type(optimizer).__module__ == plain.__module__
    tracer.unwrap(optimizer)
    assert type(optimizer) is plain


@pytest.mark.parametrize("cls", CLASSES)
def test_configs_and_saved_files_are_the_same(cls: Any, tmp_path: Path) -> None:
    files = []
    for name in ("plain", "traced"):
        optimizer = cls() if name == "plain" else tracer.wrap(cls())
        made = trained(optimizer)
        path = tmp_path / f"{name}.keras"
        made.save(path)
        with zipfile.ZipFile(path) as file:
            contents = {each: _ADDRESS.sub(b"", file.read(each)) for each in file.namelist()}
        metadata = json.loads(contents.pop("metadata.json"))
        contents.pop("model.weights.h5")  # has times in it; the weights are compared below
        weights = [each.numpy().tobytes() for each in optimizer.variables]
        config = keras.saving.serialize_keras_object(optimizer)
        files.append((contents, metadata["keras_version"], weights, config))
    assert files[0] == files[1]
    again = keras.saving.load_model(tmp_path / "traced.keras")
    assert type(again.optimizer) is optimizer.__class__
    assert int(again.optimizer.iterations) == 5
    loaded = [each.numpy().tobytes() for each in again.optimizer.variables]
    assert loaded == files[1][2]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda each: type(each).from_config(each.get_config())],
    ids=["copy", "deepcopy", "from_config"],
)
def test_copies_are_of_the_plain_class(cls: Any, copied: Callable[[Any], Any]) -> None:
    optimizer = tracer.wrap(cls())
    assert type(copied(optimizer)) is optimizer.__class__


def test_pickles_are_of_the_plain_class() -> None:
    plain, traced = Odometer(), tracer.wrap(Odometer())
    assert type(pickle.loads(pickle.dumps(traced))) is Odometer
    assert len(pickle.dumps(traced)) == len(pickle.dumps(plain))


def test_a_class_that_is_derived_from_a_traced_one_is_made_as_keras_makes_it() -> None:
    traced = type(tracer.wrap(keras.optimizers.Adam()))
    derived = type("Derived", (traced,), {})(0.1)
    made = trained(derived)
    assert int(derived.iterations) == 5
    tracer.wrap(derived)
    made.fit(X, Y, batch_size=8, verbose=0)
    assert tracer.trace_of(derived).updates() == 20


def test_an_older_dynamo_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the program with an error if it got the `id` of an optimizer."""
    monkeypatch.setattr(keras_compiled, "KNOWS_IDS", False)
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
