"""Runs: the steps in which something ran, as arithmetic progressions. No TensorFlow.

However long regular training goes on, what it did in each step is one `Run`. Steps are numbered
from 1, and a run is never empty. A list of runs says how often something ran in each step; two that
stand for the same step add up.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise

import msgspec
from msgspec.structs import replace


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Steps `first`, `first + stride`, ... (`count` of them), each with `times` executions.

    >>> Run(first=2, stride=4, count=3).last
    10
    """

    first: int
    stride: int
    count: int
    times: int = 1

    @property
    def last(self) -> int:
        """The last step of the run."""
        return self.first + (self.count - 1) * self.stride

    @property
    def total(self) -> int:
        """The executions in the whole run."""
        return self.count * self.times

    def only(self, steps: range) -> "Run | None":
        """The part of the run that is in `steps` (a range with a positive step); None if none is.

        >>> Run(first=4, stride=4, count=40).only(range(2, 100, 6))
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
    """The fewest runs, greedily, for `(step, times)` pairs in rising order of step.

    >>> fold([(1, 1), (2, 1), (3, 1), (5, 2)])
    [Run(first=1, stride=1, count=3, times=1), Run(first=5, stride=1, count=1, times=2)]
    """
    return join(Run(step, 1, 1, times) for step, times in steps)


def join(runs: Iterable[Run]) -> list[Run]:
    """The same steps in fewer runs: neighbours that continue one arithmetic progression become one.

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
        elif gap == stride and previous.count > 1:
            # The run's first step still belongs to the progression before it.
            joined[-1] = Run(previous.first, stride, previous.count + 1, run.times)
            left = run.count - 1
            joined.append(
                Run(run.first + run.stride, run.stride if left > 1 else 1, left, run.times)
            )
        else:
            joined.append(run)
    return joined


def apart(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same steps, in which two that are apart are no run: that is no rhythm to fold by.

    >>> apart([Run(3, 1, 2), Run(7, 40, 2)])
    (Run(first=3, stride=1, count=2, times=1), Run(first=7, stride=1, count=1, times=1), \
Run(first=47, stride=1, count=1, times=1))
    """
    parts = (
        [replace(run, first=step, stride=1, count=1) for step in (run.first, run.last)]
        if run.count == 2 and run.stride > 1
        else [run]
        for run in runs
    )
    return tuple(chain.from_iterable(parts))


def union(runs: Iterable[Run]) -> list[Run]:
    """The same steps in runs that rise: those of each run come after those of the run before.

    What executed several times in a step adds up. Runs that take turns become one; else, where they
    overlap, each of their steps is looked at.

    >>> union([Run(2, 2, 500_000), Run(1, 2, 500_000)])
    [Run(first=1, stride=1, count=1000000, times=1)]
    """
    ordered = woven(runs)
    if any(later.first <= run.last for run, later in pairwise(ordered)):
        times: Counter[int] = Counter()
        for run in ordered:
            for step in range(run.first, run.last + 1, run.stride):
                times[step] += run.times
        ordered = fold(sorted(times.items()))
    return join(ordered)


def layers(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs in as few lists as it takes for those of each list to rise, as `union` says.

    >>> layers([Run(1, 4, 9), Run(2, 4, 9), Run(40, 1, 2)])
    [[Run(first=1, stride=4, count=9, times=1), Run(first=40, stride=1, count=2, times=1)], \
[Run(first=2, stride=4, count=9, times=1)]]
    """
    found: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: run.first):
        for layer in found:
            if layer[-1].last < run.first:
                layer.append(run)
                break
        else:
            found.append([run])
    return [join(layer) for layer in found]


def woven(runs: Iterable[Run]) -> list[Run]:
    """The runs in the order of their first steps, those as one that take turns.

    >>> woven([Run(2, 2, 500_000), Run(7, 5, 3), Run(1, 2, 500_000)])
    [Run(first=1, stride=1, count=1000000, times=1), Run(first=7, stride=5, count=3, times=1)]
    """
    found: list[Run] = []
    of_one_stride: dict[tuple[int, int], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.first):
        of_one_stride.setdefault((run.stride, run.times), []).append(run)
    for (stride, times), alike in of_one_stride.items():
        at = 0
        while at < len(alike):
            first = alike[at]
            gap = alike[at + 1].first - first.first if at + 1 < len(alike) else 0
            turns = stride // gap if gap > 0 and stride % gap == 0 else 1
            group = alike[at : at + turns]
            if turns == 1 or not _take_turns(group, turns, gap):
                group, gap = [first], stride
            found.append(Run(first.first, gap, sum(run.count for run in group), times))
            at += len(group)
    return sorted(found, key=lambda run: run.first)


def _take_turns(runs: Sequence[Run], turns: int, gap: int) -> bool:
    """Whether so many runs come one after the other, every `gap`, up to the last step of all."""
    gaps = {later.first - run.first for run, later in pairwise(runs)}
    counts = [run.count for run in runs]
    fall = counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1
    return len(runs) == turns and gaps == {gap} and fall


def segments(weighted: Iterable[tuple[Run, int]], steps: int) -> Iterator[tuple[int, int, int]]:
    """Runs of equal counts over the steps 1 to `steps`, from runs with what each adds to a step."""
    changes = heapq.merge(*(_changes(run, weight) for run, weight in weighted))
    start, count = 1, 0
    for step, group in groupby(changes, key=lambda change: change[0]):
        difference = sum(change for _, change in group)
        if difference and step <= steps:
            if step > start:
                yield start, step - 1, count
            start, count = step, count + difference
    if start <= steps:
        yield start, steps, count


def _changes(run: Run, weight: int) -> Iterator[tuple[int, int]]:
    """The steps at which the count changes because of `run`, with the change, in rising order."""
    stride, length = (run.count, run.count) if run.stride == 1 else (run.stride, 1)
    for step in range(run.first, run.last + 1, stride):
        yield step, weight
        yield step + length, -weight
