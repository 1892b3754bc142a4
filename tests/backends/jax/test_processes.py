"""Two processes: each counts for itself what calls it, and their files are one run."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ranks

import tracer


def printed_by_two(program: str, folder: Path, given: str = "") -> list[dict[str, Any]]:
    """What each of two processes of a program prints."""
    return [json.loads(each.splitlines()[-1]) for each in ranks.launch(program, folder, given)]


@pytest.mark.sweep
def test_the_first_process_counts_what_keras_splits_over_both(tmp_path: Path) -> None:
    both = printed_by_two("keras_on_jax.py", tmp_path)
    assert both == printed_by_two("keras_on_jax.py", tmp_path, "-")  # the bits without the tracer
    half, whole = [[4, 2], [2], [2, 1], [1]], [[4, 4], [4], [4, 1], [1]]
    for name, shards in ("split", half), ("copied", whole):
        for printed in both:
            assert printed[name]["moved"] == [6] * 4 and printed[name]["steps"] == 6
            assert printed[name]["shards"] == shards
        for optimizer in ("odometer", "adam"):
            traces = [tracer.load(tmp_path / f"{name}-{optimizer}" / f"{n}.json") for n in (0, 1)]
            for count in ("updates", "compared"):
                assert [sum(each.count(count, by=()).values()) for each in traces] == [24, 0]
            for trace in traces:
                is_noted(trace)
                assert [each.shape for each in trace.data.variables] == [(4, 4), (4,), (4, 1), (1,)]
                assert [each.iterations for each in trace.data.optimizers] == [6]


def is_noted(trace: tracer.Trace) -> None:
    """A trace is incomplete because the first process alone counts."""
    assert not trace.complete and any("only the process with" in each for each in trace.notes)


REPLICAS: dict[str, list[Any]] = {
    "here_in_shard_map": [(0, 1), (0, 1)],
    "shard_map": [(0, 1), (2, 3)],
    "pmap": [(0, 1), (2, 3)],
}
"""The replicas in each process, where they are not one."""
SPLIT = {
    "split": [5, 0],
    "copied": [5, 0],
    "crossed": [5, 0],
    "scanned": [10, 0],
    "branch": [3, 0],
    "alone_then_together": [5, 3],
    "here": [5, 6],
    "reordered": [3, 2],
    "adam": [40, 0],
}
"""What each process counts of programs over several devices: those whose first device it has."""


@pytest.mark.long
def test_each_process_counts_what_it_runs_with_optax(tmp_path: Path) -> None:
    """Alone or with the other one, in a program over all devices or over its own."""
    pytest.importorskip("optax")
    both = printed_by_two("optax_processes.py", tmp_path)
    assert (
        both[0].keys()
        == both[1].keys()
        == {each.name for each in tmp_path.iterdir() if each.is_dir()}
    )
    for case, counts in SPLIT.items():
        for rank in (0, 1):
            trace = tracer.load(tmp_path / case / f"{rank}.json")
            assert trace.updates() == counts[rank], case
            is_noted(trace)
    for case in both[0].keys() - {*SPLIT, "last_never", "accumulated_on_one"}:
        trace = tracer.load(tmp_path / case)
        moved = [printed[case] for printed in both]
        assert trace.complete, trace.notes
        assert trace.count("updates", by=("worker", "replica")) == {
            (f"process:{rank}", replica): moved[rank]
            for rank in (0, 1)
            for replica in REPLICAS.get(case, [(0,), (0,)])[rank]
        }
        found = [each.code for each in trace.findings()]
        assert found == ["replicas-disagree"] * (moved[0] != moved[1])
    adam = tracer.load(tmp_path / "adam" / "0.json")
    assert adam.count("updates", by="variable") == {("bias",): 20, ("kernel",): 20}
    assert {each.name: each.shape for each in adam.data.variables} == {
        "bias": (6,),
        "kernel": (8, 6),
    }
    last_never = tracer.load(tmp_path / "last_never")
    assert [printed["last_never"] for printed in both] == [[4, 4], [4, 0]]
    assert list(last_never.count("updates", by=("worker", "replica")).values()) == [4, 4, 4]
    assert not last_never.complete and "some replicas" in last_never.notes[0]
    accumulated = tracer.load(tmp_path / "accumulated_on_one")
    assert [printed["accumulated_on_one"] for printed in both] == [3, 3] and accumulated.complete
    for count in ("updates", "discarded"):
        assert accumulated.count(count, by="worker") == {("process:0",): 3, ("process:1",): 3}
