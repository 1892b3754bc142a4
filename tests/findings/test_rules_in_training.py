"""Rules with optimizers and models of TensorFlow that they are about; `twins` has the others.

What a finding says will fail is made to fail, and what it says goes wrong is seen to go wrong: by
the framework's own errors, by odometers, and by Python's and the optimizer's own counts.
"""

import gc
import inspect
import warnings
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import numpy as np
import pytest
import tensorflow as tf
from support import odometers
from support.findings_of import bad, found
from support.libraries import keras2, keras3, library_of, needs_keras3
from support.odometers import KINDS, ODOMETERS, make_variables

import tracer
from tracer.evidence import collectors
from tracer.findings.rule import Finding
from tracer.kinds import kind_of
from tracer.model.records import Note
from tracer.model.trace import Trace

pytestmark = pytest.mark.wide(rest="sweep")

LEGACY = keras2.optimizers.legacy
V1 = tf.compat.v1.train
BASES: dict[str, Any] = {
    "legacy": LEGACY.Optimizer,
    "keras2": keras2.optimizers.Optimizer,
    "keras3": keras3.optimizers.Optimizer if keras3 else object,
    "v1": V1.Optimizer,
}
SHIPPED: dict[str, Any] = {
    "legacy": LEGACY.SGD,
    "keras2": keras2.optimizers.SGD,
    "keras3": keras3.optimizers.SGD if keras3 else object,
    "v1": V1.GradientDescentOptimizer,
}


def one(trace: Trace, code: str) -> Finding:
    """The only finding with this code."""
    (only,) = found(trace, code)
    return only


def wrapped(optimizer: Any) -> Any:
    """The optimizer, wrapped; what `wrap` warns of is for other tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tracer.OptimizerWarning)
        return tracer.wrap(optimizer)


def made(cls: Any) -> Any:
    """An optimizer of a class; those of Keras and v1 want different arguments."""
    kind = kind_of(cls)
    assert kind is not None
    if kind.name == "legacy":
        return cls() if issubclass(cls, LEGACY.SGD) else cls("custom")
    if kind.name == "keras2":
        return cls() if issubclass(cls, keras2.optimizers.SGD) else cls(name="custom")
    if kind.name == "keras3":
        return cls(learning_rate=0.1)
    return cls(0.1) if issubclass(cls, V1.GradientDescentOptimizer) else cls(False, "custom")


def two_variables(kind: str) -> tuple[Any, Any]:
    """A table of three rows, of which a sparse gradient has some, and a kernel."""
    variables = make_variables(kind)
    return variables["table"], variables["kernel"]


def dense(*variables: Any) -> list[tuple[Any, Any]]:
    """A dense gradient for each variable."""
    return [(tf.ones(each.shape), each) for each in variables]


def sparse(variable: Any) -> list[tuple[Any, Any]]:
    """A sparse gradient for the table."""
    rows = tf.constant([1, 2, 2])
    return [(tf.IndexedSlices(tf.ones((3, 2)), rows, tf.constant((3, 2))), variable)]


# The class, at `wrap`.


def unreached(kind: str) -> Any:
    """A subclass with a method of another kind; the method counts its calls."""
    name = "_resource_apply_dense" if kind in ("keras2", "keras3") else "resource_apply_dense"

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)

    calls: list[str] = []
    base = SHIPPED[kind]
    cls = type(base)("Mine", (base,), {name: method, "calls": calls, "__module__": __name__})
    return cls, name


@pytest.mark.parametrize("kind", KINDS)
def test_override_that_is_never_reached(kind: str) -> None:
    cls, name = unreached(kind)
    with pytest.warns(tracer.OptimizerWarning, match=f"Mine.{name} overrides nothing") as issued:
        optimizer = tracer.wrap(made(cls))
    assert len(issued) == 1
    assert issued[0].filename == __file__
    before = one(tracer.trace_of(optimizer), "override-unreached")
    assert before.severity == "error"
    _, kernel = two_variables(kind)
    start = odometers.raw(kernel).numpy()
    for _ in range(3):
        optimizer.apply_gradients(dense(kernel))
    assert not cls.calls
    assert (odometers.raw(kernel).numpy() != start).all()  # trained all the same, by the base class
    trace = tracer.trace_of(optimizer)
    assert one(trace, "override-unreached") == before
    assert tracer.wrap(optimizer) is optimizer  # again: said once is enough
    line = inspect.getsourcelines(cls.__dict__[name])[1]
    said = f"{name} of Mine (tests/findings/{Path(__file__).name}:{line}) never ran: "
    assert trace.answer().startswith(said)


def without_sparse(kind: str) -> Any:
    base = BASES[kind]

    def apply(self: Any, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return var.assign_add(grad)

    members = {"_resource_apply_dense": apply, "__module__": __name__}
    if kind == "legacy":
        members["get_config"] = lambda self: {}
    return made(type(base)("Mine", (base,), members))


@pytest.mark.parametrize("kind", ["legacy", "v1"])
def test_sparse_method_that_is_missing(kind: str) -> None:
    optimizer, (table, _) = wrapped(without_sparse(kind)), two_variables(kind)
    assert not tracer.trace_of(optimizer).findings()
    with pytest.raises(NotImplementedError):
        optimizer.apply_gradients(sparse(table))
    finding = one(tracer.trace_of(optimizer), "sparse-missing")
    assert finding.severity == "error"
    assert "table is sparse" in finding.text


def test_nothing_is_remarked_of_what_ships_if_it_were_not_shipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rules themselves are right about them, not only the list of the frameworks."""
    monkeypatch.setattr(collectors, "SHIPPED", ("builtins",))
    for base in BASES.values():
        todo = [] if base is object else type.__subclasses__(base)
        while todo:
            cls = todo.pop()
            todo += type.__subclasses__(cls)
            if cls.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow"):
                kind = kind_of(cls)
                assert kind is not None
                found = collectors.evidence_on(cls, kind)
                assert all(own.what == "own dense" for own in found), cls


