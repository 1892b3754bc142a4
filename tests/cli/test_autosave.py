"""Keeping a trace in a file while the program runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import traces
from support.patience import wait_until

import tracer
from tracer.api import CallTrace
from tracer.cli.autosave import Autosave


class Snapshots:
    """Gives the trace that is its `trace` then, and counts how often it was asked."""

    def __init__(self, trace: Callable[[], CallTrace]) -> None:
        self.trace = trace
        self.taken = 0

    def __call__(self) -> CallTrace:
        self.taken += 1
        return self.trace()

    def wait_for_a_save(self) -> None:
        """Wait until what `trace` gives was saved, or could not be."""
        # The next snapshot may be under way; when the one after it begins, the next is dealt with.
        last = self.taken + 2
        wait_until(lambda: self.taken >= last)


def test_the_file_follows_the_trace_and_is_unfinished_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    snapshots = Snapshots(lambda: traces.accumulation(8))
    autosave = Autosave(snapshots, path, seconds=0.05)
    for steps in (8, 16, 24):
        trace = traces.accumulation(steps)
        snapshots.trace = lambda trace=trace: trace  # type: ignore[misc]
        snapshots.wait_for_a_save()
        found = tracer.load(path)
        assert (found.steps, found.finished) == (steps, False)
    snapshots.trace = lambda: traces.accumulation(64)
    assert autosave.finish() == path
    found = tracer.load(path)
    assert (found.steps, found.finished) == (64, True)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_file_in_a_folder_is_named_by_the_worker_when_it_is_known(tmp_path: Path) -> None:
    snapshots = Snapshots(traces.nothing)
    autosave = Autosave(snapshots, None, tmp_path, seconds=0.05)
    snapshots.wait_for_a_save()
    assert not list(tmp_path.iterdir())
    snapshots.trace = traces.eager
    snapshots.wait_for_a_save()
    wait_until(lambda: [each.name for each in tmp_path.iterdir()] == ["trace.json"])
    snapshots.trace = traces.uneven_replicas
    autosave.finish()
    assert [each.name for each in tmp_path.iterdir()] == ["worker-0+worker-1.json"]


def test_it_is_saved_soon_after_the_first_step_and_when_it_is_urgent(tmp_path: Path) -> None:
    """Else the next save would come after 800 s."""
    steps: list[int] = []
    snapshots = Snapshots(traces.eager)
    autosave = Autosave(snapshots, tmp_path / "run.json", seconds=1000, begun=lambda: bool(steps))
    wait_until(lambda: snapshots.taken == 1)
    autosave.hurry()
    wait_until(lambda: snapshots.taken == 2)
    steps.append(1)
    wait_until(lambda: snapshots.taken >= 4)
    autosave.finish()


@pytest.mark.parametrize("error", [OSError("no"), RuntimeError("no"), None])
def test_what_goes_wrong_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    def snapshot() -> CallTrace:
        if error is not None:
            raise error
        return traces.eager()

    snapshots = Snapshots(snapshot)
    (tmp_path / "file").touch()
    autosave = Autosave(snapshots, tmp_path / "file" / "run.json", seconds=0.05)
    snapshots.wait_for_a_save()
    assert autosave.finish() is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracer: ")
    assert "the program goes on" in said


def test_it_goes_on_when_a_folder_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "file" / "run.json"
    path.parent.touch()
    autosave = Autosave(snapshots := Snapshots(traces.eager), path, seconds=0.05)
    snapshots.wait_for_a_save()
    path.parent.unlink()
    assert autosave.finish() == path
    assert tracer.load(path).finished
