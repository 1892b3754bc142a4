"""Several processes of `torch.distributed`: each rank is a worker."""

import json
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
    (summary,) = summaries_of(trace)
    assert "weight decay 0.1 on all 4 parameters" in " ".join(sentences_on(summary))  # of both
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


def test_an_optimizer_that_writes_to_the_local_tensors_of_shards(ran: dict[str, Ran]) -> None:
    """Which changes no version."""
    folder, odometers = ran["local"]
    assert odometers == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(folder)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert not trace.complete and "Local has a custom step that did not change" in trace.notes[0]


def test_a_loss_scale_where_a_rank_trains_nothing(ran: dict[str, Ran]) -> None:
    """No step was skipped, though rank 0 updates nothing."""
    folder, odometers = ran["scaled"]
    assert [weights for weights, _ in odometers] == [[0, 0, 0, 0], [0, 0, 5, 5]]
    trace = tracer.load(folder)
    assert trace.count("updates", by=("worker",)) == {("rank:1",): 10}
    for each in (trace, *(tracer.load(folder / f"rank-{rank}.json") for rank in (0, 1))):
        assert each.complete and each.findings() == []
        assert "skipped" not in each.answer()


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_modules_that_hold_whole_copies(ran: dict[str, Ran]) -> None:
    """`fully_shard` puts them in place of the sharded parameters until it shards them again."""
    folder, odometers = ran["whole"]
    assert odometers == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(folder)
    assert [each.name for each in trace.variables] == NAMES
    assert trace.count("updates", by=("variable",)) == {(name,): 10 for name in NAMES}
    assert trace.complete and trace.findings() == []


def test_steps_in_the_backward_pass(ran: dict[str, Ran]) -> None:
    """Some modules hold whole copies then, which have gradients, and no optimizer has them."""
    folder, odometers = ran["backward"]
    assert odometers == [([5] * 4, 1), ([5] * 4, 1)]
    for trace, ranks_of in [(tracer.load(folder), 2)] + [
        (tracer.load(folder / f"rank-{rank}.json"), 1) for rank in (0, 1)
    ]:
        assert trace.count("updates", by=("variable",)) == {(n,): 5 * ranks_of for n in NAMES}
        assert trace.complete and trace.findings() == []


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
    folder, odometers = ran["order"]
    assert [weights for weights, _ in odometers] == [[5, 5, 2, 2]] * 2
    trace = tracer.load(folder)
    assert trace.count("updates", by=("optimizer", "variable", "worker")) == {
        (optimizer, f"{name}{number}", f"rank:{rank}"): steps
        for optimizer, number, steps in (("Odometer", "", 5), ("Odometer#2", "#2", 2))
        for name in ("weight", "bias")
        for rank in (0, 1)
    }
    assert trace.complete and trace.findings() == []
