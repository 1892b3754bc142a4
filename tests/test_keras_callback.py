"""`TraceCallback` under `model.fit` of both Keras, against odometers and arithmetic."""

import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import libraries, odometers, traces

import tracer
import tracer.keras

pytestmark = pytest.mark.wide(rest="sweep")

BATCH = 4


@pytest.fixture(params=["keras2", "keras3"])
def keras(request: pytest.FixtureRequest) -> Any:
    return libraries.library_of(request.param)


def model_of(keras: Any, loss_scale: bool = False, make: Any = None, **options: Any) -> Any:
    """Two variables that start at 0, so that they count the executions of the odometer."""
    kind = "keras3" if keras is libraries.keras3 else "keras2"
    odometer = {"keras3": odometers.Keras3Odometer, "keras2": odometers.Keras2Odometer}[kind]()
    model = (make or keras.Sequential)(
        [keras.layers.Input((3,)), keras.layers.Dense(2, kernel_initializer="zeros", name="dense")]
    )
    optimizer = libraries.with_loss_scale(kind, odometer) if loss_scale else odometer
    model.compile(optimizer, loss="mse", **options)
    return model


def fit(
    model: Any, *callbacks: Any, batches: int = 10, epochs: int = 3, bad: int = 0, **options: Any
) -> Any:
    """Train; the gradients of the first `bad` batches are not finite. Gives Keras's history."""
    x, y = np.ones((batches * BATCH, 3), "float32"), np.ones((batches * BATCH, 2), "float32")
    x[: bad * BATCH] = np.inf
    options = {"batch_size": BATCH, "verbose": 0, "shuffle": False, **options}
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options).history


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out = capsys.readouterr().out
    return [each.removeprefix("tracer: ") for each in out.splitlines() if "tracer: " in each]


@pytest.mark.parametrize(
    ("every", "epochs", "spans", "options"),
    [
        (7, [3], [(1, 7), (8, 14), (15, 21), (22, 28), (29, 30)], {}),
        (20, [1, 3], [(1, 10), (11, 30), (31, 40)], {}),  # it goes on where a training ended
        (2, [2], [(1, 10), (11, 20)], {"steps_per_execution": 5}),  # 2 executions
    ],
)
def test_it_prints_a_line_for_so_many_steps(
    keras: Any,
    every: int,
    epochs: list[int],
    spans: list[tuple[int, int]],
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = model_of(keras, **options)
    callback = tracer.keras.TraceCallback(every=every)
    for number in epochs:
        fit(model, callback, epochs=number)
    assert lines(capsys) == [
        f"steps {first} to {last}: 2 updates per step, {2 * (last - first + 1)} dense and 0 sparse"
        for first, last in spans
    ]
    updates = callback.trace.updates(variable="*bias")
    assert float(model.get_weights()[1][0]) == updates == spans[-1][1]


def test_between_the_lines_nothing_is_read(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(side_effect=tracer.trace_of)
    monkeypatch.setattr("tracer.keras.trace_of", read)
    callback = tracer.keras.TraceCallback(every=10)
    model = model_of(keras)
    fit(model, callback, epochs=3)
    assert read.call_count == 1 + 3 + 1  # when it begins, a line each 10 of 30 steps, and the end
    # And Keras need not fetch the logs for it: in Keras 3 it waits only if it would without it.
    found, without = (keras.callbacks.CallbackList(each, model=model) for each in ([callback], []))
    if keras is libraries.keras3:
        assert found._async_train == without._async_train
    else:
        assert found._batch_hooks_support_tf_logs


def test_its_trace_is_of_all_trainings(keras: Any) -> None:
    model, callback = model_of(keras), tracer.keras.TraceCallback()
    for fits in (1, 2, 3):
        fit(model, callback)
        assert float(model.get_weights()[1][0]) == callback.trace.steps == 30 * fits


def test_it_is_a_callback_of_both(keras: Any, capsys: pytest.CaptureFixture[str]) -> None:
    callback = tracer.keras.TraceCallback()
    assert isinstance(callback, keras.callbacks.Callback)
    assert isinstance(callback, tracer.keras.TraceCallback)
    model = model_of(keras)
    wrapped = tracer.wrap(model.optimizer)
    fit(model, callback, epochs=1, verbose=1)
    assert model.optimizer is wrapped
    assert lines(capsys) == ["steps 1 to 10: 2 updates per step, 20 dense and 0 sparse"]


def test_other_callbacks_record_the_counts(keras: Any) -> None:
    """With a callback between them that asks the trace, as on the page of reports."""
    model, callback = model_of(keras, loss_scale=True), tracer.keras.TraceCallback()
    counts = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(updates=callback.trace.updates())
    )
    history = fit(model, callback, counts, bad=2)
    # In each of 3 epochs the loss scale skips 2 of 10 steps; the others update 2 variables.
    assert history["updates"] == [16, 32, 48]
    assert float(model.get_weights()[1][0]) == 3 * 8


FAULTS = {
    "wrap": tracer.keras,
    "trace_of": tracer.keras,
    "line": tracer.keras,
    "print": tracer.keras,
    "_print": tracer.keras.TraceCallback,
}
"""What the callback calls, and where it finds that."""


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_nothing_in_a_training(
    keras: Any,
    name: str,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first or the third call of something raises: `fit` trains on, and says so once."""
    plain = model_of(keras)
    expected = fit(plain)
    calls = []
    where = FAULTS[name]
    original = getattr(where, name, print)

    def fails(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) >= call and options.get("file") is not sys.stderr:
            raise ValueError("injected\nfault")
        return original(*args, **options)

    monkeypatch.setattr(where, name, fails, raising=False)
    model = model_of(keras)
    assert fit(model, tracer.keras.TraceCallback(7)) == expected
    for weights, untraced in zip(model.get_weights(), plain.get_weights(), strict=True):
        assert np.array_equal(weights, untraced)
    said = [each for each in capfd.readouterr().err.splitlines() if each.startswith("tracer: ")]
    failed = "tracer: TraceCallback stopped, the training goes on: ValueError: injected fault"
    assert said == [failed] * (len(calls) >= call)
    assert len(calls) >= call or name == "wrap"  # which is called once


def test_an_optimizer_that_cannot_be_traced_trains(
    keras: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model has none, and its step makes no use of one."""

    class Model(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return {"one": 1.0}

    model = model_of(keras, make=Model, run_eagerly=True)
    model.optimizer = None
    assert fit(model, tracer.keras.TraceCallback(1)) == {"one": [1.0] * 3}
    said = [each for each in capfd.readouterr().err.splitlines() if each.startswith("tracer: ")]
    assert len(said) == 1 and "UnsupportedOptimizer: cannot trace a NoneType: " in said[0]


def test_steps_that_are_not_known_are_no_number() -> None:
    for first, last in ((1, 40), (1, 100), (41, 41)):
        assert "updates are unknown" in tracer.keras.line(traces.incomplete(), first, last)


def test_mistakes_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="every must be at least 1, not 0"):
        tracer.keras.TraceCallback(every=0)


def test_it_imports_no_keras() -> None:
    code = """
import sys, tracer.keras
try:
    tracer.keras.TraceCallback()
except RuntimeError as error:
    print(error)
print([name for name in ("keras", "tf_keras") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert run.stdout.split("\n")[:2] == [
        "import keras or tf_keras before you make a TraceCallback",
        "[]",
    ]
