"""Troubles with TensorFlow and Keras on it, most of which people asked about in public."""

from typing import Any

import numpy as np
import tensorflow as tf
from support.libraries import keras2, keras3, library_of, optimizer_of
from twins.table import twin

ERROR = "Fix what the error says"
UNKNOWN = "Unknown variable|cannot recognize variable"
KERAS = ("keras3", "keras2")
X, Y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")


def adam(kind: str, **options: Any) -> Any:
    """Adam of that kind."""
    return optimizer_of(kind, "Adam", **options)


def dense(library: Any, name: str = "dense") -> Any:
    """A model of one layer."""
    layers = library.layers
    return library.Sequential([layers.Input((3,)), layers.Dense(1, name=name)], name="model")


@twin("apply-raised", kinds=KERAS, fix=ERROR, raises=UNKNOWN, slow="long", screen="long")
def second_model(healthy: bool, kind: str) -> bool:
    """One optimizer for two models: the second one's variables are not those it was built with.

    Asked in tensorflow 27120 and 34983, scanpy 1849, pyod 459 and gaminet 11.
    """
    optimizer = adam(kind)
    for _ in range(2):
        if healthy:
            optimizer = adam(kind)
        model = dense(library_of(kind))
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=4, verbose=0)
    return False


def in_turn(parts: Any, optimizers: Any) -> bool:
    """Three steps of each part in one function, which is traced for each."""

    @tf.function
    def step(index: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(parts[index] ** 2)
        optimizers[index].apply_gradients([(tape.gradient(loss, parts[index]), parts[index])])

    for index in (0, 1):
        for _ in range(3):
            step(index)
    return False


@twin(
    "apply-raised",
    "in the first step",
    kinds=("keras3", "keras2", "legacy", "v1"),
    fix=ERROR,
    raises="singleton tf.Variables",
    screen="long",
)
def second_optimizer_in_a_function(healthy: bool, kind: str) -> bool:
    """A function gets another optimizer the second time: "only supports singleton tf.Variables",
    for the slots of that one are made where no variable may be.

    Asked in tensorflow 27120 and 34983.
    """
    parts = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0], name="second")]
    optimizers = [adam(kind, name="one"), adam(kind, name="other")]
    for part, optimizer in zip(parts, optimizers, strict=True) if healthy else ():
        if kind in KERAS:
            optimizer.build([part])
        else:
            optimizer.apply_gradients([(tf.zeros_like(part), part)])
    return in_turn(parts, optimizers)


@twin(
    "apply-raised",
    "in the first step: ValueError: No gradients provided for any variable",
    kinds=("keras3", "keras2", "legacy", "v1"),
    raises="No gradients provided for any variable",
)
def no_gradient_of_any_variable(healthy: bool, kind: str) -> bool:
    weight = tf.Variable([1.0, 2.0], name="weight")
    adam(kind).apply_gradients([(tf.ones(2) if healthy else None, weight)])
    return False


COMPILE = "Call model.compile again"


def layers(library: Any, *, built: bool = True) -> tuple[Any, Any]:
    """A layer with the name `base`, and the model of it and another one."""
    base = library.layers.Dense(2, name="base")
    inputs = [library.layers.Input((3,))] * built
    return base, library.Sequential([*inputs, base, library.layers.Dense(1, name="head")])


def moved(base: Any, model: Any) -> bool:
    """Whether training moves the layer."""
    before = base.get_weights()[0]
    model.fit(X, Y, batch_size=4, epochs=3, verbose=0)
    return bool(np.any(base.get_weights()[0] != before))


BASE = ("base/kernel", "base/bias")
FROZEN: Any = {"fix": COMPILE, "variables": BASE}


