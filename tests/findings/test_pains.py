"""Troubles that people asked about in public, each a program in `pains/`, and its healthy twin.

Each has a `train(healthy)` that returns whether the trouble is there, by the weights or by what
Keras itself keeps; or it raises, as the question says. The tracer must name it, and say nothing of
the twin. In `test_the_first_screen_of_a_run` they run under `tracer run`, as they are.
"""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import tensorflow as tf
from cli.test_run import ENVIRONMENT
from support import forked
from support.findings_of import bad, found
from support.libraries import keras2, keras3, library_of, needs_keras3

import tracer
from tracer.model.records import Program
from tracer.model.trace import Trace
from tracer.reporters.text import render

PAINS = Path(__file__).parent / "pains"


class Pain(NamedTuple):
    """What is to be said of a program."""

    code: str
    names: tuple[str, ...]
    """How the names of the variables concerned end."""
    fix: str
    """A part of the advice."""
    raises: str = ""
    effects: bool = False
    """Whether it takes effects to know it."""


ADAM: dict[str, Callable[[], Any]] = {
    "v1": lambda: tf.compat.v1.train.AdamOptimizer(),
    "legacy": lambda: keras2.optimizers.legacy.Adam(),
    "keras2": lambda: keras2.optimizers.Adam(),
    "keras3": lambda: keras3.optimizers.Adam(),
}

FIX = "Fix what the error says"
COMPILE = "Call model.compile again"

SAID = {
    "second_model": Pain("apply-raised", (), FIX, "Unknown variable"),
    "second_model_keras2": Pain("apply-raised", (), FIX, "cannot recognize variable"),
    "parts_one_by_one": Pain("apply-raised", (), FIX, "cannot recognize variable"),
    "second_optimizer_in_a_function": Pain("apply-raised", (), FIX, "singleton tf.Variables"),
    "frozen_too_late": Pain("frozen-but-updated", ("base/kernel", "base/bias"), COMPILE),
    "loss_not_scaled": Pain("loss-not-scaled", (), "optimizer.scale_loss(loss)"),
    "loss_not_scaled_keras2": Pain("loss-not-scaled", (), "optimizer.get_scaled_loss(loss)"),
    "last_group_lost": Pain("gradients-left", (), "gradient_accumulation_steps divides"),
    "step_forgotten": Pain("never-used", (), "Call self.optimizer.apply_gradients("),
    "step_forgotten_keras2": Pain("never-used", (), "Call self.optimizer.apply_gradients("),
    "no_gradients": Pain("no-gradient", ("unused/kernel", "unused/bias"), "cuts the variable"),
}

SLOW = {"no_gradients", "second_model"}
SLOW |= {name for name in SAID if name.endswith("_keras2")}
"""The rows that repeat another one, or take a second and more."""

pytestmark = [
    needs_keras3,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras says some of it, too
]


def test_each_program_has_its_row() -> None:
    assert {each.stem for each in PAINS.glob("*.py")} == SAID.keys()


def trained(name: str, *, healthy: bool) -> tuple[Trace, bool]:
    """The trace as `tracer run` has it when the program has ended, and whether it hurts."""
    train = runpy.run_path(str(PAINS / f"{name}.py"))["train"]
    error, hurts = "", True
    with tracer.record(effects=SAID[name].effects) as recording:
        try:
            hurts = train(healthy)
        except (KeyError, ValueError) as raised:
            error = f"{type(raised).__name__}: {raised}"
            assert SAID[name].raises in error
    program = Program(f"{name}.py", 0.0, 1.0, status=1 if error else 0, error=error)
    data = msgspec.structs.replace(recording.trace().data, programs=(program,))
    return Trace(data), hurts


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in SLOW)) for n in SAID]
)
def test_it_is_said_and_nothing_of_its_twin(name: str) -> None:
    pain = SAID[name]
    trace, hurts = trained(name, healthy=False)
    assert trace.complete, trace.notes
    assert hurts
    (finding,) = bad(trace)
    assert finding.code == pain.code
    assert pain.fix in finding.advice
    for end in pain.names:
        assert any(each.endswith(end) for each in finding.variables), finding.variables
    if pain.names:
        assert len(finding.variables) == len(pain.names)
    if not pain.raises:
        assert_on_first_screen(render(trace), pain)

    trace, hurts = trained(name, healthy=True)
    assert trace.complete, trace.notes
    assert not hurts
    assert trace.updates()
    assert not bad(trace)
    assert not found(trace, pain.code)


