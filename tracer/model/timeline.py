"""Implements `Timeline`: the counts of each step of a run, with equal steps grouped.

Steps are not visited one by one. Between steps at which a run starts or ends, the counts repeat, so
they are computed for one period, and equal neighbours are merged. Runs at equal distances, such as
one in each epoch, are treated as one recurring run. No TensorFlow.
"""

import math
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise, repeat
from typing import NamedTuple

from tracer.model.runs import Run, fold, join

Values = tuple[int, ...]
Part = tuple[int, Values]
"""A number of consecutive steps, and the counts of each."""

_head = operator.itemgetter(0)  # the first step of a stretch, the length of a part
_MAX_CYCLE = 8  # parts; each is a row of a report
_MIN_TURNS = 3  # fewer turns than this are clearer written out
_MIN_ROWS = 16  # runs at equal distances: fewer may be chance, and cost little


class Steps(NamedTuple):
    """`length` consecutive steps from `first` on, repeated each `every` steps up to `last`.

    `every` is None if they occur once.
    """

    first: int
    last: int
    length: int
    every: int | None = None

    @property
    def number(self) -> int:
        """The number of steps.

        >>> Steps(1, 63, 3, 4).number
        48
        """
        turns = 1 if self.every is None else (self.last - self.first) // self.every + 1
        return self.length * turns

    def last_before(self, end: int) -> int:
        """The last of the steps before step `end`; 0 if none.

        >>> [Steps(1, 63, 3, 4).last_before(end) for end in (1, 3, 5, 99)]
        [0, 2, 3, 63]
        """
        end = min(end, self.last + 1)
        rows = self.rows(end - (self.every or self.length), end)
        return max((after for _, after in rows), default=1) - 1

    def rows(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the rows from `begin` to before `end`, each as (first step, step after it).

        >>> list(Steps(1, 63, 3, 4).rows(6, 10))
        [(6, 8), (9, 10)]
        """
        every = self.every or self.length
        start = self.first + max(0, (begin - self.first) // every) * every
        for first in range(start, min(end, self.last + 1), every):
            if begin < first + self.length:
                yield max(first, begin), min(first + self.length, end)


class Stretch(NamedTuple):
    """Steps that repeat `cycle`, `turns` times, from step `first` on."""

    first: int
    cycle: tuple[Part, ...]
    turns: int = 1

    @property
    def period(self) -> int:
        """The number of steps of one turn."""
        return sum(map(_head, self.cycle))

    @property
    def last(self) -> int:
        return self.first + self.period * self.turns - 1

    def parts(self) -> Iterator[tuple[Steps, Values]]:
        """Yield the steps of each part of the cycle, with the counts of each step."""
        begin = self.first
        for length, values in self.cycle:
            last = begin + length - 1 + self.period * (self.turns - 1)
            yield Steps(begin, last, length, self.period if self.turns > 1 else None), values
            begin += length

    def within(self, start: int, length: int) -> Iterator[tuple[int, Values]]:
        """Yield (number of steps, counts) for `length` steps from `start` on (counted from 0)."""
        period, begin = self.period, 0
        for size, values in self.cycle:
            before, until = (
                step // period * size + min(max(step % period - begin, 0), size)
                for step in (start, start + length)
            )
            if until > before:
                yield until - before, values
            begin += size


Active = tuple[Steps, Values]
"""Steps, and the counts of each."""


class Timeline:
    """The counts of each step, from step 1 on: one tuple for each step."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self.stretches = tuple(stretches)

    @classmethod
    def of(cls, weighted: Iterable[tuple[Run, Values]], steps: int, size: int) -> "Timeline":
        """Make the timeline of steps 1 to `steps`, from runs that each add `size` counts to a step.

        >>> Timeline.of([(Run(1, 1, 12), (0, 1)), (Run(4, 4, 3), (5, 0))], 12, 2).stretches
        (Stretch(first=1, cycle=((3, (0, 1)), (1, (5, 1))), turns=3),)
        """
        return cls.folded(_recurring(weighted), steps, size)

    @classmethod
    def folded(cls, active: Iterable[Active], steps: int, size: int) -> "Timeline":
        """Make the timeline of steps 1 to `steps`, to which `active` adds `size` counts."""
        return cls(_cycles(_merged(_regions(active, 1, steps + 1, (0,) * size))))

    def map(self, change: Callable[[Values], Values]) -> "Timeline":
        """Return the same steps with the counts replaced by `change`."""
        changed = {values: change(values) for values in self.spread}
        return Timeline(
            each._replace(cycle=tuple((length, changed[values]) for length, values in each.cycle))
            for each in self.stretches
        )

    def joined(self, other: "Timeline") -> "Timeline":
        """Return the counts of both timelines in each step, the other's last.

        >>> Timeline([Stretch(1, ((4, (7,)),))]).joined(Timeline([Stretch(1, ((4, (0,)),))])).spread
        Counter({(7, 0): 4})
        """
        width, more = (len(each.stretches[0].cycle[0][1]) for each in (self, other))
        active = [(steps, (*values, *(0,) * more)) for steps, values in self.parts()]
        active += [(steps, (*(0,) * width, *values)) for steps, values in other.parts()]
        return Timeline.folded(active, self.stretches[-1].last, width + more)

    def steps_with(self, counts: Container[Values]) -> tuple[Steps, ...]:
        """Return the steps with one of `counts`; more than three rows at equal distances are one.

        >>> timeline = Timeline([Stretch(1, ((1, (3,)), (1, (2,)), (2, (0,))), turns=4)])
        >>> timeline.steps_with([(3,), (2,)])
        (Steps(first=1, last=14, length=2, every=4),)
        """
        spans = self.map(lambda values: (int(values in counts),)).spans()
        by_length = groupby(spans, key=lambda span: span[1] - span[0] + 1)
        rows = (_rows((first for first, *_ in of), size, _MIN_TURNS + 1) for size, of in by_length)
        return tuple(chain.from_iterable(rows))

    def parts(self) -> Iterator[tuple[Steps, Values]]:
        """Yield steps with equal counts, each part of a cycle once: see `Stretch.parts`."""
        for stretch in self.stretches:
            yield from stretch.parts()

    @cached_property
    def spread(self) -> Counter[Values]:
        """The number of steps with each combination of counts."""
        counts: Counter[Values] = Counter()
        for stretch in self.stretches:
            for length, values in stretch.cycle:
                counts[values] += length * stretch.turns
        return counts

    def spans(self, keep: Callable[[Values], object] = any) -> Iterator[tuple[int, int, Values]]:
        """Yield (first, last, counts) of equal consecutive steps for which `keep(counts)` is true.

        Cycles are written out turn by turn; cycles with nothing to keep are skipped.
        """
        end = 1
        for values, parts in groupby(self._written_out(keep), key=lambda part: part[1]):
            begin, end = end, end + sum(length for length, _ in parts)
            if keep(values):
                yield begin, end - 1, values

    def _written_out(self, keep: Callable[[Values], object]) -> Iterator[Part]:
        for stretch in self.stretches:
            if any(keep(values) for _, values in stretch.cycle):
                yield from chain.from_iterable(repeat(stretch.cycle, stretch.turns))
            else:
                yield stretch.period * stretch.turns, stretch.cycle[0][1]

    def within(self, first: int, last: int) -> Iterator[tuple[int, Values]]:
        """Yield (number of steps, counts) for the steps from `first` to `last`.

        >>> list(Timeline([Stretch(1, ((3, (0,)), (1, (2,))), turns=4)]).within(3, 9))
        [(5, (0,)), (2, (2,))]
        """
        at = max(0, bisect_right(self.stretches, first, key=_head) - 1)
        for number in range(at, len(self.stretches)):  # a slice may copy half a million
            stretch = self.stretches[number]
            if stretch.first > last:
                return
            low, high = max(first, stretch.first), min(last, stretch.last)
            if low <= high:
                yield from stretch.within(low - stretch.first, high - low + 1)

    def runs(self) -> list[Run]:
        """Return the steps with a count as ascending runs, for a timeline of one count.

        >>> Timeline.of([(Run(4, 4, 500_000), (1,))], 2_000_000, 1).runs()
        [Run(first=4, stride=4, count=500000, times=1)]
        """
        found: list[Run] = []
        for stretch in self.stretches:
            counted = [(steps, times) for steps, (times,) in stretch.parts() if times]
            if len(counted) > 1 or any(steps.length > 1 for steps, _ in counted):
                rows = ((steps.rows(1, stretch.last + 1), times) for steps, times in counted)
                written_out = sorted((low, high - low, n) for each, n in rows for low, high in each)
                found += [Run(low, 1, length, times) for low, length, times in written_out]
            else:
                found += [Run(e.first, e.every or 1, e.number, times) for e, times in counted]
        return join(found)


def segments(weighted: Iterable[tuple[Run, int]], steps: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, count) of equal consecutive steps 1 to `steps`, from weighted runs."""
    timeline = Timeline.of(((run, (weight,)) for run, weight in weighted), steps, 1)
    return ((first, last, count) for first, last, (count,) in timeline.spans(lambda values: True))


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the same steps as ascending runs: each run ends before the next begins.

    Several executions in one step add up.

    >>> union([Run(2, 2, 500_000), Run(1, 2, 500_000)])
    [Run(first=1, stride=1, count=1000000, times=1)]
    """
    joined = join(runs)
    if all(before.last < after.first for before, after in pairwise(joined)):
        return joined
    weighted = [(run, (1,)) for run in joined]
    return Timeline.of(weighted, max((run.last for run, _ in weighted), default=0), 1).runs()


def _recurring(weighted: Iterable[tuple[Run, Values]]) -> list[Active]:
    """Return the steps of all runs, with their counts; equally distant steps are grouped."""
    sums: dict[Steps, Values] = {}
    for run, weights in weighted:
        is_row = run.stride == 1 or run.count == 1
        shape = (run.count, None) if is_row else (1, run.stride)
        steps, values = Steps(run.first, run.last, *shape), tuple(n * run.times for n in weights)
        sums[steps] = added(sums[steps], values) if steps in sums else values
    active = [(steps, values) for steps, values in sums.items() if steps.every]
    rows: dict[tuple[int, Values], list[int]] = {}
    for steps, values in sums.items():
        if not steps.every:
            rows.setdefault((steps.length, values), []).append(steps.first)
    for (length, values), firsts in rows.items():
        active += [(steps, values) for steps in _rows(sorted(firsts), length, _MIN_ROWS)]
    return active


def _rows(firsts: Iterable[int], length: int, least: int) -> Iterator[Steps]:
    """Yield `length` steps from each of `firsts`; at least `least` equally distant rows are one."""
    for run in fold((first, 1) for first in firsts):
        if run.count >= least and run.stride > length:
            yield Steps(run.first, run.last + length - 1, length, run.stride)
        else:
            each = range(run.first, run.last + 1, run.stride)
            yield from (Steps(first, first + length - 1, length) for first in each)


def _window(steps: Steps) -> tuple[int, int]:
    """The range in which the steps recur regularly, including gaps, as (first, after)."""
    gap = (steps.every or steps.length) - steps.length
    return steps.first - gap, steps.last + gap + 1


def _regions(weighted: Iterable[Active], begin: int, end: int, base: Values) -> Iterator[Stretch]:
    """Yield the steps from `begin` to before `end`, with `base` added, cut where anything starts or
    ends.

    Recurring steps are computed for each region; consecutive ones are added once and subtracted
    once, as many may overlap.
    """
    edges: dict[int, list[tuple[bool, Active]]] = {begin: [], end: []}
    for each in weighted:
        for begins, edge in zip((True, False), _window(each[0]), strict=True):
            edges.setdefault(min(max(edge, begin), end), []).append((begins, each))
    recurring: dict[int, Active] = {}
    for low, high in pairwise(sorted(edges)):
        for begins, each in edges[low]:
            steps, values = each
            if steps.every is None:
                base = added(base, values if begins else negative(values))
            elif begins:
                recurring[id(each)] = each
            else:
                del recurring[id(each)]
        yield from _region(low, high, [*recurring.values()], base)


def _region(begin: int, end: int, active: Sequence[Active], base: Values) -> Iterator[Stretch]:
    """Yield the steps from `begin` to before `end`, in which all of `active` recur regularly."""
    period = math.lcm(*(steps.every or 1 for steps, _ in active))
    turns = (end - begin) // period
    cycle = _parts(begin, begin + period, active, base) if turns >= _MIN_TURNS else ()
    if 0 < len(cycle) <= _MAX_CYCLE:
        alike = Stretch(begin, ((period * turns, cycle[0][1]),))
        yield alike if len(cycle) == 1 else Stretch(begin, cycle, turns)
        begin += period * turns
    elif any(steps.length > 1 for steps, _ in active):
        apart = [each for each in active if each[0].length == 1]
        for steps, values in active:
            if steps.length > 1:
                rows = steps.rows(begin, end)
                apart += [(Steps(low, high - 1, high - low), values) for low, high in rows]
        yield from _regions(apart, begin, end, base)
        return
    for length, values in _parts(begin, end, active, base):
        yield Stretch(begin, ((length, values),))
        begin += length


def _parts(begin: int, end: int, active: Iterable[Active], base: Values) -> tuple[Part, ...]:
    """Return the steps from `begin` to before `end`, with equal neighbours merged."""
    zero = (0,) * len(base)
    changes = {begin: base, end: zero}
    for steps, values in active:
        for low, high in steps.rows(begin, end):
            changes[low] = added(changes.get(low, zero), values)
            changes[high] = added(changes.get(high, zero), negative(values))
    parts: list[Part] = []
    values = zero
    for low, high in pairwise(sorted(changes)):
        values = added(values, changes[low])
        length = parts.pop()[0] if parts and parts[-1][1] == values else 0
        parts.append((length + high - low, values))
    return tuple(parts)


def added(left: Values, right: Values) -> Values:
    return tuple(map(operator.add, left, right))


def negative(values: Values) -> Values:
    return tuple(map(operator.neg, values))


def _merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Merge neighbouring stretches that continue each other."""
    found: list[Stretch] = []
    for stretch in stretches:
        before = found[-1] if found else None
        ((length, values), *more) = stretch.cycle
        if before and not more and len(before.cycle) == 1 and before.cycle[0][1] == values:
            found[-1] = Stretch(before.first, ((before.period + length, values),))
        elif before and more and before.cycle == stretch.cycle:
            found[-1] = Stretch(before.first, stretch.cycle, before.turns + stretch.turns)
        else:
            found.append(stretch)
    return found


def _cycles(pieces: Sequence[Stretch]) -> Iterator[Stretch]:
    """Group parts that repeat in the same order into cycles."""
    at = 0
    while at < len(pieces):
        size, turns = _repeats(pieces, at)
        cycle = tuple(piece.cycle[0] for piece in pieces[at : at + size])
        yield pieces[at] if turns == 1 else Stretch(pieces[at].first, cycle, turns)
        at += size * turns


def _repeats(pieces: Sequence[Stretch], at: int) -> tuple[int, int]:
    """The fewest parts that repeat at least three times from `at` on, and how often they do."""
    for size in range(2, min(_MAX_CYCLE, (len(pieces) - at) // _MIN_TURNS) + 1):
        end = at + size
        while end < len(pieces) and pieces[end].cycle == pieces[end - size].cycle:
            if len(pieces[end].cycle) > 1:
                break
            end += 1
        if (end - at) // size >= _MIN_TURNS:
            return size, (end - at) // size
    return 1, 1
