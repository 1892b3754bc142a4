"""What is said of the processes of a run, from records made by hand."""

import re
from pathlib import Path

import msgspec
import pytest
from support import traces

import tracer
from tracer import CallTrace
from tracer.model.phrases import endings, runs
from tracer.model.records import Program
from tracer.model.trace import select
from tracer.reporters import formats, html, text
from tracer.testing import expressions

STARTED = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
FAILED = Program("train.py", STARTED, 12.34, "worker:1", 1, "RuntimeError: no *data*")
GOOD = Program("train.py", STARTED, 4000.0, "worker:0", 0)


def with_programs(*programs: Program) -> CallTrace:
    return traces.changed(traces.uneven_replicas(), programs=programs)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ([], []),
        ([GOOD], []),
        (
            [GOOD, FAILED],
            ["The program of worker:1 ended with RuntimeError: no *data*, after step 8."],
        ),
        (
            [
                msgspec.structs.replace(FAILED, worker=f"worker:{n}", error="", status=3)
                for n in (0, 1)
            ],
            [
                "The program of worker:0 ended with status 3, after step 10.",
                "The program of worker:1 ended with status 3, after step 8.",
            ],
        ),
        (
            [msgspec.structs.replace(FAILED, worker=f"worker:{n}") for n in (5, 6)],
            [
                "The programs of worker:5 and worker:6 ended with RuntimeError: no *data*, "
                "before the first step."
            ],
        ),
        (
            [Program("a", STARTED, 1, "", 1, "KeyboardInterrupt")],
            ["The program was interrupted (Ctrl-C), after step 10."],
        ),
    ],
)
def test_how_programs_ended(programs: list[Program], said: list[str]) -> None:
    assert endings(with_programs(*programs)) == said


def running(worker: str, seconds: float) -> Program:
    """A worker that had run so long when it wrote its file, and had not ended."""
    return Program("train.py", STARTED, seconds, worker)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        # Killed: the other one ended.
        (
            [running("worker:0", 9), msgspec.structs.replace(FAILED, error="", status=0)],
            ["The program of worker:0 wrote nothing after step 10."],
        ),
        # The others wait for it, and their files go on.
        (
            [running("worker:0", 90), running("worker:1", 9), running("worker:2", 89)],
            ["The program of worker:1 wrote nothing after step 8."],
        ),
        (
            [running("worker:0", 90), running("worker:3", 9), running("worker:4", 8)],
            ["The programs of worker:3 and worker:4 wrote nothing after the start."],
        ),
        ([running("worker:0", 90), running("worker:1", 87)], []),  # all go on
        ([running("", 90)], []),
    ],
)
def test_who_died_is_named(programs: list[Program], said: list[str]) -> None:
    assert endings(traces.changed(with_programs(*programs), finished=False)) == said


def test_when_and_how_fast_they_ran() -> None:
    timed = msgspec.structs.replace(GOOD, timed_steps=6, timed_seconds=1.5)
    assert list(runs(with_programs(timed, FAILED))) == [
        "worker:0: train.py, on 2026-09-21 at 14:13:20 UTC, for 1 h 6 min with its start, "
        "4 steps a second while it trained",
        "worker:1: train.py, on 2026-09-21 at 14:13:20 UTC, for 12.3 s with its start",
    ]


def test_a_part_of_a_run_has_no_rate() -> None:
    timed = msgspec.structs.replace(GOOD, timed_steps=6, timed_seconds=1.5)
    (said,) = runs(select(with_programs(timed), steps=range(4, 5)))
    assert said.endswith("for 1 h 6 min with its start")


def test_every_report_says_it() -> None:
    trace = with_programs(GOOD, FAILED)
    assert "ended with RuntimeError: no *data*, after step 8." in text.render(trace, width=200)
    assert "ended with RuntimeError: no \\*data\\*, after step 8." in formats.as_markdown(trace)
    assert "ended with RuntimeError: no *data*, after step 8." in html.render(trace)
    assert '"error": "RuntimeError: no *data*"' in formats.as_json(trace)
    for report in (text.render(trace, width=200), formats.as_markdown(trace), html.render(trace)):
        assert "for 12.3 s with its start" in report


def test_a_run_that_failed_is_no_proof() -> None:
    verdicts = expressions.check(with_programs(GOOD, FAILED), [expressions.read("steps=10")])
    assert [(each.text, bool(each.reason)) for each in verdicts] == [
        ("steps=10", False),
        ("the program ended well", True),
    ]
    verdicts = expressions.check(
        with_programs(GOOD, FAILED), [expressions.read("steps=10")], allow_unfinished=True
    )
    assert [(each.text, bool(each.reason)) for each in verdicts] == [("steps=10", False)]
    assert not any(each.reason for each in expressions.check(with_programs(GOOD), []))


def test_files_keep_it_and_merging_too(tmp_path: Path) -> None:
    trace = with_programs(GOOD, FAILED)
    trace.save(tmp_path / "run.json")
    assert tracer.load(tmp_path / "run.json") == trace
    alone = [
        traces.changed(
            traces.eager(),
            replicas=tuple(
                msgspec.structs.replace(replica, worker=program.worker)
                for replica in traces.eager().replicas
            ),
            programs=(program,),
        )
        for program in (GOOD, FAILED)
    ]
    assert tracer.merge(alone).programs == (GOOD, FAILED)


@pytest.mark.parametrize("time", [-1.0, 1e300])
def test_a_file_with_a_time_that_cannot_be(tmp_path: Path, time: float) -> None:
    trace = with_programs(Program("a", time, 1.0))
    reason = re.escape(f"programs[0].started holds {time}, outside 0.0 to {2.0**37}")
    with pytest.raises(tracer.TraceFileError, match=reason):
        trace.save(tmp_path / "run.json")
