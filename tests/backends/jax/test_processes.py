"""Two processes: each counts for itself what it can, and their files are one run."""

from pathlib import Path

import pytest
from support import ranks

import tracer


def moves_of_two(program: str, folder: Path) -> list[float]:
    """What two processes of a program print at last: how far the weights moved in each."""
    return [float(each.split()[-1]) for each in ranks.launch(program, folder)]


@pytest.mark.long
def test_the_first_process_counts_what_keras_splits_over_both(tmp_path: Path) -> None:
    """XLA calls Python on the first device alone; the second process says that it does not know."""
    assert moves_of_two("keras_on_jax.py", tmp_path) == [24, 24]  # 6 steps of 4 variables
    trace = tracer.load(tmp_path)
    assert trace.count("updates", by="worker")["process:0",] == 24
    assert trace.count("compared", by="worker")["process:0",] == 24
    assert not trace.count("unchanged", by=()) and not trace.count("not_finite", by=())
    assert trace.steps == 6 and not trace.complete
    assert [each.partition(":")[0] for each in trace.notes] == ["process"]
    assert "as keras.distribution makes it" in trace.notes[0]
    assert not trace.findings(), trace.findings()


@pytest.mark.long
def test_a_process_that_steps_alone_before_all_step_together(tmp_path: Path) -> None:
    """What XLA splits over both is counted in the first, and the second one says so."""
    pytest.importorskip("optax")
    moved = moves_of_two("optax_processes.py", tmp_path)
    assert moved == [5, 8]
    first, second = (tracer.load(tmp_path / f"{rank}.json") for rank in (0, 1))
    assert first.complete and first.updates() == 5
    assert second.updates() in (3, 8)
    assert not second.complete and "XLA splits over processes" in second.notes[0]
