"""A part of a trace holds what the trace's own filters count."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import traces

from tracer.errors import UnknownName
from tracer.model.trace import select
from tracer.model.tracefile import load, save
from tracer.reporters.text import render


@pytest.mark.parametrize("name", [each for each in traces.ALL if each != "many_variables"])
@pytest.mark.parametrize(
    "filters",
    [
        {"step": range(2, 40)},
        {"step": range(5, 6)},
        {"variable": "dense*"},
        {"replica": 1},
        {"method": "_resource_apply_dense"},
        {"method": "update_step"},
        {"method": "_resource_apply_sparse"},
        {"method": "apply_gradients"},
        {"step": range(1, 9), "variable": "*kernel*", "replica": 0},
    ],
    ids=str,
)
def test_an_excerpt_counts_what_the_filters_count(name: str, filters: Mapping[str, Any]) -> None:
    trace = traces.ALL[name]()
    renamed = {"steps" if key == "step" else key: value for key, value in filters.items()}
    try:
        expected = trace.executions(**filters)
        part = select(trace, **renamed)
    except UnknownName:
        with pytest.raises(UnknownName):
            select(trace, **renamed)
        return
    roles = {"update", "discarded", "apply"}
    if "variable" not in filters:
        roles.add("step")
    counted = sum(
        block.total * entry.times * max(1, len(entry.variables))
        for block in part.blocks
        for entry in block.entries
        if entry.role in roles
    )
    assert counted == expected
    first = part.first_step
    per_step = trace.count("executions", by="step", **filters)
    assert {
        (step + first - 1,): count
        for (step,), count in part.count("executions", by="step").items()
        if count
    } == (per_step if "variable" not in filters else _with_steps(part, per_step, first))
    assert render(part).startswith("Only ")


def _with_steps(part: Any, per_step: Mapping[Any, int], first: int) -> dict[Any, int]:
    """The step method itself has no variable; a part of some variables keeps it."""
    own = {
        step: count
        for (step, method), count in part.count("executions", by=("step", "method")).items()
        if method == "apply_gradients"
    }
    steps = {key for (key,) in per_step} | {step + first - 1 for step in own}
    return {(at,): per_step.get((at,), 0) + own.get(at - first + 1, 0) for at in steps}


def test_nothing_chosen_is_the_trace() -> None:
    trace = traces.eager()
    assert select(trace) is trace


def test_an_excerpt_is_another_trace_also_when_it_was_saved(tmp_path: Path) -> None:
    trace = traces.eager()
    late, early = select(trace, steps=range(6, 11)), select(trace, steps=range(1, 6))
    assert late != early, "they count the same, but not in the same steps"
    save(late.data, tmp_path / "late.json")
    loaded = load(tmp_path / "late.json")
    assert loaded == late
    assert (loaded.first_step, loaded.excerpt) == (6, late.excerpt)
    assert render(loaded) == render(late) != render(early)
    assert (trace.first_step, trace.excerpt) == (1, "")


def test_steps_keep_their_numbers() -> None:
    text = render(select(traces.accumulation(), steps=range(30, 41)))
    assert "\n32, 36 … 40 " in text or "\n32 " in text
    assert text.startswith("Only steps 30 to 40; Python calls")
