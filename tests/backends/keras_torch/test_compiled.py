"""Keras on PyTorch in code that `torch.compile` compiles: as exact, and compiled as without it.

Most of it is compiled for the backend `eager` of `torch.compile`, which runs the graphs that Dynamo
found as they are: that is quick, and Dynamo's part is what matters here. Inductor compiles a step
of one graph; steps of many graphs, each of which takes its C++ compiler seconds, are for `sweep`.
"""

import functools
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest
import torch
from backends.keras_torch.keras_on_torch import (
    Odometer,
    ParallelOdometer,
    X,
    Y,
    counts_in_compiled_code,
    model,
    moved,
    ones,
)
from torch._dynamo.utils import counters

import tracer
from tracer.core.registry import bindings

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    counts_in_compiled_code,
]

scaled = keras.optimizers.LossScaleOptimizer
COMPILE = torch.compile


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled yet, and what will be is not for Inductor."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(COMPILE, backend="eager"))
    yield
    torch._dynamo.reset()


def compiled_step(optimizer: Any, variables: list[Any]) -> Callable[[list[Any]], None]:
    """A step of the program's own."""
    optimizer.build(variables)

    def step(gradients: list[Any]) -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    compiled: Callable[[list[Any]], None] = torch.compile(step)
    return compiled


def breaks() -> int:
    """How often Dynamo broke a graph."""
    return sum(counters["graph_break"].values())


@pytest.mark.parametrize(
    ("odometer", "backend"),
    [(Odometer, "eager"), (ParallelOdometer, "eager"), (ParallelOdometer, "inductor")],
)
def test_a_compiled_step_of_the_program(
    odometer: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(COMPILE, backend=backend))
    optimizer = tracer.wrap(odometer())
    variables = model(optimizer).trainable_variables
    step = compiled_step(optimizer, variables)
    for _ in range(7):
        step(ones(variables))
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert moved(variables) == [7.0] * 4
    assert [trace.updates(variable=each) for each in variables] == [7] * 4
    assert list(trace.per_step("updates")) == [(1, 7, 4)]
    assert trace.calls() == 0  # of Python
    assert breaks() == 0
    assert counters["stats"]["unique_graphs"] == 1


def test_compiled_and_other_steps_are_numbered_together() -> None:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    step = compiled_step(optimizer, variables)
    for _ in range(3):
        step(ones(variables))
        optimizer.apply(ones(variables[:1]), variables[:1])
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [6.0, 3.0, 3.0, 3.0]
    assert [trace.updates(step=number) for number in range(1, 7)] == [4, 1] * 3
    assert trace.calls("_parallel_update_step") == 3
    assert trace.executions("_parallel_update_step") == 15


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
def test_apply_gradients_with_a_gradient_of_none() -> None:
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    optimizer.build(variables)

    def step(gradients: list[Any]) -> None:
        with torch.no_grad():
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    compiled = torch.compile(step)
    for _ in range(3):
        compiled([None, *ones(variables[1:])])
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert moved(variables) == [0.0, 3.0, 3.0, 3.0]
    assert trace.updates() == 9
    assert trace.steps == 3
    assert variables[0].path in str(trace.findings())


def accumulating() -> tuple[Any, list[Any], list[int]]:
    optimizer = tracer.wrap(ParallelOdometer(gradient_accumulation_steps=3))
    return optimizer, [1.0] * 8, [0, 0, 4] * 2 + [0, 0]


