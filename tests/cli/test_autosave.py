"""Keeping a trace in a file while the program runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import traces
from support.patience import wait_until

import tracer
from tracer.cli.process import Autosave
from tracer.model import launches
from tracer.model.trace import Trace


class Snapshots:
    """Gives the trace that is its `trace` then, and counts how often it was asked."""

    def __init__(self, trace: Callable[[], Trace]) -> None:
        self.trace = trace
        self.taken = 0

    def __call__(self) -> Trace:
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
    autosave = Autosave(snapshots, lambda trace: path, seconds=0.05)
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


def of_this_process(steps: int) -> Trace:
    return Trace(launches.of_this_process(traces.accumulation(steps).data))


def test_a_file_of_this_process_moves(tmp_path: Path) -> None:
    paths = [tmp_path / "tracer.json", tmp_path / "traces" / "launch" / "rank-0.json"]
    snapshots = Snapshots(lambda: of_this_process(8))
    autosave = Autosave(snapshots, lambda trace: paths[trace.steps > 8], seconds=0.05)
    wait_until(paths[0].exists)
    snapshots.trace = lambda: of_this_process(64)
    assert autosave.finish() == paths[1]
    assert [each for each in tmp_path.rglob("*.json")] == [paths[1]]


PROCESS = """
import sys
from pathlib import Path
from test_autosave import of_this_process
from tracer.cli.process import Autosave
path = Path(sys.argv[1])
autosave = Autosave(lambda: of_this_process(8), lambda trace: path, seconds=0.1)
sys.stdin.readline()
autosave.finish()
"""


def test_two_runs_at_once_have_a_file_each(tmp_path: Path) -> None:
    path = tmp_path / "tracer.json"
    search = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(path)],
        env={**os.environ, "PYTHONPATH": search},
        stdin=subprocess.PIPE,
        text=True,
    ) as other:
        wait_until(path.exists)
        own = Autosave(lambda: of_this_process(64), lambda trace: path, seconds=0.1).finish()
        assert own == tmp_path / f"tracer-{os.getpid()}.json"
        other.communicate("end")
    assert [tracer.load(each).steps for each in (own, path)] == [64, 8]
    # The process has ended, so its file is of an earlier run.
    assert Autosave(lambda: of_this_process(16), lambda trace: path, seconds=1).finish() == path


@pytest.mark.parametrize("error", [OSError("no"), RuntimeError("no"), None])
def test_what_goes_wrong_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    def snapshot() -> Trace:
        if error is not None:
            raise error
        return traces.eager()

    snapshots = Snapshots(snapshot)
    (tmp_path / "file").touch()
    autosave = Autosave(snapshots, lambda trace: tmp_path / "file" / "x.json", seconds=0.05)
    snapshots.wait_for_a_save()
    assert autosave.finish() is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracer: ")
    assert "the program goes on" in said


def test_it_goes_on_when_a_folder_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "file" / "run.json"
    path.parent.touch()
    autosave = Autosave(snapshots := Snapshots(traces.eager), lambda trace: path, seconds=0.05)
    snapshots.wait_for_a_save()
    path.parent.unlink()
    assert autosave.finish() == path
    assert tracer.load(path).finished
