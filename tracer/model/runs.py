"""Defines runs: steps as arithmetic progressions. No TensorFlow.

Regular training is one `Run`, however long it goes on. Steps are numbered from 1, and a run is
never empty. A list of runs has the number of executions in each step; runs that share a step add
up.
"""

import math
from collections.abc import Iterable

import msgspec


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
        elif gap == stride and previous.count > 1:
            # The run's first step continues the previous progression.
            joined[-1] = Run(previous.first, stride, previous.count + 1, run.times)
            left = run.count - 1
            joined.append(
                Run(run.first + run.stride, run.stride if left > 1 else 1, left, run.times)
            )
        else:
            joined.append(run)
    return joined
