"""What a trace says of effects, and what becomes of it where traces are merged, cut and kept."""

from typing import Any

import pytest
from msgspec.structs import replace
from support import traces

import tracer
from tracer.model.records import Note, TraceData
from tracer.model.timeline import Run
from tracer.model.trace import Trace


def test_counts_by_hand() -> None:
    trace = traces.with_effects()
    assert trace.data.effects
    assert trace.count("unchanged", by="variable") == {("dense/kernel",): 3, ("dense/bias",): 2}
    assert trace.count("unchanged", by="step", variable="dense/kernel") == {
        (n,): 1 for n in (4, 5, 6)
    }
    assert trace.count("not_finite", by=("optimizer", "replica", "worker")) == {("adam", 0, ""): 3}
    assert trace.count("compared", by=(), step=range(3, 6)) == {(): 6}
    assert trace.count("unchanged", by=(), step=range(5, 10)) == {(): 3}
    assert trace.count("unchanged", by=(), step=7) == {(): 0}
    assert trace.count("not_finite", by=(), variable="*kernel") == {}
    assert list(trace.per_step("unchanged")) == [(1, 3, 0), (4, 6, 1), (7, 8, 0), (9, 10, 1)]
    assert list(trace.per_step("compared", variable="dense/bias")) == [(1, 10, 1)]


def test_a_trace_without_effects_says_that_it_has_none() -> None:
    trace = traces.eager()
    assert not trace.data.effects
    questions: Any = (
        lambda: trace.count("unchanged", by="variable"),
        lambda: trace.per_step("compared"),
    )
    for ask in questions:
        with pytest.raises(tracer.UnknownName, match="the trace has no effects") as error:
            ask()
        assert "\n" not in str(error.value) and "effects=True" in str(error.value)
    assert traces.no_steps().count("unchanged", by="variable") == {}


def test_a_trace_in_which_nothing_was_compared_says_why() -> None:
    """Who asked for effects is not told to ask for them."""
    why = "effects are unknown in the graph of a Session: its variables are not compared"
    data = replace(traces.eager().data, notes=(Note("another"), Note(why, "effects")))
    with pytest.raises(tracer.UnknownName, match=f"nothing was compared: {why}"):
        Trace(data).count("unchanged", by="variable")


def test_what_effects_have_not() -> None:
    trace = traces.with_effects()
    with pytest.raises(TypeError, match="unchanged has no filter 'kind'"):
        trace.count("unchanged", by="variable", kind="dense")
    with pytest.raises(tracer.UnknownName, match="key to split unchanged by"):
        trace.count("unchanged", by="method")


def of_worker(name: str, unchanged: Run) -> TraceData:
    data = traces.with_effects().data
    replicas = tuple(replace(each, worker=name) for each in data.replicas)
    effects = (*data.effects[:1], traces.effect("unchanged", (1,), unchanged))
    return replace(data, replicas=replicas, effects=effects)


def test_the_effects_of_workers_stay_apart() -> None:
    parts = [of_worker("worker:0", Run(1, 1, 2)), of_worker("worker:1", Run(3, 1, 5))]
    trace = tracer.merge(Trace(part) for part in reversed(parts))
    assert trace.count("unchanged", by=("worker", "variable")) == {
        ("worker:0", "dense/bias"): 2,
        ("worker:1", "dense/bias"): 5,
    }
    assert trace.count("compared", by=()) == {(): 40}
