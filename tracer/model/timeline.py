"""Defines runs, and adds up what they count in each step: the `Timeline`.

A `Run` has steps as an arithmetic progression: regular training is one, however long it goes on.
Steps are numbered from 1, and a run is never empty. A list of runs has the number of executions in
each step; runs that share a step add up.

Steps are not visited one by one. A step like the one before it costs nothing, nor do steps that
repeat in the same order. No TensorFlow.
"""

import math
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby, islice, pairwise
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from tracer.errors import Mistake

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Steps `first`, `first + stride`, ... (`count` of them), each with `times` executions.

    >>> Run(first=2, stride=4, count=3).last
    10
    """

    first: Positive
    stride: Positive
    count: Positive
    times: Positive = 1

    @property
    def last(self) -> int:
        """The last step of the run."""
        return self.first + (self.count - 1) * self.stride

    @property
    def total(self) -> int:
        """The executions in the whole run."""
        return self.count * self.times

    @property
    def steps(self) -> range:
        """The numbers of its steps."""
        return range(self.first, self.last + 1, self.stride)

    def intersect(self, steps: range, shift: int = 0) -> "Run | None":
        """The part of the run in consecutive `steps`, `shift` steps later; None if it is empty.

        >>> Run(first=4, stride=4, count=40).intersect(range(5, 16))
        Run(first=8, stride=4, count=2, times=1)
        """
        begin, end = (
            max(0, -((self.first - at) // self.stride)) for at in (steps.start, steps.stop)
        )
        part = self.steps[begin:end]
        stride = part.step if part[1:] else 1
        return Run(part[0] + shift, stride, len(part), self.times) if part else None


def fold(steps: Iterable[tuple[int, int]]) -> list[Run]:
    """Return the fewest runs, greedily, for `(step, times)` pairs in ascending order of step.

    >>> fold([(1, 1), (2, 1), (3, 1), (5, 2)])
    [Run(first=1, stride=1, count=3, times=1), Run(first=5, stride=1, count=1, times=2)]
    """
    return join(Run(step, 1, 1, times) for step, times in steps)


def join(runs: Iterable[Run]) -> list[Run]:
    """Join neighbouring runs that continue one arithmetic progression.

    Runs out of order are left as they are.

    >>> join([Run(1, 1, 30), Run(31, 1, 2), Run(40, 1, 1), Run(42, 1, 1), Run(44, 1, 1)])
    [Run(first=1, stride=1, count=32, times=1), Run(first=40, stride=2, count=3, times=1)]
    """
    joined: list[Run] = []
    for run in runs:
        previous = joined[-1] if joined else None
        if previous is None or previous.times != run.times or run.first <= previous.last:
            joined.append(run)
            continue
        gap = run.first - previous.last
        stride = gap if previous.count == 1 else previous.stride
        if gap == stride and (run.count == 1 or run.stride == stride):
            joined[-1] = Run(previous.first, stride, previous.count + run.count, run.times)
        else:
            joined.append(run)
    return joined


# What each step did.

Values = tuple[int, ...]
Part = tuple[int, Values]
"""A number of consecutive steps, and the counts of each."""
Cycle = tuple[Part, ...]
"""Parts that repeat in this order; for equal steps, one step."""
Piece = tuple[int, Cycle]
"""A number of consecutive steps, and the cycle that they repeat."""
T = TypeVar("T")
Phase = tuple[int, int]
"""The steps that leave this rest by this stride."""

_MAX_CYCLE = 8  # parts that are found to repeat; each is a row of a report
_MAX_STEPS = 5_000_000  # written out: no training is so irregular, but a file may say so
_MIN_TURNS = 3  # fewer turns than this are clearer written out
_MIN_REGULAR = 16  # steps at equal distances: fewer may be chance, and cost little
_first, _second = operator.itemgetter(0), operator.itemgetter(1)


class Steps(NamedTuple):
    """`length` consecutive steps from `first` on, repeated each `every` steps up to `last`.

    `every` is None if they occur once.
    """

    first: int
    last: int
    length: int
    every: int | None = None

    def within(self, low: int, high: int) -> int:
        """The number of the steps from `low` to before `high`.

        >>> [Steps(1, 63, 3, 4).within(1, end) for end in (1, 3, 5, 99)]
        [0, 2, 3, 48]
        """
        until = []
        for end in (low, high):
            done = max(0, min(end, self.last + 1) - self.first)
            turns, rest = divmod(done, self.every or self.length)
            until.append(turns * self.length + min(rest, self.length))
        return max(0, until[1] - until[0])


Stretch = list[tuple[Steps, Values]]
"""The parts of consecutive steps that repeat a cycle."""


class Timeline:
    """The counts of each step, from step 1 on: one tuple for each step."""

    def __init__(self, weighted: Iterable[tuple[Run, Values]], steps: int, size: int) -> None:
        """Make the timeline of steps 1 to `steps`, from runs that each add `size` counts to a step.

        >>> for part in Timeline([(Run(1, 1, 12), (0, 1)), (Run(4, 4, 3), (5, 0))], 12, 2).parts():
        ...     print(part)
        (Steps(first=1, last=11, length=3, every=4), (0, 1))
        (Steps(first=4, last=12, length=1, every=4), (5, 1))
        """
        changes: dict[int, list[tuple[Run, Values]]] = {1: [], steps + 1: []}
        for whole, values in weighted:
            is_regular = whole.stride == 1 or whole.count >= _MIN_REGULAR
            single = (Run(step, 1, 1, whole.times) for step in whole.steps)
            for run in (whole,) if is_regular else single:
                gap = run.stride - 1  # the run is regular in the gaps around it, too
                for at, times in ((run.first - gap, run.times), (run.last + gap + 1, -run.times)):
                    more = tuple(times * number for number in values)
                    changes.setdefault(min(max(at, 1), steps + 1), []).append((run, more))
        nothing = (0,) * size
        active: dict[Phase, Values] = {}
        pieces: list[Piece] = []
        for low, high in pairwise(sorted(changes)):
            for run, more in changes[low]:
                phase = run.first % run.stride, run.stride
                active[phase] = added(active.get(phase, nothing), more)
                if not any(active[phase]):
                    del active[phase]
            pieces += _pieces(low, high, nothing, active)
        self.stretches: list[Stretch] = []
        """All steps; those that repeat in the same order are one stretch."""
        first = 1
        for number, cycle in _folded(pieces):
            period, parts = sum(map(_first, cycle)), []
            for length, values in cycle:
                last = first + number - period + length - 1
                every = period if period < number else None
                parts.append((Steps(first, last, length, every), values))
                first += length
            self.stretches.append(parts)
            first += number - period

    @cached_property
    def spread(self) -> Counter[Values]:
        """The number of steps with each combination of counts."""
        spread: Counter[Values] = Counter()
        for steps, values in self.parts():
            spread[values] += steps.within(1, steps.last + 1)
        return spread

    def parts(self) -> Iterator[tuple[Steps, Values]]:
        """Yield steps with equal counts, each part of a cycle once."""
        return chain.from_iterable(self.stretches)

    def spans(self) -> Iterator[tuple[int, int, Values]]:
        """Yield (first, last, counts) of equal consecutive steps; cycles are written out."""
        begin = 1
        for number, values in _merged(chain.from_iterable(map(_written_out, self.stretches))):
            yield begin, begin + number - 1, values
            begin += number

    def within(self, first: int, last: int) -> Iterator[Part]:
        """Yield (number of steps, counts) for the steps from `first` to `last`.

        >>> list(Timeline([(Run(4, 4, 4), (2,))], 16, 1).within(3, 9))
        [(5, (0,)), (2, (2,))]
        """
        before = bisect_right(self.stretches, first, key=lambda parts: parts[0][0].first) - 1
        for stretch in islice(self.stretches, max(0, before), None):
            if stretch[0][0].first > last:
                return
            for steps, values in stretch:
                if count := steps.within(first, last + 1):
                    yield count, values


def _written_out(stretch: Stretch) -> Iterator[Part]:
    """Yield the number of steps and the counts of each part, as often as it occurs."""
    (first, _), (last, _) = stretch[0], stretch[-1]
    turns = (last.last - first.first + 1) // (first.every or first.length)
    return chain.from_iterable(
        ((steps.length, values) for steps, values in stretch) for _ in range(turns)
    )


def added(left: Values, right: Values) -> Values:
    """The sums of the counts."""
    return tuple(map(operator.add, left, right))


def _pieces(
    low: int, high: int, nothing: Values, active: Mapping[Phase, Values]
) -> Iterator[Piece]:
    """Yield the steps from `low` to before `high`, in which these phases add their counts."""
    period = math.lcm(*(stride for _, stride in active))
    turns = (high - low) // period
    if period > 1 and turns >= _MIN_TURNS:
        cycle = tuple(_merged(_parts(low, low + period, nothing, active)))
        yield period * turns, cycle if len(cycle) > 1 else ((1, cycle[0][1]),)
        low += period * turns
    for length, values in _parts(low, high, nothing, active):
        yield length, ((1, values),)


def _parts(low: int, high: int, nothing: Values, active: Mapping[Phase, Values]) -> Iterator[Part]:
    """Yield the same steps; those of a phase with a stride one by one."""
    if sum((high - low) // stride for _, stride in active if stride > 1) > _MAX_STEPS:
        raise Mistake("the trace is too irregular: its steps have no order")
    always = active.get((0, 1), nothing)
    rows: dict[int, Values] = {}
    for (rest, stride), more in active.items():
        for step in range(low + (rest - low) % stride, high, stride) if stride > 1 else ():
            rows[step] = added(rows.get(step, always), more)
    for step in sorted(rows):
        if step > low:
            yield step - low, always
        yield 1, rows[step]
        low = step + 1
    if low < high:
        yield high - low, always


def _merged(parts: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Add up the numbers of steps of equal neighbours."""
    return ((sum(map(_first, same)), each) for each, same in groupby(parts, key=_second))


