"""Several processes of `torch.distributed`: each rank is a worker."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ranks

import tracer
from tracer.model.phrases import sentences_on
from tracer.model.trace import summaries_of

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


def changed(trace: tracer.Trace) -> dict[tuple[object, ...], int]:
    """In how many steps the weights of each rank changed, all added up."""
    assert not trace.count("unchanged", by=())
    return trace.count("compared", by=("worker",))


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]
RANKS = ("rank:0", "rank:1")


def exact(
    ran: Ran, updates: Sequence[int] = (20, 20), weights: Any = ([5] * 4,) * 2
) -> tracer.Trace:
    """The trace of all ranks, complete and healthy, which has these updates of each of them.

    So is the trace of each rank alone.
    """
    folder, odometers = ran
    assert [each for each, _ in odometers] == list(weights)
    trace = tracer.load(folder)
    by_worker = trace.count("updates", by="worker")
    assert [by_worker.get((rank,), 0) for rank in RANKS] == list(updates)
    for each in (trace, *(tracer.load(folder / f"rank-{rank}.json") for rank in (0, 1))):
        assert each.complete and each.findings() == []
        assert "skipped" not in each.answer()
    return trace


def test_data_parallel(ran: dict[str, Ran]) -> None:
    trace = exact(ran["ddp"])
    assert (trace.workers, trace.steps) == (RANKS, 5)
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}
    assert "Each step made 4 updates on each of 2 ranks" in trace.answer()
    # One rank alone: the other one is missing.
    assert not tracer.merge([tracer.load(ran["ddp"][0] / "rank-0.json")]).complete


def test_an_optimizer_that_is_split(ran: dict[str, Ran]) -> None:
    """The other rank updates, and decays, what one does not."""
    own = [each for _, each in ran["zero"][1]]
    assert sum(own) == 4
    trace = exact(ran["zero"], [5 * each for each in own])
    assert trace.count("updates", by=("variable",)) == {(v.name,): 5 for v in trace.variables}
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}  # those of the other are sent
    (summary,) = summaries_of(trace)
    assert "weight decay 0.1 on all 4 parameters" in " ".join(sentences_on(summary))  # of both


def test_parameters_that_are_split(ran: dict[str, Ran]) -> None:
    """FSDP with `use_orig_params`: a rank holds a part of a parameter, or nothing of it."""
    weights = [each for each, _ in ran["fsdp"][1]]
    assert sorted(each for own in weights for each in own) == [0] * 3 + [5] * 5
    trace = exact(ran["fsdp"], [*map(sum, weights)], weights)
    assert [each.name for each in trace.variables] == NAMES
    counted = trace.count("updates", by=("worker", "variable"))
    assert [[counted.get((rank, name), 0) for name in NAMES] for rank in RANKS] == weights


def test_a_shard_without_elements_cannot_change(ran: dict[str, Ran]) -> None:
    """The last layer has one row, so `fully_shard` leaves nothing of it to rank 1."""
    trace = exact(ran["fsdp2"])
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 10}  # of its two parts with elements


def test_an_optimizer_that_writes_to_the_local_tensors_of_shards(ran: dict[str, Ran]) -> None:
    """Which changes no version."""
    folder, odometers = ran["local"]
    assert odometers == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(folder)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert not trace.complete and "Local has a custom step that did not change" in trace.notes[0]


def test_a_loss_scale_where_a_rank_trains_nothing(ran: dict[str, Ran]) -> None:
    """No step was skipped, though rank 0 updates nothing."""
    exact(ran["scaled"], (0, 10), ([0, 0, 0, 0], [0, 0, 5, 5]))


@pytest.mark.parametrize("way", ["whole", "backward"])
def test_modules_that_hold_whole_copies(way: str, ran: dict[str, Ran]) -> None:
    """`fully_shard` puts them in place of the sharded parameters until it shards them again.

    In the backward pass some have gradients, and no optimizer has them.
    """
    trace = exact(ran[way])
    assert [each.name for each in trace.variables] == NAMES
    assert trace.count("updates", by=("variable",)) == {(name,): 10 for name in NAMES}


def test_ranks_with_different_rates(ran: dict[str, Ran]) -> None:
    trace = tracer.load(ran["rates"][0])
    said = "Learning rate 1 and 1 -> 0.5 (2 values), by rank."
    assert [" ".join(sentences_on(each)) for each in summaries_of(trace)] == [said]
    assert not trace.findings()


def test_a_rank_that_drops_the_gradient_of_its_shard(ran: dict[str, Ran]) -> None:
    folder, odometers = ran["none"]
    assert [weights for weights, _ in odometers] == [[5] * 4] * 2  # the first row is on rank 0
    found, why = tracer.load(folder).findings()
    assert (found.code, found.variables, found.step) == ("replicas-disagree", ("0.weight",), 1)
    assert why.text == "0.weight had no gradient (None) in 5 of 5 steps, first in step 1."


def test_ranks_that_use_two_optimizers_in_another_order(ran: dict[str, Ran]) -> None:
    trace = exact(ran["order"], (14, 14), ([5, 5, 2, 2],) * 2)
    assert trace.count("updates", by=("optimizer", "variable", "worker")) == {
        (optimizer, f"{name}{number}", rank): steps
        for optimizer, number, steps in (("Odometer", "", 5), ("Odometer#2", "#2", 2))
        for name in ("weight", "bias")
        for rank in RANKS
    }
