"""Sharded parameters and the stages of a pipeline, on four ranks, against the whole weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ranks

import tracer
from tracer.model.trace import summaries_of
from tracer.reporters import columns, html, text

pytest.importorskip("torch")  # which other processes import
pytestmark = pytest.mark.sweep

STEPS = 5
Ran = tuple[Path, list[dict[str, Any]]]
"""The folder of the traces, and what each rank saw of the whole parameters, by name."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Each way to train in four processes, which one launch goes through."""
    folder = tmp_path_factory.mktemp("shards")
    printed = ranks.launch("torch_shards.py", folder, count=4)
    every: list[dict[str, Any]] = [json.loads(each.splitlines()[-1]) for each in printed]
    return {way: (folder / way, [each[way] for each in every]) for way in every[0]}


def alone(folder: Path) -> list[tracer.Trace]:
    """The trace of each rank by itself."""
    return [tracer.load(folder / f"rank-{rank}.json") for rank in range(4)]


def said(trace: tracer.Trace) -> str:
    """The report in one line, so that it does not matter where lines break."""
    return " ".join(text.render(trace).split())


@pytest.mark.parametrize("way", ["fsdp1", "fsdp2"])
def test_a_parameter_is_known_as_a_whole(way: str, ran: dict[str, Ran]) -> None:
    folder, (whole, *_) = ran[way]
    trace = tracer.load(folder)
    shapes = {name: tuple(each["shape"]) for name, each in whole.items()}
    for each in (trace, *alone(folder)):
        assert {own.name: own.shape for own in each.variables} == shapes
        assert {own.shards for own in each.variables} == {4}
    _, found, tables_of = said(trace).partition(
        "5 steps, 5 parameters, sharded up to 4 ways, 4 ranks"
    )
    assert found
    assert "behind" not in tables_of and "gradient" not in tables_of
    assert "sharded up to 4 ways" in html.render(trace)


@pytest.mark.parametrize("way", ["fsdp1", "fsdp2"])
def test_a_parameter_changed_if_any_shard_did(way: str, ran: dict[str, Ran]) -> None:
    """The last ranks have rows of the table that no step uses, and one layer has no rate."""
    folder, (whole, *_) = ran[way]
    trace = tracer.load(folder)
    (summary,) = summaries_of(trace)
    rows = {values["variable"]: values for values, *_ in columns.table(summary, "variable").rows}
    assert whole["table.weight"]["changed"] == [*range(1, STEPS + 1)]
    for name, each in whole.items():
        unchanged = STEPS - len(each["changed"])
        values = [rows[name][key] for key in ("unchanged", "shards", "per_step")]
        assert values == [unchanged, 4, "1"]
    (found,) = trace.findings()
    still = [name for name, each in whole.items() if not each["changed"]]
    assert (found.code, list(found.variables)) == ("unchanged", still)
    # The table, whose shard is 16 of 64 elements, is as it was on most ranks; one cannot tell.
    assert [each.findings() for each in alone(folder)] == [[]] * 4


def test_a_rank_that_holds_nothing_is_not_asked(ran: dict[str, Ran]) -> None:
    """FSDP cuts 95 elements into parts of 24: 64 of the table, then 12, 3, 12 and 4."""
    folder, _ = ran["fsdp1"]
    holding = [["table"], ["table"], ["table", "head"], ["head", "head", "still", "still"]]
    for trace, names in zip(alone(folder), holding, strict=True):
        (summary,) = summaries_of(trace)
        rows = [values for values, *_ in columns.table(summary, "variable").rows]
        assert [row["variable"].partition(".")[0] for row in rows] == names
        assert {(row["updates"], row["without_gradient"]) for row in rows} == {(STEPS, 0)}
        assert trace.count("updates", variable="still.bias", by=()).get((), 0) == (
            STEPS if "still" in names else 0
        )


def test_a_grid_of_two_kinds_of_shards(ran: dict[str, Ran]) -> None:
    """`fully_shard` of two ranks splits what tensor parallel of two has split, or has whole."""
    folder, every = ran["grid"]
    trace = tracer.load(folder)
    shards = {"0.weight": 4, "0.bias": 4, "1.weight": 4, "1.bias": 2}
    assert {each.name: each.shards for each in trace.variables} == shards
    assert [{own["moved"] for own in each.values()} for each in every] == [{STEPS}] * 4
    assert trace.count("updates", by=("variable",)) == {(name,): 4 * STEPS for name in shards}
    assert trace.complete and trace.findings() == []
    assert "4 parameters, sharded up to 4 ways" in said(trace)


def test_copies_of_shards(ran: dict[str, Ran]) -> None:
    """The hybrid strategy: ranks 0 and 2 have one half of all elements, 1 and 3 the other."""
    folder, every = ran["hybrid"]
    trace = tracer.load(folder)
    assert [{own["moved"] for own in each.values()} for each in every] == [{STEPS}] * 4
    assert {each.shards for each in trace.variables} == {2}
    # The first half is 15 of the 16 elements of the first weight, the other one all the rest.
    halves = {("rank:0",): STEPS, ("rank:1",): 4 * STEPS}
    halves |= {("rank:2",): STEPS, ("rank:3",): 4 * STEPS}
    assert trace.count("updates", by=("worker",)) == halves
    assert trace.complete and trace.findings() == []


def test_the_stages_of_a_pipeline_are_read_one_by_one(ran: dict[str, Ran]) -> None:
    folder, every = ran["stages"]
    assert [{own["moved"] for own in each.values()} for each in every] == [{STEPS}] * 4
    (note,) = tracer.load(folder).notes
    assert "it is unknown which are the same optimizer, so they are kept apart" in note
    for rank, trace in enumerate(alone(folder)):
        names = {(f"{rank // 2}.{name}",): STEPS for name in ("weight", "bias")}
        assert trace.count("updates", by="variable") == names


def test_an_optimizer_that_was_made_before_fully_shard(ran: dict[str, Ran]) -> None:
    """It has the old parameters, so nothing updates the model."""
    folder, every = ran["early"]
    assert not any(own["changed"] for each in every for own in each.values())
    codes = [{found.code for found in each.findings()} for each in alone(folder)]
    assert all({"no-gradient", "never-passed"} <= each for each in codes)


def test_a_checkpoint_makes_a_step(ran: dict[str, Ran]) -> None:
    """The state is made by a step with gradients of 0, of which an odometer takes no notice."""
    folder, every = ran["checkpoint"]
    assert [{own["moved"] for own in each.values()} for each in every] == [{STEPS + 1}] * 4
    trace = tracer.load(folder)
    assert trace.steps == STEPS + 1
    # 30 elements in parts of 8: 16, 4, 8 and 2.
    assert trace.count("updates", by=("worker",)) == {
        (f"rank:{rank}",): held * (STEPS + 1) for rank, held in enumerate((1, 1, 2, 2))
    }
    for each in (trace, *alone(folder)):
        assert each.complete and each.findings() == []


def test_what_is_sharded_in_another_way_stays_apart(ran: dict[str, Ran]) -> None:
    first, other = (alone(ran[way][0]) for way in ("grid", "hybrid"))
    trace = tracer.merge([*first[:2], *other[2:]])
    shards = {each.name: each.shards for each in trace.variables if "0.weight" in each.name}
    assert shards == {"0.weight": 4, "0.weight#2": 2}
