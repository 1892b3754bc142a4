"""What a type checker knows of the public names. No test runs it: `mypy` checks it."""

from pathlib import Path
from typing import TYPE_CHECKING

import tracer

if TYPE_CHECKING:
    from typing_extensions import assert_type


class Optimizer:
    """Stands for an optimizer of any framework."""


def capture(optimizer: Optimizer) -> None:
    assert_type(tracer.wrap(optimizer), Optimizer)  # the class of what is wrapped is kept
    assert_type(tracer.wrap(optimizer, effects=True, retrace=False), Optimizer)
    assert_type(tracer.unwrap(optimizer), Optimizer)
    with tracer.record(effects=True) as recording:
        assert_type(recording.trace(), tracer.Trace)


def read(optimizer: Optimizer, folder: Path) -> None:
    trace = tracer.trace_of(optimizer)
    assert_type(trace, tracer.Trace)
    assert_type(tracer.load(folder), tracer.Trace)
    assert_type(tracer.merge([trace, trace]), tracer.Trace)
    assert_type(trace.answer(), str)
    assert_type(trace.steps, int)
    assert_type(trace.complete, bool)
    assert_type(trace.notes, tuple[str, ...])
    assert_type(trace.updates(kind="sparse", variable="dense/*", step=range(1, 5)), int)
    assert_type(trace.executions("update_step", replica=0), int)
    assert_type(trace.calls("update_step"), int)
    assert_type(trace.count("requests", kind="none"), int)
    assert_type([finding.code for finding in trace.findings()], list[str])
    trace.save(folder)
    trace.updates(kind="spares")  # type: ignore[arg-type]
    trace.count("update")  # type: ignore[call-overload]
    tracer.report(trace, by="variable")
    tracer.report(trace, by="variables")  # type: ignore[arg-type]


def check(optimizer: Optimizer) -> None:
    with tracer.assert_updates(optimizer, dense=4, per_step=True) as seen:
        pass
    assert_type(seen.trace, tracer.Trace)
    with tracer.assert_executions("update_step", 4), tracer.assert_calls("update_step", at_most=8):
        pass
    with tracer.assert_all_updated([1]), tracer.assert_never_updated("*embedding*"):
        pass
