"""A trace calls a variable what the user reads elsewhere: `Variable.path`, or TensorFlow's name.

The names are read from the model's variables after the training. The optimizer is applied to each
of them another number of times, so that the counts by name say whether a name is of its variable.
"""

import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support import libraries, odometers

import tracer
import tracer.keras
from tracer.model.trace import Trace

pytestmark = pytest.mark.wide(rest="sweep")

BATCH = 4

# Models of each shape, made with the Keras that is given.


def sequential(keras: Any) -> Any:
    return keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2, name="head")])


def functional(keras: Any) -> Any:
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(2, name="encoder")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, use_bias=False)(hidden), name="whole")


def subclassed(keras: Any) -> Any:
    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.encoder = keras.layers.Dense(3, name="encoder")
            self.head = keras.layers.Dense(2, name="head")

        def call(self, inputs: Any) -> Any:
            return self.head(self.encoder(inputs))

    return Net(name="net")


def layers_of_one_name(keras: Any) -> Any:
    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(2, name="part") for _ in range(3)]

        def call(self, inputs: Any) -> Any:
            for part in self.parts:
                inputs = part(inputs)
            return inputs

    return Net()


def loaded(keras: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        functional(keras).save(f"{folder}/model.keras")
        return keras.models.load_model(f"{folder}/model.keras")


READY = (functional, loaded)
"""The shapes that are never built by `fit`."""
SHAPES = (sequential, subclassed, layers_of_one_name, *READY)
FEW = (sequential, subclassed)
"""The shapes of the older kinds, and those under a strategy."""


# What the user reads.


def name_of(variable: Any) -> str:
    """What Keras or TensorFlow calls it."""
    if libraries.is_keras3(variable):
        return str(variable.path)
    return str(variable.name).removesuffix(":0")


def numbered(names: Iterable[str]) -> list[str]:
    """The names; one that repeats has its number."""
    found: list[str] = []
    plain: list[str] = []
    for name in names:
        plain.append(name)
        found.append(name if plain.count(name) == 1 else f"{name}#{plain.count(name)}")
    return found


def compiled(model: Any, kind: str) -> Any:
    """The model with an odometer, traced."""
    optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
    model.compile(optimizer, "mse", jit_compile=False)
    return optimizer


def fit(model: Any, batches: int = 2, **options: Any) -> None:
    x, y = np.ones((batches * BATCH, 3), "float32"), np.ones((batches * BATCH, 1), "float32")
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, **options)


def apply_once_more(optimizer: Any, variables: list[Any], strategy: Any) -> None:
    """Apply to the second variable once, to the third twice, and so on."""

    def step(chosen: list[Any]) -> None:
        optimizer.apply_gradients([(tf.zeros(each.shape), each) for each in chosen])

    for first in range(1, len(variables)):
        strategy.run(step, (variables[first:],))


def check_names(trace: Trace, variables: list[Any], counts: list[int]) -> None:
    """The trace has these variables by their names, and these updates of them."""
    assert trace.complete, trace.notes
    names = numbered(map(name_of, variables))
    assert [each.name for each in trace.variables] == names
    found = trace.count("updates", by=("variable",))
    assert found == {(name,): count for name, count in zip(names, counts, strict=True)}
    for variable, name, count in zip(variables, names, counts, strict=True):
        assert trace.updates(variable=name) == trace.updates(variable=variable) == count
        if trace.objects:  # a loaded trace knows names only
            for each in (odometers.raw(variable), *odometers.components(variable)):
                assert trace.updates(variable=each) == count


# The table.


CELLS = [
    pytest.param(strategy, kind, shape, built, id=f"{strategy}-{kind}-{shape.__name__}-{built}")
    for strategy in ("default", "mirrored 2")
    for kind in odometers.KINDS
    for shape in (SHAPES if strategy == "default" and kind in ("keras2", "keras3") else FEW)
    for built in ("built before", "built by fit")
    if built == "built before" or shape not in READY
]


