"""Several processes of `torch.distributed`: each rank is a worker."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tracer

pytest.importorskip("torch")  # which other processes import

PROGRAM = Path(__file__).parents[2] / "programs" / "torch_ranks.py"


def ran(way: str, folder: Path) -> list[tuple[list[int], int]]:
    """Train in two processes; what the odometers of each rank say, and how many are its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), way, str(folder), str(port)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(re.findall(r"rank (\d): \[(.*?)\], (\d)", done.stdout))
    return [([int(n) for n in weights.split(",")], int(own)) for _, weights, own in said]


def changed(trace: tracer.CallTrace) -> dict[tuple[object, ...], int]:
    """In how many steps the weights of each rank changed, all added up."""
    assert not trace.count("unchanged", by=())
    return trace.count("compared", by=("worker",))


@pytest.mark.long
def test_data_parallel(tmp_path: Path) -> None:
    assert ran("ddp", tmp_path) == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(tmp_path)
    assert (trace.workers, trace.steps) == (("rank:0", "rank:1"), 5)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert trace.complete and trace.findings() == []
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}
    assert "Each step made 4 updates on each of 2 ranks" in trace.answer()
    # One rank alone: the other one is missing.
    assert not tracer.merge([tracer.load(tmp_path / "rank-0.json")]).complete


@pytest.mark.long
def test_an_optimizer_that_is_split(tmp_path: Path) -> None:
    odometers = ran("zero", tmp_path)
    trace = tracer.load(tmp_path)
    assert [weights for weights, _ in odometers] == [[5] * 4] * 2
    own = [each for _, each in odometers]
    assert sum(own) == 4
    counted = trace.count("updates", by=("worker",))
    assert [counted.get((f"rank:{rank}",), 0) for rank in (0, 1)] == [5 * each for each in own]
    assert trace.count("updates", by=("variable",)) == {(v.name,): 5 for v in trace.variables}
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}  # those of the other are sent
    assert trace.complete and trace.findings() == []


@pytest.mark.long
def test_parameters_that_are_split(tmp_path: Path) -> None:
    """FSDP with `use_orig_params`: a rank holds a part of a parameter, or nothing of it."""
    odometers = ran("fsdp", tmp_path)
    trace = tracer.load(tmp_path)
    assert sorted(each for weights, _ in odometers for each in weights) == [0] * 3 + [5] * 5
    names = [each.name for each in trace.variables]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    counted = trace.count("updates", by=("worker", "variable"))
    for rank, (weights, _) in enumerate(odometers):
        assert [counted.get((f"rank:{rank}", name), 0) for name in names] == weights
    assert trace.complete and trace.findings() == []
    for rank in (0, 1):  # nor is a part of which a rank holds nothing without a gradient
        assert tracer.load(tmp_path / f"rank-{rank}.json").findings() == []


def test_a_shard_without_elements_cannot_change(tmp_path: Path) -> None:
    """The last layer has one row, so `fully_shard` leaves nothing of it to rank 1."""
    assert ran("fsdp2", tmp_path) == [([5] * 4, 4), ([5] * 4, 4)]
    trace = tracer.load(tmp_path)
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 20, ("rank:1",): 20}
    assert changed(trace) == {("rank:0",): 20, ("rank:1",): 20}
    assert trace.complete and trace.findings() == []
