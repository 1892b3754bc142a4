"""Following a file that another process writes."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console
from support import traces
from support.patience import LONGEST, wait_until

from tracer.cli.watch import progress, watch
from tracer.errors import TraceFileError


def test_progress() -> None:
    before, after = traces.accumulation(steps=40), traces.accumulation(steps=64)
    ((row,),) = progress(after, before, 4.0)
    assert (row.name, row.cells) == ("adam", ("64", "6.0", "0-4", "48", "4"))
    ((row, *replicas),) = progress(traces.uneven_replicas(), None, 1.0)
    assert row.cells == ("10", "", "2-4", "0", "2")
    assert [(each.name.strip(), each.cells[0]) for each in replicas] == [
        ("worker:0 replica 0", "10"),
        ("worker:0 replica 1", "10"),
        ("worker:1 replica 0", "8"),
        ("worker:1 replica 1", "8"),
    ]


def _write(folder: Path, out: io.StringIO) -> None:
    """Write a trace, and another one each time that something was said of the last."""
    for steps, finished in ((8, False), (16, False), (64, True)):
        length = len(out.getvalue())
        trace = traces.changed(traces.accumulation(steps), finished=finished)
        trace.save(folder / "run.json")
        wait_until(lambda length=length: len(out.getvalue()) > length)  # type: ignore[misc]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", ["run.json", ""])
def test_watch_ends_with_the_run(tmp_path: Path, terminal: bool, name: str) -> None:
    out = io.StringIO()
    writer = threading.Timer(0.1, _write, [tmp_path, out])
    writer.start()
    console = Console(file=out, force_terminal=terminal, width=100)
    assert watch(tmp_path / name, console, patience=LONGEST)
    writer.join()
    if terminal:
        assert "finished" in out.getvalue() and "64" in out.getvalue()
    else:
        lines = out.getvalue().splitlines()
        assert [line.split("; ")[0] for line in lines] == [
            f"adam: {steps} steps" for steps in (8, 16, 64)
        ]
        assert "steps/s" in lines[1]


def test_watch_gives_up_and_refuses_what_is_no_trace(tmp_path: Path) -> None:
    assert not watch(tmp_path / "none.json", Console(file=io.StringIO()), patience=0.3)
    (tmp_path / "text.json").write_text("text")
    with pytest.raises(TraceFileError, match="is not a trace file"):
        watch(tmp_path / "text.json", Console(file=io.StringIO()), patience=1)
