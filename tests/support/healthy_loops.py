"""Training programs in many styles, all of them healthy: no rule may warn of one.

Each is a function that takes a `Kit` and trains something tiny. Many do what looks like a fault
that a rule looks for: they freeze, skip, accumulate, step twice for one batch, or leave variables
out on purpose.
"""
# mypy: ignore-errors
# ruff: noqa: B023, B905
# Bodies as people write them: without types.

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from support.libraries import keras2, keras3


@dataclass(frozen=True)
class Kit:
    """A Keras and the kind of optimizers that a program is to take from it."""

    kind: str

    @property
    def keras(self) -> Any:
        return keras3 if self.kind == "keras3" else keras2

    @property
    def optimizers(self) -> Any:
        return keras2.optimizers.legacy if self.kind == "legacy" else self.keras.optimizers

    @property
    def layers(self) -> Any:
        return self.keras.layers

    def sgd(self, rate=0.1, **options):
        return self.optimizers.SGD(rate, **options)

    def adam(self, rate=0.01, **options):
        return self.optimizers.Adam(rate, **options)

    def mlp(self, *units, inputs=4):
        layers = [self.layers.Input((inputs,))]
        for index, each in enumerate(units):
            last = index == len(units) - 1
            layers.append(self.layers.Dense(each, activation=None if last else "relu"))
        return self.keras.Sequential(layers)


ALL: list[tuple[Any, str]] = []
KINDS = ("keras3", "keras2", "legacy") if keras3 else ("keras2", "legacy")
QUICK: set[str] = set()
"""Programs that take well under a second."""


def add(function=None, *, kinds=KINDS, quick=False):
    """Keeps a program, for all kinds or some."""

    def keep(function):
        ALL.extend((function, kind) for kind in kinds if kind in (*KINDS, "v1"))
        if quick:
            QUICK.add(function.__name__)
        return function

    return keep(function) if function else keep


def data(n=24, inputs=4, outputs=1, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(n, inputs)).astype("f4"), random.normal(size=(n, outputs)).astype(
        "f4"
    )


def batches(n=24, size=8, **options):
    return tf.data.Dataset.from_tensor_slices(data(n, **options)).batch(size)


def square(difference):
    return tf.reduce_mean(tf.square(difference))


def fit(model, optimizer=None, n=24, seed=0, **options):
    """Compile the model with the optimizer, if there is one, and fit it for 2 epochs or others."""
    if optimizer is not None:
        model.compile(optimizer, "mse")
    model.fit(*data(n, seed=seed), **{"batch_size": 8, "epochs": 2, "verbose": 0, **options})


def minimize(optimizer, loss, of):
    """One step for the variables of a model, or for these, as most loops have it."""
    variables = getattr(of, "trainable_variables", of)
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
    return value


# Loops of one's own.


@add
def function_with_a_flag_that_is_a_python_value(k):
    model, optimizer = k.mlp(4, 1), k.adam()

    @tf.function
    def step(x, y, training):
        with tf.GradientTape() as tape:
            loss = square(model(x, training=training) - y)
        if training:
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for _ in range(3):
        for x, y in batches():
            step(x, y, True)
        for x, y in batches():
            step(x, y, False)


@add
def step_that_is_traced_before_to_look_at_it(k):
    model, optimizer = k.mlp(4, 1), k.sgd()

    @tf.function
    def step(x, y):
        minimize(optimizer, lambda: square(model(x) - y), model)

    concrete = step.get_concrete_function(tf.TensorSpec((8, 4)), tf.TensorSpec((8, 1)))
    assert concrete.graph.get_operations()
    for x, y in batches():
        step(x, y)


# Two optimizers and more.


@add
def adversarial_pair_that_freezes_in_the_step(k):
    maker, judge = k.mlp(4, 2), k.mlp(4, 1, inputs=2)
    of_maker, of_judge = k.adam(), k.adam()

    @tf.function
    def step(noise, real):
        judge.trainable = True
        minimize(of_judge, lambda: square(judge(real) - 1) + square(judge(maker(noise))), judge)
        judge.trainable = False
        minimize(of_maker, lambda: square(judge(maker(noise)) - 1), maker)

    for x, _ in batches():
        step(x, x[:, :2])


@add
def frozen_for_a_look_and_back(k):
    model = k.mlp(4, 1)
    model.compile(k.sgd(), "mse")
    for _ in range(3):
        fit(model, epochs=1)
        model.trainable = False
        model.evaluate(*data(), verbose=0)
        model.trainable = True


@add(quick=True)
def one_optimizer_for_kernels_and_one_for_biases(k):
    model, of_kernels, of_biases = k.mlp(5, 1), k.adam(), k.sgd(0.2)
    kernels = [each for each in model.trainable_variables if len(each.shape) > 1]
    biases = [each for each in model.trainable_variables if len(each.shape) == 1]
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = square(model(x) - y)
        of_one, of_other = tape.gradient(loss, [kernels, biases])
        of_kernels.apply_gradients(zip(of_one, kernels))
        of_biases.apply_gradients(zip(of_other, biases))


# Methods of training.


@add
def branches_that_take_turns_with_none(k):
    shared, heads, optimizer = k.mlp(3, 3), [k.mlp(1, inputs=3) for _ in range(2)], k.adam()
    variables = shared.trainable_variables + [v for h in heads for v in h.trainable_variables]
    for index, (x, y) in enumerate(batches(64)):
        minimize(optimizer, lambda: square(heads[index % 2](shared(x)) - y), variables)


@add
def curriculum_with_a_list_for_each_phase(k):
    model = k.mlp(5, 4, 1)
    for phase in (1, 2, 3):
        optimizer = k.sgd()
        variables = [v for layer in model.layers[-phase:] for v in layer.trainable_variables]
        for x, y in batches():
            minimize(optimizer, lambda: square(model(x) - y), variables)


# Precision.


@add(kinds=("keras3",))
def loss_that_is_scaled_by_hand(k):
    optimizer = k.optimizers.LossScaleOptimizer(k.sgd())
    model = k.mlp(4, 1)
    optimizer.build(model.trainable_variables)
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = square(model(x) - y) * optimizer.dynamic_scale.value
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@add(kinds=("keras3",))
def scale_that_is_too_high_at_first(k):
    optimizer = k.optimizers.LossScaleOptimizer(k.sgd(), initial_scale=2.0**126)
    fit(k.mlp(4, 1), optimizer, n=64, batch_size=4)


@add(quick=True)
def restored_from_a_checkpoint(k):
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2):
            model, optimizer = k.mlp(4, 1), k.adam()
            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
            manager = tf.train.CheckpointManager(checkpoint, folder, 2)
            if turn and hasattr(optimizer, "build"):
                optimizer.build(model.trainable_variables)
            checkpoint.restore(manager.latest_checkpoint)
            for x, y in batches():
                minimize(optimizer, lambda: square(model(x) - y), model)
            manager.save()


# The optimizers of TensorFlow 1.

V1 = tf.compat.v1.train


@add(kinds=("v1",), quick=True)
def session_with_minimize(k):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4))
        weight = tf.compat.v1.get_variable("weight", (4, 1))
        step = V1.get_or_create_global_step()
        train = V1.AdamOptimizer(0.01).minimize(square(tf.matmul(x, weight)), global_step=step)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(5):
            session.run(train, {x: data(8)[0]})
