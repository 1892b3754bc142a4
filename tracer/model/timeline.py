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
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise, repeat
from typing import Annotated, NamedTuple

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

    def intersect(self, steps: range) -> "Run | None":
        """The part of the run in `steps` (a range with a positive step); None if empty.

        >>> Run(first=4, stride=4, count=40).intersect(range(2, 100, 6))
        Run(first=8, stride=12, count=8, times=1)
        """
        low, high = max(self.first, steps.start), min(self.last, steps.stop - 1)
        if low > high:
            return None
        gcd = math.gcd(self.stride, steps.step)
        if (steps.start - self.first) % gcd:
            return None
        stride = self.stride // gcd * steps.step  # common steps recur every lcm(strides)
        turns = (steps.start - self.first) // gcd * pow(self.stride // gcd, -1, steps.step // gcd)
        common = self.first + self.stride * (turns % (steps.step // gcd))
        first = common + -((common - low) // stride) * stride
        if first > high:
            return None
        count = (high - first) // stride + 1
        return Run(first, stride if count > 1 else 1, count, self.times)

    def moved(self, by: int) -> "Run":
        """The same run, `by` steps later."""
        return Run(self.first + by, self.stride, self.count, self.times)


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

_MAX_CYCLE = 8  # parts; each is a row of a report
_MAX_PARTS = 100_000  # of steps that are written out though they repeat
_MAX_STEPS = 20_000_000  # written out: no training is so irregular, but a file may say so
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


class Stretch(NamedTuple):
    """`steps` consecutive steps from step `first` on, which repeat `cycle`."""

    first: int
    steps: int
    cycle: Cycle

    def parts(self) -> Iterator[tuple[Steps, Values]]:
        """Yield the steps of each part of the cycle, with the counts of each step."""
        begin, last = self.first, self.first + self.steps - 1
        if len(self.cycle) == 1:
            yield Steps(begin, last, self.steps), self.cycle[0][1]
            return
        period = sum(map(_first, self.cycle))
        for length, values in self.cycle:
            yield Steps(begin, begin + self.steps - period + length - 1, length, period), values
            begin += length


class Timeline:
    """The counts of each step, from step 1 on: one tuple for each step."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = list(pieces)

    @classmethod
    def of(cls, weighted: Iterable[tuple[Run, Values]], steps: int, size: int) -> "Timeline":
        """Make the timeline of steps 1 to `steps`, from runs that each add `size` counts to a step.

        >>> Timeline.of([(Run(1, 1, 12), (0, 1)), (Run(4, 4, 3), (5, 0))], 12, 2).stretches
        [Stretch(first=1, steps=12, cycle=((3, (0, 1)), (1, (5, 1))))]
        """
        changes: dict[int, list[tuple[Run, Values]]] = {1: [], steps + 1: []}
        for whole, values in weighted:
            for run in _regular(whole):
                gap = run.stride - 1  # the run is regular in the gaps around it, too
                for at, times in ((run.first - gap, run.times), (run.last + gap + 1, -run.times)):
                    more = tuple(times * number for number in values)
                    changes.setdefault(min(max(at, 1), steps + 1), []).append((run, more))
        always = nothing = (0,) * size
        at_times: dict[tuple[int, int], Values] = {}
        pieces: list[Piece] = []
        for low, high in pairwise(sorted(changes)):
            for run, more in changes[low]:
                if run.stride == 1:
                    always = added(always, more)
                else:
                    phase = run.first % run.stride, run.stride
                    at_times[phase] = added(at_times.get(phase, nothing), more)
                    if not any(at_times[phase]):
                        del at_times[phase]
            pieces += _pieces(low, high, always, at_times)
        return cls(pieces)

    @cached_property
    def spread(self) -> Counter[Values]:
        """The number of steps with each combination of counts."""
        spread: Counter[Values] = Counter()
        for length, cycle in self._pieces:
            turns = length // sum(map(_first, cycle))
            for part, values in cycle:
                spread[values] += part * turns
        return spread

    @cached_property
    def stretches(self) -> list[Stretch]:
        """All steps; those that repeat in the same order are one stretch."""
        pieces = list(_folded(self._pieces))
        firsts = accumulate((steps for steps, _ in pieces), initial=1)
        return [Stretch(first, *piece) for first, piece in zip(firsts, pieces, strict=False)]

    def steps_with(self, counts: Container[Values]) -> tuple[Steps, ...]:
        """Return the steps with one of `counts`.

        >>> timeline = Timeline.of([(Run(1, 4, 4), (3,)), (Run(2, 4, 4), (2,))], 16, 1)
        >>> timeline.steps_with([(3,), (2,)])
        (Steps(first=1, last=14, length=2, every=4),)
        """
        marked = (
            (steps, _shortest(tuple((length, (values in counts,)) for length, values in cycle)))
            for steps, cycle in self._pieces
        )
        return tuple(steps for steps, (is_one,) in Timeline(marked).parts() if is_one)

    def parts(self) -> Iterator[tuple[Steps, Values]]:
        """Yield steps with equal counts, each part of a cycle once."""
        return chain.from_iterable(stretch.parts() for stretch in self.stretches)

    def spans(self) -> Iterator[tuple[int, int, Values]]:
        """Yield (first, last, counts) of equal consecutive steps; cycles are written out."""
        parts = chain.from_iterable(
            [(steps, cycle[0][1])]
            if len(cycle) == 1
            else chain.from_iterable(repeat(cycle, steps // sum(map(_first, cycle))))
            for steps, cycle in self._pieces
        )
        end = 1
        for values, same in groupby(parts, key=_second):
            begin, end = end, end + sum(map(_first, same))
            yield begin, end - 1, values

    def within(self, first: int, last: int) -> Iterator[Part]:
        """Yield (number of steps, counts) for the steps from `first` to `last`.

        >>> list(Timeline.of([(Run(4, 4, 4), (2,))], 16, 1).within(3, 9))
        [(5, (0,)), (2, (2,))]
        """
        at = max(0, bisect_right(self.stretches, first, key=_first) - 1)
        for number in range(at, len(self.stretches)):  # a slice may copy half a million
            stretch = self.stretches[number]
            if stretch.first > last:
                return
            for steps, values in stretch.parts():
                if count := steps.within(first, last + 1):
                    yield count, values


def added(left: Values, right: Values) -> Values:
    """The sums of the counts."""
    return tuple(map(operator.add, left, right))


def _pieces(
    low: int, high: int, always: Values, at_times: Mapping[tuple[int, int], Values]
) -> Iterator[Piece]:
    """Yield the steps from `low` to before `high`: each counts `always`, and some count more.

    `at_times` has the rest that such steps leave by a stride, with the stride.
    """
    period = math.lcm(*(stride for _, stride in at_times))
    turns = (high - low) // period
    if at_times and turns >= _MIN_TURNS:
        cycle = _shortest(tuple(_parts(low, low + period, always, at_times)))
        if len(cycle) <= _MAX_CYCLE or turns * len(cycle) > _MAX_PARTS:
            yield period * turns, cycle
            low += period * turns
    for length, values in _parts(low, high, always, at_times):
        yield length, ((1, values),)


def _parts(
    low: int, high: int, always: Values, at_times: Mapping[tuple[int, int], Values]
) -> Iterator[Part]:
    """Yield the same steps; those that count more one by one."""
    number = sum((high - low) // stride for _, stride in at_times)
    if number > _MAX_STEPS:
        raise Mistake(f"the trace is too irregular: no order in {number:,} steps is seen")
    rows: dict[int, Values] = {}
    for (rest, stride), more in at_times.items():
        for step in range(low + (rest - low) % stride, high, stride):
            rows[step] = added(rows.get(step, always), more)
    for step in sorted(rows):
        if step > low:
            yield step - low, always
        yield 1, rows[step]
        low = step + 1
    if low < high:
        yield high - low, always


def _regular(run: Run) -> Iterable[Run]:
    """The run itself if it is regular, else a run for each of its steps."""
    if run.stride == 1 or run.count >= _MIN_REGULAR:
        return (run,)
    return (Run(step, 1, 1, run.times) for step in run.steps)


def _shortest(parts: Cycle) -> Cycle:
    """The shortest cycle that these parts repeat, with equal neighbours merged."""
    if len(parts) == 1:
        return ((1, parts[0][1]),)
    merged = tuple((sum(map(_first, same)), values) for values, same in groupby(parts, key=_second))
    if len(merged) < len(parts):
        return _shortest(merged)
    sizes = (n for n in range(2, len(merged)) if merged[:n] * (len(merged) // n) == merged)
    return merged[: next(sizes, len(merged))]


def _folded(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield longer pieces for the same steps: equal ones merged, and repeated ones as a cycle."""
    merged = [(sum(map(_first, same)), cycle) for cycle, same in groupby(pieces, key=_second)]
    keys = [each if len(each[1]) == 1 else at for at, each in enumerate(merged)]  # no nested cycle
    repeats = []
    for size in range(2, _MAX_CYCLE + 1):
        begin = 0
        for is_repeated, group in groupby(map(operator.eq, keys, keys[size:])):
            length = sum(1 for _ in group)
            if is_repeated and length >= size * (_MIN_TURNS - 1):
                repeats.append((begin, size, length))
            begin += length
    at = 0
    for begin, size, length in sorted(repeats):
        start = max(begin, at)
        turns = (begin + length - start) // size + 1
        if turns >= _MIN_TURNS:
            yield from merged[at:start]
            cycle = tuple((steps, once[0][1]) for steps, once in merged[start : start + size])
            yield turns * sum(map(_first, cycle)), cycle
            at = start + size * turns
    yield from merged[at:]


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
    timeline = Timeline.of(((run, (1,)) for run in joined), max(run.last for run in joined), 1)
    return join(
        Run(first, 1, last - first + 1, times)
        for first, last, (times,) in timeline.spans()
        if times
    )
