"""Whoever holds an optimizer has it traced: the program, by `wrap`, and recordings, in any order.

Hypothesis draws what programs do: they make and copy optimizers, wrap and unwrap them, begin and
end recordings that nest or overlap, step on this thread or another one, in eager mode or in a
function that was traced at any time. An exception may come at any line of the tracer while it
begins or ends to hold. What was counted is compared with the weights.
"""

import linecache
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.libraries import keras2, keras3

import tracer
from tracer.core import patches, registry

legacy = keras2.optimizers.legacy
_HOLDING = ("hooks/wrapping.py", "hooks/recording.py", "core/registry.py", "keras/backend.py")


class Interrupt(BaseException):
    """As what a signal handler raises."""


def interrupted(do: Callable[[], Any], at: int) -> bool:
    """Raise at the line number `at` that the tracer runs in `do`; returns whether it came to it."""
    left = at

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(_HOLDING):
            return None
        # A `with` line is also run at the end of its block, before `__exit__` lets go of a lock.
        # No signal handler runs there: CPython looks for signals after calls and in loops.
        is_with = (
            linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()[:5] == "with "
        )
        is_place = event == "line" and not is_with
        left -= is_place
        if left == 0 and is_place:
            left = -1
            raise Interrupt
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        do()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class Optimizer:
    """An optimizer, perhaps in a loss scale, and what must be counted of it."""

    def __init__(self, is_scaled: bool) -> None:
        self.weight = tf.Variable([0.0])
        self.own: Any = legacy.SGD(1.0)
        if is_scaled:
            self.weight = keras3.Variable([0.0])
            self.own = keras3.optimizers.SGD(1.0)
        self.entries = [self.own]
        if is_scaled:
            self.entries.append(keras3.optimizers.LossScaleOptimizer(self.own, initial_scale=1.0))
        self.classes = [each.__class__ for each in self.entries]
        self.is_wrapped = self.was_wrapped = False
        self.steps = self.counted = 0
        """Of those that it made, how many its own trace must have."""
        self.has_counter = [False] * len(self.entries)
        """Whether the function was traced while the optimizer was held: then its graph counts."""
        self.functions = [
            tf.function(lambda entry=each: self.apply(entry)) for each in self.entries
        ]

    def apply(self, entry: Any) -> None:
        gradient = tf.ones(1)
        entry.apply_gradients([(gradient, self.weight)])


class Recorded:
    """A block that is open, and the updates that it must have."""

    def __init__(self, block: AbstractContextManager[Any], only: Optimizer | None) -> None:
        self.block = block
        self.recording: Any = None
        self.only = only
        self.updates = 0

    def holds(self, optimizer: Optimizer) -> bool:
        return self.only in (None, optimizer)


class Programs(RuleBasedStateMachine):
    optimizers: Bundle[Optimizer] = Bundle("optimizers")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Optimizer] = []
        self.open: list[Recorded] = []

    @rule(target=optimizers, is_scaled=st.booleans() if keras3 is not None else st.just(False))
    def make(self, is_scaled: bool) -> Optimizer:
        self.all.append(Optimizer(is_scaled))
        return self.all[-1]

    @rule(
        optimizer=optimizers, entry=st.integers(0, 1), way=st.sampled_from(("", "graph", "thread"))
    )
    def step(self, optimizer: Optimizer, entry: int, way: str) -> None:
        entry %= len(optimizer.entries)
        run = optimizer.functions[entry]
        if way != "graph":
            run = lambda: optimizer.apply(optimizer.entries[entry])  # noqa: E731
        if way == "thread":
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        else:
            run()
        optimizer.steps += 1
        assert float(optimizer.weight[0]) == -optimizer.steps
        recorded = [each for each in self.open if each.holds(optimizer)]
        for each in recorded:
            each.updates += 1
        is_counted = optimizer.is_wrapped or bool(recorded)
        if way == "graph":  # its graph keeps the counter when nobody holds the optimizer any more
            is_counted = optimizer.has_counter[entry] = is_counted or optimizer.has_counter[entry]
        optimizer.counted += optimizer.was_wrapped and is_counted

    @rule(optimizer=optimizers, entry=st.integers(0, 1), at=st.just(0) | st.integers(1, 60))
    def wrap(self, optimizer: Optimizer, entry: int, at: int) -> None:
        entry %= len(optimizer.entries)
        if interrupted(lambda: tracer.wrap(optimizer.entries[entry]), at):
            tracer.wrap(optimizer.entries[entry])
        optimizer.is_wrapped = optimizer.was_wrapped = True

    @rule(optimizer=optimizers, entry=st.integers(0, 1), at=st.just(0) | st.integers(1, 60))
    def unwrap(self, optimizer: Optimizer, entry: int, at: int) -> None:
        entry %= len(optimizer.entries)
        own = optimizer.entries[entry]
        if not optimizer.is_wrapped:
            with pytest.raises(ValueError, match="not wrapped"):
                tracer.unwrap(own)
        elif interrupted(lambda: tracer.unwrap(own), at):
            for each in optimizer.entries:
                tracer.unwrap(tracer.wrap(each))
        optimizer.is_wrapped = False

    @rule(only=st.none() | optimizers, at=st.just(0) | st.integers(1, 150))
    def begin(self, only: Optimizer | None, at: int) -> None:
        block = tracer.record() if only is None else tracer.api.recording_of(only.own)
        recorded = Recorded(block, only)

        def enter() -> None:
            recorded.recording = block.__enter__()

        if not interrupted(enter, at):
            self.open.append(recorded)

    @rule(which=st.integers(0, 9), at=st.just(0) | st.integers(1, 150))
    def end(self, which: int, at: int) -> None:
        if self.open:
            recorded = self.open.pop(which % len(self.open))
            if not interrupted(lambda: recorded.block.__exit__(None, None, None), at):
                self.compare(recorded)

    def compare(self, recorded: Recorded) -> None:
        trace = recorded.recording.trace()
        assert not trace.complete or trace.updates() == recorded.updates, trace.notes

    @invariant()
    def holds(self) -> None:
        for recorded in self.open:
            self.compare(recorded)
        for optimizer in self.all:
            held = optimizer.is_wrapped or any(each.holds(optimizer) for each in self.open)
            for entry, cls in zip(optimizer.entries, optimizer.classes, strict=True):
                assert registry.is_traced(entry) == held
                assert (type(entry) is cls) != held
            if optimizer.was_wrapped:
                assert tracer.trace_of(optimizer.own).updates() == optimizer.counted

    def teardown(self) -> None:
        while self.open:
            self.open.pop().block.__exit__(None, None, None)
        for optimizer in self.all:
            for each in optimizer.entries if optimizer.is_wrapped else ():
                if registry.is_traced(each):
                    tracer.unwrap(each)
        assert {each.until for each in patches.patches} <= {"exit", "gone"}


@pytest.mark.parametrize("is_weekly", [False, pytest.param(True, marks=pytest.mark.long)])
def test_whoever_holds_an_optimizer_has_it_traced(is_weekly: bool) -> None:
    """Runs the same few programs each time; once a week, many with the day as the seed."""
    run_state_machine_as_test(
        seed(date.today().toordinal())(Programs) if is_weekly else Programs,
        settings=settings(
            max_examples=60 if is_weekly else 8,
            stateful_step_count=14,
            deadline=None,
            database=None,
            derandomize=not is_weekly,
            suppress_health_check=list(HealthCheck),
        ),
    )
