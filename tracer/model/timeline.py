"""`Timeline`: what was counted in each step of a run, with equal steps together.

No step is looked at on its own. Between the steps at which a run starts or ends what goes on
repeats, so it is worked out for one period, and neighbours that are equal are put together. Those
that come again in the same order become one cycle. No TensorFlow.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tracer.model.runs import Run, join

Values = tuple[int, ...]
Part = tuple[int, Values]
"""A number of steps in a row, and what each of them counts."""

_LONGEST_CYCLE = 8  # parts; each is a row of a report
_TURNS = 3  # a cycle that turns fewer times than this is clearer written out


class Steps(NamedTuple):
    """`length` steps in a row from `first` on; and as many again each `every` steps up to `last`.

    `every` is None if they come only once.
    """

    first: int
    last: int
    length: int
    every: int | None = None

    @property
    def number(self) -> int:
        """How many steps they are.

        >>> Steps(1, 63, 3, 4).number
        48
        """
        turns = 1 if self.every is None else (self.last - self.first) // self.every + 1
        return self.length * turns

    def last_before(self, end: int) -> int:
        """The last of them that comes before step `end`; 0 if none does.

        >>> [Steps(1, 63, 3, 4).last_before(end) for end in (1, 3, 5, 99)]
        [0, 2, 3, 63]
        """
        if end <= self.first:
            return 0
        every = self.every or self.last
        begin = self.first + (end - 1 - self.first) // every * every
        return min(begin + self.length - 1, end - 1, self.last)


class Stretch(NamedTuple):
    """Steps that repeat `cycle`, `turns` times, from step `first` on."""

    first: int
    cycle: tuple[Part, ...]
    turns: int = 1

    @property
    def period(self) -> int:
        """The steps of one turn."""
        return sum(length for length, _ in self.cycle)

    @property
    def last(self) -> int:
        """The last step."""
        return self.first + self.period * self.turns - 1

    def parts(self, first_step: int = 1) -> Iterator[tuple[Steps, Values]]:
        """The steps of each part of the cycle, and what each of them counts.

        Their numbers are those of a run if step 1 has the number `first_step` there.
        """
        begin = self.first + first_step - 1
        for length, values in self.cycle:
            last = begin + length - 1 + self.period * (self.turns - 1)
            yield Steps(begin, last, length, self.period if self.turns > 1 else None), values
            begin += length

    def within(self, start: int, length: int) -> Iterator[tuple[int, Values]]:
        """How many of `length` steps from `start` (from 0) on have which counts."""
        if len(self.cycle) == 1:
            yield length, self.cycle[0][1]
            return
        turns, rest = divmod(length, self.period)
        if turns:
            yield from ((number * turns, values) for number, values in self.cycle)
        start %= self.period
        for number, values in (*self.cycle, *self.cycle):
            taken = min(max(0, number - start), rest)
            if taken:
                yield taken, values
            start, rest = max(0, start - number), rest - taken


class Timeline:
    """What was counted in each step, from step 1 on, as a tuple of counts for each step."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self.stretches = tuple(stretches)

    @classmethod
    def of(cls, weighted: Iterable[tuple[Run, Values]], steps: int, size: int) -> "Timeline":
        """The steps from 1 to `steps`, from runs with the `size` counts that each adds to a step.

        >>> Timeline.of([(Run(1, 1, 12), (0, 1)), (Run(4, 4, 3), (5, 0))], 12, 2).stretches
        (Stretch(first=1, cycle=((3, (0, 1)), (1, (5, 1))), turns=3),)
        """
        zero = (0,) * size
        sums: dict[Run, Values] = {}
        for run, weights in weighted:
            steps_of = Run(run.first, run.stride if run.count > 1 else 1, run.count)
            values = tuple(weight * run.times for weight in weights)
            sums[steps_of] = added(sums.get(steps_of, zero), values)
        return cls(_cycles(merged(_regions(sums, steps, zero))))

    def map(self, change: Callable[[Values], Values]) -> "Timeline":
        """The same steps with other counts: those that `change` makes of each step's."""
        changed = {values: change(values) for values in self.spread}
        return Timeline(
            Stretch(
                each.first,
                tuple((length, changed[values]) for length, values in each.cycle),
                each.turns,
            )
            for each in self.stretches
        )

    def beside(self, other: "Timeline") -> "Timeline":
        """The counts of both in each step, those of the other one last.

        >>> Timeline([Stretch(1, ((4, (7,)),))]).beside(Timeline([Stretch(1, ((4, (0,)),))])).spread
        Counter({(7, 0): 4})
        """
        width, more = (len(each.stretches[0].cycle[0][1]) for each in (self, other))
        weighted = [(run, (*values, *(0,) * more)) for run, values in self.runs()]
        weighted += [(run, ((0,) * width + values)) for run, values in other.runs()]
        return Timeline.of(weighted, self.stretches[-1].last, width + more)

    def runs(self, keep: Callable[[Values], object] = any) -> Iterator[tuple[Run, Values]]:
        """The steps that count anything, or those of which `keep` says so, with their counts."""
        for steps, values in self.parts():
            if keep(values) and steps.every is None:
                yield Run(steps.first, 1, steps.length), values
            elif keep(values):
                firsts = range(steps.first, steps.first + steps.length)
                count, every = steps.number // steps.length, steps.every or 1
                yield from ((Run(first, every, count), values) for first in firsts)

    def steps_with(self, counts: Container[Values]) -> tuple[Steps, ...]:
        """The steps that count one of `counts`; more than three stretches at one distance are one.

        >>> timeline = Timeline([Stretch(1, ((1, (3,)), (1, (2,)), (2, (0,))), turns=4)])
        >>> timeline.steps_with([(3,), (2,)])
        (Steps(first=1, last=14, length=2, every=4),)
        """
        found: list[Steps] = []
        spans = self.map(lambda values: (int(values in counts),)).spans()
        for run in join(Run(first, 1, 1, last - first + 1) for first, last, _ in spans):
            more = run.times - 1  # of a stretch: it is no number of executions here
            if run.count > _TURNS:
                found.append(Steps(run.first, run.last + more, run.times, run.stride))
            else:
                firsts = range(run.first, run.last + 1, run.stride)
                found += (Steps(first, first + more, run.times) for first in firsts)
        return tuple(found)

    def parts(self, first_step: int = 1) -> Iterator[tuple[Steps, Values]]:
        """The steps that count the same, each part of a cycle once: see `Stretch.parts`."""
        for stretch in self.stretches:
            yield from stretch.parts(first_step)

    @cached_property
    def spread(self) -> Counter[Values]:
        """In how many steps each combination of counts occurred."""
        counts: Counter[Values] = Counter()
        for stretch in self.stretches:
            for length, values in stretch.cycle:
                counts[values] += length * stretch.turns
        return counts

    def spans(self, keep: Callable[[Values], object] = any) -> Iterator[tuple[int, int, Values]]:
        """The first and the last step of equal steps in a row, if `keep` says so of their counts.

        A cycle is written out, turn after turn; one with nothing in it to keep is passed over.
        """
        first, last, before = 1, 0, None
        for stretch in self.stretches:
            kept = any(keep(values) for _, values in stretch.cycle)
            begin = stretch.first
            for length, values in stretch.cycle * stretch.turns if kept else ():
                if keep(values):
                    if before != values or last != begin - 1:
                        if before is not None:
                            yield first, last, before
                        first, before = begin, values
                    last = begin + length - 1
                begin += length
        if before is not None:
            yield first, last, before

    def within(self, first: int, last: int) -> Iterator[tuple[int, Values]]:
        """How many of the steps from `first` to `last` have which counts.

        >>> list(Timeline([Stretch(1, ((3, (0,)), (1, (2,))), turns=4)]).within(3, 9))
        [(3, (0,)), (1, (2,)), (1, (0,)), (1, (2,)), (1, (0,))]
        """
        at = max(0, bisect_right(self.stretches, first, key=lambda each: each.first) - 1)
        for number in range(at, len(self.stretches)):  # a slice would copy half a million
            stretch = self.stretches[number]
            if stretch.first > last:
                return
            low, high = max(first, stretch.first), min(last, stretch.last)
            if low <= high:
                yield from stretch.within(low - stretch.first, high - low + 1)


