"""What `wrap` refuses, what it adds to a graph, and what happens when the tracer itself fails."""

import subprocess
import sys
import textwrap
from typing import Any

import keras
import odometers
import pytest
import tensorflow as tf
from libraries import is_keras3, keras2, keras3, needs_keras3

import tracer
from tracer.recorder import recorder

legacy = keras2.optimizers.legacy


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (object(), "cannot trace an object: wrap takes a TensorFlow optimizer"),
        (None, "cannot trace a NoneType"),
        ("adam", "cannot trace a str"),
        (keras.optimizers.Adam, r"not a class: use tracer.wrap\(Adam\(...\)\)"),
        (len, "cannot trace the function len"),
        (lambda: None, "cannot trace the function <lambda>"),
    ],
)
def test_what_is_no_optimizer_is_refused_in_one_line(thing: Any, message: str) -> None:
    with pytest.raises(tracer.UnsupportedOptimizer, match=message) as caught:
        tracer.wrap(thing)
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


def test_a_model_is_refused() -> None:
    with pytest.raises(tracer.UnsupportedOptimizer, match="cannot trace a Sequential"):
        tracer.wrap(keras.Sequential())


def test_an_untraced_optimizer_has_no_trace() -> None:
    optimizer = legacy.SGD()
    with pytest.raises(ValueError, match=r"a SGD was never wrapped: call tracer.wrap\(optimizer\)"):
        tracer.trace_of(optimizer)
    with pytest.raises(ValueError, match="not wrapped"):
        tracer.unwrap(optimizer)


@needs_keras3
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_another_keras_backend_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(tracer.UnsupportedOptimizer, match=f"{backend} backend; set KERAS_BACKEND"):
        tracer.wrap(keras.optimizers.SGD())


def _step(optimizer: Any, weights: list[Any]) -> Any:
    @tf.function(autograph=False)
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(2), weight) for weight in weights])

    return step


def _ops_added(make: Any, variables: int) -> tuple[int, set[str]]:
    """The ops that the tracer adds to a step over so many variables, and the types of all ops."""
    operations = []
    for traced in (False, True):
        optimizer = make()
        make_variable = keras3.Variable if is_keras3(optimizer) else tf.Variable
        weights = [make_variable([1.0, 2.0]) for _ in range(variables)]
        if traced:
            tracer.wrap(optimizer)

        step = _step(optimizer, weights)
        operations.append(step.get_concrete_function().graph.get_operations())
    plain, counted = operations
    return len(counted) - len(plain), {op.type for op in counted}


@pytest.mark.parametrize(
    "make",
    [
        legacy.Adam,
        keras2.optimizers.Adam,
        keras.optimizers.Adam,
        tf.compat.v1.train.AdamOptimizer,
    ],
    ids=["legacy", "keras2", "keras3", "v1"],
)
@pytest.mark.parametrize("variables", [20, pytest.param(200, marks=pytest.mark.long)])
def test_a_block_costs_the_same_however_many_variables(make: Any, variables: int) -> None:
    few, types = _ops_added(make, 4)
    many, _ = _ops_added(make, variables)
    assert few == many
    assert few <= 12  # of the 22 there may be
    assert not types & {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}


@needs_keras3
def test_branches_get_one_counter_whatever_they_hold() -> None:
    def blocks(variables: int) -> int:
        optimizer = tracer.wrap(keras.optimizers.SGD(gradient_accumulation_steps=2))
        weights = [keras.Variable([1.0]) for _ in range(variables)]

        @tf.function
        def step() -> None:
            optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])

        step()
        return len(tracer.trace_of(optimizer).blocks)

    assert blocks(3) == blocks(30) <= 4


@pytest.mark.parametrize("place", ["enter", "requests", "enter_apply", "leave_apply", "leave"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_fault_of_the_tracer_never_stops_training(
    place: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = tracer.wrap(legacy.SGD(1.0))
    weight = tf.Variable([0.0])

    def step() -> None:
        optimizer.apply_gradients([(-tf.ones(1), weight)])

    step()

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(recorder.Recorder, place, broken)
    run = tf.function(step) if compiled else step
    with pytest.warns(RuntimeWarning, match="tracer: ZeroDivisionError: oops") as caught:
        run()
    run()
    assert len(caught) == 1
    assert weight.numpy() == [3.0]
    monkeypatch.undo()
    step()
    trace = tracer.trace_of(optimizer)
    assert not trace.complete
    assert "ZeroDivisionError: oops; nothing is counted from step 2 on" in trace.notes[0]
    assert trace.updates(step=1) == 1
    assert weight.numpy() == [4.0]


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_is_quick_and_imports_no_tensorflow() -> None:
    code = """
        import sys, time
        start = time.process_time()
        import tracer
        heavy = ("tensorflow", "keras", "tf_keras")
        print(time.process_time() - start, [name for name in heavy if name in sys.modules])
    """
    seconds, modules = min(_python(code).split(" ", 1) for _ in range(3))
    assert float(seconds) < 0.1
    assert modules == "[]"


def test_reading_a_trace_imports_no_tensorflow() -> None:
    code = """
        import sys, tracer.model.tracefile, tracer.api, tracer.cli, tracer.reporters.text
        print([m for m in ("tensorflow", "keras", "tf_keras") if m in sys.modules])
    """
    assert _python(code) == "[]"


def test_a_keras_that_was_not_imported_stays_so() -> None:
    code = """
        import sys, tensorflow as tf
        train = tf.compat.v1.train
        train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones(1), tf.Variable([1.0]))])
        before = {name for name in sys.modules if "keras" in name}
        import tracer
        optimizer = tracer.wrap(train.GradientDescentOptimizer(0.1))
        optimizer.apply_gradients([(tf.ones(1), tf.Variable([1.0]))])
        print(tracer.trace_of(optimizer).updates())
        print({name for name in sys.modules if "keras" in name} - before)
    """
    assert _python(code).split("\n") == ["1", "set()"]


def test_the_public_names_resolve() -> None:
    assert sorted(tracer.__all__) == dir(tracer)
    assert all(getattr(tracer, name) is not None for name in tracer.__all__)


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3", "v1"])
def test_no_merge_call_is_added(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    context = tf.distribute.ReplicaContext
    original = context.merge_call

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("merge_call")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(context, "merge_call", counted)
    counts = []
    for traced in (False, True):
        strategy = tf.distribute.MirroredStrategy(
            ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            optimizer = odometers.ODOMETERS[kind]()
            variables = odometers.make_variables(kind)
            if kind == "keras3":
                optimizer.build(list(variables.values()))
        if traced:
            tracer.wrap(optimizer)
        calls.clear()
        _run_replicas(strategy, optimizer, variables)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def _run_replicas(strategy: Any, optimizer: Any, variables: dict[str, Any]) -> None:
    def replica() -> None:
        optimizer.apply_gradients(odometers.gradients(variables))

    tf.function(lambda: strategy.run(replica))()
