"""Keras on PyTorch in code that `torch.compile` compiles: not counted, and a note says so.

It is compiled for the backend `eager` of `torch.compile`, which runs the graphs that Dynamo found
as they are: Dynamo's part is what matters here.
"""

import functools
import gc
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import torch
from backends.keras_torch.keras_on_torch import (
    Odometer,
    ParallelOdometer,
    X,
    Y,
    model,
    moved,
    ones,
)
from torch._dynamo.utils import counters

import tracer
from tracer.backends.torch import backend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled yet, and no program is left behind."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    yield
    keras.utils.clear_session()
    torch._dynamo.reset()
    gc.collect()


def apply(optimizer: Any, variables: list[Any]) -> None:
    """A step of the program's own."""
    with torch.no_grad():
        optimizer.apply(ones(variables), variables)


def is_said(trace: Any) -> bool:
    noted = any("torch.compile compiled a step of" in note for note in trace.notes)
    return noted and not trace.complete


SGD = functools.partial(keras.optimizers.SGD, 0.1)


@pytest.mark.skipif(not backend.KNOWS_IDS, reason="Dynamo hides whose step it is")
@pytest.mark.parametrize("make", [Odometer, ParallelOdometer, SGD])
def test_a_compiled_step_of_several_optimizers(make: Any) -> None:
    """A program that an earlier block compiled runs again, and one optimizer runs no other's."""
    step = torch.compile(apply)
    for _ in range(2):
        optimizer = make()
        variables = model(optimizer, "ones").trainable_variables
        optimizer.build(variables)
        before = moved(variables)
        for _ in range(2):
            with tracer.record() as recording:
                step(optimizer, variables)
            assert recording.trace().updates() == 0 and is_said(recording.trace())
        tracer.wrap(optimizer)
        step(optimizer, variables)
        assert is_said(tracer.trace_of(optimizer))
        assert moved(variables) != before


@pytest.mark.sweep
def test_fit_in_compiled_steps() -> None:
    """Another optimizer, whose steps run in Python, is exact."""
    weights, traces = [], []
    for compiled in (True, False):
        keras.utils.set_random_seed(1)
        optimizer = tracer.wrap(keras.optimizers.Adam(0.1))
        trained = model(optimizer, "glorot_uniform", jit_compile=compiled)
        trained.fit(X[:32], Y[:32], batch_size=8, epochs=2, verbose=0)
        weights.append([each.tobytes() for each in trained.get_weights()])
        traces.append(tracer.trace_of(optimizer))
    assert weights[0] == weights[1]
    assert traces[0].updates() == 0 and is_said(traces[0])
    exact = traces[1]
    if backend.KNOWS_IDS:
        assert (exact.steps, exact.updates(), exact.complete) == (8, 32, True)


def test_steps_are_compiled_as_they_are_untraced() -> None:
    graphs, weights = [], []
    for traced in (False, True):
        torch._dynamo.reset()
        counters.clear()
        optimizer = keras.optimizers.Adam(0.1)
        variables = model(optimizer, "ones").trainable_variables
        optimizer.build(variables)
        if traced:
            tracer.wrap(optimizer)
        step = torch.compile(apply)
        for _ in range(3):
            step(optimizer, variables)
        breaks = sum(counters["graph_break"].values())
        graphs.append((breaks, counters["stats"]["unique_graphs"]))
        weights.append([each.numpy().tobytes() for each in variables])
    assert weights[0] == weights[1]
    assert graphs[0] == graphs[1]


def test_an_older_dynamo_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the program with an error if it got the `id` of an optimizer."""
    monkeypatch.setattr(backend, "KNOWS_IDS", False)
    optimizer = tracer.wrap(type("Fresh", (Odometer,), {})())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)
    compiled = torch.compile(lambda: apply(optimizer, variables))
    for _ in range(3):
        compiled()
    apply(optimizer, variables)
    assert moved(variables) == [4.0] * 4
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), is_said(trace)) == (1, 4, True)
    assert "torch.compile compiled a step of Fresh" in trace.notes[0]
