"""What is found in a program of a backend, as `tracer run` has it when it has ended."""

from collections.abc import Callable

import msgspec

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


def traced(train: Callable[[], object], *, effects: bool = False) -> Trace:
    """The trace of all optimizers that a program uses, which has ended."""
    program = Program("train.py", 0.0, status=0)
    with tracer.record(effects=effects) as recording:
        train()
    return Trace(msgspec.structs.replace(recording.trace().data, programs=(program,)))


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
