"""Which line of the program made an optimizer, and who says it."""

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.libraries import keras2, keras3, library_of, needs_keras3
from support.odometers import KINDS, ODOMETERS, gradients, make_variables

import tracer
from tracer.core import call_paths as lines
from tracer.model.trace import Trace

HERE = os.path.relpath(__file__)


def here(before: int = 1) -> str:
    """The line so many lines before that of the call."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{HERE}:{frame.f_back.f_lineno - before}"


def made_in(trace: Trace) -> list[str]:
    return [each.made for each in trace.optimizers]


def step(kind: str, *optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.apply_gradients(gradients(make_variables(kind)))


def test_files_below_the_working_folder_are_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lines.line(str(tmp_path / "nets" / "train.py"), 3) == os.path.join("nets", "train.py:3")
    assert lines.line("nets/train.py", 3) == "nets/train.py:3"
    assert lines.line(str(tmp_path.parent / "other" / "train.py"), 3) == "other/train.py:3"
    assert lines.line("<stdin>", 1) == "<stdin>:1"
    assert lines.line("/tmp/ipykernel_12/345.py", 7) == "cell:7"
    monkeypatch.chdir(tmp_path.parent)  # a file keeps the name that it had at first
    assert lines.line(str(tmp_path / "nets" / "train.py"), 3) == os.path.join("nets", "train.py:3")


@pytest.mark.parametrize("kind", KINDS)
def test_wrap_tells_its_line(kind: str) -> None:
    optimizer = ODOMETERS[kind]()
    tracer.wrap(optimizer)
    expected = here()
    step(kind, optimizer)
    tracer.wrap(optimizer)
    assert made_in(tracer.trace_of(optimizer)) == [expected]


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_numbers_its_optimizers_as_it_makes_them(kind: str) -> None:
    """Whatever the order of their first steps is, and if one makes none."""
    for _ in range(2):  # each recording numbers them from 1
        with tracer.record() as recording:
            made = [ODOMETERS[kind]() for _ in range(3)]
            step(kind, made[2], made[1])
        numbers = sorted(each.made_as for each in recording.trace().optimizers)
        assert numbers == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_tells_the_line_of_the_constructor(kind: str) -> None:
    base: Any = ODOMETERS[kind]

    class Derived(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.more = 1

    class Trainer:
        def __init__(self) -> None:
            self.optimizer = Derived()
            self.line = here()

    before = ODOMETERS[kind]()
    with tracer.record() as recording:
        first = ODOMETERS[kind]()
        line = here()
        trainer = Trainer()
        step(kind, first, trainer.optimizer, before)
    assert sorted(made_in(recording.trace())) == sorted(["", line, trainer.line])


@needs_keras3
def test_an_optimizer_that_compile_makes_of_a_name() -> None:
    with tracer.record() as recording:
        model = library_of("keras3").Sequential([keras3.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        line = here()
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert made_in(recording.trace()) == [line]


def test_what_is_nested_has_the_line_of_its_root() -> None:
    inner = keras2.optimizers.SGD()
    outer = keras2.mixed_precision.LossScaleOptimizer(inner)
    tracer.wrap(outer)
    line = here()
    step("keras2", outer)
    assert made_in(tracer.trace_of(outer))[0] == line
