"""Layers that are made trainable after the train step was traced: `never-passed`.

That they are not trained is seen by their weights; in a near miss they are trained, or it was not
meant that they are, or no step ran that could have trained them.
"""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.findings_of import bad, found
from support.libraries import keras2, keras3, library_of, needs_keras3

import tracer
from tracer.core.collectors import Throttle
from tracer.findings.rule import Finding
from tracer.model.evidence import Fitted, NoStep
from tracer.model.trace import Trace
from tracer.reporters.text import render

pytestmark = pytest.mark.wide(rest="sweep")

SGD: dict[str, Callable[[], Any]] = {
    "legacy": lambda: keras2.optimizers.legacy.SGD(0.1),
    "keras2": lambda: keras2.optimizers.SGD(0.1),
    "keras3": lambda: keras3.optimizers.SGD(0.1),
}
KINDS = ("legacy", "keras2", "keras3")
X, Y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """These steps take next to no time, of which a thousandth is nothing."""
    monkeypatch.setattr(Throttle, "rest", 0)


class Transfer:
    """A base that is frozen, and a head; both in a model that is compiled."""

    def __init__(self, kind: str, *, compiled: bool = True) -> None:
        self.kind = kind
        layers = library_of(kind).layers
        self.base = library_of(kind).Sequential(
            [
                layers.Input((3,)),
                layers.Dense(4, name="first"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(4, name="second"),
            ],
            name="base",
        )
        self.base.trainable = False
        self.model = library_of(kind).Sequential(
            [layers.Input((3,)), self.base, layers.Dense(1, name="head")]
        )
        self.optimizer = tracer.wrap(SGD[kind]())
        if compiled:
            self.compile()

    def compile(self, **options: Any) -> None:
        self.model.compile(optimizer=self.optimizer, loss="mse", **options)

    def build(self) -> None:
        """Let the optimizer know all variables that it may train."""
        if hasattr(self.optimizer, "build"):
            own = [each for each in self.model.variables if "moving" not in each.name]
            self.optimizer.build(own)

    def fit(self, **options: Any) -> None:
        self.model.fit(X, Y, batch_size=4, verbose=0, **options)

    def weights(self) -> list[Any]:
        """Those of the base that training moves."""
        return [np.array(each) for layer in self.base.layers for each in layer.get_weights()[:2]]

    def learns(self, train: Callable[[], None]) -> bool:
        before = self.weights()
        train()
        return any((a != b).any() for a, b in zip(before, self.weights(), strict=True))

    @property
    def trace(self) -> Trace:
        return tracer.trace_of(self.optimizer)


def reported(trace: Trace) -> list[Finding]:
    return found(trace, "never-passed")


def rows(trace: Trace) -> dict[tuple[str, int], list[str]]:
    """The variables without updates, by the reason, without the names of the layers around."""
    names = [each.name for each in trace.variables]
    return {
        (each.why, each.since): ["/".join(names[i].split("/")[-2:]) for i in each.variables]
        for each in trace.data.not_updated
    }


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["fit", "batch", "eager", "loop", "all"])
def test_what_is_frozen_before_compile_has_rows(kind: str, way: str) -> None:
    """The model is gone when the trace is read. Its moving averages are never trained: no rows."""
    names = {"first": "kernel bias", "norm": "gamma beta", "second": "kernel bias"}
    weights = [f"{layer}/{own}" for layer, every in names.items() for own in every.split()]

    def main() -> None:
        transfer = Transfer(kind, compiled=False)
        if way == "all":
            transfer.model.trainable = False
            weights.extend(["head/kernel", "head/bias"])
        transfer.compile(run_eagerly=way == "eager")
        if way == "loop":
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((transfer.model(X) - Y) ** 2)
            own = transfer.model.trainable_variables
            transfer.optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))
        elif way == "batch":
            transfer.model.train_on_batch(X, Y)
        else:
            assert not transfer.learns(transfer.fit)

    with tracer.record() as recording:
        main()
        library_of(kind).backend.clear_session()
        gc.collect()
    assert rows(recording.trace()) == {("frozen", 0): weights}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "how", ["again", "compiled again", "eager", "callback", "callback at the end", "not again"]
)
def test_a_base_that_is_made_trainable(kind: str, how: str) -> None:
    """`fit` of tf_keras shows each layer as it was at `compile`, so nothing is said there."""
    transfer = Transfer(kind, compiled=False)
    if how == "eager":
        transfer.build()
    transfer.compile(run_eagerly=how == "eager")
    transfer.fit()
    assert not reported(transfer.trace)  # it is frozen on purpose

    class Thaw(library_of(kind).callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            transfer.base.trainable = epoch == 1 or how == "callback"

    train: Callable[[], Any] = transfer.fit
    if "callback" in how:
        train = partial(transfer.fit, epochs=2, callbacks=[Thaw()])
    else:
        transfer.base.trainable = True
    assert not reported(transfer.trace)  # no step ran since: it may be compiled next
    if how == "compiled again":
        transfer.optimizer = tracer.wrap(SGD[kind]())
        transfer.compile()
    elif how == "not again":
        train = partial(transfer.model.predict, X, verbose=0)
    assert transfer.learns(train) == (how == "compiled again") or how == "eager"
    expected = how == "callback" or (how, kind) == ("again", "keras3")
    assert [len(each.variables) for each in reported(transfer.trace)] == [6] * expected
    transfer.base.trainable = False
    assert len(reported(transfer.trace)) == expected  # its steps missed them


@needs_keras3
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_is_gone_when_the_trace_is_read(compiled: bool) -> None:
    kind = "keras3"

    def main() -> None:
        transfer = Transfer(kind)
        transfer.fit()
        transfer.base.trainable = True
        transfer.fit()
        if compiled:
            transfer.optimizer = SGD[kind]()
            transfer.compile()
            transfer.fit()

    with tracer.record() as recording:
        main()
        library_of(kind).backend.clear_session()
        gc.collect()
        assert len(reported(recording.trace())) == (not compiled)
    assert len(reported(recording.trace())) == (not compiled)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_frozen_in_a_first_phase(kind: str) -> None:
    """It has the rows of that phase, though another optimizer trains it later."""
    with tracer.record() as recording:
        transfer = Transfer(kind)
        assert not transfer.learns(transfer.fit)
        transfer.base.trainable = True
        transfer.optimizer = SGD[kind]()
        transfer.compile()
        assert transfer.learns(transfer.fit)
    (row,) = recording.trace().data.not_updated
    assert (row.root, row.why, row.since, len(row.variables)) == (0, "frozen", 0, 6)
    assert "frozen; updated by " in render(recording.trace())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anew", [False, True])
def test_a_loop_of_ones_own(kind: str, anew: bool) -> None:
    transfer = Transfer(kind, compiled=False)
    model, optimizer = transfer.model, transfer.optimizer
    transfer.build()

    def update() -> int:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - Y) ** 2)
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return 1

    def in_branch() -> None:
        tf.cond(tf.reduce_sum(X) > 0, update, lambda: 0)

    def train() -> None:
        for _ in range(3):
            step()

    step = tf.function(in_branch)
    train()
    transfer.base.trainable = True
    if anew:
        step = tf.function(in_branch)
    assert transfer.learns(train) == anew
    assert len(reported(transfer.trace)) == (not anew)