def skipping() -> tuple[Any, list[Any], list[int]]:
    gradients = [1.0, np.inf, 1.0, 1.0, np.nan, 1.0]
    return tracer.wrap(scaled(Odometer())), gradients, [4, 0, 4, 4, 0, 4]


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (accumulating, "eager"),
        (skipping, "eager"),
        pytest.param(skipping, "inductor", marks=pytest.mark.sweep),
    ],
)
def test_steps_whose_graphs_break(
    make: Callable[[], tuple[Any, list[float], list[int]]],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keras asks a tensor which branch to take, so there are several graphs, and Python between."""
    monkeypatch.setattr(torch, "compile", functools.partial(COMPILE, backend=backend))
    optimizer, gradients, per_step = make()
    variables = model(optimizer).trainable_variables
    step = compiled_step(optimizer, variables)
    for gradient in gradients:
        step([each * gradient for each in ones(variables)])
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert breaks() > 0
    assert moved(variables) == [sum(per_step) / 4] * 4
    assert [trace.updates(step=number + 1) for number in range(len(per_step))] == per_step


def test_code_that_was_compiled_before_is_compiled_again() -> None:
    optimizer = ParallelOdometer()
    variables = model(optimizer).trainable_variables
    step = compiled_step(optimizer, variables)
    step(ones(variables))
    tracer.wrap(optimizer)
    for _ in range(3):
        step(ones(variables))
    tracer.unwrap(optimizer)
    step(ones(variables))
    trace = tracer.trace_of(optimizer)
    assert moved(variables) == [5.0] * 4
    assert trace.updates() == 12
    assert trace.complete, trace.notes


def test_a_fault_ends_the_tracing_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = tracer.wrap(Odometer())
    variables = model(optimizer).trainable_variables
    step = compiled_step(optimizer, variables)
    step(ones(variables))
    recorder = tracer.core.registry.recorder_of(optimizer)
    assert recorder is not None

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(recorder, "open_apply", broken)
    with pytest.warns(RuntimeWarning, match="a bug"):
        step(ones(variables))
    step(ones(variables))
    assert moved(variables) == [3.0] * 4
    assert not tracer.trace_of(optimizer).complete


def fitted(optimizer: Any, jit_compile: bool) -> Any:
    """A model that is fitted."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    trained = model(optimizer, "glorot_uniform", jit_compile=jit_compile)
    trained.fit(X[:32], Y[:32], batch_size=8, epochs=2, verbose=0)
    return trained


def test_fit_in_compiled_steps() -> None:
    plain = fitted(keras.optimizers.Adam(0.1), jit_compile=False)
    optimizer = tracer.wrap(keras.optimizers.Adam(0.1))
    trained = fitted(optimizer, jit_compile=True)
    for one, other in zip(plain.get_weights(), trained.get_weights(), strict=True):
        assert one.tobytes() == other.tobytes()
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.steps == int(optimizer.iterations) == 8
    assert list(trace.per_step("updates")) == [(1, 8, 4)]
    assert trace.calls() == 0  # of Python
    assert breaks() == 3, counters["graph_break"]  # by `loss.backward()`, on its way to `fit`
    assert all("backward" in reason for reason in counters["graph_break"])
    files = {line.file for line in trace.data.lines if line.file}
    assert {os.path.basename(file) for file in files} == {"test_compiled.py"}


class PerVariable(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras calls its `update_step` for each variable."""


@pytest.mark.parametrize("cls", [keras.optimizers.Adam, PerVariable])
def test_steps_are_compiled_as_they_are_untraced(cls: Any) -> None:
    graphs, weights = [], []
    for traced in (False, True):
        torch._dynamo.reset()
        counters.clear()
        optimizer = cls(0.1)
        variables = model(optimizer, "ones").trainable_variables
        if traced:
            tracer.wrap(optimizer)
        step = compiled_step(optimizer, variables)
        for _ in range(3):
            step(ones(variables))
        graphs.append((breaks(), counters["stats"]["unique_graphs"]))
        weights.append([each.numpy().tobytes() for each in variables])
    assert weights[0] == weights[1]
    assert graphs[0] == graphs[1]
    assert tracer.trace_of(optimizer).updates() == 12


def test_an_optimizer_that_hands_its_variables_to_the_one_in_it() -> None:
    class Around(Odometer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Odometer()

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            self.inner.apply(grads, trainable_variables)

    optimizer = Around()
    tracer.wrap(optimizer)
    variables = model(optimizer).trainable_variables
    optimizer.inner.build(variables)  # and not the one around it

    @torch.compile
    def step(gradients: list[Any]) -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    for _ in range(3):
        step(ones(variables))
    assert moved(variables) == [3.0] * 4
    trace = tracer.trace_of(optimizer)
    assert trace.complete and (trace.steps, trace.updates()) == (3, 12)


@pytest.mark.long
def test_each_method_has_a_limit_of_programs_of_its_own() -> None:
    """Dynamo keeps 8 programs of one code; where it parts a step, each method is such a code."""
    compiled = []
    for _ in range(5):
        optimizer = tracer.wrap(keras.optimizers.SGD(0.1))
        variables = model(optimizer).trainable_variables
        step = compiled_step(optimizer, variables)
        for _ in range(3):
            step(ones(variables))
        trace = tracer.trace_of(optimizer)
        assert (trace.updates(), trace.steps, trace.complete) == (12, 3, True)
        compiled.append(counters["frames"]["ok"])
    assert len({after - before for before, after in pairwise(compiled)}) == 1


def test_what_was_counted_goes_with_the_optimizer() -> None:
    optimizer = tracer.wrap(ParallelOdometer())
    variables = model(optimizer).trainable_variables
    compiled_step(optimizer, variables)(ones(variables))
    counted = weakref.ref(bindings[id(optimizer)].recorder.blocks.counters)
    del optimizer, variables
    keras.utils.clear_session()
    torch._dynamo.reset()
    gc.collect()
    assert counted() is None
