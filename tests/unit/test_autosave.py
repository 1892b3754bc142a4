"""Keeping a trace in a file while the program runs."""

import time
from pathlib import Path

import pytest
import traces

import tracer
from tracer.api import CallTrace
from tracer.cli.autosave import Autosave


def test_the_file_follows_the_trace_and_is_unfinished_until_the_end(tmp_path: Path) -> None:
    steps = 8

    def snapshot() -> CallTrace:
        return traces.accumulation(steps)

    path = tmp_path / "run.json"
    autosave = Autosave(snapshot, path, folder=False, seconds=0.2)
    autosave.start()
    for steps in (8, 16, 24):
        time.sleep(0.3)
        found = tracer.load(path)
        assert (found.steps, found.finished) == (steps, False)
    steps = 64
    assert autosave.finish() == path
    found = tracer.load(path)
    assert (found.steps, found.finished) == (64, True)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_file_in_a_folder_is_named_by_the_worker_when_it_is_known(tmp_path: Path) -> None:
    trace = traces.nothing()
    autosave = Autosave(lambda: trace, tmp_path, folder=True, seconds=0.2)
    autosave.start()
    time.sleep(0.3)
    assert not list(tmp_path.iterdir())
    trace = traces.eager()
    time.sleep(0.3)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]
    trace = traces.uneven_replicas()
    autosave.finish()
    assert [each.name for each in tmp_path.iterdir()] == ["worker-0+worker-1.json"]


@pytest.mark.parametrize("error", [OSError("no"), RuntimeError("no"), None])
def test_what_goes_wrong_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    def snapshot() -> CallTrace:
        if error is not None:
            raise error
        return traces.eager()

    path = tmp_path / "gone" / "run.json"
    autosave = Autosave(snapshot, path, folder=False, seconds=0.1)
    autosave.start()
    time.sleep(0.4)
    assert autosave.finish() is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracer: ")
    assert "the program goes on" in said


def test_it_goes_on_when_the_folder_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "run.json"
    autosave = Autosave(traces.eager, path, folder=False, seconds=0.1)
    autosave.start()
    time.sleep(0.2)
    path.parent.mkdir()
    assert autosave.finish() == path
    assert tracer.load(path).finished