@pytest.mark.parametrize("kind", KINDS)
def test_eager_steps_after_those_of_a_graph(kind: str) -> None:
    """None of them looks at layers: a base that was thawed before them is not said to be frozen."""
    transfer = Transfer(kind)
    head = list(transfer.model.trainable_weights)
    transfer.fit()
    transfer.base.trainable = True
    assert list(rows(transfer.trace)) == [("frozen", 0)]  # no step ran since
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((transfer.model(X) - Y) ** 2)
    transfer.optimizer.apply_gradients(zip(tape.gradient(loss, head), head, strict=True))
    assert not rows(transfer.trace)


def test_what_a_layer_around_its_own_freezes() -> None:
    """So in tf_keras, though its own layer says that it is trainable; the tape watches it."""
    layers = keras2.layers
    around = layers.TimeDistributed(layers.Dense(2), trainable=False)
    model = keras2.Sequential([layers.Input((2, 3)), around, layers.Dense(1)])
    with tracer.record() as recording:
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 2, 3)), np.ones((8, 2, 1)), verbose=0)
    assert around.layer.trainable and len(model.trainable_variables) == 2
    assert [(*each, len(names)) for each, names in rows(recording.trace()).items()] == [
        ("frozen", 0, 2)
    ]


@needs_keras3
def test_a_variable_that_is_thawed_without_its_layer() -> None:
    transfer = Transfer("keras3", compiled=False)
    transfer.base.trainable = True
    kernel = transfer.base.layers[0].kernel
    kernel.trainable = False
    with tracer.record() as recording:
        transfer.compile()
        transfer.fit()
        (frozen,) = rows(recording.trace())
        before = kernel.numpy().copy()
        kernel.trainable = True
        transfer.fit()
    assert frozen == ("frozen", 0) and np.array_equal(before, kernel.numpy())
    ((why, since),) = rows(recording.trace())
    assert why == "not passed" and since > 0
    assert len(reported(recording.trace())) == 1


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("healthy", [False, True])
@pytest.mark.parametrize("why", ["all frozen", "not reached", "nothing passed"])
def test_why_an_optimizer_made_no_step(why: str, healthy: bool) -> None:
    class Model(keras3.Sequential):  # type: ignore[misc]
        def train_step(self, batch: Any) -> Any:
            if healthy or why != "not reached":
                return super().train_step(batch)
            return {"loss": tf.constant(0.0)}

    def main() -> bool:
        model = Model([keras3.layers.Input((3,)), keras3.layers.Dense(1)])
        model.trainable = healthy or why != "all frozen"
        before = model.get_weights()[0]
        if why == "nothing passed" and not healthy:
            with pytest.raises(ValueError, match="not enough values"):
                SGD["keras3"]().apply_gradients([])
        else:
            model.compile(SGD["keras3"](), "mse")
            model.fit(X, Y, verbose=0)
        return bool(np.all(model.get_weights()[0] == before))

    with tracer.record() as recording:
        assert main() == (not healthy)
        gc.collect()
    evidence = recording.trace().optimizers[0].evidence
    assert [e.why for e in evidence if isinstance(e, NoStep)] == [why] * (not healthy)
    said = [f.text for f in recording.trace().findings() if f.code == "never-used"]
    assert any("variables of the model are frozen" in text for text in said) == (
        not healthy and why == "all frozen"
    )
    fitted = any(isinstance(each, Fitted) for each in evidence)
    assert fitted == (not healthy and why != "nothing passed")


