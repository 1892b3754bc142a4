"""Spans: from which step to which each of several callers ran what a counter counted. No framework.

A counter says in which steps a graph ran, and Python says who called it from which step on. Put
together they give the steps of each caller. Callers may take turns for as long as the program
runs, so what is noted of them is arithmetic too: spans of equal length at equal distances are one
`Stretch`, however many they are.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from tracer.model.runs import Run, join

MAX_STRETCHES = 4000
"""How many stretches a record keeps; callers without any order end it."""

_LONG = 64
"""From which length on a run for each step of a span takes more room than one for each span, if
these are not many: runs that overlap are of blocks of their own."""

_MAX_RUNS = 32
"""How many runs of one block take the room of a block."""

Who = TypeVar("Who", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Spans of steps: `length` each, the first from `first` on, and so on every `stride`."""

    first: int
    stride: int
    count: int
    length: int

    @property
    def last(self) -> int:
        """The last step in them."""
        return self.first + (self.count - 1) * self.stride + self.length - 1

    def runs(self) -> Iterator[Run]:
        """The steps in them: a run for each span, or overlapping ones if that takes less room.

        >>> list(Stretch(first=1, stride=4, count=100, length=2).runs())
        [Run(first=1, stride=4, count=100, times=1), Run(first=2, stride=4, count=100, times=1)]
        """
        if self.count <= self.length * (_MAX_RUNS if self.length > _LONG else 1):
            for index in range(self.count):
                yield Run(self.first + index * self.stride, 1, self.length)
        else:
            for offset in range(self.length):
                yield Run(self.first + offset, self.stride, self.count)


class Spans(Generic[Who]):
    """Who called, from which step on: each step is of one caller, or of nobody who is known."""

    def __init__(self) -> None:
        self.callers: dict[Who, None] = {}
        """Everyone who ever called, in the order in which they came."""
        self.now: Who | None = None
        """Who calls now; None if that is not known, or about to change."""
        self.full = False
        """Whether nobody is known from now on, as when there were too many changes to keep."""
        self._stretches: dict[Who | None, list[list[int]]] = {}
        self._kept = 0
        self._last: Who | None = None
        self._since = 1

    def change(self, step: int, caller: Who | None) -> None:
        """From `step` on it is `caller`; None if that cannot be known."""
        self.now = caller
        if not self.full:
            self._close(step)
            self.full = self._kept >= MAX_STRETCHES
            self._last, self._since = None if self.full else caller, max(step, self._since)

    def give_up(self, step: int) -> None:
        """From `step` on nobody is known."""
        self.change(step, None)
        self.full = True

    def _close(self, step: int) -> None:
        """The span that is open ends before `step`."""
        length = step - self._since
        if length <= 0:
            return
        stretches = self._stretches.setdefault(self._last, [])
        if stretches:
            first, stride, count, known_length = stretches[-1]
            gap = self._since - first - (count - 1) * stride
            if length == known_length and (count == 1 or gap == stride):
                stretches[-1][1:3] = gap, count + 1
                return
        self._kept += 1
        stretches.append([self._since, 1, 1, length])

    def by_caller(self, end: int) -> dict[Who | None, list[Stretch]]:
        """The spans of each before the step `end`; together they are all steps until then."""
        found = {
            caller: [Stretch(*each) for each in stretches]
            for caller, stretches in self._stretches.items()
        }
        if end > self._since:
            found.setdefault(self._last, []).append(Stretch(self._since, 1, 1, end - self._since))
        return found


def of_caller(runs: Iterable[Run], stretches: Sequence[Stretch], earlier: int = 0) -> list[Run]:
    """Those of `runs` in the spans of one caller; in no order, and they may overlap.

    The steps of the spans count `earlier` more steps than those of the runs.

    >>> of_caller([Run(1, 1, 10)], [Stretch(first=3, stride=4, count=2, length=2)])
    [Run(first=3, stride=1, count=2, times=1), Run(first=7, stride=1, count=2, times=1)]
    """
    found = []
    for run in runs:
        for stretch in stretches:
            if stretch.last - earlier < run.first or stretch.first - earlier > run.last:
                continue
            for span in stretch.runs():
                steps = range(span.first - earlier, span.last - earlier + 1, span.stride)
                part = run.intersect(steps)
                if part is not None:
                    found.append(part)
    return found


def layers(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs in as few lists as it takes for the runs of each list to come one after the other.

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
