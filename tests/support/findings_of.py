"""What is found in a program of a backend, as `tracer run` has it when it has ended."""

from collections.abc import Callable

import msgspec
from support.rules_by_backend import OF_EFFECTS

import tracer
from tracer.findings.rule import RULES, Finding
from tracer.model.records import Program
from tracer.model.trace import Trace


def bad(trace: Trace) -> list[Finding]:
    """The errors and warnings."""
    return [each for each in trace.findings() if each.severity != "info"]


def found(trace: Trace, code: str) -> list[Finding]:
    """The findings with a code; it must be one of a rule."""
    assert code in {rule.code for rule in RULES}
    return [each for each in trace.findings() if each.code == code]


def traced(train: Callable[[bool], None], healthy: bool, *, effects: bool = False) -> Trace:
    """The trace of all optimizers that `train(healthy)` uses."""
    error = ""
    with tracer.record(effects=effects) as recording:
        try:
            train(healthy)
        except (TypeError, ValueError) as raised:
            assert not healthy, raised
            error = f"{type(raised).__name__}: {raised}"
    program = Program("train.py", 0.0, 1.0, status=1 if error else 0, error=error)
    return Trace(msgspec.structs.replace(recording.trace().data, programs=(program,)))


def check(code: str, train: Callable[[bool], None]) -> Finding:
    """What the rule says of a program; it must say nothing of the healthy twin, nor any other."""
    effects = code in OF_EFFECTS
    healthy = traced(train, True, effects=effects)
    assert healthy.complete, healthy.notes
    assert not bad(healthy)
    assert not found(healthy, code)
    trace = traced(train, False, effects=effects)
    assert found(trace, code), trace.findings()
    return found(trace, code)[0]


def of_workers(trace: Trace, other: Trace) -> Trace:
    """Two traces as those of two processes that trained together."""
    processes = []
    for number, each in enumerate((trace, other)):
        environment = {**each.data.environment, "cluster": "rank:0, rank:1"}
        replicas = tuple(
            msgspec.structs.replace(replica, worker=f"rank:{number}")
            for replica in each.data.replicas
        )
        data = msgspec.structs.replace(
            each.data, environment=environment, replicas=replicas, finished=True
        )
        processes.append(Trace(data))
    return tracer.merge(processes)
