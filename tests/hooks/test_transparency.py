"""The tracer changes nothing: weights, slots, copies, checkpoints, exports and errors stay."""

import copy
import functools
import gc
import inspect
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.libraries import BROKEN, keras2, keras3, library_of, needs_keras3, optimizer_of
from support.odometers import KINDS, ODOMETERS, gradients, make_variables, read
from support.twins import STEPS, assert_twins, train, variables_for

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

v1 = tf.compat.v1.train
legacy = keras2.optimizers.legacy

Make = Callable[[], Any]


_NOT_ON_THEIR_OWN = ("AdagradDA", "LossScale", "Multi", "", "OptimizerV2", "SyncReplicas")
_MODULES = {"legacy": legacy, "keras2": keras2.optimizers, "v1": v1}
if keras3 is not None:
    _MODULES["keras3"] = keras3.optimizers


def every_optimizer() -> Iterator[Any]:
    """Each class that trains alone; those of v1 have no default rate. Only Adam is quick."""
    for kind, module in _MODULES.items():
        for cls in sorted(
            {each for each in vars(module).values() if isinstance(each, type)}, key=repr
        ):
            name = cls.__name__.removesuffix("Optimizer")
            if issubclass(cls, module.Optimizer) and name not in _NOT_ON_THEIR_OWN:
                given = (0.1, 0.9)[: 1 + (name == "Momentum")] if kind == "v1" else ()
                marks = [pytest.mark.long] * (name != "Adam")
                if kind == "keras3" and name in BROKEN:
                    marks.append(pytest.mark.skip(reason=BROKEN[name]))
                yield pytest.param(functools.partial(cls, *given), id=f"{kind}-{name}", marks=marks)


@pytest.mark.parametrize("make", [*every_optimizer()])
def test_training_is_bit_for_bit_the_same(make: Make) -> None:
    assert_twins(make, own_steps=lambda optimizer: STEPS)


@needs_keras3
def test_products_are_rounded_as_they_were() -> None:
    """Gradients that are clipped by their norm are products: Grappler reorders their factors.

    It makes one factor of the constants in a product of quotients.
    """

    def trained(**options: bool) -> bytes:
        random = np.random.default_rng(0)
        weights = [keras3.Variable(random.normal(size=(8, 8))) for _ in range(3)]
        with tracer.record(**options) if options else nullcontext():
            optimizer = keras3.optimizers.SGD(0.1)
            optimizer.build(weights)

            @tf.function
            def step(gradient: Any, scale: Any) -> None:
                products = [each * scale for each in (gradient, tf.zeros_like(gradient))]
                quotient = tf.matmul(gradient, gradient) / 7.0 * 0.3 * 0.7
                optimizer.apply([*map(tf.identity, products), quotient], weights)

            for _ in range(10):
                step(*(tf.constant(random.normal(size=size), tf.float32) for size in ((8, 8), ())))
        return b"".join(weight.numpy().tobytes() for weight in weights)

    assert trained() == trained(effects=False) == trained(effects=True)


SAMPLES = {kind: functools.partial(optimizer_of, kind, "Adam", 0.25, name="adam") for kind in KINDS}
samples = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_derived_from_its_type(kind: str) -> None:
    base: Any = ODOMETERS[kind]
    traced: Any = type(tracer.wrap(base()))

    class Derived(traced):  # type: ignore[misc]
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_gradients(*args, **kwargs)

    assert Derived().__class__ is Derived
    Derived().apply_gradients(gradients(make_variables(kind)))
    optimizer = tracer.wrap(Derived())
    assert optimizer.__class__ is Derived
    variables = make_variables(kind)
    for _ in range(3):
        optimizer.apply_gradients(gradients(variables))
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 3
    for variable in variables.values():
        assert sum(read(variable)[0]) == trace.updates(variable=variable) == 3
    assert trace.calls(variable=variables["kernel"]) == 3


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", KINDS)
def test_warnings_name_the_same_line(kind: str, compiled: bool) -> None:
    """A warning of a traced method is about its caller, as filters by module expect."""
    base: Any = ODOMETERS[kind]

    class Warns(base):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            warnings.warn("a step", stacklevel=2)
            return super().apply_gradients(grads_and_vars, *args, **kwargs)

    lines = []
    for traced in (False, True):
        optimizer, variables = Warns(), make_variables(kind)
        if traced:
            tracer.wrap(optimizer)

        def step() -> None:
            optimizer.apply_gradients(gradients(variables))  # noqa: B023

        with pytest.warns(UserWarning, match="a step") as caught:
            (tf.function(step, autograph=False) if compiled else step)()
        # A function that makes variables is traced, and so warns, twice.
        [line] = {(w.filename, w.lineno) for w in caught if str(w.message) == "a step"}
        lines.append(line)
    assert lines[0] == lines[1] == (__file__, step.__code__.co_firstlineno + 1)


@samples
def test_signatures_stay(make: Make) -> None:
    plain, traced = make(), tracer.wrap(make())
    for name in ("apply_gradients", "apply", "update_step", "_resource_apply_dense"):
        if hasattr(plain, name):
            for shown in (inspect.signature, inspect.getfullargspec, inspect.getsource):
                assert shown(getattr(plain, name)) == shown(getattr(traced, name))


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_configs_and_copies_are_of_the_plain_class(kind: str) -> None:
    plain, traced = SAMPLES[kind](), tracer.wrap(SAMPLES[kind]())
    library = library_of(kind)
    assert traced.get_config() == plain.get_config()
    assert library.optimizers.serialize(traced) == library.optimizers.serialize(plain)
    for copied in (
        traced.from_config(traced.get_config()),
        type(traced).from_config(traced.get_config()),
        library.optimizers.deserialize(library.optimizers.serialize(traced)),
    ):
        assert copied.__class__ is type(plain)
        assert copied.get_config() == plain.get_config()