@twin("frozen-but-updated", kinds=("keras3",), screen="sweep", **FROZEN)
def frozen_too_late(healthy: bool, kind: str, *, built: bool = True) -> bool:
    """A layer is frozen after its step was traced, and trains on. Asked in keras 3268, 7965, 4674
    and 10222.
    """
    library = library_of(kind)
    base, model = layers(library, built=built)
    model.compile(library.optimizers.SGD(0.1), "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    base.trainable = False
    if healthy:
        model.compile(library.optimizers.SGD(0.1), "mse")
    return moved(base, model)


@twin("", kinds=("keras2",))
def frozen_where_fit_shows_each_layer_as_at_compile(healthy: bool, kind: str) -> bool:
    """`fit` of tf_keras does, in a model that it built: so nothing is said."""
    return frozen_too_late(healthy, kind, built=False)


@twin("frozen-but-updated", kinds=("keras2",), slow="long", **FROZEN)
def frozen_by_a_callback(healthy: bool, kind: str) -> bool:
    """tf_keras trains what was trainable at `compile`, whatever is frozen while it fits."""
    base, model = layers(keras2)
    model.compile(keras2.optimizers.SGD(0.01), "mse")
    frozen = []

    class Freezing(keras2.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and not healthy:
                frozen.append(base.kernel.numpy())
                base.trainable = False

    model.fit(X, Y, epochs=3, verbose=0, callbacks=[Freezing()])
    return bool(frozen and np.any(base.kernel.numpy() != frozen[0]))


@twin("loss-not-scaled", kinds=("keras3",), fix="optimizer.scale_loss(loss)", screen="sweep")
def loss_not_scaled(healthy: bool, kind: str) -> bool:
    """A loss scale divides gradients whose loss nobody multiplied. Asked in keras 19479, 19244 and
    20894.
    """
    weight = keras3.Variable(tf.ones([3]), name="weight")
    optimizer = keras3.mixed_precision.LossScaleOptimizer(keras3.optimizers.SGD(0.1))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value**2)
            if healthy:
                loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])

    for _ in range(10):
        step()
    # Each step takes a fifth: rate 0.1 times the gradient, which is twice the weight.
    return not np.allclose(weight.numpy(), 0.8**10, rtol=1e-3)


@twin(
    "loss-not-scaled",
    kinds=("keras2",),
    fix="optimizer.get_scaled_loss(loss)",
    slow="long",
    screen="sweep",
)
def loss_not_scaled_in_keras2(healthy: bool, kind: str) -> bool:
    """The same with tf_keras, where gradients are divided by a method of their own."""
    weight = tf.Variable(tf.ones([3]), name="weight")
    optimizer = keras2.mixed_precision.LossScaleOptimizer(keras2.optimizers.SGD(0.1))
    for _ in range(10):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            if healthy:
                loss = optimizer.get_scaled_loss(loss)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight]))
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
    return not np.allclose(weight.numpy(), 0.8**10, rtol=1e-3)


@twin("loss-not-scaled", "by its loss_scale_factor (1,024)", kinds=("keras3",))
def loss_scale_without_an_optimizer_of_its_own(healthy: bool, kind: str) -> bool:
    weight = keras3.Variable(np.full(3, 2.0, "f4"), name="weight")
    optimizer = keras3.optimizers.SGD(0.25, loss_scale_factor=1024.0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value**2)
            if healthy:
                loss = optimizer.scale_loss(loss)
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])
    assert np.allclose(weight.numpy(), 2.0 * (0.5 if healthy else 1 - 0.5 / 1024) ** 3)
    return not healthy


@twin(
    "gradients-left",
    kinds=("keras3",),
    fix="gradient_accumulation_steps divides",
    screen="long",
)
def last_group_lost(healthy: bool, kind: str) -> bool:
    """Gradients of four batches are accumulated, and there are ten: the last two are never applied.

    Asked in keras 19990 and transformers 2995.
    """
    examples = 12 if healthy else 10
    model = dense(keras3)
    model.compile(keras3.optimizers.SGD(0.1, gradient_accumulation_steps=4), "mse")
    model.fit(np.ones((examples, 3)), np.ones((examples, 1)), batch_size=1, verbose=0)
    waiting = model.optimizer._accumulated_gradients
    return any(bool(np.any(np.asarray(each))) for each in waiting)


@twin(
    "never-used",
    kinds=KERAS,
    fix="Call self.optimizer.apply_gradients(",
    screen="sweep",
)
def step_forgotten(healthy: bool, kind: str) -> bool:
    """A `train_step` computes gradients and forgets to apply them."""
    library = library_of(kind)

    class Model(library.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            weights = self.trainable_variables
            gradients = tape.gradient(loss, weights)
            if healthy:
                self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss}

    model = Model([library.layers.Input((3,)), library.layers.Dense(1)])
    model.compile(adam(kind), "mse")
    return not moved(model, model)


@twin(
    "no-gradient",
    kinds=("keras3",),
    fix="cuts the variable",
    variables=("unused/kernel", "unused/bias"),
    slow="long",
    screen="sweep",
)
def no_gradients(healthy: bool, kind: str) -> bool:
    """A layer that the loss does not depend on: "Gradients do not exist for variables".

    Asked in tensorflow 47469, 42542 and 48547.
    """
    inputs = keras3.layers.Input((3,))
    used = keras3.layers.Dense(1, name="used")(inputs)
    unused = keras3.layers.Dense(1, name="unused")(inputs)
    model = keras3.Model(inputs, [used, used + unused if healthy else unused])
    model.compile(keras3.optimizers.SGD(0.1), ["mse", "mse" if healthy else None])
    before = model.get_layer("unused").get_weights()[0]
    model.fit(X, [Y, Y], batch_size=4, verbose=0)
    return bool(np.all(model.get_layer("unused").get_weights()[0] == before))
