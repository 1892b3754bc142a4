"""The stack of calls: which are taken off it, and what becomes of them. No framework."""

import sys
from typing import Any

from tracer.core.backend import Backend
from tracer.core.calls import EAGER, CallsUnderWay, Step, start_call
from tracer.core.recorder import Recorder

LOST = "a call was interrupted: what it ran before that is not counted"


def _put(under_way: CallsUnderWay, python: Any = None) -> Step:
    call = Step()
    start_call(call, EAGER, 0, None)
    call.python = python
    under_way.stack().append(call)
    return call


def test_those_above_a_call_that_is_taken_off_go_with_it() -> None:
    under_way = CallsUnderWay()
    below, taken, inside, innermost = [_put(under_way) for _ in range(4)]
    assert under_way.take_off(taken) == [inside, innermost]
    assert under_way.stack() == [below]
    assert under_way.take_off(taken) == []  # it is gone already
    assert under_way.take_off(below) == ()
    assert under_way.stack() == []


def test_calls_whose_frames_are_gone_are_abandoned() -> None:
    here = sys._getframe()
    under_way = CallsUnderWay()
    below, gone = _put(under_way, here), _put(under_way, python=(0, 0))
    assert under_way.abandoned(here) == [gone]
    assert under_way.stack() == [below]
    assert under_way.abandoned(here) == []


def test_an_interrupted_call_inside_of_one_that_ends_is_no_step_and_is_noted() -> None:
    recorder = Recorder(Backend())
    recorder.optimizers.stepping[0] = None  # as if its first step was over
    outer, inside = Step(), Step()
    for call in (outer, inside):
        recorder.open(call, 0, "step")
        call.python = sys._getframe()
    recorder.close(outer, failed=False)
    assert recorder.calls_under_way.stack() == recorder.calls_under_way.steps == []
    assert [note.text for note in recorder.notes] == [LOST]
    (site,) = outer.own
    assert recorder.sites.calls[site] == [1, 0]  # the failed call
    assert recorder.step_count() == 1