@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@samples
def test_copies_and_pickles_do_what_they_did(make: Make, copier: Callable[[Any], Any]) -> None:
    def outcome(optimizer: Any) -> Any:
        try:
            return copier(optimizer).__class__
        except Exception as error:
            return type(error), str(error).split(" at 0x")[0]

    for prepare in (lambda each: None, lambda each: train(each, variables_for(each), steps=2)):
        plain, traced = make(), tracer.wrap(make())
        prepare(plain)
        prepare(traced)
        assert outcome(traced) == outcome(plain)


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
@pytest.mark.parametrize("saved_with_tracer", [True, False])
def test_checkpoints_do_not_know_the_tracer(
    kind: str, saved_with_tracer: bool, tmp_path: Path
) -> None:
    library = library_of(kind)

    def model(traced: bool) -> Any:
        tf.random.set_seed(7)
        layers = [library.layers.Input((3,)), library.layers.Dense(2)]
        made = library.Sequential(layers)
        optimizer = SAMPLES[kind]()
        made.compile(tracer.wrap(optimizer) if traced else optimizer, "mse")
        made.fit(np.ones((8, 3), "f4"), np.zeros((8, 2), "f4"), batch_size=4, verbose=0)
        return made

    source, target = model(saved_with_tracer), model(not saved_with_tracer)
    target.fit(np.ones((8, 3), "f4"), np.zeros((8, 2), "f4"), batch_size=4, verbose=0)
    one = tf.train.Checkpoint(model=source, optimizer=source.optimizer).save(str(tmp_path / "a"))
    two = tf.train.Checkpoint(model=target, optimizer=target.optimizer).save(str(tmp_path / "b"))
    assert [n for n, _ in tf.train.list_variables(one)] == [
        n for n, _ in tf.train.list_variables(two)
    ]
    restored = tf.train.Checkpoint(model=target, optimizer=target.optimizer).restore(one)
    restored.assert_existing_objects_matched().assert_consumed()

    path = tmp_path / "model.keras"
    source.save(path)
    loaded = library.models.load_model(path)
    assert type(loaded.optimizer) is type(SAMPLES[kind]())
    for left, right in zip(source.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_an_exported_train_step_trains_on(kind: str, tmp_path: Path) -> None:
    optimizer = tracer.wrap(SAMPLES[kind]())
    make = keras3.Variable if kind == "keras3" else tf.Variable

    class Trainer(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            weight = make([1.0, 2.0], name="weight")
            self.keras_weight = weight
            self.weight = weight.value if kind == "keras3" else weight
            self.optimizer = optimizer

        @tf.function(input_signature=[tf.TensorSpec([2])])
        def step(self, gradient: Any) -> Any:
            self.optimizer.apply_gradients([(gradient, self.keras_weight)])
            return self.weight.read_value()

    trainer = Trainer()
    first = trainer.step(tf.ones(2)).numpy()
    tf.saved_model.save(trainer, str(tmp_path))
    second = trainer.step(tf.ones(2)).numpy()
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.step(tf.ones(2)).numpy(), second)
    assert (first != second).any()
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 2
    assert trace.complete
    assert ["exported in a SavedModel" in note for note in trace.notes] == [True]


@samples
def test_a_wrapped_optimizer_dies_when_it_would(make: Make) -> None:
    def made() -> Any:  # a frame of its own: some keep their variables once TensorFlow looked
        optimizer = tracer.wrap(make())
        train(optimizer, variables_for(optimizer), steps=3)
        return weakref.ref(optimizer)

    died = made()
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_keeps_no_gradient_alive(kind: str) -> None:
    """Not until the garbage collector runs: gradients are as large as the model."""
    optimizer = tracer.wrap(ODOMETERS[kind]())
    variables = make_variables(kind)
    optimizer.apply_gradients(gradients(variables))
    pairs = gradients(variables)
    died = [weakref.ref(gradient) for gradient, _ in pairs]
    gc.collect()
    gc.disable()
    try:
        optimizer.apply_gradients(pairs)
        del pairs
        assert [each() for each in died] == [None] * len(died)
    finally:
        gc.enable()


@samples
def test_the_same_errors_come(make: Make) -> None:
    def error(optimizer: Any, pairs: Any) -> tuple[type, str]:
        with pytest.raises(Exception) as caught:  # whatever the framework raises
            optimizer.apply_gradients(pairs())
        return caught.type, str(caught.value).split(" at 0x")[0]

    weight = keras3.Variable([1.0]) if make is SAMPLES["keras3"] else tf.Variable([1.0])
    for pairs in (
        lambda: 3,
        lambda: [(None, weight)],
        lambda: [(tf.ones(1), weight, 5)],
        lambda: [(tf.ones([7]), weight)],
        lambda: iter([(None, weight)]),
        lambda: (1 / 0 for _ in range(1)),
    ):
        plain, traced = make(), tracer.wrap(make())
        assert error(traced, pairs) == error(plain, pairs)
        assert tracer.trace_of(traced).updates() == 0


@samples
def test_iterators_are_read_once_and_late(make: Make) -> None:
    optimizer = tracer.wrap(make())
    weight = keras3.Variable([1.0]) if make is SAMPLES["keras3"] else tf.Variable([1.0])
    optimizer.apply_gradients(zip([tf.ones(1)], [weight], strict=True))
    optimizer.apply_gradients((tf.ones(1), each) for each in [weight])
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.count("requests")) == (2, 2, 2)