@pytest.mark.parametrize("kind", ["v1", "legacy", "keras2", "keras3"])
def test_no_gradient_of_any_variable(kind: str) -> None:
    optimizer = tracer.wrap(ADAM[kind]())
    weight = tf.Variable([1.0, 2.0], name="weight")
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, weight)])
    (finding,) = bad(tracer.trace_of(optimizer))
    assert finding.code == "apply-raised"
    assert "in the first step: ValueError: No gradients provided for any variable" in finding.text
    optimizer.apply_gradients([(tf.ones(2), weight)])
    assert not bad(tracer.trace_of(optimizer))


@pytest.mark.parametrize("kind", ["v1", "legacy", "keras2", "keras3"])
def test_variables_that_a_function_may_not_make(kind: str) -> None:
    weights = [tf.Variable([1.0], name="first"), tf.Variable([1.0, 2.0], name="second")]
    optimizers = [tracer.wrap(ADAM[kind]()) for _ in weights]

    @tf.function
    def step(index: int) -> None:
        optimizers[index].apply_gradients([(tf.ones_like(weights[index]), weights[index])])

    step(0)
    with pytest.raises(ValueError, match=r"singleton tf\.Variables"):
        step(1)
    assert not bad(tracer.trace_of(optimizers[0]))
    (finding,) = bad(tracer.trace_of(optimizers[1]))
    assert finding.code == "apply-raised"
    assert "while step was traced, in the first step" in finding.text


@pytest.mark.long
@pytest.mark.parametrize("kind", ["keras2", "keras3"])
def test_a_second_model_on_two_replicas(kind: str) -> None:
    keras = library_of(kind)
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        optimizer = tracer.wrap(ADAM[kind]())
        models = []
        for name in ("one", "other"):
            layers = [keras.layers.Input((3,)), keras.layers.Dense(1, name=name)]
            models.append(keras.Sequential(layers, name="m"))
            models[-1].compile(optimizer, "mse")
    models[0].fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    with pytest.raises((KeyError, ValueError), match=r"cannot recognize|Unknown variable"):
        models[1].fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    (finding,) = bad(tracer.trace_of(optimizer))
    assert finding.code == "apply-raised"
    assert finding.severity == "error"
    assert "after step 2" in finding.text


def test_a_critic_alone_says_nothing_of_the_generator_it_was_frozen_for() -> None:
    noise, real, ones = np.ones((4, 2), "f4"), np.ones((4, 3), "f4"), np.ones((4, 1), "f4")
    generator = keras3.Sequential([keras3.layers.Input((2,)), keras3.layers.Dense(3)])
    critic = keras3.Sequential([keras3.layers.Input((3,)), keras3.layers.Dense(1)])
    critic.compile(tracer.wrap(keras3.optimizers.SGD(0.1)), "mse")
    critic.train_on_batch(real, ones)
    critic.trainable = False
    both = keras3.Sequential([keras3.layers.Input((2,)), generator, critic])
    both.compile(keras3.optimizers.SGD(0.1), "mse")
    for _ in range(3):
        before = critic.get_weights()[0]
        critic.train_on_batch(real, ones)
        assert np.any(critic.get_weights()[0] != before)
        both.train_on_batch(noise, ones)
    trace = tracer.trace_of(critic.optimizer)
    assert trace.updates() == 2 * 4
    assert not trace.findings()


def test_a_step_that_raises_half_way() -> None:
    """It counts with what ran of it, and is not the one before itself."""
    first, second = tf.Variable([1.0, 2.0], name="first"), tf.Variable([1.0], name="second")
    optimizer = tracer.wrap(keras3.optimizers.SGD(0.1))
    optimizer.build([first, second])
    for _ in range(2):
        optimizer.apply([tf.ones(2), tf.ones(1)], [first, second])
    with pytest.raises(tf.errors.InvalidArgumentError):
        optimizer.apply([tf.ones(2), tf.ones(3)], [first, second])
    (finding,) = bad(tracer.trace_of(optimizer))
    assert (finding.code, finding.variables) == ("apply-raised", ("second",))
    assert "after step 2" in finding.text
    optimizer.apply([tf.ones(2), tf.ones(1)], [first, second])
    assert not bad(tracer.trace_of(optimizer))


@pytest.mark.parametrize("healthy", [False, True])
def test_a_loss_scale_without_an_optimizer_of_its_own(healthy: bool) -> None:
    weight = keras3.Variable(np.full(3, 2.0, "f4"), name="weight")
    optimizer = tracer.wrap(keras3.optimizers.SGD(0.25, loss_scale_factor=1024.0))
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value**2)
            if healthy:
                loss = optimizer.scale_loss(loss)
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])
    assert np.allclose(weight.numpy(), 2.0 * (0.5 if healthy else 1 - 0.5 / 1024) ** 3)
    findings = bad(tracer.trace_of(optimizer))
    assert [each.code for each in findings] == ["loss-not-scaled"] * (not healthy)
    assert all("by its loss_scale_factor (1,024)" in each.text for each in findings)