def _window(run: Run) -> tuple[int, int]:
    """The steps around a run in which it goes on regularly: also the gaps before and after it."""
    return run.first - run.stride + 1, run.last + run.stride


def _regions(weighted: Mapping[Run, Values], steps: int, zero: Values) -> Iterator[Stretch]:
    """Stretches between the steps at which a run starts or ends."""
    edges: dict[int, list[Run]] = {1: [], steps + 1: []}
    for run in weighted:
        for edge in _window(run):
            edges.setdefault(min(max(edge, 1), steps + 1), []).append(run)
    active: dict[Run, Values] = {}
    for begin, end in pairwise(sorted(edges)):
        for run in edges[begin]:
            low, high = _window(run)
            active.pop(run, None)
            if low <= begin < high:
                active[run] = weighted[run]
        yield from _region(begin, end, active, zero)


def _region(begin: int, end: int, active: Mapping[Run, Values], zero: Values) -> Iterator[Stretch]:
    """The steps from `begin` to before `end`, in which the `active` runs go on regularly."""
    period = math.lcm(*(run.stride for run in active))
    if period == 1:
        whole = tuple(map(sum, zip(zero, *active.values(), strict=True)))
        yield Stretch(begin, ((end - begin, whole),))
        return
    turns = (end - begin) // period
    cycle = _parts(begin, begin + period, active, zero) if turns >= _TURNS else ()
    if 0 < len(cycle) <= _LONGEST_CYCLE:
        alike = Stretch(begin, ((period * turns, cycle[0][1]),))
        yield alike if len(cycle) == 1 else Stretch(begin, cycle, turns)
        begin += period * turns
    for length, values in _parts(begin, end, active, zero):
        yield Stretch(begin, ((length, values),))
        begin += length


