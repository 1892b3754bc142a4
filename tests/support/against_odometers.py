"""Holds what a trace says against what the odometers show, for many variables at once."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from support.odometers import SHAPES, Reading, gradients, make_variables, read

import tracer


def readings(variables: dict[str, Any]) -> dict[str, Reading]:
    """What the odometers show on the first replica, by the labels of their variables."""
    return {label: read(variable)[0] for label, variable in variables.items()}


def counted(trace: Any, variable: Any) -> Reading:
    """What the trace says of a variable, as the odometer would; 0 if it never heard of it."""
    try:
        return Reading(*(trace.updates(kind=k, variable=variable) for k in ("dense", "sparse")))
    except tracer.UnknownName:
        return Reading(0)


def minus(now: dict[str, Reading], then: dict[str, Reading]) -> dict[str, Reading]:
    """What was added to the odometers in between."""
    return {label: reading.minus(then[label]) for label, reading in now.items()}


def assert_right_or_incomplete(
    trace: Any, variables: dict[str, Any], truth: dict[str, Reading]
) -> None:
    """The trace has the truth of each variable, or it has less and says that it is incomplete."""
    said = {label: counted(trace, variable) for label, variable in variables.items()}
    if trace.complete:
        assert said == truth
    else:
        assert trace.notes
        for label, (dense, sparse) in said.items():
            assert dense <= truth[label].dense, label
            assert sparse <= truth[label].sparse, label


def assert_totals(trace: Any, variables: dict[str, Any], steps: int) -> None:
    """Totals are exact; the detail of steps may be lost, if the trace says so."""
    assert readings(variables)["kernel"] == Reading(steps)
    assert {label: counted(trace, each) for label, each in variables.items()} == readings(variables)
    assert trace.steps == steps
    by_step = sum(trace.count("updates", by=("step",)).values())
    assert by_step == trace.updates() or (not trace.complete and trace.notes)


def three_steps(
    kind: str, optimizer: Any, labels: Iterable[str] = SHAPES, *, compiled: bool = True
) -> tuple[dict[str, Any], Any]:
    """Three steps in a function, or in eager mode, of the hand-made variables; their trace."""
    made = make_variables(kind)
    variables = {label: made[label] for label in labels}

    def step() -> None:
        optimizer.apply_gradients(gradients(variables))

    compiled_step = tf.function(step) if compiled else step
    for _ in range(3):
        compiled_step()
    return variables, tracer.trace_of(optimizer)


def assert_three_steps(variables: dict[str, Any], trace: Any, times: int = 1) -> None:
    """Each update moved its odometer `times`."""
    assert trace.complete, trace.notes
    assert trace.steps == 3
    for label, variable in variables.items():
        dense, sparse = (
            trace.updates(kind=each, variable=variable) for each in ("dense", "sparse")
        )
        assert read(variable) == (Reading(dense * times, sparse),), label
        assert dense + sparse == 3