# What was updated.


class Uneven(odometers.LegacyOdometer):
    """An odometer that updates the first replica's copy once more."""

    def _distributed_apply(
        self, distribution: Any, grads_and_vars: Any, apply_state: Any, name: Any
    ) -> Any:
        def again(variable: Any, gradient: Any) -> Any:
            first = variable.device.endswith("CPU:0")
            return self._resource_apply_dense(gradient, variable) if first else tf.no_op()

        grads_and_vars = list(grads_and_vars)
        for gradient, variable in grads_and_vars:
            distribution.extended.update(variable, again, args=(gradient,), group=False)
        return super()._distributed_apply(distribution, grads_and_vars, apply_state, name)


def test_replicas_that_disagree() -> None:
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        _, kernel = two_variables("legacy")
        optimizer = wrapped(Uneven())

    @tf.function
    def train() -> None:
        strategy.run(lambda: optimizer.apply_gradients(dense(kernel)))

    for _ in range(3):
        train()
    assert odometers.read(kernel) == (odometers.Reading(6), odometers.Reading(3))
    trace = tracer.trace_of(optimizer)
    finding = one(trace, "replicas-disagree")
    assert (finding.severity, finding.step) == ("error", 1)
    assert "kernel was updated twice on replica 0 and once on replica 1 in step 1" in finding.text
    assert not found(trace, "updated-twice")


@pytest.mark.parametrize(
    ("kind", "options", "sparse_to_the_end"),
    [
        ("legacy", {"global_clipnorm": 1.0}, True),
        ("keras3", {"clipnorm": 1.0}, True),
        ("keras3", {"global_clipnorm": 1.0}, False),
        ("keras3", {"gradient_accumulation_steps": 2}, False),
    ],
)
def test_sparse_gradient_that_becomes_dense(
    kind: str, options: Any, sparse_to_the_end: bool
) -> None:
    layers, optimizers = library_of(kind).layers, library_of(kind).optimizers
    model = library_of(kind).Sequential(
        [layers.Embedding(5_000, 2, name="words"), layers.Flatten()]
    )
    optimizer = wrapped((LEGACY if kind == "legacy" else optimizers).SGD(**options))
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((16, 3), "int32"), np.ones((16, 6)), batch_size=4, verbose=0)
    trace = tracer.trace_of(optimizer)
    assert trace.count("requests", kind="sparse") == trace.steps == 4
    assert (trace.updates("dense") == 0) == sparse_to_the_end
    assert bool(found(trace, "densified")) != sparse_to_the_end
    for finding in found(trace, "densified"):
        assert "words/embeddings: the gradient was sparse" in finding.text
        assert f"({next(iter(options))} is set)" in finding.text


