"""What `wrap` refuses, and what happens when the tracer itself fails."""

import signal
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.libraries import keras2, needs_keras3

import tracer
from tracer.core import recorder

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
        (keras.Sequential(), "cannot trace a Sequential"),
    ],
)
def test_what_is_no_optimizer_is_refused_in_one_line(thing: Any, message: str) -> None:
    with pytest.raises(tracer.UnsupportedOptimizer, match=message) as caught:
        tracer.wrap(thing)
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


def test_an_untraced_optimizer_has_no_trace() -> None:
    optimizer = legacy.SGD()
    with pytest.raises(ValueError, match=r"a SGD was never wrapped: call tracer.wrap\(optimizer\)"):
        tracer.trace_of(optimizer)
    with pytest.raises(ValueError, match="not wrapped"):
        tracer.unwrap(optimizer)


@needs_keras3
@pytest.mark.parametrize("backend", ["numpy", "openvino"])
def test_another_keras_backend_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(tracer.UnsupportedOptimizer, match=f"{backend} backend; set KERAS_BACKEND"):
        tracer.wrap(keras.optimizers.SGD())


@pytest.fixture(params=[False, True], ids=["eager", "function"])
def trained(request: pytest.FixtureRequest) -> tuple[Any, Any, Callable[[], None]]:
    """A traced optimizer that made a step, its weight, and what makes another."""
    optimizer, weight = tracer.wrap(legacy.SGD(1.0)), tf.Variable([0.0])

    def step() -> None:
        optimizer.apply_gradients([(-tf.ones(1), weight)])

    step()
    return optimizer, weight, tf.function(step, autograph=False) if request.param else step


places = pytest.mark.parametrize(
    "place", ["open", "requests", "open_apply", "close_apply", "close"]
)


@places
def test_a_fault_of_the_tracer_never_stops_training(
    place: str, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, weight, run = trained

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(recorder.Recorder, place, broken)
    with pytest.warns(RuntimeWarning, match="tracer: ZeroDivisionError: oops") as caught:
        run()
    run()
    assert len(caught) == 1
    monkeypatch.undo()
    optimizer.apply_gradients([(-tf.ones(1), weight)])
    trace = tracer.trace_of(optimizer)
    assert not trace.complete and trace.updates(step=1) == 1
    assert "ZeroDivisionError: oops; nothing is counted from step 2 on" in trace.notes[0]
    assert weight.numpy() == [4.0]


def test_an_exception_of_c_code_without_arguments_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer, weight = tracer.wrap(legacy.SGD(1.0)), tf.Variable([0.0])
    empty: SimpleQueue[None] = SimpleQueue()
    monkeypatch.setattr(recorder.Recorder, "open", lambda *args, **options: empty.get_nowait())
    with pytest.warns(RuntimeWarning, match="Training goes on, untraced from step 1 on"):
        optimizer.apply_gradients([(-tf.ones(1), weight)])
    assert weight.numpy() == [1.0]
    assert not tracer.trace_of(optimizer).complete


@places
def test_an_exception_that_interrupts_the_tracer_reaches_the_program(
    place: str, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the weights say was counted, but for the step that was interrupted."""
    optimizer, weight, run = trained

    def handler(number: int, frame: object) -> None:
        raise TimeoutError

    interrupt = lambda *args, **options: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(recorder.Recorder, place, interrupt)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(TimeoutError):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
        monkeypatch.undo()
    interrupted = int(weight.numpy()[0]) - 1
    for _ in range(3):
        run()
    trace = tracer.trace_of(optimizer)
    assert not trace.complete and trace.updates() == 4
    assert "TimeoutError interrupted the tracer" in trace.notes[0]
    assert weight.numpy() == [4.0 + interrupted]


def test_a_function_that_is_interrupted_while_it_forgets_its_graphs() -> None:
    """A graph that is half forgotten would fail in each later call (`KeyError`)."""
    optimizer, weight = legacy.SGD(1.0), tf.Variable([0.0])

    @tf.function
    def run() -> None:
        optimizer.apply_gradients([(-tf.ones(1), weight)])

    run()

    class Interrupted(dict):  # type: ignore[type-arg]
        def clear(self) -> None:
            run._function_cache._dispatch_dict = dict(self)
            raise TimeoutError

    run._function_cache._dispatch_dict = Interrupted(run._function_cache._dispatch_dict)
    with pytest.raises(TimeoutError):
        tracer.wrap(optimizer)
    run()
    assert weight.numpy() == [2.0]
