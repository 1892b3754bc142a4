"""Files of workers: each is of one process, none is lost, and SIGTERM is known afterwards."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import traces

import tracer
from tracer.api import CallTrace
from tracer.cli.autosave import Autosave
from tracer.errors import MergeError
from tracer.model.records import TERMINATED, Program, Replica

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

PROCESS = """
import os, signal, sys, time
from contextlib import suppress
from pathlib import Path
import tracer
from test_claims import of_rank
from tracer.cli.autosave import Autosave

folder, started = Path(sys.argv[1]), int(sys.argv[2])
where = None, folder
exec(sys.argv[4])
Autosave(lambda: of_rank(started), *where, seconds=0.1)

def is_saved():
    for each in folder.glob("*.json"):
        with suppress(tracer.TraceFileError):  # it is being set aside
            if tracer.load(each).programs[0].started == started:
                return True

while not is_saved():
    time.sleep(0.01)
print("saved", flush=True)
exec(sys.argv[3])
"""


def of_rank(started: int, rank: int = 0) -> CallTrace:
    """A trace of one of two ranks, whose program `started` then."""
    return traces.changed(
        traces.eager(),
        replicas=(Replica(f"rank:{rank}", 0, "cpu"),),
        environment={"cluster": "rank:0, rank:1"},
        programs=(Program("train.py", started, 1.0, f"rank:{rank}"),),
    )


@contextmanager
def process(
    folder: Path, then: str = "time.sleep(60)", started: int = 1, first: str = ""
) -> Iterator["subprocess.Popen[str]"]:
    """A process that is rank 0, once it has saved its trace; `first` runs before, `then` after."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), str(started), then, first],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout and running.stdout.readline() == "saved\n"
        yield running
        running.kill()


def save(folder: Path, started: int, rank: int = 0) -> None:
    """Save a trace as a process does that is a rank and ends well."""
    Autosave(lambda: of_rank(started, rank), None, folder, seconds=1).finish()


def test_an_earlier_run_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for started in (1, 2, 3):
        for rank in (0, 1):
            save(tmp_path, started, rank)
    found = {
        each.name or "last": {program.started for program in tracer.load(each).programs}
        for each in (tmp_path, tmp_path / "earlier-1", tmp_path / "earlier-2")
    }
    assert found == {tmp_path.name: {3.0}, "earlier-1": {1.0}, "earlier-2": {2.0}}
    assert "rank-1.json belonged to an earlier run: it is " in capfd.readouterr().err
    assert not list(tmp_path.glob(".*"))


def test_a_rank_that_starts_again_keeps_what_it_wrote_before(tmp_path: Path) -> None:
    """And whether SIGTERM ended it."""
    for started, end in ((1, "terminate"), (2, "kill")):
        with process(tmp_path, started=started) as running:
            getattr(running, end)()
            running.wait(10)
    save(tmp_path, started=3)
    assert tracer.load(tmp_path).programs[0].started == 3
    earlier = [tracer.load(tmp_path / f"earlier-{number}").programs[0] for number in (1, 2)]
    assert [(each.status, each.finished) for each in earlier] == [
        (TERMINATED, False),
        (None, False),
    ]


def test_two_processes_of_one_rank_have_a_file_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with process(tmp_path, started=1):
        save(tmp_path, started=2)
        said = capfd.readouterr().err
    assert said.endswith("belongs to another running process: this one writes rank-0-2.json\n")
    files = {each.name: tracer.load(each).programs[0].started for each in tmp_path.glob("*.json")}
    assert files == {"rank-0.json": 1, "rank-0-2.json": 2}
    with pytest.raises(MergeError, match="two of the traces are of rank 0"):
        tracer.load(tmp_path)


def test_ranks_that_were_given_one_file_have_a_file_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second rank learns that it is one after it has saved its first trace."""
    path, saved = tmp_path / "run.json", threading.Event()

    def snapshot() -> CallTrace:
        trace = of_rank(2, 1)
        known = saved.is_set()
        saved.set()
        return trace if known else traces.changed(trace, environment={})

    second = Autosave(snapshot, path, seconds=0.1)
    assert saved.wait(10)
    with process(tmp_path, started=1, first="where = folder / 'run.json', None"):
        second.finish()
    assert "run.json belongs to another running process" in capfd.readouterr().err
    names = sorted(each.name for each in tmp_path.iterdir() if each.suffix == ".json")
    assert names == ["run-2.json", "run.json"] and not (tmp_path / "earlier-1").exists()
    whole = tracer.merge(map(tracer.load, tmp_path.glob("*.json")))
    assert whole.workers == ("rank:0", "rank:1") and whole.complete


def test_the_processes_of_one_launch_overwrite_nothing(tmp_path: Path) -> None:
    """Two trainings that one `tracer run --children` starts may have ranks of the same names."""
    for started in (1, 2):
        path = tmp_path / f"process-{started}.json"
        Autosave(lambda at=started: of_rank(at), path, tmp_path, seconds=1).finish()  # type: ignore
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank-0-2.json", "rank-0.json"]


IN_C = "import ctypes; ctypes.PyDLL(None).sleep(60)"  # which no handler in Python interrupts


@pytest.mark.parametrize("then", ["time.sleep(60)", IN_C])
def test_who_was_terminated_is_known(tmp_path: Path, then: str) -> None:
    with process(tmp_path, then) as running:
        running.terminate()
        assert running.wait(10) == -signal.SIGTERM
    (program,) = tracer.load(tmp_path).programs
    assert (program.status, program.finished) == (TERMINATED, False)


FORK = """
for wait in (0, 1):  # a fork may be terminated before Python does anything in it
    pid = os.fork()
    if not pid:
        time.sleep(60)
    time.sleep(wait)
    os.kill(pid, signal.SIGTERM)
    assert os.waitpid(pid, 0)[1] == signal.SIGTERM
saved = os.stat(folder / "rank-0.json").st_mtime_ns
while os.stat(folder / "rank-0.json").st_mtime_ns == saved:
    time.sleep(0.01)
print("saved again", flush=True)
time.sleep(60)
"""


def test_who_was_killed_was_not_terminated(tmp_path: Path) -> None:
    """Nor is the parent of a fork that was terminated."""
    with process(tmp_path, FORK) as running:
        assert running.stdout and running.stdout.readline() == "saved again\n"
        running.kill()
    (program,) = tracer.load(tmp_path).programs
    assert (program.status, program.finished) == (None, False)


OWN = """
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_handler_of_the_program_works_as_without(tmp_path: Path) -> None:
    with process(tmp_path, OWN) as running:
        assert running.stdout and running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.wait(10) == 7
    assert tracer.load(tmp_path).programs[0].status is None


OWN_STACK = """
import faulthandler
stack = open(folder / "stack", "wb", buffering=0)
faulthandler.register(signal.SIGTERM, stack, chain=True)
"""


def test_a_stack_that_the_program_asked_for_comes_as_without(tmp_path: Path) -> None:
    with process(tmp_path, first=OWN_STACK) as running:
        running.terminate()
        assert running.wait(10) == -signal.SIGTERM
    assert "most recent call first" in (tmp_path / "stack").read_text()
