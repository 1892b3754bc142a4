"""What is made of the counters of each replica: no TensorFlow."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from tracer.core.calls import Site
from tracer.core.counters import APPLYING, WITHIN, Counted, CountedBlock, HostLog, Reading, until
from tracer.core.settle import Ended, blocks_of, settle
from tracer.model.timeline import Run

SITES = (
    Site(0, "apply_gradients", "step", None, None, 0),
    Site(0, "update_step", "update", "dense", 0, 0),
    Site(0, "apply_gradients", "request", "dense", 0, 0),
)
STEP = CountedBlock(0, "train", True, (0,))
PART = CountedBlock(0, "branch", False, (1,))

METHODS = {"apply_gradients": 0, "update_step": 1}


def _begun(steps: int, *blocks: tuple[CountedBlock, Reading], **known: Any) -> Counted:
    return Counted(steps, dict(enumerate(blocks)), **known)


def _runs(*numbers: int) -> list[Run]:
    return [Run(number, 1, 1) for number in numbers]


def _steps(runs: Iterable[Run]) -> list[int]:
    return [step for run in runs for step in range(run.first, run.last + 1, run.stride)]


def test_a_loss_on_one_replica_is_not_hidden_by_calls_outside_of_steps_on_another() -> None:
    outside = Ended(3, [(STEP, Reading({0: [Run(1, 1, 3)]})), (PART, Reading(outside={0: 2}))])
    lost = settle(_begun(3, (STEP, Reading({0: [Run(1, 1, 3)]})), (PART, Reading(lost=2))))
    blocks, notes = blocks_of(0, SITES, {0: outside, 1: lost}, METHODS, {0: 0, 1: 1})
    assert [note.partition(", details")[0] for note in notes] == ["on replica 1"]
    assert sum(block.total for block in blocks if block.replica == 1 and not block.step) == 2
    blocks, notes = blocks_of(0, SITES, {0: outside}, METHODS, {0: 0})
    assert notes == []


def test_the_lost_steps_of_one_block_are_those_that_no_other_one_has() -> None:
    other = STEP._replace(function="other")
    mine = Reading({0: _runs(1, 4)}, lost=2)
    ended = settle(_begun(6, (STEP, mine), (other, Reading({0: _runs(2, 5)}))))
    (_, filled), _ = ended.blocks
    assert (filled.lost, _steps(filled.runs[0]), ended.lost) == (0, [1, 3, 4, 6], None)


@pytest.mark.parametrize(("mine", "others"), [(3, 0), (4, 1)])
def test_lost_steps_stay_lost_where_another_block_may_have_run_them(mine: int, others: int) -> None:
    """Four steps have no block: one more than was lost, or two blocks are short of some."""
    short = Reading({0: _runs(1, 6)}, lost=mine)
    other = STEP._replace(function="other"), Reading({0: _runs(4)}, lost=others)
    counted = _begun(7, (STEP, short), other)
    assert settle(counted).lost is not None


def test_what_is_lost_of_a_block_ran_as_the_rest_of_it() -> None:
    ran = Reading({WITHIN | APPLYING: _runs(2)}, lost=1)
    ended = settle(_begun(3, (STEP, Reading({0: [Run(1, 1, 3)]})), (PART, ran)))
    blocks, _ = blocks_of(0, SITES, {0: ended}, METHODS, {0: 0})
    assert [each.total for each in blocks if not each.step] == [2]


def test_a_step_before_others_that_ended_was_ended_by_an_error_whatever_runs() -> None:
    ended = settle(_begun(3, (STEP, Reading({0: _runs(1, 3)})), calm=False))
    assert (ended.steps, ended.stopped) == (2, 1)


def test_what_came_after_a_baseline_is_numbered_from_there() -> None:
    reading = Reading({0: [Run(1, 1, 9)], 1: [Run(2, 3, 3)]}, {0: 4}, lost=3)
    counted = _begun(9, (STEP, reading), under_way={8, 9})
    before = Reading({0: [Run(1, 1, 4)], 1: _runs(2)}, {0: 3}, lost=1)
    new = counted.since(_begun(6, (STEP, before), under_way={5, 6}))
    assert new == Counted(
        5,
        {0: (STEP, Reading({0: [Run(1, 1, 5)], 1: [Run(1, 3, 2)]}, {0: 1}, 2))},
        {4, 5},
    )


def test_steps_that_begin_while_counters_are_read_are_left_out() -> None:
    reading = Reading({0: [Run(1, 2, 4)], 1: _runs(8)}, {0: 1}, lost=2)
    assert until(reading, 7) == Reading({0: [Run(1, 2, 4)]}, {0: 1}, lost=2)
    assert until(reading, 4) == Reading({0: [Run(1, 2, 2)]}, {0: 1}, lost=2)
    assert until(reading, 8) == reading


def test_a_step_that_an_error_ended_is_none_and_said() -> None:
    parts = Reading({1: _runs(1, 3, 4)})
    ended = settle(_begun(5, (STEP, Reading({0: _runs(1, 2, 4)})), (PART, parts)))
    assert (ended.steps, ended.stopped) == (3, 2)
    assert [_steps(each) for _, reading in ended.blocks for each in reading.runs.values()] == [
        [1, 2, 3],
        [1, 3],
    ]
    _, (note,) = blocks_of(0, SITES, {0: ended}, METHODS, {0: 0})
    assert "2 steps ended with an error" in note


def test_what_is_under_way_does_not_count_yet() -> None:
    reading = Reading({0: [Run(1, 1, 4)]})
    part = Reading({1: [Run(1, 1, 5)]})
    ended = settle(_begun(5, (STEP, reading), (PART, part), under_way={5}))
    assert (ended.steps, ended.stopped) == (4, 0)
    assert [each.total for _, each in ended.blocks] == [4, 4]
    busy = settle(_begun(5, (STEP, reading), (PART, part), calm=False))
    assert busy == ended


def test_the_work_of_a_block_by_what_it_was_part_of() -> None:
    key = CountedBlock(0, "f", True, (2, 1, 0))
    reading = Reading({0: [Run(1, 1, 1)], 1: [Run(2, 1, 1)], 3: [Run(3, 1, 1)]}, {2: 1})
    others = (STEP._replace(function="g"), Reading({0: [Run(2, 1, 2)]}))
    blocks, _ = blocks_of(0, SITES, {0: settle(_begun(3, (key, reading), others))}, METHODS, {0: 0})
    roles = [
        (block.step, block.outside, sorted(entry.role for entry in block.entries))
        for block in blocks[:4]
    ]
    assert roles == [
        (True, False, ["request", "step", "update"]),
        (False, False, ["step", "update"]),
        (False, False, ["apply", "step"]),
        (False, True, ["apply", "step"]),
    ]


def test_a_log_that_a_signal_interrupts_has_all_of_a_row_or_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stamps = [256 * number for number in (1, 1, 2, 2, 3, 3, 5, 5, 6, 9, 9, 9)]
    log, whole = HostLog(), HostLog()
    for stamp in stamps:
        whole.add(stamp)
        with monkeypatch.context() as patched:
            patched.setattr("tracer.core.counters.join", _interrupted)
            before = log.total
            with suppress(KeyboardInterrupt):
                log.add(stamp)
        if log.total == before:  # as a journal gives it again that was not taken out
            log.add(stamp)
    assert (log.total, log.reading()) == (whole.total, whole.reading())
    assert log.total == log.reading().total == len(stamps)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_steps_that_end_in_another_order_than_they_began() -> None:
    log = HostLog()
    for number in (2, 1, 3, 5, 7, 4, 6):
        log.add(256 * number)
    reading = log.reading()
    assert reading.runs == {0: [Run(1, 1, 7)]}
    assert reading.lost == 0
