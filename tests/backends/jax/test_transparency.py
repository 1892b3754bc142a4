"""Training with the tracer gives the same bits, files, configs and programs as without."""

import pickle
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y

import tracer

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0),
    "adamw_ema": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulating": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=3),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
CELLS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("adam", "sgd", "adamw_ema", "accumulating")),
    ("adam", {"jit_compile": False}),
    ("loss_scale", {"steps_per_execution": 2}),
]


def trained(optimizer: Any, epochs: int = 2, **kwargs: Any) -> Any:
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(optimizer, "mse", **kwargs)
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0)
    return model


def values(model: Any) -> list[Any]:
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(each.value) for each in variables]


@pytest.mark.parametrize(("name", "way"), CELLS, ids=[f"{n} {' '.join(w)}" for n, w in CELLS])
def test_the_same_bits(name: str, way: dict[str, Any]) -> None:
    plain = trained(OPTIMIZERS[name](), **way)
    traced = trained(tracer.wrap(OPTIMIZERS[name]()), **way)
    assert tracer.trace_of(traced.optimizer).updates()
    for one, other in zip(values(plain), values(traced), strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_same_file(tmp_path: Any) -> None:
    contents = []
    for number, wrapped in enumerate((False, True)):
        keras.utils.clear_session()
        optimizer = keras.optimizers.Adam(0.01)
        model = trained(tracer.wrap(optimizer) if wrapped else optimizer)
        path = tmp_path / f"{number}.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is keras.optimizers.Adam
        contents.append(
            [keras.saving.serialize_keras_object(optimizer), *map(bytes, values(loaded))]
        )
    assert contents[0] == contents[1]


def test_a_pickle_and_a_copy_are_of_the_plain_class() -> None:
    optimizer = tracer.wrap(keras.optimizers.Adam(0.01))
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert optimizer.__class__ is keras.optimizers.Adam
    assert type(pickle.loads(pickle.dumps(optimizer))) is keras.optimizers.Adam


def test_as_many_programs_and_no_effect() -> None:
    """An effect would turn off the fast path of `jax.jit`."""
    counts = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        step = jax.jit(loop.step)
        for x in (X[:8], X[:4], X[8:16]):
            loop.state = step(loop.state, x, Y[: len(x)])
        assert not jax.make_jaxpr(loop.step)(loop.state, X[:8], Y[:8]).effects
        counts.append(step._cache_size())
    assert counts == [2, 2]


def test_the_same_error() -> None:
    errors = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        with pytest.raises(ValueError) as caught:
            loop.optimizer.stateless_apply([], [], [])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
