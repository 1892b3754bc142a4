"""What is said of a run must be so: names that nothing has, and causes that are none."""

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import odometers
from support.libraries import keras2, keras3, needs_keras3

import tracer

pytestmark = pytest.mark.wide(rest="sweep")


def fit(model: Any) -> None:
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)


# Layers that are frozen.


def words(message: object) -> str:
    return " ".join(str(message).split())


def net_of(library: Any, kind: str, frozen: str = "hidden") -> Any:
    """A model with the layers `first`, `hidden` and `out`, of which one is frozen."""
    layers = library.layers
    model = library.Sequential(
        [layers.Dense(2, name=name) for name in ("first", "hidden", "out")], name="net"
    )
    model.build((None, 2))
    for layer in model.layers:
        layer.trainable = layer.name != frozen
    model.compile(odometers.ODOMETERS[kind](), "mse")
    return model


LIBRARIES = [
    pytest.param(keras3, "keras3", "net/hidden", marks=needs_keras3, id="keras3"),
    pytest.param(keras2, "keras2", "hidden", id="keras2"),
]


@needs_keras3
def test_a_frozen_layer_is_known_by_its_name() -> None:
    """No optimizer gets its variables, and yet they have rows."""
    model = net_of(keras3, "keras3")
    with tracer.assert_never_updated("net/hidden/*") as seen:
        fit(model)
    (row,) = seen.trace.data.not_updated
    names = [seen.trace.variables[index].name for index in row.variables]
    assert (names, row.why, row.since) == (["net/hidden/kernel", "net/hidden/bias"], "frozen", 0)
    with (
        pytest.raises(AssertionError, match=re.escape("the trace holds no variable 'kernel'")),
        tracer.assert_never_updated("kernel"),
    ):
        fit(model)  # TensorFlow's own name of the variable in it is `kernel:0`


@pytest.mark.parametrize(("library", "kind", "prefix"), LIBRARIES)
def test_a_failure_names_the_layer_that_is_frozen(library: Any, kind: str, prefix: str) -> None:
    model = net_of(library, kind)
    hidden = model.get_layer("hidden")
    model._flatten = library.layers.Flatten()  # of Keras 2, a model is a `tf.Module`, which has one
    before = model.get_weights()
    parts = (model.get_layer(name) for name in ("first", "hidden"))
    assertions = [
        tracer.assert_updates(model.optimizer, dense=6, per_step=True),
        tracer.assert_updates(at_least=12),
        tracer.assert_updates(dense=2, per_step=True, variable="*hidden*"),
        tracer.assert_updates(dense=2, per_step=True, variable=hidden),
        tracer.assert_all_updated(hidden),
        tracer.assert_all_updated(parts),
        tracer.assert_all_updated(model),
        tracer.assert_all_updated([model, [library.layers.Dropout(0.5)]]),
    ]
    for assertion in assertions:
        with pytest.raises(AssertionError) as caught, assertion:
            fit(model)
        rows = rf"{prefix}/kernel [0 -]+ frozen {prefix}/bias [0 -]+ frozen"
        assert re.search(rows, words(caught.value))
    others = [model.get_layer("first"), model.get_layer("out"), library.layers.Dropout(0.5)]
    other = net_of(library, kind).get_layer("out")
    with (
        tracer.assert_all_updated(others),
        tracer.assert_never_updated(hidden),
        tracer.assert_never_updated([hidden, other.kernel]),
    ):
        fit(model)
    steps = 2 * (len(assertions) + 1)
    for each, (now, was) in enumerate(zip(model.get_weights(), before, strict=True)):
        np.testing.assert_allclose(now, was + (0 if each in (2, 3) else steps), rtol=1e-5)


@pytest.mark.parametrize(("library", "kind", "prefix"), LIBRARIES)
def test_a_model_that_was_trained_before_it_was_frozen(
    library: Any, kind: str, prefix: str
) -> None:
    """As the discriminator of a GAN, which is frozen where a turn begins, and where it ends."""
    model = net_of(library, kind, frozen="")
    before = model.get_weights()
    with tracer.assert_all_updated(model), tracer.assert_all_updated([model]):
        fit(model)
        model.trainable = False
    assert all((now != was).any() for now, was in zip(model.get_weights(), before, strict=True))
    layers = [model.get_layer("first"), model.get_layer("hidden")]
    with (
        pytest.raises(AssertionError, match=rf"{prefix}/kernel [0 -]+ (frozen|never updated)"),
        tracer.assert_all_updated(layers),
    ):
        pairs = [(tf.ones_like(each), each) for each in layers[0].variables]
        model.optimizer.apply_gradients(pairs)


