"""What is said of a trace in every report: how processes ended, and why steps updated nothing."""

import pytest
from msgspec.structs import replace
from support import traces
from support.traces import block, request, step, update

from tracer import Trace
from tracer.check import read, verdicts
from tracer.model.counts import updates
from tracer.model.phrases import endings, every, reason
from tracer.model.records import Program, Setting
from tracer.model.timeline import Run
from tracer.model.trace import Summary, summaries_of
from tracer.reporters import formats, html, text

STARTED = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
FAILED = Program("train.py", STARTED, "worker:1", 1, "RuntimeError: no *data*")
GOOD = Program("train.py", STARTED, "worker:0", 0)


def with_programs(*programs: Program) -> Trace:
    return traces.changed(traces.uneven_replicas(), programs=programs)


def running(worker: str) -> Program:
    """A worker that had not ended when it saved its file."""
    return Program("train.py", STARTED, worker, finished=False)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ([], []),
        ([GOOD], []),
        (
            [GOOD, FAILED],
            ["The program of worker:1 ended with RuntimeError: no *data*, after 8 steps."],
        ),
        (
            [Program("a", STARTED, "", 1, "KeyboardInterrupt")],
            ["The program ended at Ctrl-C, after 10 steps."],
        ),
        (
            [replace(FAILED, worker=f"w{n}", error="", status=n) for n in range(1, 7)],
            [
                *(
                    f"The program of w{n} ended with status {n}, before the first step."
                    for n in range(1, 4)
                ),
                "3 more programs failed, or had not ended.",
            ],
        ),
        ([running("worker:0")], []),  # the report says that the run is unfinished
        (
            [running("worker:0"), replace(FAILED, error="", status=0)],
            ["The program of worker:0 had not ended when last saved, after 10 steps."],
        ),
    ],
)
def test_how_programs_ended(programs: list[Program], said: list[str]) -> None:
    assert endings(with_programs(*programs)) == said


def test_every_report_says_it() -> None:
    trace = with_programs(GOOD, FAILED)
    assert "ended with RuntimeError: no *data*, after 8 steps." in text.render(trace, width=200)
    assert "ended with RuntimeError: no *data*, after 8 steps." in html.render(trace)
    assert '"error": "RuntimeError: no *data*"' in formats.as_json(trace)
    for report in (text.render(trace, width=200), html.render(trace)):
        assert "train.py, on 2026-09-21 at 14:13:20 UTC" in report


def test_a_run_that_failed_is_no_proof() -> None:
    found = verdicts(with_programs(GOOD, FAILED), [read("steps=10")])
    assert [(each.text, bool(each.reason)) for each in found] == [
        ("steps=10", False),
        ("the program ended well", True),
    ]
    found = verdicts(with_programs(GOOD, FAILED), [read("steps=10")], allow_unfinished=True)
    assert [(each.text, bool(each.reason)) for each in found] == [("steps=10", False)]
    assert not any(each.reason for each in verdicts(with_programs(GOOD), []))


def _summary(steps: int, *updated: Run, **settings: Setting) -> Summary:
    """So many steps with a gradient each, of which some updated the variable."""
    blocks = (
        block([step(), request(0)], Run(1, 1, steps)),
        block([update(0)], *updated, is_step=False),
    )
    trace = traces.keras3(("kernel",), blocks, ())
    optimizer = replace(trace.optimizers[0], settings=settings)
    return summaries_of(traces.changed(trace, optimizers=(optimizer,)))[0]


@pytest.mark.parametrize(
    ("steps", "updated", "nth"),
    [
        (64, [Run(4, 4, 16)], 4),
        (67, [Run(4, 4, 16)], 4),  # the last group is not complete
        (68, [Run(4, 4, 16)], 0),  # step 68 should have updated
        (66, [Run(4, 4, 16), Run(66, 1, 1)], 0),  # a noisy end
        (67, [Run(4, 4, 16), Run(65, 1, 1)], 0),
        (67, [Run(4, 4, 16), Run(65, 2, 2)], 0),
        (64, [Run(3, 4, 16)], 0),  # not from the fourth on
        (64, [Run(4, 4, 8), Run(40, 8, 4)], 0),
        (64, [Run(4, 4, 15), Run(64, 1, 1, 2)], 0),
        (64, [Run(1, 1, 64)], 0),
        (64, [Run(64, 1, 1)], 0),
    ],
)
def test_every_nth_step_up_to_the_end(steps: int, updated: list[Run], nth: int) -> None:
    assert every(_summary(steps, *updated), updates, 0) == nth


@pytest.mark.parametrize(
    ("updated", "settings", "text"),
    [
        ([Run(4, 4, 16)], {}, "accumulating, it seems"),
        ([Run(5, 1, 9)], {}, ""),
        ([Run(4, 4, 16)], {"gradient_accumulation_steps": 4}, "accumulated over 4 steps"),
        ([Run(5, 1, 9)], {"grad_scaler": True}, "skipped by GradScaler"),
        ([Run(5, 1, 9)], {"skipped_by": "MultiSteps"}, "skipped by MultiSteps"),
    ],
)
def test_why_steps_updated_nothing(
    updated: list[Run], settings: dict[str, Setting], text: str
) -> None:
    assert reason(_summary(64, *updated, **settings)) == text
