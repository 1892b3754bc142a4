"""The heat map as numbers: what the steps did to each variable, with equal steps folded.

Variables that got the same in every step share a pattern, and patterns that count the same share a
lane, so that a model of thousands of variables and a million steps is a handful of lanes. Where
effects were asked for, variables that are alike in those as well do so.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tracer.layout import shown
from tracer.model import measures
from tracer.model.labels import replica_names, replica_noun
from tracer.model.summary import Summary
from tracer.model.timeline import Stretch, Timeline, Values

MAX_STRETCHES = 5_000
"""In a run that is more irregular, no cell says that its steps updated no variable at all."""
_MAX_LEVELS = 5
_MAX_VIEWS = 32
_MAX_CELLS = 100_000  # patterns times views


class Cell(NamedTuple):
    """What some steps in a row have in common."""

    steps: int = 0
    without: int = 0
    """How many of the steps have no update."""
    dense: int = 0
    sparse: int = 0
    least: int = 0
    """The fewest updates in one of the steps."""
    most: int = 0
    compared: int = 0
    """In how many of the steps the variable was compared; 0 without effects, as what follows."""
    unchanged: int = 0
    ineffective: int = 0
    """In how many of the steps it was updated and unchanged."""
    not_finite: int = 0
    idle: int = 0
    """In how many of the steps no variable at all was updated."""

    def times(self, number: int) -> "Cell":
        """So many times the same steps.

        >>> Cell(1, 0, 2, 0, 2, 2).times(3)[:6]
        (3, 0, 6, 0, 2, 2)
        """
        sums = Cell(*[number * count for count in self])
        return sums._replace(least=self.least, most=self.most)


_LEAST, _MOST = Cell._fields.index("least"), Cell._fields.index("most")


def added_up(parts: Iterable[tuple[int, Any]]) -> Cell:
    """Cells, each so many times, as one."""
    cells: list[Cell] = [cell if number == 1 else cell.times(number) for number, cell in parts]
    if len(cells) < 2:
        return cells[0] if cells else Cell()
    columns = list(zip(*cells, strict=True))
    sums = Cell(*map(sum, columns))
    return sums._replace(least=min(columns[_LEAST]), most=max(columns[_MOST]))


def coarser(stretches: Iterable[Stretch], size: int) -> Iterator[Stretch]:
    """The same steps with a cell for each `size` of them; the last one has those that are left.

    >>> alternating = Stretch(1, ((1, Cell(1, 1)), (1, Cell(1, 0, 2, 0, 2, 2))), turns=9)
    >>> [(each.first, each.cycle[0][1][:3], each.turns) for each in coarser([alternating], 4)]
    [(1, (4, 2, 4), 4), (5, (2, 1, 2), 1)]
    """
    at, parts = 1, list[tuple[int, Values]]()  # the cell that is being made, and what it has
    for stretch in stretches:
        begin, period = stretch.first, stretch.period
        after = begin + period * stretch.turns
        unit = math.lcm(period, size) if len(stretch.cycle) > 1 else size
        while begin < after:
            start, turns = begin - stretch.first, (after - begin) // unit
            if not parts and turns > 1:
                starts = range(start, start + unit, size)
                cells = [added_up(stretch.within(each, size)) for each in starts]
                yield Stretch(at, tuple((1, cell) for cell in cells), turns)
                at += turns * len(cells)
                begin += turns * unit
            else:
                begin = min(after, at * size + 1)
                parts += stretch.within(start, begin - stretch.first - start)
                if begin > at * size:
                    yield Stretch(at, ((1, added_up(parts)),))
                    at, parts = at + 1, []
    if parts:
        yield Stretch(at, ((1, added_up(parts)),))


class Lane:
    """What each step from step 1 on did to a variable."""

    def __init__(
        self, timeline: Timeline, total: Timeline | None = None, first_step: int = 1
    ) -> None:
        """Of dense and sparse updates, then `OBSERVATIONS` where there are effects.

        `total` has the updates of all variables. Step 1 has the number `first_step` in the run.
        """
        is_updated = any(dense or sparse for dense, sparse, *_ in timeline.spread)
        is_regular = total is not None and len(total.stretches) <= MAX_STRETCHES
        if total is not None and is_regular and is_updated and (0,) in total.spread:
            timeline = timeline.beside(total.map(lambda values: (int(values == (0,)),)))

        def cell(values: Values) -> Cell:
            dense, sparse, *others = values
            idle = others.pop() if len(others) in (1, 4) else 0
            compared, unchanged, not_finite = (int(each > 0) for each in others or (0, 0, 0))
            updates, without = dense + sparse, int(not dense + sparse)
            seen = compared, unchanged, unchanged * (1 - without), not_finite
            return Cell(1, without, dense, sparse, updates, updates, *seen, idle)

        self.timeline = timeline.map(cell)
        """With a `Cell` for each step."""
        self.whole = added_up((number, each) for each, number in self.timeline.spread.items())
        """All steps together."""
        self.never = not self.whole.most
        """Whether no step updated the variable."""
        self.size = sum(2 + 2 * len(each.cycle) for each in self.timeline.stretches)
        """The numbers that it takes to write it down."""
        parts = self.timeline.parts() if self.whole.not_finite else ()
        first = next((steps.first for steps, each in parts if Cell(*each).not_finite), 0)
        self.not_finite_since = 0 if first == 1 < first_step else first
        """The first step after which the variable was not finite; 0 if there is none, or if it is
        not known: a part of a trace does not know what was before its first step."""


class View(NamedTuple):
    """The heat map of some replicas."""

    name: str
    per: str
    """What it counts the updates of a variable by: `step and replica`, for example."""
    steps: int
    """How many steps there are."""
    lanes: tuple[int, ...]
    """The lane of each pattern."""


class HeatMap:
    """What each variable of one optimizer got in each step."""

    def __init__(self, summary: Summary) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[tuple[int, int], int] = {}  # of the lanes, by their timelines' ids
        self._summary = summary
        self.views = self._views()
        """Each replica that is like no other, and all of them together, which come first if the
        replicas differ."""

    @property
    def patterns(self) -> dict[int, int]:
        """The pattern of each variable, by index."""
        patterns = enumerate(self._summary.patterns)
        return {index: number for number, each in patterns for index in each.variables}

    @cached_property
    def levels(self) -> list[tuple[int, int]]:
        """The numbers of updates that a variable gets in a step, from 1 on, in few classes."""
        cells = (cell for lane in self.lanes for cell in lane.timeline.spread)
        counts = sorted({Cell(*cell).most for cell in cells} - {0})
        size = -(-len(counts) // _MAX_LEVELS) or 1
        groups = [counts[at : at + size] for at in range(0, len(counts), size)]
        return [(group[0], group[-1]) for group in groups]

    def _views(self) -> list[View]:
        summary = self._summary
        alike: dict[tuple[int, ...], list[int]] = {}
        most = min(_MAX_VIEWS, max(1, _MAX_CELLS // (1 + len(summary.patterns))))
        for replica in summary.replicas:
            if len(alike) < most:
                key = (summary.steps_on[replica], *self._lanes(replica))
                alike.setdefault(key, []).append(replica)
        copy, number = replica_noun(summary.trace), len(summary.replicas)
        self.left_off = number - sum(map(len, alike.values()))
        """Replicas that are like none of those shown, and have no view of their own."""
        per = f"step and {copy}" if number > 1 else "step"
        views = [
            View(self._name(replicas, copy), per, steps, tuple(lanes))
            for (steps, *lanes), replicas in alike.items()
        ]
        if number > 1:
            name = f"all {number:,} {copy}s together"
            together = View(name, f"step, all {copy}s", summary.steps, self._lanes(None))
            views.insert(int(len(alike) == 1), together)
        return views

    def _lanes(self, replica: int | None) -> tuple[int, ...]:
        """The number of the lane of each pattern, on a replica or on all of them."""
        summary = self._summary
        kinds = measures.dense, measures.sparse
        counted = (*kinds, *(measures.effects if summary.effects else ()))
        total = summary.timeline(measures.updates, replica=replica)
        return tuple(
            self._lane(pattern.timeline(*counted, replica=replica), total)
            for pattern in summary.patterns
        )

    def _lane(self, timeline: Timeline, total: Timeline) -> int:
        """The number of the lane of a timeline, in steps that update so much in total."""
        key = id(timeline), id(total)
        if key not in self._numbers:
            self._numbers[key] = len(self.lanes)
            self.lanes.append(Lane(timeline, total, self._summary.trace.first_step))
        return self._numbers[key]

    def _name(self, replicas: Sequence[int], noun: str) -> str:
        if len(replicas) == len(self._summary.replicas):
            return f"each of {len(replicas):,} {noun}s" if len(replicas) > 1 else f"the {noun}"
        name = shown(replica_names(self._summary.trace)[replicas[0]])
        return f"{name}, and {len(replicas) - 1:,} like it" if len(replicas) > 1 else name
