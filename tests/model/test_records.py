"""Arithmetic runs against the plain lists of steps that they stand for."""

from collections import Counter
from itertools import pairwise

from hypothesis import given, strategies as st

from tracer.model.records import Block
from tracer.model.timeline import Run, fold, join

RUNS = st.builds(
    Run,
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 3),
)
RANGES = st.builds(range, st.integers(-20, 120), st.integers(-20, 200))


def steps_of(run: Run) -> list[int]:
    """One item for each execution, by adding the stride again and again."""
    steps, step = [], run.first
    for _ in range(run.count):
        steps += [step] * run.times
        step += run.stride
    return steps


def expanded(runs: list[Run]) -> list[int]:
    return [step for run in runs for step in steps_of(run)]


@given(RUNS, RANGES)
def test_only_is_the_part_of_a_run_in_a_range(run: Run, steps: range) -> None:
    part = run.intersect(steps)
    assert expanded([part] if part else []) == [s for s in steps_of(run) if s in steps]
    assert part is None or part.stride >= 1


def test_only_is_exact_and_quick_far_beyond_what_can_be_expanded() -> None:
    run = Run(first=7, stride=6, count=10**15, times=2)
    found = [run.intersect(each) for each in (range(8, 2**62), range(1, 7), range(7, 8))]
    assert found == [Run(13, 6, 10**15 - 1, 2), None, Run(7, 1, 1, 2)]


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 2)))
def test_fold_keeps_every_step_once_and_in_order(times: dict[int, int]) -> None:
    runs = fold(sorted(times.items()))
    assert expanded(runs) == sorted(Counter(times).elements())
    assert all(before.last < after.first for before, after in pairwise(runs))


def test_a_partial_last_batch_in_each_epoch_costs_one_run_an_epoch() -> None:
    full = [step for step in range(1, 101) if step % 10]
    assert fold((step, 1) for step in full) == [Run(1 + 10 * k, 1, 9, 1) for k in range(10)]


@given(st.lists(RUNS, max_size=6))
def test_join_keeps_every_execution_and_adds_no_run(runs: list[Run]) -> None:
    joined = join(runs)
    assert sorted(expanded(joined)) == sorted(expanded(runs))
    assert len(joined) <= len(runs)
    assert all(run.stride >= 1 and run.count >= 1 for run in joined)


def test_unplaced_is_what_the_runs_do_not_hold() -> None:
    block = Block(0, 0, "graph", "f", True, (), 10, (Run(1, 1, 3, 2), Run(9, 1, 1, 1)))
    assert block.step_unknown == 3
