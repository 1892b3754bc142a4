"""Callers: counts by the path of calls, and which line a path stands for."""

import pytest
from msgspec.structs import replace
from support import traces

from tracer.model.records import Line

FIRST, SECOND, EAGER = (
    "train.py:50 > train.py:41 main > Model.fit > train_function > "
    "model.py:88 MyModel.train_step > Adam.minimize > Adam.apply_gradients",
    "train.py:50 > train.py:44 main > Model.fit > train_function > "
    "model.py:88 MyModel.train_step > Adam.minimize > Adam.apply_gradients",
    "train.py:50 > steps/warm.py:12 warm_up > Adam.apply_gradients",
)


@pytest.mark.parametrize("name", traces.ALL)
def test_splits_by_caller_add_up_to_the_trace(name: str) -> None:
    trace = traces.ALL[name]()
    for what in ("updates", "executions", "calls"):
        split = trace.count(what, by="caller")
        assert sum(split.values()) == getattr(trace, what)()


def test_the_counts_are_those_of_each_path() -> None:
    """Two replicas, 11 variables: 40, 20 and 3 steps by three lines."""
    trace = traces.several_callers()
    assert trace.count("updates", by="caller") == {
        (FIRST,): 880,
        (SECOND,): 440,
        (EAGER,): 66,
    }
    assert trace.count("calls", by=("caller", "context"), method="apply_gradients") == {
        (FIRST, "tracing"): 4,
        (EAGER, "eager"): 6,
    }
    blocks = [replace(each, path=None) for each in trace.data.blocks[:1]]
    trace = traces.changed(trace, blocks=(*blocks, *trace.data.blocks[1:]))
    assert trace.count("updates", by="caller", replica=0)[None,] == 33


@pytest.mark.parametrize(
    ("names", "line", "graph"),
    [
        ("main.py fit loss.py", "loss.py", False),
        ("main.py fit GRAPH model.py apply", "main.py", True),
        ("main.py GRAPH model.py GRAPH loss.py", "main.py", True),
        ("GRAPH model.py", None, True),
        ("fit apply", None, False),
        ("", None, False),
    ],
)
def test_the_origin_of_a_path(names: str, line: str | None, graph: bool) -> None:
    lines = tuple(
        Line(each, each * each.endswith(".py"), 0, each == "GRAPH") for each in names.split()
    )
    data = traces.changed(traces.eager(), lines=lines, paths=(tuple(range(len(lines))),)).data
    found, is_traced = data.origin(0)
    assert (found and found.file, is_traced) == (line, graph)
    assert data.origin(None) == (None, False)
