"""What ran, as weights that count by themselves say, and what a trace must hold of it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from support.saved import assert_saved

from tracer.model.trace import Trace


class Ran(NamedTuple):
    """What ran, and what came of it."""

    optimizer: Any
    per_step: Sequence[int]
    """How many updates in each step, of all variables, on one replica."""
    weights: Mapping[str, float] = {}
    """How often each variable was updated, by its name; empty if that is not known."""
    copies: int = 1
    """How many replicas stepped."""
    discarded: int = 0
    """How many updates were computed and thrown away."""
    times: int = 1
    """How often a step that updates does so."""
    requests: Mapping[str, int] | None = None
    """How many gradients of each kind there were, if that is known."""
    executions: Mapping[str, int] = {}
    """How often methods ran."""
    complete: bool = True


def programs_in(module: dict[str, Any]) -> dict[str, Callable[[], Ran]]:
    """The functions of a module, by name, that return what ran and have no other annotation."""
    return {
        name: each
        for name, each in module.items()
        if inspect.isfunction(each) and inspect.get_annotations(each) == {"return": Ran}
    }


def by_step(trace: Trace, what: Any = "updates", **filters: Any) -> list[int]:
    """How many in each step."""
    return [
        count
        for first, last, count in trace.per_step(what, **filters)
        for _ in range(first, last + 1)
    ]


def check(trace: Trace, ran: Ran) -> None:
    """Each step on each replica has its updates, nothing is missing, and the trace is saved."""
    assert trace.complete == ran.complete, trace.notes
    assert_saved(trace)
    assert trace.steps == len(ran.per_step)
    assert len(trace.replicas) == ran.copies
    for replica in trace.replicas:
        assert by_step(trace, replica=replica.id) == list(ran.per_step)
    if ran.weights:
        counted = trace.count("updates", by="variable")
        assert counted == {(name,): number for name, number in ran.weights.items() if number}
    assert sum(trace.count("discarded", by="variable").values()) == ran.discarded
    if ran.requests is not None:
        requests = trace.count("requests", by=("kind",))
        assert {kind: count for (kind,), count in requests.items() if count} == ran.requests
    for method, executions in ran.executions.items():
        assert trace.executions(method) == executions


def check_effects(trace: Trace, ran: Ran) -> None:
    """A step changes what the odometer shows, leaves all else as it was, and the counts stay."""
    assert trace.complete == ran.complete, trace.notes
    for replica in trace.replicas:
        compared = by_step(trace, "compared", replica=replica.id)
        unchanged = by_step(trace, "unchanged", replica=replica.id)
        changed = [a - b for a, b in zip(compared, unchanged, strict=True)]
        assert changed == [number // ran.times for number in ran.per_step]
    if ran.weights and ran.times == 1:
        still = trace.count("unchanged", by="variable")
        counted = trace.count("compared", by="variable")
        updated = {(name,): number for name, number in ran.weights.items() if number}
        assert {name: n - still.get(name, 0) for name, n in counted.items()} == updated
    assert trace.count("not_finite", by=()) == {}
    assert trace.updates() == sum(ran.per_step) * ran.copies
