"""Those who gather evidence: called at each step, and dropped if they raise."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import tracer
import tracer.api  # which says what the collectors are
from tracer.backends.tensorflow.variables import row_of
from tracer.core import collectors
from tracer.core.collectors import Collector, ModelVariable
from tracer.core.registry import recorder_of
from tracer.model.evidence import Failure
from tracer.model.records import NotUpdated


@pytest.mark.parametrize("name", [each for each in vars(Collector) if each[0] != "_"])
def test_one_that_raises_is_dropped_with_a_note(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Broken(Collector):
        """It fails at one callback."""

    def fail(self: Collector, *given: Any) -> None:
        calls.append(name)
        raise ZeroDivisionError("of its own")

    setattr(Broken, name, fail)
    monkeypatch.setattr(collectors, "shared", (Broken,))
    weight = tf.Variable([1.0])
    optimizer = tracer.wrap(
        tf.compat.v1.train.GradientDescentOptimizer(0.5), effects=name == "step_compared"
    )

    def step() -> None:
        optimizer.apply_gradients([(tf.ones(1), weight)])

    recorder = recorder_of(optimizer)
    assert recorder is not None
    recorder.collectors.call("used_without_step", "scale_loss")  # which Keras 3 has
    for _ in range(2):
        step()
        tf.function(step)()
    with pytest.raises(ValueError, match="No variables provided"):
        optimizer.apply_gradients([])
    with tracer.record():
        pass
    tracer.trace_of(optimizer)
    trace = tracer.trace_of(optimizer)
    assert calls == [name]
    assert (trace.steps, trace.updates()) == (4, 4)
    assert weight.numpy().tolist() == [-1.0]
    assert any("Broken, which gathers evidence for findings, failed" in n for n in trace.notes)


def test_variables_of_models_have_rows_unless_the_optimizer_got_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names stay apart; `not passed` is what no traced optimizer got; one variable is gone."""
    first, second, third, gone = (tf.Variable([float(n)], name="w") for n in range(4))
    record, gone_too = row_of(first), weakref.ref(gone)
    del gone

    class Models(Collector):
        """It finds all of them in the model of each optimizer."""

        def model_variables(self) -> Iterator[ModelVariable]:
            yield ModelVariable(weakref.ref(first), record, "frozen")
            yield ModelVariable(weakref.ref(second), record, "not passed")
            yield ModelVariable(weakref.ref(third), record, "frozen", 3)
            yield ModelVariable(weakref.ref(third), record, "not passed", 7)
            yield ModelVariable(gone_too, record, "not passed")

    monkeypatch.setattr(collectors, "shared", (Models,))
    one, two = (tracer.wrap(tf.compat.v1.train.GradientDescentOptimizer(0.5)) for _ in range(2))
    one.apply_gradients([(tf.ones(1), first)])
    two.apply_gradients([(tf.ones(1), second)])
    trace = tracer.trace_of(one)
    assert [each.name for each in trace.variables] == ["w", "w#2", "w#3"]
    assert trace.data.not_updated == (
        NotUpdated(0, (1,), "frozen", 3),
        NotUpdated(0, (1,), "not passed", 7),
        NotUpdated(0, (2,), "not passed"),
    )
    assert [trace.updates(variable=each) for each in (first, third)] == [1, 0]
    with pytest.raises(tracer.UnknownName):
        trace.updates(variable=second)
    with tracer.record() as recording:
        one.apply_gradients([(tf.ones(1), first)])
        two.apply_gradients([(tf.ones(1), second)])
    whole = recording.trace().data
    frozen = {(each.root, *each.variables) for each in whole.not_updated if each.why == "frozen"}
    names = [each.name for each in whole.variables]
    assert {(root, names[index]) for root, index in frozen} == {(0, "w#2"), (1, "w"), (1, "w#2")}


def test_failures_that_are_kept() -> None:
    """The first eight kinds, each once; Ctrl-C is none of the step."""
    optimizer = tracer.wrap(tf.compat.v1.train.GradientDescentOptimizer(0.5))

    def fail(error: BaseException) -> Any:
        raise error

    for error in (KeyboardInterrupt(), *(ValueError(n // 2) for n in range(20))):
        with pytest.raises(type(error)):
            optimizer.apply_gradients(map(fail, [error]))
    said = tracer.trace_of(optimizer).optimizers[0].evidence
    failures = [each.error for each in said if isinstance(each, Failure)]
    assert failures == [f"ValueError: {n}" for n in range(8)]
