"""Following a file that another process writes."""

import io
import itertools
import os
import threading
from pathlib import Path

import pytest
from rich.console import Console
from support import traces
from support.patience import LONGEST, wait_until

from tracer.api import CallTrace
from tracer.cli.watch import progress, watch
from tracer.errors import TraceFileError
from tracer.model.records import Program, Replica
from tracer.model.runs import Run


def test_progress() -> None:
    before, after = traces.accumulation(steps=40), traces.accumulation(steps=64)
    (row,) = progress(after, before, 4.0)
    assert (row.name, row.cells) == ("adam", ("64", "6.0", "0-4", "48", "2"))
    (row,) = progress(before, after, 4.0)  # another run has begun
    assert row.cells[:2] == ("40", "0.0")
    row, *replicas = progress(traces.uneven_replicas(), None, 1.0)
    assert row.cells == ("10", "", "2-4", "0", "2")
    assert [(each.name.strip(), each.cells[0]) for each in replicas] == [
        ("worker:0 replica 0", "10"),
        ("worker:0 replica 1", "10"),
        ("worker:1 replica 0", "8"),
        ("worker:1 replica 1", "8"),
    ]


def ranks(*programs: tuple[int, float]) -> CallTrace:
    """A run of ranks, which made so many steps in so many seconds until each wrote its file."""
    blocks = [
        traces.block([traces.step(), traces.update(0)], Run(1, 1, steps), replica=rank)
        for rank, (steps, _) in enumerate(programs)
    ]
    names = [f"rank:{rank}" for rank in range(len(programs))]
    return traces.changed(
        traces.keras3(("weight",), tuple(blocks), ()),
        replicas=tuple(Replica(name, 0, "cpu") for name in names),
        programs=tuple(
            Program("train.py", 0.0, seconds, name, finished=False)
            for name, (_, seconds) in zip(names, programs, strict=True)
        ),
    )


def test_the_rate_of_a_rank_is_taken_between_its_own_files() -> None:
    """Each of two ranks makes 1 step a second; their files are half a second apart."""
    written = [
        ranks((10, 12.0), (9, 11.5)),
        ranks((10, 12.0), (13, 15.5)),
        ranks((14, 16.0), (13, 15.5)),
    ]
    for before, after in itertools.pairwise(written):
        assert progress(after, before, 0.5)[0].cells[1] == "1.0"


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
    rows = [line.split() for line in out.getvalue().splitlines()]
    states = [each[-1] for each in rows if "/" in each[0]]
    steps = [each[1] for each in rows if each[0] == "adam"]
    if terminal:
        assert "finished" in out.getvalue() and "64" in out.getvalue()
    else:
        assert states == ["running", "running", "finished"]
        assert steps == ["8", "16", "64"]


class Clock:
    """The time as a run goes on for which `watch` waits; at each number of seconds it is saved."""

    def __init__(self, file: Path, *saved: float) -> None:
        self.file = file
        self.saved = list(saved)
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.5
        self.now += seconds
        while self.saved and self.saved[0] <= self.now:
            trace = traces.changed(traces.accumulation(8), finished=False)
            trace.save(self.file)
            at = 10**9 + self.saved.pop(0)
            os.utime(self.file, (at, at))


@pytest.mark.parametrize(
    ("saved", "news", "ended"),
    [((), 0, 10), ((9,), 1, 19), ((9, 18, 27), 3, 37), ((11,), 0, 10), ((5, 16), 1, 15)],
)
def test_watch_waits_for_news_as_long_as_it_is_patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: tuple[int, ...], news: int, ended: int
) -> None:
    """It counts from the last news, and looks often enough."""
    clock = Clock(tmp_path / "run.json", *saved)
    monkeypatch.setattr("tracer.cli.watch.time", clock)
    out = io.StringIO()
    assert not watch(clock.file, Console(file=out), patience=10)
    assert out.getvalue().count("running") == news
    assert ended <= clock.now <= ended + 1


def test_watch_names_who_died(tmp_path: Path) -> None:
    ranks = Replica("rank:0", 0, "cpu"), Replica("rank:1", 0, "cpu")
    for number, (replica, status) in enumerate(zip(ranks, (None, 1), strict=True)):
        trace = traces.changed(
            traces.accumulation(8),
            replicas=(replica,),
            environment={"cluster": "rank:0, rank:1"},
            finished=bool(status),
            programs=(
                Program("train.py", 1.0, 9.0, replica.worker, status, finished=bool(status)),
            ),
        )
        trace.save(tmp_path / f"rank-{number}.json")
    out = io.StringIO()
    assert not watch(tmp_path, Console(file=out, width=200), patience=0.1)
    assert out.getvalue().splitlines()[-1] == (
        "The program of rank:0 wrote nothing after step 8. "
        "The program of rank:1 ended with status 1, after step 8."
    )


def test_watch_refuses_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("text")
    with pytest.raises(TraceFileError, match="is not a trace file"):
        watch(tmp_path / "text.json", Console(file=io.StringIO()), patience=1)