def _folded(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield longer pieces for the same steps: equal ones merged, and repeated ones as a cycle."""
    merged, at = [*_merged(pieces)], 0
    while at < len(merged):
        size, turns = _repeated(merged, at)
        group, cycle = merged[at : at + size], merged[at][1]
        if len(cycle) == 1:
            cycle = tuple((steps, once[0][1]) for steps, once in group)
        yield turns * sum(map(_first, group)), cycle
        at += turns * size


def _repeated(merged: Sequence[Piece], at: int) -> tuple[int, int]:
    """How many of the next pieces repeat, and how often; (1, 1) if none do."""
    for size in range(2, _MAX_CYCLE + 1):
        group, turns = merged[at : at + size], 1
        while merged[at + turns * size : at + (turns + 1) * size] == group:
            if any(len(cycle) > 1 for _, cycle in group):
                return 1, 1  # no group is nested
            turns += 1
        if turns >= _MIN_TURNS:
            return size, turns
    return 1, 1


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the same steps as ascending runs: each run ends before the next begins.

    Several executions in one step add up.

    >>> union([Run(2, 2, 500_000), Run(1, 2, 500_000)])
    [Run(first=1, stride=1, count=1000000, times=1)]
    >>> union([Run(8, 4, 499_999), Run(4, 1, 1)])
    [Run(first=4, stride=4, count=500000, times=1)]
    """
    joined = join(sorted(runs, key=lambda run: run.first))
    if all(before.last < after.first for before, after in pairwise(joined)):
        return joined
    timeline = Timeline(((run, (1,)) for run in joined), max(run.last for run in joined), 1)
    return join(
        Run(first, 1, last - first + 1, times)
        for first, last, (times,) in timeline.spans()
        if times
    )
