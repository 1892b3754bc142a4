"""Traces at URLs: on a real S3 server that is slow, refuses or is away, and in fsspec's memory."""

import io
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import traces
from support.patience import LONGEST, wait_until
from support.store import Store, served

import tracer
from tracer import locations
from tracer.api import CallTrace
from tracer.cli.autosave import Autosave
from tracer.cli.watch import watch
from tracer.errors import MissingExtra, TraceFileError
from tracer.locations import location
from tracer.model.records import Program, Replica
from tracer.model.tracefile import save

URLS = ("memory://runs", "s3://runs")


@pytest.fixture(scope="module")
def one_store() -> Iterator[Store]:
    with served() as store:
        yield store


@pytest.fixture
def server(one_store: Store) -> Store:
    one_store.wait, one_store.refuses = 0.0, False
    return one_store


def rank(number: int, of: int, steps: int = 64, started: float = 1.0) -> CallTrace:
    """The trace of one rank of several."""
    trace = traces.accumulation(steps)
    name = f"rank:{number}"
    return traces.changed(
        trace,
        replicas=(Replica(name, 0, ""),),
        programs=(Program("train.py", started, 2.0, name, 0),),
        environment={
            **trace.environment,
            "cluster": ", ".join(f"rank:{each}" for each in range(of)),
        },
    )


