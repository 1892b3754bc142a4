"""Spans: which steps were whose, held against lists of steps, one by one."""

import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from tracer.core.spans import MAX_STRETCHES, Spans, layers, of_caller
from tracer.model.runs import Run
from tracer.model.timeline import union

RUNS = st.lists(
    st.builds(
        lambda first, stride, count, times: Run(first, stride if count > 1 else 1, count, times),
        st.integers(1, 40),
        st.integers(1, 9),
        st.integers(1, 12),
        st.integers(1, 3),
    ),
    max_size=6,
)

CHANGES = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["a", "b", "c", None])))
"""After how many more steps who calls."""


def steps_of(runs: list[Run]) -> Counter[int]:
    """How often each step is in the runs."""
    return Counter(
        {
            step: sum(run.times for run in runs if (step - run.first) % run.stride == 0
                      and run.first <= step <= run.last)
            for step in range(1, 200)
        }
    )  # fmt: skip


def rises(runs: list[Run]) -> bool:
    return all(a.last < b.first for a, b in pairwise(runs))


@given(RUNS)
def test_a_union_has_the_same_steps_and_rises(runs: list[Run]) -> None:
    """Also where runs overlap, and where several have one step."""
    assert steps_of(union(runs)) == steps_of(runs)
    assert rises(union(runs))


@given(RUNS)
def test_layers_have_the_same_steps_and_each_rises(runs: list[Run]) -> None:
    """No step is in two layers that was in one run."""
    found = layers(runs)
    assert steps_of([run for layer in found for run in layer]) == steps_of(runs)
    assert all(map(rises, found))


@given(st.integers(2, 12), st.integers(2, 9), st.integers(1, 50))
def test_runs_that_take_turns_become_one(turns: int, count: int, first: int) -> None:
    """Every so many steps each; the last of them may have one step less."""
    whole = Run(first, 1, turns * count)
    parts = [Run(first + offset, turns, count) for offset in range(turns)]
    assert union(reversed(parts)) == [whole]
    if count > 2:
        parts[-1] = Run(first + turns - 1, turns, count - 1)
        assert union(parts) == [Run(first, 1, turns * count - 1)]


APART = [each for gap in (3, 5, 9, 4) for each in ((2, "a"), (gap, "b"))]
"""Spans of equal length at unequal distances."""


@given(RUNS, CHANGES, st.integers(0, 30))
@example([Run(1, 1, 60)], APART, 0)
def test_each_caller_has_its_steps(
    runs: list[Run], changes: list[tuple[int, str | None]], earlier: int
) -> None:
    """A list that says of each step who it was, against the spans: each step is of one of them."""
    spans: Spans[str] = Spans()
    whose: dict[int, str | None] = {}
    step, now = 1, None
    for more, caller in changes:
        whose |= dict.fromkeys(range(step, step + more), now)
        step, now = step + more, caller
        spans.change(step, caller)
    end = max(step, 200) + earlier
    whose |= dict.fromkeys(range(step, end), now)
    found = spans.by_caller(end)
    expected, ran = Counter[tuple[str | None, int]](), steps_of(runs)
    for number, times in ran.items():
        expected[whose[number + earlier], number] += times
    said = Counter[tuple[str | None, int]]()
    for caller, stretches in found.items():
        for number, times in steps_of(of_caller(runs, stretches, earlier)).items():
            said[caller, number] += times
    assert +said == +expected


@pytest.mark.parametrize("length", [1, 100, 500])
def test_callers_in_turn_stay_small(length: int) -> None:
    """Two that take spans for 1,000,000 steps are two stretches, whose steps are in few runs."""
    spans: Spans[str] = Spans()
    for number in range(1_000_000 // length):
        spans.change(1 + number * length, "ab"[number % 2])
    found = spans.by_caller(1_000_001)
    begin = time.perf_counter()
    runs = {each: of_caller([Run(1, 1, 1_000_000)], found[each]) for each in "ab"}
    assert time.perf_counter() - begin < 1
    for each in "ab":
        assert len(found[each]) <= 2
        assert len(runs[each]) <= max(2 * length, 2000) / (1 if length < 64 else 2)
        assert sum(run.total for run in runs[each]) == pytest.approx(500_000, abs=length)
    assert union(runs["a"] + runs["b"]) == [Run(1, 1, 1_000_000)]


def test_callers_without_any_order_come_to_an_end() -> None:
    """What is kept of them is bounded, and what comes later is nobody's."""
    spans: Spans[str] = Spans()
    step = 1
    for number in range(3 * MAX_STRETCHES):
        spans.change(step, "ab"[number % 2])
        step += 1 + number * number % 7
    assert spans.full
    found = spans.by_caller(step)
    assert sum(map(len, found.values())) <= MAX_STRETCHES + 1
    (rest,) = of_caller([Run(1, 1, step - 1)], found[None])
    assert rest.last == step - 1
