"""Those who gather evidence: called at each step, and dropped if they raise."""

import time
from typing import Any

import pytest
import tensorflow as tf

import tracer
import tracer.api  # which says what the collectors are
from tracer.core import collectors
from tracer.core.collectors import CALLBACKS, Collector, Throttle


@pytest.mark.parametrize("name", CALLBACKS)
def test_one_that_raises_is_dropped_with_a_note(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Broken(Collector):
        """It fails at one callback."""

    def fail(self: Collector, *given: Any) -> None:
        calls.append(name)
        raise ZeroDivisionError("of its own")

    setattr(Broken, name, fail)
    monkeypatch.setattr(collectors, "shared", lambda: (Broken,))
    weight = tf.Variable([1.0])
    optimizer = tracer.wrap(
        tf.compat.v1.train.GradientDescentOptimizer(0.5), effects=name == "step_compared"
    )

    def step() -> None:
        optimizer.apply_gradients([(tf.ones(1), weight)])

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


def test_a_throttle_rests_after_the_first_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttle, "at_once", 3)
    monkeypatch.setattr(Throttle, "rest", 1e9)
    monkeypatch.setattr(Throttle, "longest_rest", 60.0)
    done: list[int] = []
    throttle = Throttle()
    for number in range(10):
        if time.perf_counter() >= throttle.due:
            throttle.run(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 2]