@pytest.mark.parametrize(("strategy", "kind", "shape", "built"), CELLS)
def test_names_are_those_of_the_model(
    strategy: str, kind: str, shape: Any, built: str, tmp_path: Path
) -> None:
    keras, scope = libraries.library_of(kind), strategy_of(strategy)
    with scope.scope():
        model = shape(keras)
        if built == "built before" and not model.built:
            model(tf.zeros((1, 3)))
        optimizer = compiled(model, kind)
    fit(model)
    variables = model.trainable_variables
    apply_once_more(optimizer, variables, scope)
    counts = [(2 + place) * scope.num_replicas_in_sync for place in range(len(variables))]
    trace = tracer.trace_of(optimizer)
    check_names(trace, variables, counts)
    trace.save(tmp_path / "trace.json")
    if len(set(map(name_of, variables))) == len(variables):  # else a file cannot tell them apart
        check_names(tracer.load(tmp_path / "trace.json"), variables, counts)


# Models that another optimizer or a clone knows too.


@pytest.mark.parametrize("kind", ["keras3", "keras2"])
def test_two_models_with_the_same_names(kind: str) -> None:
    """Under one optimizer, and under two in one recording, in which no number is given twice."""
    keras = libraries.library_of(kind)
    first, second = subclassed(keras), subclassed(keras)
    with tracer.record() as recording:
        for model in (first, second):
            model.compile(odometers.ODOMETERS[kind](), "mse", jit_compile=False)
            fit(model)
        variables = first.trainable_variables + second.trainable_variables
        third = odometers.ODOMETERS[kind]()
        if kind == "keras3":
            third.build(variables[2:])
        third.apply_gradients([(tf.zeros(each.shape), each) for each in variables[2:]])
    trace = recording.trace()
    names = numbered(map(name_of, variables))
    assert names[4:] == [f"{name}#2" for name in names[:4]]
    counts = trace.count("updates", by=("variable",))
    assert counts == {(name,): 2 + (place > 1) for place, name in enumerate(names)}
    # By itself the third has met two variables of the first model and those of the second.
    alone = tracer.trace_of(third).variables
    assert [each.name for each in alone] == numbered(map(name_of, variables[2:]))


# Variables of TensorFlow that Keras 3 variables hold.


def built_by_fit() -> Any:
    """A model whose variables are called `net/kernel:0` by TensorFlow, each two of them alike."""
    model = subclassed(libraries.keras3)
    model.compile("sgd", "mse", jit_compile=False)
    fit(model, batches=1)
    assert len({each.value.name for each in model.trainable_variables}) == 2
    return model


@libraries.needs_keras3
def test_first_a_value_then_the_keras_variable() -> None:
    """It is one variable: it has the name that it had when an optimizer first got it."""
    variables = built_by_fit().trainable_variables
    values = [odometers.raw(each) for each in variables]
    optimizer = tracer.wrap(odometers.Keras3Odometer())
    for step, given in enumerate((values, variables, values), 1):
        optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in given])
        trace = tracer.trace_of(optimizer)
        names = numbered(map(name_of, values))
        assert trace.count("updates", by=("variable",)) == {(name,): step for name in names}


@pytest.mark.parametrize("kind", odometers.KINDS)
def test_a_variable_that_was_never_updated_has_no_count_of_another(
    kind: str, tmp_path: Path
) -> None:
    """The trace holds a variable of the same name, alive or gone; a loaded one knows names only."""
    make = libraries.keras3.Variable if kind == "keras3" else tf.Variable
    frozen, trained = (make(np.zeros(1, "float32"), name="weight") for _ in range(2))
    optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
    with tracer.assert_never_updated(frozen), tracer.assert_all_updated([trained]):
        optimizer.apply_gradients([(tf.zeros(1), trained)])
    trace = tracer.trace_of(optimizer)
    assert trace.updates(variable=trained) == trace.updates(variable="weight") == 1
    trace.save(tmp_path / "trace.json")
    del trained
    for _ in range(2):
        with pytest.raises(tracer.UnknownName, match="this object is not the variable 'weight'"):
            trace.updates(variable=frozen)
        gc.collect()
    loaded = tracer.load(tmp_path / "trace.json")
    assert loaded.updates(variable=frozen) == 1
    assert not tracer.assert_updates(total=1, variable=frozen).check(loaded)