def test_what_fit_did_not_use_is_said_once() -> None:
    """Of a loss scale, and not of what it scales too; and not in a later block again."""
    weight = keras3.Variable(np.ones(3, "f4"), name="weight")
    with tracer.record() as recording:
        outer = keras3.mixed_precision.LossScaleOptimizer(keras3.optimizers.Adam())
        outer.build([weight])
        outer.finalize_variable_values([weight])  # as at the end of `fit`
    (finding,) = bad(recording.trace())
    assert finding.code == "never-used" and "LossScaleOptimizer" in finding.text
    tracer.wrap(outer)
    with tracer.record() as recording:
        pass
    assert not recording.trace().findings()


@pytest.mark.long
def test_a_callback_that_freezes_a_layer() -> None:
    """tf_keras trains what was trainable at `compile`, whatever is frozen while it fits."""
    layers = [
        keras2.layers.Input((3,)),
        keras2.layers.Dense(2, name="base"),
        keras2.layers.Dense(1),
    ]
    model = keras2.Sequential(layers)
    kernel = model.get_layer("base").kernel
    model.compile(tracer.wrap(keras2.optimizers.SGD(0.01)), "mse")
    frozen = []

    class Freezing(keras2.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                frozen.append(kernel.numpy())
                model.get_layer("base").trainable = False

    model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[Freezing()])
    assert np.any(kernel.numpy() != frozen[0])
    (finding,) = bad(tracer.trace_of(model.optimizer))
    assert finding.code == "frozen-but-updated"
    assert finding.variables == ("base/kernel", "base/bias")


@pytest.mark.parametrize("healthy", [False, True])
@pytest.mark.parametrize("kind", ["keras2", pytest.param("keras3", marks=pytest.mark.long)])
def test_a_layer_is_frozen_of_a_model_that_fit_built(kind: str, healthy: bool) -> None:
    """`fit` of tf_keras shows each layer as it was at `compile`, so there nothing is said."""
    library = library_of(kind)
    base = library.layers.Dense(2, name="base")
    model = library.Sequential([base, library.layers.Dense(1)])
    x, y = np.ones((4, 3)), np.ones((4, 1))
    with tracer.record() as recording:
        model.compile(library.optimizers.SGD(0.01), "mse")
        model.fit(x, y, verbose=0)
        base.trainable = False
        if healthy:
            model.compile(library.optimizers.SGD(0.01), "mse")
        before = base.get_weights()[0]
        model.fit(x, y, verbose=0)
    assert np.any(base.get_weights()[0] != before) != healthy
    findings = bad(recording.trace())
    assert [each.code for each in findings] == ["frozen-but-updated"] * (
        not healthy and kind == "keras3"
    )
    assert all(len(each.variables) == 2 for each in findings)


def assert_on_first_screen(report: str, pain: Pain) -> None:
    """What is to be said of it stands in the first lines of a report."""
    _, asked, rest = report.partition("How often did ")
    words = " ".join(" ".join(f"{asked}{rest}".split("\n")[:25]).split())
    assert f"[{pain.code}]: " in words
    assert pain.fix in words


RUN = {name for name, pain in SAID.items() if pain.raises and not name.endswith("_keras2")}
RUN |= {"last_group_lost"}
"""Of these `tracer run` shows it; `nox -s sweep` runs the others so, too."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long if n in RUN else pytest.mark.sweep) for n in SAID],
)
def test_the_first_screen_of_a_run(name: str, tmp_path: Path) -> None:
    pain = SAID[name]
    command = ["tracer", "run", *["--effects"] * pain.effects, str(PAINS / f"{name}.py")]
    done = forked.run(command, tmp_path, ENVIRONMENT)
    assert done.returncode == bool(pain.raises)
    assert_on_first_screen(done.stderr, pain)


@pytest.mark.sweep  # it is known of each: see `test_it_is_said_and_nothing_of_its_twin`
@pytest.mark.parametrize("name", SAID)
def test_the_first_screen_of_a_healthy_run(name: str, tmp_path: Path) -> None:
    options = ["--effects"] * SAID[name].effects
    command = ["tracer", "run", *options, str(PAINS / f"{name}.py"), "healthy"]
    healthy = forked.run(command, tmp_path, ENVIRONMENT)
    assert healthy.returncode == 0
    assert "What looks wrong" not in healthy.stderr
