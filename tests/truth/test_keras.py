"""Keras 3 without TensorFlow: counts against weights that count themselves, and the same bits."""

import copy
import functools
import importlib
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from support.framework import FRAMEWORK
from support.ran import Ran, check, check_effects
from support.saved import assert_each_block_is_saved
from truth.keras_programs import Odometer, X, Y, model, moved, runs

import tracer

RUNS: dict[str, Callable[[], Ran]] = runs(Odometer)
RUNS |= importlib.import_module(f"truth.keras_on_{FRAMEWORK}").RUNS

LONG = {"fit", "loss_scale", "accumulation", "pmap", "data_parallel"}
"""The programs that are tried with effects on JAX, which compiles them, in the long tests."""


def tier_of(name: str) -> list[Any]:
    """How often a program is tried with effects."""
    if FRAMEWORK == "torch" or name == "jitted":
        return []
    return [pytest.mark.long if name in LONG else pytest.mark.sweep]


@pytest.mark.parametrize("name", RUNS)
def test_counts_are_those_of_the_weights(name: str) -> None:
    run = RUNS[name]()
    trace = tracer.trace_of(run.optimizer)
    check(trace, run)
    if FRAMEWORK == "torch":  # which runs Python for each
        method = trace.methods[-1].name
        assert trace.executions(method) == trace.calls(method) == trace.updates()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize("name", [pytest.param(name, marks=tier_of(name)) for name in RUNS])
def test_what_an_odometer_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "wrap", functools.partial(tracer.wrap, effects=True))
    run = RUNS[name]()
    trace = tracer.trace_of(run.optimizer)
    check_effects(trace, run)
    if FRAMEWORK == "jax":
        updated = sum(map(bool, run.weights.values()))
        for replica in trace.replicas:
            per_step = list(trace.per_step("compared", replica=replica.id))
            assert per_step == [(1, len(run.per_step), updated)]


@pytest.mark.parametrize("wrap", [False, True], ids=["found", "wrapped"])
def test_each_block_over_a_model_of_an_earlier_block_is_saved(wrap: bool) -> None:
    trained = model(Odometer())
    assert_each_block_is_saved(
        trained.optimizer, lambda: trained.train_on_batch(X[:8], Y[:8]), 4, wrap=wrap
    )
    assert moved(trained.trainable_variables) == [4.0] * 4


# It changes nothing.


@keras.saving.register_keras_serializable("tests")
class Registered(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer that Keras's registry knows by its class."""


CLASSES = [keras.optimizers.Adam, keras.optimizers.Lamb, Registered, Odometer]
OPTIONS: Any = {"clipnorm": 0.5, "use_ema": True, "weight_decay": 0.01}
MAKERS: dict[str, Callable[[], Any]] = {
    name: lambda name=name: getattr(keras.optimizers, name)(0.1, **OPTIONS)  # type: ignore[misc]
    for name in dir(keras.optimizers)
    if isinstance(getattr(keras.optimizers, name), type)
    if name not in ("LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap")
}
MAKERS |= {
    "plain": lambda: keras.optimizers.Adam(0.01),
    "averages": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=3),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
CELLS = [(name, dict[str, Any]()) for name in MAKERS]
if FRAMEWORK == "jax":
    kept = ("plain", "averages", "accumulation")
    CELLS = [
        *((name, options) for name, options in CELLS if name in kept),
        ("plain", {"jit_compile": False}),
        ("loss scale", {"steps_per_execution": 2}),
    ]


def trained(optimizer: Any, **options: Any) -> Any:
    """A model that made some steps."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    made.compile(optimizer, "mse", **options)
    # In JAX 0.12 a product of 2 x 4 with 4 x 8 is rounded by where these lie: the old weights, if
    # anything in the program compares them. So the last batch of 2 is left out.
    made.fit(X[:32], Y[:32], batch_size=8, epochs=2, verbose=0)
    return made


def bytes_of(variables: Any) -> list[bytes]:
    return [keras.ops.convert_to_numpy(each).tobytes() for each in variables]


@pytest.mark.parametrize(("name", "options"), CELLS, ids=[f"{n} {' '.join(o)}" for n, o in CELLS])
def test_training_is_bit_for_bit_the_same(name: str, options: dict[str, Any]) -> None:
    found = []
    with_effects = (None, False) if options or name != "plain" else (None, False, True)
    for effects in with_effects:
        optimizer = MAKERS[name]()
        if effects is not None:
            tracer.wrap(optimizer, effects=effects)
        made = trained(optimizer, **options)
        found.append(bytes_of(made.variables + optimizer.variables))
    assert all(each == found[0] for each in found)
    assert tracer.trace_of(optimizer).updates() == 4 * (8 // (3 if name == "accumulation" else 1))


@pytest.mark.parametrize("cls", CLASSES)
def test_the_object_and_its_class_stay(cls: Any) -> None:
    optimizer = cls()
    plain = type(optimizer)
    assert tracer.wrap(optimizer) is optimizer
    assert optimizer.__class__ is plain
    assert type(optimizer) is not plain
    assert issubclass(type(optimizer), plain)
    assert type(optimizer).__module__ == plain.__module__
    for copied in (copy.copy(optimizer), plain.from_config(optimizer.get_config())):
        assert copied.__class__ is plain
    assert type(pickle.loads(pickle.dumps(optimizer))) is plain
    tracer.unwrap(optimizer)
    assert type(optimizer) is plain


_ADDRESS = re.compile(rb'"shared_object_id": \d+')
"""Another one for each object."""


@pytest.mark.parametrize("cls", CLASSES[2:] if FRAMEWORK == "jax" else CLASSES)
def test_configs_and_saved_files_are_the_same(cls: Any, tmp_path: Path) -> None:
    files = []
    for name in ("plain", "traced"):
        optimizer = cls() if name == "plain" else tracer.wrap(cls())
        path = tmp_path / f"{name}.keras"
        trained(optimizer).save(path)
        with zipfile.ZipFile(path) as file:
            contents = {each: _ADDRESS.sub(b"", file.read(each)) for each in file.namelist()}
        metadata = json.loads(contents.pop("metadata.json"))
        contents.pop("model.weights.h5")  # has times in it; the weights are compared below
        config = keras.saving.serialize_keras_object(optimizer)
        files.append((contents, metadata["keras_version"], bytes_of(optimizer.variables), config))
    assert files[0] == files[1]
    again = keras.saving.load_model(tmp_path / "traced.keras").optimizer
    assert type(again) is optimizer.__class__
    assert int(again.iterations) == 8
    assert bytes_of(again.variables) == files[1][2]


# What people ask.


@pytest.mark.long
def test_discarded_updates_left_nothing_unchanged() -> None:
    """What accumulation throws away is no update that changed nothing."""
    optimizer = tracer.wrap(Odometer(gradient_accumulation_steps=8), effects=True)
    model(optimizer).fit(X[:32], Y[:32], batch_size=4, verbose=0)
    trace = tracer.trace_of(optimizer)
    assert trace.count("unchanged", by=("step",)) == {(step,): 4 for step in range(1, 8)}
    assert not {each.code for each in trace.findings()} & {"unchanged", "not-finite"}
