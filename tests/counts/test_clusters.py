"""Real processes on this machine: several workers, parameter servers, and their merged traces."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support import cluster

import tracer

STEPS = 40


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, marks=pytest.mark.sweep), pytest.param(3, marks=pytest.mark.long)],
    ids="{} workers".format,
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a finished run, and its number of workers."""
    folder = tmp_path_factory.mktemp("run")
    spec = cluster.addresses(worker=request.param)
    with cluster.running("mirrored_workers.py", spec, folder) as tasks:
        for task in tasks.values():
            task.wait()
    return folder, request.param


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_each_worker_agrees_with_its_odometer(run: Any, kind: str) -> None:
    folder, workers = run
    merged = tracer.load(folder / kind)
    assert merged.complete, merged.notes
    assert merged.workers == tuple(f"worker:{index}" for index in range(workers))
    assert merged.steps == STEPS
    assert [(each.worker, each.id) for each in merged.replicas] == [
        (f"worker:{index}", 0) for index in range(workers)
    ]
    assert list(merged.steps_by_replica().values()) == [STEPS] * workers
    for index in range(workers):
        alone = tracer.load(folder / kind / f"worker-{index}.json")
        assert alone.workers == (f"worker:{index}",)
        truth = json.loads((folder / f"{kind}.worker-{index}.truth").read_text())
        for trace, worker in ((alone, None), (merged, f"worker:{index}")):
            for name, (dense, sparse) in truth.items():
                assert dense + sparse == STEPS
                assert trace.updates("dense", variable=name, worker=worker) == dense
                assert trace.updates("sparse", variable=name, worker=worker) == sparse
            assert list(trace.per_step("updates", worker=worker)) == [(1, STEPS, len(truth))]
    assert merged.updates() == workers * STEPS * len(truth)
    assert {each.severity for each in merged.findings()} <= {"info"}


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(False, marks=pytest.mark.sweep, id="undisturbed"),
        pytest.param(True, marks=pytest.mark.long, id="a worker restarts"),
    ],
)
def test_parameter_servers(killed: bool, tmp_path: Path) -> None:
    if killed:
        (tmp_path / "pause").touch()
    spec = cluster.addresses(chief=1, worker=2, ps=1)
    with cluster.running("parameter_servers.py", spec, tmp_path) as tasks:
        if killed:
            limit = time.monotonic() + cluster.LIMIT
            while not (tmp_path / "half").exists() and tasks["chief:0"].process.poll() is None:
                assert time.monotonic() < limit
                time.sleep(0.05)
            tasks["worker:1"].end()
            tasks["worker:1"] = cluster.Task("parameter_servers.py", spec, "worker", 1, tmp_path)
            (tmp_path / "on").touch()
        tasks["chief:0"].wait()
    for kind in ("legacy", "keras2"):
        trace = tracer.load(tmp_path / f"{kind}.json")
        truth = json.loads((tmp_path / f"{kind}.truth").read_text())
        scheduled = truth["scheduled"]
        assert truth["bias"] == scheduled
        assert trace.steps == scheduled
        assert trace.updates(variable="bias") == scheduled
        assert list(truth["shards"].values()) == [[scheduled], [scheduled]]
        for name in truth["shards"]:
            assert trace.updates(variable=name.removesuffix(":0")) == scheduled
        assert trace.updates(variable="table/*") == 2 * scheduled
        assert truth["by object"] == scheduled
        assert trace.workers == ("",)
        assert "it is unknown which worker ran an update" in trace.notes[0]