@pytest.mark.parametrize(
    ("kind", "saved_as"),
    [("keras3", "m.keras"), ("keras2", "m.keras"), ("keras2", "m.h5"), ("legacy", "folder")],
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_a_model_that_was_loaded_for_inference(kind: str, saved_as: str, tmp_path: Path) -> None:
    """Its optimizer has a row, and no warning, also if it was saved before a step was made.

    What Keras makes to list attributes, or to restore a SavedModel, has no row.
    """
    library, path = library_of(kind), str(tmp_path / saved_as)
    model = library.Sequential([library.layers.Input((3,)), library.layers.Dense(1)])
    model.compile(SGD[kind](), "mse")
    model.predict(X, verbose=0)
    with tracer.record() as recording:
        model.save(path)
        loaded = library.models.load_model(path)
        loaded.predict(X, verbose=0)
    trace = recording.trace()
    assert [each.class_name.rpartition(".")[2] for each in trace.optimizers] == ["SGD"]
    assert NoStep("from config") in trace.optimizers[0].evidence
    assert not trace.findings() and trace.complete


def test_the_model_of_tensorflow_1_is_its_graph() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        first, second = (v1.get_variable(f"{n}/kernel", (2,)) for n in ("first", "second"))
        optimizer = tracer.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(first * second), var_list=[first])
        session.run(v1.global_variables_initializer())
        before = session.run(second)
        session.run(train)
        assert (session.run(second) == before).all()
    assert rows(tracer.trace_of(optimizer)) == {("not passed", 0): ["second/kernel"]}


