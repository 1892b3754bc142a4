"""Records spans: which caller ran which steps of a counter. No framework.

A counter has the steps in which a graph ran; Python notes who called the graph from which step on.
Together they give the steps of each caller. Callers may take turns for as long as the program runs,
so spans of equal length at equal distances are stored as one `Stretch`, however many they are.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from tracer.model.runs import Run, join

MAX_STRETCHES = 4000
"""The most stretches that are kept; callers without any order reach this limit."""

_LONG = 64
"""Above this span length, one run per step of a span takes more space than one per span, unless
spans are many: overlapping runs need several blocks."""

_MAX_RUNS = 32
"""The number of runs that take as much space as a block."""

Who = TypeVar("Who", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Spans of `length` steps each, which begin at `first` and every `stride` after it."""

    first: int
    stride: int
    count: int
    length: int

    @property
    def last(self) -> int:
        """The last step of all spans."""
        return self.first + (self.count - 1) * self.stride + self.length - 1

    def runs(self) -> Iterator[Run]:
        """Yield the steps as runs: one for each span, or overlapping runs if that takes less space.

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
    """Records the caller of each step: one caller, or an unknown one."""

    def __init__(self) -> None:
        self.callers: dict[Who, None] = {}
        """All callers so far, in order of their first call."""
        self.now: Who | None = None
        """The current caller; None if unknown or about to change."""
        self.full = False
        """Whether callers are unknown from now on, as after too many changes."""
        self._stretches: dict[Who | None, list[list[int]]] = {}
        self._kept = 0
        self._last: Who | None = None
        self._since = 1

    def change(self, step: int, caller: Who | None) -> None:
        """Set the caller from `step` on; None if unknown."""
        self.now = caller
        if not self.full:
            self._close(step)
            self.full = self._kept >= MAX_STRETCHES
            self._last, self._since = None if self.full else caller, max(step, self._since)

    def give_up(self, step: int) -> None:
        """Treat the caller as unknown from `step` on, for good."""
        self.change(step, None)
        self.full = True

    def _close(self, step: int) -> None:
        """End the open span before `step`."""
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
        """The spans of each caller before the step `end`; together, all steps until then."""
        found = {
            caller: [Stretch(*each) for each in stretches]
            for caller, stretches in self._stretches.items()
        }
        if end > self._since:
            found.setdefault(self._last, []).append(Stretch(self._since, 1, 1, end - self._since))
        return found


def of_caller(runs: Iterable[Run], stretches: Sequence[Stretch], earlier: int = 0) -> list[Run]:
    """The parts of `runs` in the spans of one caller; unordered, and they may overlap.

    The numbers of steps in the spans are `earlier` higher than in the runs.

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
    """Split runs into as few lists as possible, so that the runs of each list do not overlap.

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
