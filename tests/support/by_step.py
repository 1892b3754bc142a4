"""What a trace must hold of a run whose updates of each step are known."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from support.saved import assert_saved

from tracer.model.trace import Trace


class Known(Protocol):
    """What ran."""

    @property
    def per_step(self) -> list[int]:
        """How many updates in each step, of all variables, on one replica."""

    @property
    def copies(self) -> int:
        """How many replicas stepped."""

    @property
    def discarded(self) -> int:
        """How many updates were thrown away."""


def programs_in(module: dict[str, Any], result: type) -> dict[str, Callable[..., Any]]:
    """The functions of a module, by name, that return a `result` and have no other annotation."""
    return {
        name: each
        for name, each in module.items()
        if inspect.isfunction(each) and inspect.get_annotations(each) == {"return": result}
    }


def check_by_step(trace: Trace, run: Known) -> None:
    """Each step on each replica has its updates, nothing is missing, and the trace is saved."""
    assert trace.steps == len(run.per_step)
    assert len(trace.replicas) == run.copies
    for replica in trace.replicas:
        steps = range(1, len(run.per_step) + 1)
        per_step = [trace.updates(step=step, replica=replica.id) for step in steps]
        assert per_step == run.per_step
    assert sum(trace.count("discarded", by="variable").values()) == run.discarded
    assert trace.complete, trace.notes
    assert_saved(trace)