# The steps, the errors, and what was never used.


@needs_keras3
def test_a_scale_that_falls_is_known_when_its_optimizer_is_gone() -> None:
    def main() -> Any:
        _, kernel = two_variables("keras3")
        odometer = ODOMETERS["keras3"]()
        optimizer = keras3.optimizers.LossScaleOptimizer(odometer, initial_scale=4.0)
        for _ in range(6):
            optimizer.apply_gradients([(np.inf * tf.ones((2, 2)), kernel)])
        return ref(optimizer)

    with tracer.record() as recording:
        optimizer = main()
        gc.collect()
    assert optimizer() is None and recording.trace().complete
    assert "the scale has fallen to 0.0625" in one(recording.trace(), "steps-skipped").text


@needs_keras3
def test_a_step_that_raises_half_way() -> None:
    """It counts with what ran of it, and is not the one before itself."""
    first, second = tf.Variable([1.0, 2.0], name="first"), tf.Variable([1.0], name="second")
    optimizer = tracer.wrap(keras3.optimizers.SGD(0.1))
    optimizer.build([first, second])
    for _ in range(2):
        optimizer.apply([tf.ones(2), tf.ones(1)], [first, second])
    with pytest.raises(tf.errors.InvalidArgumentError):
        optimizer.apply([tf.ones(2), tf.ones(3)], [first, second])
    trace = tracer.trace_of(optimizer)
    (finding,) = bad(trace)
    assert (finding.code, finding.severity) == ("apply-raised", "error")
    assert any("raised on second" in note for note in trace.notes)
    assert "after step 2" in finding.text
    optimizer.apply([tf.ones(2), tf.ones(1)], [first, second])
    assert not bad(tracer.trace_of(optimizer))


@needs_keras3
def test_what_fit_did_not_use_is_said_once() -> None:
    """Of a loss scale, and not of what it scales too; and not in a later block again."""

    class Model(keras3.Sequential):  # type: ignore[misc]
        def train_step(self, batch: Any) -> dict[str, Any]:
            return {"loss": tf.constant(0.0)}

    with tracer.record() as recording:
        outer = keras3.mixed_precision.LossScaleOptimizer(keras3.optimizers.Adam())
        model = Model([keras3.layers.Input((3,)), keras3.layers.Dense(1)])
        model.compile(outer, "mse")
        model.fit(np.ones((8, 3), "f4"), np.ones((8, 1), "f4"), verbose=0)
    (finding,) = bad(recording.trace())
    assert finding.code == "never-used" and "LossScaleOptimizer" in finding.text
    tracer.wrap(outer)
    with tracer.record() as recording:
        pass
    assert not recording.trace().findings()


# The graphs.


@pytest.mark.parametrize("anew", [False, True])
def test_function_that_is_made_again_and_again(anew: bool) -> None:
    _, kernel = two_variables("legacy")
    optimizer = wrapped(ODOMETERS["legacy"]())
    optimizer.iterations  # noqa: B018

    def train_step() -> None:
        optimizer.apply_gradients(dense(kernel))

    function = tf.function(train_step)
    for _ in range(8):
        (tf.function(train_step) if anew else function)()
    trace = tracer.trace_of(optimizer)
    assert [each.code for each in trace.findings()] == ["retraced"] * anew
    if anew:
        assert "train_step was traced 8 times for one signature" in one(trace, "retraced").text


@pytest.mark.parametrize("called", [False, True])
def test_graph_that_never_runs(called: bool) -> None:
    _, kernel = two_variables("legacy")
    optimizer = wrapped(ODOMETERS["legacy"]())

    @tf.function
    def train_step() -> None:
        optimizer.apply_gradients(dense(kernel))

    optimizer.iterations  # noqa: B018
    concrete = train_step.get_concrete_function()
    if called:
        concrete()
    trace = tracer.trace_of(optimizer)
    assert [each.severity for each in found(trace, "graph-never-ran")] == ["warning"] * (not called)
    assert odometers.read(kernel) == (odometers.Reading(int(called)),)
    if not called:
        assert "Call the function" in one(trace, "graph-never-ran").advice
        missed = msgspec.structs.replace(trace.data, notes=(Note("it may have run"),))
        assert not Trace(missed).findings()
