"""What each step did, against plain expansion, and how long it takes to know."""

import random
from collections import Counter
from itertools import chain, pairwise

import pytest
from hypothesis import given, strategies as st
from support import traces
from support.cost import at_most
from support.traces import block, step, update

from tracer.errors import Mistake
from tracer.model.counts import updates
from tracer.model.records import Block
from tracer.model.timeline import Run, Steps, Timeline, Values, fold, join, union
from tracer.model.trace import summaries_of
from tracer.reporters.text import render


def randomly(steps: int, functions: int) -> list[list[Run]]:
    """The runs of functions, one of which a program draws in each step."""
    ran: list[list[tuple[int, int]]] = [[] for _ in range(functions)]
    drawn = random.Random(0)
    for at in range(1, steps + 1):
        ran[drawn.randrange(functions)].append((at, 1))
    return [fold(each) for each in ran]


@st.composite
def _recurring(draw: st.DrawFn) -> list[Run]:
    """Runs as in epochs, or as a program leaves them that draws which function it calls."""
    first, period, turns = (draw(st.integers(1, most)) for most in (30, 9, 9))
    count, stride = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    times = draw(st.integers(1, 2))
    return [Run(first + period * n, stride, count, times) for n in range(turns)]


_COUNTS = st.integers(0, 2)
_BLOCKS = st.lists(st.lists(_recurring(), max_size=2).map(lambda of: [*chain(*of)]), max_size=4)


@given(_BLOCKS.filter(any), st.data())
def test_what_a_timeline_answers_is_true_of_its_steps(
    blocks: list[list[Run]], more: st.DataObject
) -> None:
    weights = more.draw(st.lists(st.tuples(_COUNTS, _COUNTS), min_size=4, max_size=4))
    weighted = [(run, weights[block]) for block, runs in enumerate(blocks) for run in runs]
    last = max(run.last for run, _ in weighted)
    steps = more.draw(st.integers(1, last))
    timeline = Timeline(weighted, steps, 2)
    every = [
        tuple(sum(n * weights[block][at] for block, n in ran.items()) for at in (0, 1))
        for ran in plain_expansion(blocks, steps)
    ]
    first = more.draw(st.integers(1, steps))
    last = more.draw(st.integers(first, steps))
    within = Counter[Values]()
    for number, values in timeline.within(first, last):
        within[values] += number
    assert (within, timeline.spread) == (Counter(every[first - 1 : last]), Counter(every))
    spans = [*timeline.spans()]
    assert [each for low, high, each in spans for _ in range(low, high + 1)] == every
    assert all(one[2] != other[2] for one, other in pairwise(spans))
    wanted = set(more.draw(st.lists(st.sampled_from(every))))
    parts = [part for part, values in timeline.parts() if values in wanted]
    of_wanted = [at for part in parts for at in numbers_of(part)]
    assert sorted(of_wanted) == [at for at, values in enumerate(every, 1) if values in wanted]
    for part, _ in timeline.parts():
        among = [at for at in numbers_of(part) if first <= at <= last]
        assert part.within(first, last + 1) == len(among)
    runs = [run for own in blocks for run in own]
    united = union(runs)
    assert all(before.last < after.first for before, after in pairwise(united))
    assert plain_expansion([united], steps) == [
        {0: sum(ran.values())} if ran else {} for ran in plain_expansion(blocks, steps)
    ]


def plain_expansion(blocks: list[list[Run]], steps: int) -> list[Counter[int]]:
    """What ran in each step, step by step."""
    ran = [Counter[int]() for _ in range(steps)]
    for number, runs in enumerate(blocks):
        for run in runs:
            for at in run.steps:
                if at <= steps:
                    ran[at - 1][number] += run.times
    return ran


def numbers_of(part: Steps) -> list[int]:
    firsts = range(part.first, part.last + 1, part.every or part.length)
    return [first + more for first in firsts for more in range(part.length)]


@pytest.mark.parametrize("every", [10, 100])
def test_epochs_are_one_cycle(every: int) -> None:
    """Also if the batches in between are one run in each epoch, and the last one is another."""
    epochs = 20_000
    whole = [(Run(every * epoch + 1, 1, every - 1), (2,)) for epoch in range(epochs)]
    partial = [(Run(every, every, epochs), (1,))]
    with at_most(3_000_000):
        (stretch,) = Timeline([*whole, *partial], every * epochs, 1).stretches
    assert [(steps.length, values) for steps, values in stretch] == [(every - 1, (2,)), (1, (1,))]
    assert stretch[-1][0].last == every * epochs


def test_a_block_for_each_variable_takes_no_longer() -> None:
    """As XLA makes them for the optimizers of Keras 2.11 and later."""
    ids = range(1000)
    everyone = [block([step()], Run(1, 1, 900), graph=True)]
    everyone += [block([update(index)], Run(1, 1, 900), graph=True, is_step=False) for index in ids]
    trace = traces.keras3([f"layer_{n}/kernel" for n in ids], tuple(everyone), ())
    with at_most(800_000):
        text = render(trace)
    assert "900,000" in text
    assert "layer_0/kernel        900          1     900" in text


def test_variables_of_the_same_entries_are_alike() -> None:
    blocks = (
        block([step(), update(0, 1, 2, 3)], Run(1, 1, 4)),
        block([step(), update(0, 1), update(3, 3)], Run(5, 1, 2)),
    )
    (found,) = summaries_of(traces.keras3([f"layer_{n}/kernel" for n in range(5)], blocks, ()))
    counts = {each.variables: each.total(updates) for each in found.patterns}
    assert counts == {(0, 1): 6, (2,): 4, (3,): 8}


@pytest.mark.parametrize(
    ("blocks", "steps", "most"),
    [
        ([[Run(1, 1, 10**18)]], 10**18, 1),
        ([[Run(1, 2, 50_000)], [Run(2, 2, 50_000)]], 100_000, 1),
        ([[Run(1, 1, 10**6)] * 30_000], 10**6, 1),
        ([[Run(1, 1, 10**6 + n)] for n in range(4_096)], 10**6 + 4_095, 4_096),
        (randomly(50_000, functions=50), 50_000, 50_000),
        ([[Run(33 * epoch + 2, 2, 16) for epoch in range(10_000)]], 330_000, 30_000),
    ],
    ids=[
        *("equal", "alternating", "the same runs", "ranks end one by one", "irregular"),
        "epochs that alternate",  # minutes, if each is compared with all later ones
    ],
)
def test_steps_cost_as_much_as_their_changes(
    blocks: list[list[Run]], steps: int, most: int
) -> None:
    with at_most(3_000_000):
        weighted = [(run, (1 << at,)) for at, runs in enumerate(blocks) for run in runs]
        timeline = Timeline(weighted, steps, 1)
        assert len(timeline.stretches) <= most
    assert timeline.spread.total() == steps


def test_steps_without_an_order_are_refused() -> None:
    """As a damaged file may have them: each step is said to be different, 10^15 times."""
    every = [(Run(1, stride, 10**15), (1,)) for stride in (2, 3, 5, 7, 11, 13, 17, 19, 23)]
    assert len(Timeline(every[:3], 3 * 10**14, 1).stretches) == 1  # a turn has 30 steps
    with pytest.raises(Mistake, match="the trace is too irregular"):
        Timeline(every, 10**15, 1)


# The arithmetic of runs, against the plain lists of steps that they stand for.

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