def gan(kind: str, toggled: bool, of_discriminator: bool) -> tuple[Any, Any]:
    """A discriminator that is compiled, frozen, and a part of the model that trains a generator.

    One of the two optimizers is traced; the other one trains what the traced one does not.
    """
    library = library_of(kind)
    layers = library.layers
    discriminator = library.Sequential([layers.Input((3,)), layers.Dense(1)], name="discriminator")
    optimizers = SGD[kind](), SGD[kind]()
    optimizer = tracer.wrap(optimizers[of_discriminator])
    discriminator.compile(optimizer=optimizers[1], loss="mse")
    discriminator.trainable = False
    generator = library.Sequential([layers.Input((3,)), layers.Dense(3)], name="generator")
    both = library.Sequential([layers.Input((3,)), generator, discriminator])
    both.compile(optimizer=optimizers[0], loss="mse")
    for number in range(4):
        discriminator.trainable = True
        discriminator.train_on_batch(X, Y)
        if toggled or not number:  # what was when the step was traced is what counts
            discriminator.trainable = False
        both.train_on_batch(X, Y)
    return optimizer, discriminator


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("toggled", [False, True])
@pytest.mark.parametrize("of_discriminator", [False, True])
def test_gan_of_two_compiled_models(kind: str, toggled: bool, of_discriminator: bool) -> None:
    optimizer, discriminator = gan(kind, toggled, of_discriminator)
    discriminator.trainable = True
    assert not bad(tracer.trace_of(optimizer))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
def test_what_the_loss_uses_and_no_optimizer_gets(
    kind: str, compiled: bool, averaged: bool
) -> None:
    """It has rows, unless the program itself changes it, as an average or a target network.

    A counter has none, nor what another tape in sight has watched; a variable that changes hides
    no other one.
    """
    library, optimizer = library_of(kind), tracer.wrap(SGD[kind]())
    layers = library.layers
    trunk = library.Sequential([layers.Input((3,)), layers.Dense(4, name="lost")], name="trunk")
    head = library.Sequential([layers.Input((4,)), layers.Dense(1, name="out")], name="head")
    scale, annealed = (tf.Variable(2.0, name=name) for name in ("scale", "annealed"))
    counter = tf.Variable(0, name="counter")
    with tf.GradientTape() as other:
        other.watch(tf.Variable(1.0, name="elsewhere"))

    def step() -> None:
        with tf.GradientTape() as tape:
            more = annealed * tf.cast(counter, tf.float32)
            loss = tf.reduce_mean((scale * head(trunk(X)) - Y) ** 2) + more
        own = head.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))

    step = tf.function(step) if compiled else step
    before = [np.array(each) for each in trunk.get_weights()]
    for _ in range(3):
        step()
        annealed.assign_sub(0.1)
        if averaged:
            trunk.set_weights([0.9 * each for each in trunk.get_weights()])
            scale.assign(0.9 * scale)
    changed = any((a != b).any() for a, b in zip(before, trunk.get_weights(), strict=True))
    assert changed is averaged
    lost = {} if averaged else {("not passed", 0): ["lost/kernel", "lost/bias", "scale"]}
    assert rows(tracer.trace_of(optimizer)) == lost and other.watched_variables()
    assert not bad(tracer.trace_of(optimizer))
