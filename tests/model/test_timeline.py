"""Folding runs that come again and again, as a partial batch in each epoch leaves them."""

import re
import time
from collections import Counter

import pytest
from hypothesis import given, strategies as st
from support import traces
from support.traces import block, request, step, update

from tracer.model.measures import updates
from tracer.model.runs import Run
from tracer.model.summary import Summary
from tracer.model.timeline import Steps, Timeline, Values, union
from tracer.reporters.text import render


@st.composite
def _recurring(draw: st.DrawFn) -> list[tuple[Run, Values]]:
    weights = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    first, period, turns = (draw(st.integers(1, most)) for most in (30, 9, 9))
    count, stride = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    times = draw(st.integers(1, 2))
    return [(Run(first + period * n, stride, count, times), weights) for n in range(turns)]


@given(st.lists(_recurring(), max_size=6), st.integers(0, 90))
def test_recurring_runs_fold_to_the_steps_they_are(
    groups: list[list[tuple[Run, Values]]], steps: int
) -> None:
    weighted = [each for group in groups for each in group]
    timeline = Timeline.of(weighted, steps, 2)
    assert written_out(timeline) == counts_of(weighted, steps)
    for each in timeline.stretches:
        assert each.period * each.turns == each.last - each.first + 1


@given(st.lists(_recurring(), min_size=1, max_size=3), st.data())
def test_what_a_timeline_answers_is_true_of_its_steps(
    groups: list[list[tuple[Run, Values]]], more: st.DataObject
) -> None:
    weighted = [each for group in groups for each in group]
    steps = max(run.last for run, _ in weighted)
    timeline, every = Timeline.of(weighted, steps, 2), counts_of(weighted, steps)
    first = more.draw(st.integers(1, steps))
    last = more.draw(st.integers(first, steps))
    within = Counter[Values]()
    for number, values in timeline.within(first, last):
        within[values] += number
    assert (within, timeline.spread) == (Counter(every[first - 1 : last]), Counter(every))
    kept = {at for low, high, _ in timeline.spans() for at in range(low, high + 1)}
    assert kept == {at for at, values in enumerate(every, 1) if any(values)}
    wanted = set(more.draw(st.lists(st.sampled_from(every))))
    found = {at: values for part, values in timeline.parts() for at in numbers_of(part)}
    assert [found[at] for at in range(1, steps + 1)] == every
    of_wanted = [at for part in timeline.steps_with(wanted) for at in numbers_of(part)]
    assert sorted(of_wanted) == [at for at, values in enumerate(every, 1) if values in wanted]
    for part, _ in timeline.parts():
        before = [at for at in numbers_of(part) if at < last]
        assert part.last_before(last) == max(before, default=0)
    joined = Timeline.of(weighted[:1], steps, 2).joined(timeline)
    assert [values[2:] for values in written_out(joined)] == every


def numbers_of(part: Steps) -> list[int]:
    firsts = range(part.first, part.last + 1, part.every or part.length)
    return [first + more for first in firsts for more in range(part.length)]


def counts_of(weighted: list[tuple[Run, Values]], steps: int) -> list[Values]:
    """What each step counts, by a loop over each step of each run."""
    expected = Counter[tuple[int, int]]()
    for run, weights in weighted:
        for at in range(run.first, run.last + 1, run.stride):
            for place, weight in enumerate(weights):
                expected[at, place] += weight * run.times
    return [(expected[at, 0], expected[at, 1]) for at in range(1, steps + 1)]


def written_out(timeline: Timeline) -> list[Values]:
    return [
        values
        for stretch in timeline.stretches
        for _ in range(stretch.turns)
        for length, values in stretch.cycle
        for _ in range(length)
    ]


@pytest.mark.parametrize("every", [10, 100])
def test_epochs_are_one_cycle(every: int) -> None:
    """Also if the batches in between are one run in each epoch, and the last one is another."""
    epochs = 20_000
    whole = [(Run(every * epoch + 1, 1, every - 1), (2,)) for epoch in range(epochs)]
    partial = [(Run(every, every, epochs), (1,))]
    start = time.thread_time()
    (stretch,) = Timeline.of([*whole, *partial], every * epochs, 1).stretches
    assert time.thread_time() - start < 0.5
    assert stretch.cycle == ((every - 1, (2,)), (1, (1,)))
    assert stretch.turns == epochs


def test_epochs_with_a_partial_batch_take_no_longer() -> None:
    epochs, ids = 10_000, range(100)
    work = [step(), request(*ids), update(*ids)]
    whole = [Run(100 * epoch + 1, 1, 99) for epoch in range(epochs)]
    blocks = []
    for replica in range(4):
        blocks.append(block(work, *whole, replica=replica, graphs=1))
        blocks.append(block(work, Run(100, 100, epochs), replica=replica, graphs=1))
    trace = traces.keras3([f"layer_{n}/kernel" for n in ids], tuple(blocks), ())
    start = time.thread_time()
    text = render(trace, "variable")
    assert time.thread_time() - start < 2
    assert f"{400 * epochs:,}" in text
    assert [each.last for each in Summary(trace, 0).timeline(lambda block: 1).stretches] == [
        100 * epochs
    ]


def test_a_block_for_each_variable_takes_no_longer() -> None:
    """As XLA makes them for the optimizers of Keras 2.11 and later."""
    ids = range(1000)
    everyone = [block([step()], Run(1, 1, 900), graphs=1)]
    everyone += [block([update(index)], Run(1, 1, 900), graphs=1, is_step=False) for index in ids]
    trace = traces.keras3([f"layer_{n}/kernel" for n in ids], tuple(everyone), ())
    start = time.thread_time()
    text = render(trace)
    assert time.thread_time() - start < 2
    assert "900,000" in text
    assert "layer_0/kernel        900          1     900" in text


def test_many_variables_on_many_replicas_take_no_longer() -> None:
    names = [f"layer_{number}/kernel" for number in range(1000)]
    trace = traces.trained(names, Run(1, 1, 9), replicas=1000, graphs=1)
    start = time.thread_time()
    text = render(trace)
    assert time.thread_time() - start < 1.5
    assert re.search(r"\nlayer_0/kernel +9,000 ", text)


def test_variables_of_the_same_entries_are_alike() -> None:
    blocks = (
        block([step(), update(0, 1, 2, 3)], Run(1, 1, 4)),
        block([step(), update(0, 1), update(3, 3)], Run(5, 1, 2)),
    )
    found = Summary(traces.keras3([f"layer_{n}/kernel" for n in range(5)], blocks, ()), 0)
    counts = {each.variables: each.total(updates) for each in found.patterns}
    assert counts == {(0, 1): 6, (2,): 4, (3,): 8}


def test_equal_runs_of_many_replicas_are_not_compared_with_each_other() -> None:
    begun = time.perf_counter()
    (stretch,) = Timeline.of([(Run(1, 1, 10**6), (1,))] * 30_000, 10**6, 1).stretches
    assert stretch.cycle == ((10**6, (30_000,)),)
    assert time.perf_counter() - begun < 10  # a minute and more, if each is


def test_runs_that_rise_are_put_together_without_a_timeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that draws which function it calls leaves a run for nearly each step."""
    steps = [step for step in range(1, 400) if (step * step) % 7 % 3 or step % 11 == 4]
    expected = union([*(Run(step, 1, 1) for step in reversed(steps))])
    monkeypatch.delattr(Timeline, "of")
    found = union([Run(step, 1, 1) for step in steps])
    assert [step for run in found for step in range(run.first, run.last + 1, run.stride)] == steps
    assert sum(run.total for run in expected) == sum(run.total for run in found)
