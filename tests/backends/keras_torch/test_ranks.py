"""Two processes with `DistributedDataParallel`: each is a worker, and their traces are merged."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import ranks

import tracer

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote."""
    made = tmp_path_factory.mktemp("ranks")
    ranks.launch("keras_torch_ranks.py", made)
    return made


@pytest.mark.parametrize("name", ["odometer", "sgd"])
def test_ranks_are_workers(folder: Path, name: str) -> None:
    truths = [json.loads((folder / f"truth-{rank}.json").read_text())[name] for rank in range(2)]
    assert truths[0] == truths[1]  # they are kept alike, so the gradients came from both
    kernel, bias = map(np.ravel, truths[0])
    if name == "odometer":
        assert {*kernel, *bias} == {5.0}
    else:  # the mean of the gradients of both ranks, which are 1 and 2 for the kernel
        assert np.allclose(kernel, -0.1 * 5 * 1.5)
        assert np.allclose(bias, -0.1 * 5)
    trace = tracer.load(folder / name)
    assert trace.complete, trace.notes
    assert trace.workers == ("rank:0", "rank:1")
    assert trace.steps == 5
    for rank in trace.workers:
        assert trace.updates(worker=rank) == 2 * 5
        for part in ("kernel", "bias"):
            assert trace.updates(variable=f"*/{name}/{part}", worker=rank) == 5
    assert trace.updates() == 2 * 2 * 5
    assert "torch.distributed (gloo)" in trace.data.environment["strategy"]


def test_a_rank_without_a_trace_is_said(folder: Path) -> None:
    alone = tracer.load(folder / "sgd" / "rank-0.json")
    merged = tracer.merge([alone])
    assert not merged.complete
    assert any("rank:1" in note for note in merged.notes)