def run(*command: str, folder: Path, rank: int | None = None) -> subprocess.CompletedProcess[str]:
    ranks = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2"}
    return subprocess.run(
        [sys.executable, "-m", "tracer", *command],
        cwd=folder,
        env={**os.environ, **ranks},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("url", URLS)
def test_a_folder_at_a_url_is_one_run(
    server: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"{url}/{time.monotonic_ns()}/"
    for number in range(3):
        rank(number, 3).save(folder)
    assert sorted(each.name for each in location(folder).glob("*")) == [
        f"rank-{number}.json" for number in range(3)
    ]
    merged = tracer.load(folder)
    assert merged.complete and len(merged.workers) == 3
    assert merged.data == tracer.merge(rank(number, 3) for number in range(3)).data
    with (
        monkeypatch.context() as few,
        pytest.raises(TraceFileError, match=r"0\.json: is too large"),
    ):
        few.setattr("tracer.model.tracefile.MAX_BYTES", 100)
        tracer.load(folder)
    one = tracer.load(f"{folder}rank-1.json")
    assert one.data == rank(1, 3).data
    one.save(location(f"{url}/a.json"))  # a path that a program made itself
    assert tracer.load(location(f"{url}/a.json")).data == one.data
    with pytest.raises(TraceFileError, match=r"no\.json: cannot be read"):
        tracer.load(f"{folder}no.json")


def test_a_trace_is_written_whole_or_not_at_all(server: Store) -> None:
    """By one request: parts would stay in the bucket if the process were killed, and be billed."""
    path = location("s3://runs/whole.json")
    traces.eager().save(path)
    server.asked.clear()
    server.refuses = "PUT"
    with pytest.raises(TraceFileError, match=r"whole\.json: cannot be written: Access Denied"):
        rank(0, 2).save(path)
    assert tracer.load(path).data == traces.eager().data
    server.refuses = False
    rank(0, 2).save(path)
    assert tracer.load(path).data == rank(0, 2).data
    sent = [each for each in server.asked if not each.startswith(("GET", "HEAD"))]
    assert sent == ["PUT /runs/whole.json"] * 2


def test_a_server_that_refuses_is_named_in_one_line(server: Store) -> None:
    server.refuses = True
    for act in (tracer.load, rank(0, 2).save):
        with pytest.raises(TraceFileError, match=r"s3://runs/no\.json: cannot be \w+: ") as raised:
            act("s3://runs/no.json")
        assert "\n" not in str(raised.value)


def test_the_last_writing_is_done_as_python_ends(server: Store, tmp_path: Path) -> None:
    """By then no executor takes the look-up of the host's name, which is the first one."""
    (tmp_path / "hello.py").write_text('print("hello")')
    ran = run("run", "-o", "s3://runs/hello.json", "hello.py", folder=tmp_path)
    assert ran.stdout == "hello\n" and "wrote s3://runs/hello.json" in ran.stderr, ran.stderr
    assert tracer.load("s3://runs/hello.json").finished
    said = run("report", "s3://runs/hello.json", folder=tmp_path)
    assert said.returncode == 0 and "no optimizer" in said.stdout.lower(), said
    assert os.listdir(tmp_path) == ["hello.py"]


@pytest.mark.parametrize("fault", ["refuses", "is away"])
def test_what_cannot_be_sent_is_kept(server: Store, tmp_path: Path, fault: str) -> None:
    (tmp_path / "hello.py").write_text('print("hello"); raise SystemExit(3)')
    if fault == "refuses":
        server.refuses = True
    else:
        server.go_away()
    try:
        ran = run("run", "-q", "-o", "s3://runs/kept/", "hello.py", folder=tmp_path, rank=1)
    finally:
        if fault == "is away":
            server.come_back()
    assert (ran.returncode, ran.stdout) == (3, "hello\n")
    assert ran.stderr.count("cannot be written") == 1
    assert ran.stderr.endswith(
        "s3://runs/kept: the last save failed: the trace is in traces/rank-1.json\n"
    )
    assert tracer.load(tmp_path / "traces").finished
    server.refuses = False
    assert not location("s3://runs/kept").exists()


def test_a_slow_server_does_not_hold_up_the_program(server: Store) -> None:
    server.wait = 0.5
    taken: list[float] = []

    def snapshot() -> CallTrace:
        taken.append(time.monotonic())
        return traces.accumulation(8)

    began = time.monotonic()
    autosave = Autosave(snapshot, location("s3://runs/slow.json"), seconds=0.1)
    assert time.monotonic() - began < 0.4
    wait_until(lambda: len(taken) > 1)
    server.wait = 0.0
    assert str(autosave.finish()) == "s3://runs/slow.json"
    assert tracer.load("s3://runs/slow.json").finished


def test_a_server_that_comes_back_gets_the_trace(
    server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("tracer.cli.autosave.say", said.append)
    monkeypatch.chdir(tmp_path)
    server.refuses = True
    autosave = Autosave(
        lambda: traces.accumulation(64), location("s3://runs/back.json"), seconds=0.1
    )
    wait_until(lambda: said)
    server.refuses = False
    assert str(autosave.finish()) == "s3://runs/back.json"
    assert tracer.load("s3://runs/back.json").steps == 64
    assert len(said) == 1 and "the program goes on" in said[0]
    assert not os.listdir(tmp_path)


def test_while_python_ends_only_the_last_save_is_said_to_fail(
    server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may have closed its connections under the one before."""
    said: list[str] = []
    ends = threading.Event()
    ends.set()
    monkeypatch.setattr("tracer.cli.autosave.say", said.append)
    monkeypatch.setattr("tracer.locations.python_ends", ends)
    monkeypatch.chdir(tmp_path)
    server.refuses = True
    server.asked.clear()
    autosave = Autosave(traces.eager, location("s3://runs/ends.json"), seconds=0.1)
    wait_until(lambda: server.asked)
    assert autosave.finish() == tmp_path / "traces" / "trace.json"
    assert len(said) == 2 and "Access Denied" in said[0]
    assert said[1] == (
        "s3://runs/ends.json: the last save failed: the trace is in traces/trace.json"
    )
    server.refuses = False


def test_each_run_keeps_what_cannot_be_sent_in_a_file_of_its_own(tmp_path: Path) -> None:
    """Two at once, which wait for a line, and one after them."""
    (tmp_path / "wait.py").write_text("input()")
    command = [sys.executable, "-m", "tracer", "run", "-o", "http://127.0.0.1:1/a.json", "wait.py"]
    for count in (2, 1):
        running = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(count)
        ]
        for each in running:
            assert each.stdin
            each.stdin.write(b"\n")
            each.stdin.close()
        assert [each.wait(100) for each in running] == [0] * count
    files = list((tmp_path / "traces").rglob("*.json"))
    assert len(files) == 3
    assert len({tracer.load(each).programs[0].started for each in files}) == 3
    assert not list((tmp_path / "traces").glob(".*"))


def test_missing_credentials_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    writer("s3://runs/anonymous/", 1).finish()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and "cannot be written: Unable to locate credentials" in said[0]
    assert tracer.load(tmp_path / "traces" / "rank-0.json").steps == 64


def test_no_object_of_another_program_is_overwritten(
    server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    location("s3://runs/data.csv").write_bytes(b"1,2,3")
    autosave = Autosave(traces.eager, location("s3://runs/data.csv"), seconds=0.1)
    assert autosave.finish() == tmp_path / "traces" / "trace.json"
    assert location("s3://runs/data.csv").read_bytes() == b"1,2,3"


def writer(url: str, started: float, number: int = 0, steps: int = 64) -> Autosave:
    """Autosaves the trace of a rank in a process that started then."""
    own = rank(number, 2, steps, started)
    return Autosave(lambda: own, None, location(url), seconds=0.1)


def written(url: str) -> dict[str, tuple[float, int]]:
    """When the process of each object of a run started, and its steps."""
    folder = location(url)
    files = {str(each.relative_to(folder)): tracer.load(each) for each in folder.rglob("*.json")}
    return {name: (each.programs[0].started, each.steps) for name, each in files.items()}


@pytest.mark.parametrize("url", URLS)
def test_the_objects_of_an_earlier_run_are_kept(
    server: Store, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As files are, where a launcher starts a rank again."""
    url += "/again/"
    for attempt in range(1, 4):
        for number in range(2):
            writer(url, attempt, number, steps=8 * attempt).finish()
    assert written(url) == {
        f"{folder}rank-{number}.json": (attempt, 8 * attempt)
        for attempt, folder in enumerate(("earlier-1/", "earlier-2/", ""), 1)
        for number in range(2)
    }
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 4 and said[0].endswith(
        "/again/rank-0.json belonged to an earlier run: it is " + url + "earlier-1/rank-0.json now"
    )
    assert tracer.load(url).steps == 24


def test_two_processes_of_one_rank_have_an_object_each(
    server: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two runs that write to one URL by mistake, from two machines."""
    one = writer("s3://runs/twice/", 1)
    wait_until(lambda: "PUT /runs/twice/rank-0.json" in server.asked)
    other = writer("s3://runs/twice/", 2)
    wait_until(lambda: "PUT /runs/twice/rank-0-2.json" in server.asked)
    for each in (other, one):
        each.finish()
    assert written("s3://runs/twice/") == {
        "earlier-1/rank-0.json": (1, 64),
        "rank-0.json": (2, 64),
        "rank-0-2.json": (1, 64),
    }
    said = capfd.readouterr().err
    assert said.count("belongs to another running process: this one writes rank-0-2.json") == 1


def test_a_bucket_that_may_only_be_written(server: Store) -> None:
    """S3 then refuses to say that there is no object."""
    server.refuses = "HEAD"
    assert str(writer("s3://runs/only/", 1).finish()) == "s3://runs/only/rank-0.json"
    server.refuses = False
    assert tracer.load("s3://runs/only/rank-0.json").steps == 64


def test_the_options_of_a_url_are_kept(
    server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some are not in its text, such as the host of `ftp://` and the account of `abfs://`."""
    from upath import UPath

    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.chdir(tmp_path)
    path: Any = UPath("s3://runs/options.json", endpoint_url=server.url)
    path = location(path)
    assert str(Autosave(traces.eager, path, seconds=1).finish()) == "s3://runs/options.json"
    assert tracer.load(path).steps == traces.eager().steps


def test_other_urls(server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain of file systems, of this machine, and of a server that says no sizes."""
    monkeypatch.chdir(tmp_path)
    rank(0, 2).save("s3://runs/chain/")
    assert tracer.load("simplecache::s3://runs/chain/rank-0.json").data == rank(0, 2).data
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(2):
        rank(number, 2).save(f"file://{folder}")
    assert sorted(os.listdir(folder)) == ["rank-0.json", "rank-1.json"]
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        assert len(tracer.load(f"http://127.0.0.1:{pages.server_port}/run/").workers) == 2
        pages.shutdown()
    assert os.listdir(tmp_path) == ["run"]


def test_names_with_signs(server: Store) -> None:
    """None of which is taken for a pattern, a query, or an escape."""
    for sign in ("a b", "é", "q?x=1", "#", "%20", "s*r", "b[a]", "+"):
        folder = f"s3://runs/signs {sign}/"
        rank(0, 1).save(folder)
        assert tracer.load(folder).data == rank(0, 1).data
        assert locations.when_written(location(folder))


def test_a_missing_bucket_is_named(server: Store) -> None:
    for act in (tracer.load, rank(0, 2).save):
        with pytest.raises(TraceFileError, match=r"The specified bucket does not exist$"):
            act("s3://no-such/run.json")


def test_ranks_that_were_given_one_object_have_an_object_each(server: Store) -> None:
    """The slash of a folder is easily forgotten."""
    path = location("s3://runs/no-slash.json")
    ranks = [Autosave(partial(rank, each, 2, started=each), path, seconds=0.1) for each in (1, 0)]
    wait_until(lambda: "PUT /runs/no-slash-2.json" in server.asked)
    for each in ranks:
        each.finish()
    objects = [tracer.load(f"s3://runs/no-slash{each}.json") for each in ("", "-2")]
    assert {each.programs[0].worker for each in objects} == {"rank:0", "rank:1"}


def test_watch_goes_on_where_a_server_fails(server: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object may have been moved after it was listed; a server may refuse for a while."""
    path, out = location("s3://runs/fails.json"), io.StringIO()
    traces.changed(traces.eager(), finished=True).save(path)
    fails = [TraceFileError("moved"), OSError("away")]

    def load(at: Path) -> CallTrace:
        if fails:
            raise fails.pop()
        return tracer.load(at)

    monkeypatch.setattr("tracer.cli.watch.load", load)
    assert watch(path, Console(file=out), patience=LONGEST) and not fails
    monkeypatch.undo()
    server.refuses = True
    with pytest.raises(TraceFileError, match=r"fails\.json: cannot be read: (Forbidden|Access)"):
        watch(path, Console(file=out), patience=0.1)


def test_watch_follows_a_bucket(server: Store) -> None:
    out = io.StringIO()
    autosaves = [
        Autosave(
            lambda number=number: rank(number, 2),  # type: ignore[misc]
            None,
            location("s3://runs/watched/"),
            seconds=0.1,
        )
        for number in range(2)
    ]

    def end() -> None:
        wait_until(lambda: "running" in out.getvalue())
        for each in autosaves:
            each.finish()

    ending = threading.Thread(target=end)
    ending.start()
    assert watch(location("s3://runs/watched/"), Console(file=out, width=100), patience=LONGEST)
    ending.join()
    assert "finished" in out.getvalue() and "rank 1" in out.getvalue()


def test_a_url_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceFileError, match=r"foo://runs/a.json: .*foo"):
        tracer.load("foo://runs/a.json")
    with pytest.raises(TraceFileError, match=r"ftp://127\.0\.0\.1:1/a\.json: .*refused"):
        tracer.load("ftp://127.0.0.1:1/a.json")  # connects before anything is read
    with pytest.raises(TraceFileError, match=r"a\.json: cannot be read: No such file"):
        tracer.load("memory://nothing/a.json")
    with pytest.raises(TraceFileError, match=r"a\.json: cannot be written: .*127\.0\.0\.1"):
        save(traces.eager().data, location("http://127.0.0.1:1/a.json"))
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(MissingExtra, match="needs upath: pip install universal-pathlib"):
        tracer.load("s3://runs/a.json")


def test_no_secret_of_a_url_is_printed(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("")
    url = "ftp://me:hidden@127.0.0.1:1/a.json?sig=hidden"
    for command in (["report", url], ["watch", url], ["run", "-o", url, "hello.py"]):
        ran = run(*command, folder=tmp_path)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("tracer: ftp://REDACTED@127.0.0.1:1/a.json?sig=REDACTED: ")
    url = url.replace("ftp", "http")
    ran = run("run", "-o", url, "hello.py", folder=tmp_path)  # says so while the program runs
    said = ran.stderr.splitlines()[0]  # "cannot be", or "was not" where Python ended meanwhile
    assert re.match(r"tracer: http://REDACTED@127.0.0.1:1/a.json\?sig=REDACTED: .* written", said)
    assert "hidden" not in ran.stderr and (tmp_path / "traces/trace.json").is_file()


def test_no_secret_of_a_url_is_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an API call: also the errors that it chains may name the URL."""
    for url in ("ftp://me:hidden@127.0.0.1:1/a.json", "http://127.0.0.1:1/a.json?sig=hidden"):
        for act in (tracer.load, traces.eager().save):
            with pytest.raises(TraceFileError, match="REDACTED") as raised:
                act(url)
            lines = traceback.format_exception_only(raised.value)
            assert "hidden" not in "".join(lines) and raised.value.__suppress_context__
    path = location("memory://a.json?sig=hidden")
    traces.changed(traces.eager(), finished=True).save(path)
    out = io.StringIO()
    assert watch(path, Console(file=out, width=100), patience=1)
    assert "a.json?sig=REDACTED: finished" in out.getvalue()


def test_a_server_that_does_not_answer_is_named_as_python_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tracer.cli.autosave._MAX_WAIT", 0.1)
    monkeypatch.setattr("tracer.locations.python_ends", threading.Event())
    answer = threading.Event()

    def trace() -> None:
        answer.wait()

    autosave = Autosave(trace, tmp_path / "a.json", seconds=0.1)
    locations.python_ends.set()
    assert autosave.finish() is None
    answer.set()
    assert "a.json: cannot be written: no answer in 0.1 s" in capfd.readouterr().err


@pytest.mark.sweep
def test_4096_ranks_through_a_bucket(server: Store) -> None:
    """Sent one by one, and read as one run in less than a minute."""
    folder = location("s3://runs/many/")
    encoded = rank(0, 4096)
    for number in range(4096):
        names = (Replica(f"rank:{number}", 0, ""),)
        programs = (Program("train.py", 1.0, 2.0, f"rank:{number}", 0),)
        one = traces.changed(encoded, replicas=names, programs=programs)
        one.save(folder / f"rank-{number}.json")
    began = time.monotonic()
    merged = tracer.load(folder)
    assert len(merged.workers) == 4096 and merged.complete
    assert merged.steps == 64
    assert time.monotonic() - began < 60