def _parts(begin: int, end: int, active: Mapping[Run, Values], zero: Values) -> tuple[Part, ...]:
    """Each step from `begin` to before `end`, equal neighbours together."""
    changes = {begin: zero, end: zero}
    for run, values in active.items():
        less = tuple(-value for value in values)
        length = end - begin if run.stride == 1 else 1
        first = run.first + max(0, -((run.first - begin) // run.stride)) * run.stride
        for start in range(first, min(end, run.last + 1), max(run.stride, length)):
            changes[start] = added(changes.get(start, zero), values)
            changes[start + length] = added(changes.get(start + length, zero), less)
    parts: list[Part] = []
    values = zero
    for start, stop in pairwise(sorted(changes)):
        values = added(values, changes[start])
        length = parts.pop()[0] if parts and parts[-1][1] == values else 0
        parts.append((length + stop - start, values))
    return tuple(parts)


def added(left: Values, right: Values) -> Values:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same steps, with neighbours that go on in the same way made one."""
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
    """The same steps, with parts that come again in the same order made one cycle."""
    at = 0
    while at < len(pieces):
        size, turns = _repeats(pieces, at)
        cycle = tuple(piece.cycle[0] for piece in pieces[at : at + size])
        yield pieces[at] if turns == 1 else Stretch(pieces[at].first, cycle, turns)
        at += size * turns


def _repeats(pieces: Sequence[Stretch], at: int) -> tuple[int, int]:
    """The fewest parts that come at least three times from `at` on, and how often they come."""
    for size in range(2, min(_LONGEST_CYCLE, (len(pieces) - at) // _TURNS) + 1):
        end = at + size
        while end < len(pieces) and pieces[end].cycle == pieces[end - size].cycle:
            if len(pieces[end].cycle) > 1:
                break
            end += 1
        if (end - at) // size >= _TURNS:
            return size, (end - at) // size
    return 1, 1
