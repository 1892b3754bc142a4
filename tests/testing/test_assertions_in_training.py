"""The assertions on real training; the odometers say how often it was really updated."""

from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from support import odometers
from support.libraries import keras2, library_of

import tracer
from tracer.core import registry

pytestmark = pytest.mark.wide(rest="sweep")

legacy = keras2.optimizers.legacy
STEPS = 5


class Training:
    """A `tf.function` that updates two variables densely and a table sparsely in each step."""

    def __init__(self, kind: str) -> None:
        self.optimizer = odometers.ODOMETERS[kind]()
        self.variables = odometers.make_variables(kind)
        self.names = ("table", "kernel", "bias")
        self.step = tf.function(self.apply)

    def apply(self) -> None:
        chosen = {name: self.variables[name] for name in self.names}
        self.optimizer.apply_gradients(odometers.gradients(chosen))

    def __call__(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.step()

    def read(self) -> list[tuple[odometers.Reading, ...]]:
        return [odometers.read(self.variables[name]) for name in self.names]


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
@pytest.mark.parametrize("kind", odometers.KINDS)
def test_exact_numbers(kind: str, given: bool) -> None:
    train = Training(kind)
    optimizer = train.optimizer if given else None
    with tracer.assert_updates(optimizer, dense=2, sparse=1, per_step=True) as seen:
        train()
    assert train.read() == [((0, STEPS),), ((STEPS, 0),), ((STEPS, 0),)]
    assert (seen.trace.steps, seen.trace.updates()) == (STEPS, 3 * STEPS)
    assert not registry.is_traced(train.optimizer)


@pytest.mark.parametrize("recorded", [False, True], ids=["alone", "recorded"])
@pytest.mark.parametrize("made", ["in the block", "before"])
@pytest.mark.parametrize("kind", ["keras3", "keras2", "legacy"])
def test_the_loss_scale_that_compile_makes_skips_steps(
    kind: str, made: str, recorded: bool
) -> None:
    """Of four batches only the first is finite; the optimizer that the program made is given."""
    library = library_of(kind)
    policies = library.config if kind == "keras3" else library.mixed_precision
    set_policy = getattr(policies, "set_dtype_policy", None) or policies.set_global_policy
    optimizer = odometers.ODOMETERS[kind]()
    x, y = np.ones((16, 3), "f4"), np.zeros((16, 2), "f4")
    x[4:] = np.inf
    set_policy("mixed_float16")
    try:
        dense = library.layers.Dense(2, kernel_initializer="zeros")
        model = library.Sequential([library.layers.Input((3,)), dense])
    finally:
        set_policy("float32")

    def train() -> None:
        if getattr(model, "optimizer", None) is None:
            model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)

    if made == "before":
        model.compile(optimizer, "mse")
    with tracer.record() if recorded else nullcontext():
        with (
            pytest.raises(AssertionError, match="expected 2 in each step, got 0 in 3 of 4 steps"),
            tracer.assert_updates(optimizer, dense=2, per_step=True) as seen,
        ):
            train()
        assert (seen.trace.steps, seen.trace.updates(), seen.trace.complete) == (4, 2, True)
        with tracer.assert_updates(optimizer, dense=2) as again:
            train()
        assert again.trace.steps == 4
    assert float(model.get_weights()[1][0]) == 2
    assert "LossScale" in type(model.optimizer).__name__
    assert not registry.is_traced(optimizer) and not registry.is_traced(model.optimizer)
    assert tracer.unwrap(tracer.wrap(optimizer)) is optimizer
    assert not registry.is_traced(optimizer) and not registry.is_traced(model.optimizer)


def test_only_the_block_counts_for_a_wrapped_optimizer() -> None:
    train = Training("legacy")
    tracer.wrap(train.optimizer)
    train(7)
    with tracer.assert_updates(train.optimizer, total=3 * STEPS) as seen:
        train()
        assert seen.trace.steps == STEPS
    train(2)
    assert seen.trace.steps == STEPS
    assert registry.is_traced(train.optimizer)
    assert tracer.trace_of(train.optimizer).steps == STEPS + 9


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
def test_what_trained_before_the_block_counts_in_it(given: bool) -> None:
    train = Training("legacy")
    train()
    optimizer = train.optimizer if given else None
    with tracer.assert_updates(optimizer, dense=2, per_step=True) as seen:
        train()
    assert seen.trace.steps == STEPS
    with (
        pytest.raises(AssertionError, match="expected 0, got 15"),
        tracer.assert_updates(optimizer, total=0),
    ):
        train()


def test_each_replica() -> None:
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        train = Training("legacy")
    step = tf.function(lambda: strategy.run(train.apply))
    with (
        tracer.assert_updates(train.optimizer, dense=2, sparse=1, per_step=True),
        tracer.assert_updates(train.optimizer, total=2 * 3 * STEPS),
    ):
        for _ in range(STEPS):
            step()
    assert train.read()[1] == ((STEPS, 0), (STEPS, 0))
    with (
        pytest.raises(AssertionError, match=r"got 2 in each of 2 steps"),
        tracer.assert_updates(train.optimizer, dense=4, per_step=True),
    ):
        step()
        step()


def test_executions_and_calls() -> None:
    train = Training("legacy")
    assert train.optimizer.iterations == 0  # a variable made in a tf.function has it traced twice
    with (
        tracer.assert_executions("_resource_apply_dense", 2, per_step=True),
        tracer.assert_executions("_resource_apply_sparse", 1, per_step=True),
        tracer.assert_executions("apply_gradients", STEPS),
        tracer.assert_executions("_resource_apply_dense", STEPS, variable=train.variables["bias"]),
        tracer.assert_calls("_resource_apply_dense", 2),
        tracer.assert_calls("apply_gradients", 1),
    ):
        train()
    assert train.optimizer.calls.counts()["_resource_apply_dense", "tracing"] == 2
    with (
        pytest.raises(AssertionError, match="apply was traced twice for one signature"),
        tracer.assert_calls("apply_gradients", 1, optimizer=train.optimizer),
    ):
        for _ in range(2):
            tf.function(train.apply)()


def test_what_is_no_optimizer_is_refused_at_once() -> None:
    with (
        pytest.raises(tracer.UnsupportedOptimizer, match="cannot trace a str"),
        tracer.assert_updates("sgd", total=1),
    ):
        raise AssertionError("the block ran")


@pytest.mark.parametrize("kind", ["keras3", "keras2"])
def test_the_layers_in_a_module(kind: str) -> None:
    """A layer of Keras 3 is no `tf.Module`, which finds no variables of it."""
    layers = library_of(kind).layers
    module, optimizer = tf.Module(), odometers.ODOMETERS[kind]()
    module.inner = tf.Module()
    module.inner.layers = [layers.Dense(2, name="first"), layers.Dense(2, name="second")]
    module.scale = tf.Variable(2.0, name="scale")
    x = tf.ones((4, 2))
    first, second = module.inner.layers

    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(module.scale * second(first(x)))
        own = [*second.trainable_variables, module.scale]
        optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))

    expected = r"1 for each variable, got 0 for 2 of 5 variables(.|\n)*first/kernel"
    with pytest.raises(AssertionError, match=expected), tracer.assert_all_updated(module):
        train()
    with pytest.raises(AssertionError, match="second"), tracer.assert_never_updated(module):
        train()
