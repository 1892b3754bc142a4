"""Several processes of `torch.distributed`: each rank is a worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ranks

import tracer

pytest.importorskip("torch")  # which other processes import

Ran = tuple[Path, list[tuple[list[int], int]]]
"""The folder of the traces, and by rank what the odometers say and how many are its own."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Each way to train in two processes, which one launch goes through."""
    folder = tmp_path_factory.mktemp("ranks")
    printed: list[dict[str, Any]] = [
        json.loads(each.splitlines()[-1]) for each in ranks.launch("torch_ranks.py", folder)
    ]
    return {way: (folder / way, [tuple(each[way]) for each in printed]) for way in printed[0]}


def changed(trace: tracer.CallTrace) -> dict[tuple[object, ...], int]:
    """In how many steps the weights of each rank changed, all added up."""
    assert not trace.count("unchanged", by=())
    return trace.count("compared", by=("worker",))


def test_data_parallel(ran: dict[str, Ran]) -> None:
    folder, odometers = ran["ddp"]
    assert odometers == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(folder)
    assert (trace.workers, trace.steps) == (("rank:0", "rank:1"), 5)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert trace.complete and trace.findings() == []
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}
    assert "Each step made 4 updates on each of 2 ranks" in trace.answer()
    # One rank alone: the other one is missing.
    assert not tracer.merge([tracer.load(folder / "rank-0.json")]).complete


def test_an_optimizer_that_is_split(ran: dict[str, Ran]) -> None:
    folder, odometers = ran["zero"]
    trace = tracer.load(folder)
    assert [weights for weights, _ in odometers] == [[5] * 4] * 2
    own = [each for _, each in odometers]
    assert sum(own) == 4
    counted = trace.count("updates", by=("worker",))
    assert [counted.get((f"rank:{rank}",), 0) for rank in (0, 1)] == [5 * each for each in own]
    assert trace.count("updates", by=("variable",)) == {(v.name,): 5 for v in trace.variables}
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}  # those of the other are sent
    assert trace.complete and trace.findings() == []
    (decay,) = (each for each in trace.data.rates if each.what == "decay")
    assert len(decay.variables) == 4  # of the groups of both
    for rank in (0, 1):  # the other one updates, and decays, what this one does not
        assert tracer.load(folder / f"rank-{rank}.json").findings() == []


def test_parameters_that_are_split(ran: dict[str, Ran]) -> None:
    """FSDP with `use_orig_params`: a rank holds a part of a parameter, or nothing of it."""
    folder, odometers = ran["fsdp"]
    trace = tracer.load(folder)
    assert sorted(each for weights, _ in odometers for each in weights) == [0] * 3 + [5] * 5
    names = [each.name for each in trace.variables]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    counted = trace.count("updates", by=("worker", "variable"))
    for rank, (weights, _) in enumerate(odometers):
        assert [counted.get((f"rank:{rank}", name), 0) for name in names] == weights
    assert trace.complete and trace.findings() == []
    for rank in (0, 1):  # nor is a part of which a rank holds nothing without a gradient
        assert tracer.load(folder / f"rank-{rank}.json").findings() == []


def test_a_shard_without_elements_cannot_change(ran: dict[str, Ran]) -> None:
    """The last layer has one row, so `fully_shard` leaves nothing of it to rank 1."""
    folder, odometers = ran["fsdp2"]
    assert odometers == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(folder)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 10}  # of its two parts with elements
    assert trace.complete and trace.findings() == []