@pytest.mark.parametrize(("library", "kind", "prefix"), LIBRARIES)
def test_what_is_never_trainable_need_not_be_updated(library: Any, kind: str, prefix: str) -> None:
    """The averages of a `BatchNormalization`, whether it is frozen or not."""
    for frozen in (False, True):
        hidden = library.layers.BatchNormalization(name="hidden")
        model = library.Sequential([library.layers.Dense(2), hidden], name="net")
        model.build((None, 2))
        hidden.trainable = not frozen
        model.compile(odometers.ODOMETERS[kind](), "mse")
        gamma = rf"(?s)got 0 for 2 of 4 variables.*{prefix}/gamma [0 -]+ frozen"
        fails = pytest.raises(AssertionError, match=gamma) if frozen else nullcontext()
        with fails, tracer.assert_all_updated(model):
            fit(model)


@needs_keras3
def test_the_variables_of_a_layer_count() -> None:
    model = net_of(keras3, "keras3", frozen="")
    hidden = model.get_layer("hidden")
    with (
        tracer.assert_updates(dense=2, per_step=True, variable=hidden),
        tracer.assert_updates(dense=12, variable=model),
        tracer.assert_updates(dense=4, variable=[hidden]),
        tracer.assert_executions("update_step", 4, variable=hidden),
        tracer.assert_calls("update_step", 2, variable=hidden),
        tracer.assert_calls("update_step", 6, variable=model),
    ):
        fit(model)
    for given in (7, object()):
        with pytest.raises(TypeError, match="a name, a glob, a variable, a layer or a model, not"):
            tracer.assert_updates(dense=2, variable=given)


@needs_keras3
@pytest.mark.parametrize("per_step", [False, True])
def test_a_variable_itself_fails_as_its_name_does(per_step: bool) -> None:
    """It is not asked whether it is true, which a variable has no answer to."""
    for model in (net_of(keras3, "keras3", frozen=""), net_of(keras2, "legacy", frozen="")):
        kernel = model.get_layer("hidden").kernel
        with (
            pytest.raises(AssertionError, match=r"hidden/kernel.*: expected 9"),
            tracer.assert_updates(dense=9, per_step=per_step, variable=kernel),
        ):
            fit(model)


# Causes that are none.


KEPT: list[Any] = []
"""Keeps alive what constructors that raise have begun."""


class After(keras2.optimizers.legacy.SGD):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        KEPT.append(self)
        raise ZeroDivisionError


class Within(keras2.optimizers.SGD):  # type: ignore[misc]
    def __init__(self) -> None:
        KEPT.append(self)
        super().__init__(clipnorm=1, global_clipnorm=1)


@pytest.mark.parametrize("make", [After, Within])
def test_an_optimizer_whose_constructor_raised_is_none(make: Any) -> None:
    optimizer = odometers.ODOMETERS["v1"]()
    with tracer.record() as recording:
        with pytest.raises((ZeroDivisionError, ValueError)):
            make()
        optimizer.apply_gradients([(tf.ones(1), tf.Variable([0.0]))])
    assert recording.trace().notes == ()
    assert recording.trace().complete
    assert recording.trace().updates() == 1


def assertions(optimizer: Any, weight: Any) -> list[Any]:
    """One of each sort on an optimizer, of which none holds in a block without its steps."""
    return [
        tracer.assert_updates(optimizer, dense=1),
        tracer.assert_executions("_resource_apply_dense", 1, optimizer=optimizer),
        tracer.assert_calls("_resource_apply_dense", 1, optimizer=optimizer),
        tracer.assert_all_updated([weight], optimizer=optimizer),
    ]


def test_of_an_optimizer_that_was_not_used() -> None:
    wrapped, other = odometers.ODOMETERS["v1"](), odometers.ODOMETERS["v1"]()
    weight = tf.Variable([0.0])
    for assertion in assertions(wrapped, weight):
        with pytest.raises(AssertionError, match="no step ran"), assertion:
            other.apply_gradients([(tf.ones(1), weight)])
    assert weight.numpy() == [4]


def test_a_late_wrap_is_no_optimizer_that_was_not_used() -> None:
    optimizer, weight = odometers.ODOMETERS["legacy"](), tf.Variable([0.0])

    @tf.function
    def function() -> None:
        optimizer.apply_gradients([(tf.ones(1), weight)])

    step = function.get_concrete_function()  # which cannot be traced again
    step()
    for assertion in (*assertions(optimizer, weight), tracer.assert_updates(total=0)):
        with (
            pytest.raises(AssertionError, match=r"traced\s+before\s+the\s+optimizer") as caught,
            assertion,
        ):
            step()
        assert not re.search("no step ran|never", str(caught.value))
    assert weight.numpy() == [6]
