"""The heat map as numbers: the updates of each variable in each step, with equal steps folded.

Variables that got the same in every step share a pattern, and patterns that count the same share a
lane, so that a model of thousands of variables and a million steps is a handful of lanes. Where
effects were asked for, variables that are alike in those as well do so.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tracer.layout import shown
from tracer.model import measures
from tracer.model.labels import replica_names, replica_noun
from tracer.model.records import OBSERVATIONS
from tracer.model.summary import Summary
from tracer.model.timeline import Part, Stretch, Timeline, Values, merged

_MOST_VIEWS = 32
_MOST_CELLS = 100_000  # patterns times views


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


_COUNTS = 2
"""The numbers of a step in a lane without effects."""

MAX_STRETCHES = 5_000
"""In a run that is more irregular, no cell says that its steps updated no variable at all."""


class Lane:
    """The dense and the sparse updates in each step, from step 1 on.

    Where there are effects, also on how many replicas the variable was compared, unchanged, and
    not finite after the step. `total` counts the updates of all variables.
    """

    def __init__(self, timeline: Timeline, total: Timeline | None = None) -> None:
        self.timeline = timeline
        self._total: Timeline | None = None  # the usual case needs no second look
        if total is not None and len(total.stretches) <= MAX_STRETCHES:
            idle = any(not any(each[:_COUNTS]) for each in total.spread)
            self._total = total if idle else None

    @property
    def size(self) -> int:
        """The numbers that it takes to write it down."""
        return sum(2 + 2 * len(each.cycle) for each in self.timeline.stretches)

    @property
    def has_effects(self) -> bool:
        """Whether they are in it: those of all steps have as many numbers."""
        stretches = self.timeline.stretches
        return bool(stretches) and len(stretches[0].cycle[0][1]) > _COUNTS

    @cached_property
    def counts(self) -> set[int]:
        """The numbers of updates that occur in a step."""
        return {sum(values[:_COUNTS]) for values in self.timeline.spread}

    @property
    def never(self) -> bool:
        """Whether no step updated the variable."""
        return self.counts <= {0}

    @property
    def first_not_finite(self) -> int:
        """The first step after which the variable was not finite; 0 if there is none."""
        parts = self.timeline.parts() if self.has_effects else ()
        return next((steps.first for steps, values in parts if values[-1]), 0)

    @property
    def exact(self) -> tuple[Stretch, ...]:
        """Equal steps in a row; the last count of each is 1 if no variable at all was updated."""
        if self._total is None or 0 not in self.counts or self.never:
            return tuple(
                Stretch(
                    each.first,
                    tuple((length, (*values, 0)) for length, values in each.cycle),
                    each.turns,
                )
                for each in self.timeline.stretches
            )
        return tuple(merged(_joined(self.timeline.stretches, self._total.stretches)))

    def within(self, first: int, last: int) -> Cell:
        """The steps from `first` to `last` together.

        >>> lane = Lane(Timeline([Stretch(1, ((3, (0, 0)), (1, (2, 1))), turns=4)]))
        >>> lane.within(3, 8)[:6]
        (6, 4, 4, 2, 0, 3)
        """
        return together(self.timeline.within(first, last))

    def cell(self, first: int, last: int) -> Cell:
        """The same, with the steps that updated no variable at all."""
        cell = self.within(first, last)
        if not cell.without or self._total is None:
            return cell
        return cell._replace(idle=together(self._total.within(first, last)).without)

    def runs(self) -> Iterator[tuple[int, int, Values]]:
        """Runs of equal steps, as `(first, last, (dense, sparse))`; a lane without effects."""
        return self.timeline.spans(lambda values: True)


def together(parts: Iterable[tuple[int, Sequence[int]]]) -> Cell:
    """Numbers of steps that count the same, each with its counts, as one cell."""
    return added_up([_cell(number, *values) for number, values in parts])


def _cell(
    steps: int, dense: int, sparse: int, compared: int = 0, unchanged: int = 0, not_finite: int = 0
) -> Cell:
    updates = dense + sparse
    return Cell(
        steps,
        0 if updates else steps,
        steps * dense,
        steps * sparse,
        updates,
        updates,
        steps * bool(compared),
        steps * bool(unchanged),
        steps * bool(unchanged and updates),
        steps * bool(not_finite),
    )


def added_up(cells: Sequence[Cell]) -> Cell:
    """The cells as one."""
    if len(cells) < 2:
        return cells[0] if cells else Cell()
    sums = [sum(column) for column in zip(*cells, strict=True)]
    least, most = min(each.least for each in cells), max(each.most for each in cells)
    return Cell(*sums)._replace(least=least, most=most)


def _joined(lane: Sequence[Stretch], total: Sequence[Stretch]) -> Iterator[Stretch]:
    """The stretches of a lane, in each step with whether `total` has no update."""
    at = 0
    for stretch in lane:
        while at < len(total):
            first = max(stretch.first, total[at].first)
            last = min(stretch.last, total[at].last)
            yield from _overlap(stretch, total[at], first, last)
            if total[at].last >= stretch.last:
                break
            at += 1


def _overlap(lane: Stretch, total: Stretch, first: int, last: int) -> Iterator[Stretch]:
    unit = math.lcm(*(each.period for each in (lane, total) if len(each.cycle) > 1))
    if unit > 1 and last + 1 - first >= 3 * unit:
        cycle = _parts(lane, total, first, first + unit - 1)
        if len(cycle) > 1 and cycle[0][1] == cycle[-1][1]:  # it begins amid equal steps
            yield Stretch(first, cycle[:1])
            first += cycle[0][0]
            cycle = _parts(lane, total, first, first + unit - 1)
        turns = (last + 1 - first) // unit
        alike = len(cycle) == 1
        yield (
            Stretch(first, ((unit * turns, cycle[0][1]),))
            if alike
            else Stretch(first, cycle, turns)
        )
        first += unit * turns
    for length, values in _parts(lane, total, first, last):
        yield Stretch(first, ((length, values),))
        first += length


def _parts(lane: Stretch, total: Stretch, first: int, last: int) -> tuple[Part, ...]:
    """The steps from `first` to `last`, equal ones in a row together."""
    found: list[Part] = []
    ours, others = _from(lane, first), _from(total, first)
    end, values = next(ours)
    end_of_total, updates = next(others)
    while first <= last:
        until = min(end, end_of_total, last)
        counts = (*values, int(not any(values[:_COUNTS]) and not any(updates[:_COUNTS])))
        before = found.pop()[0] if found and found[-1][1] == counts else 0
        found.append((before + until + 1 - first, counts))
        first = until + 1
        if end < first:
            end, values = next(ours)
        if end_of_total < first:
            end_of_total, updates = next(others)
    return tuple(found)


def _from(stretch: Stretch, first: int) -> Iterator[Part]:
    """The last step of each part of the cycle from step `first` on, without end."""
    end = first - (first - stretch.first) % stretch.period - 1
    for length, values in itertools.cycle(stretch.cycle):
        end += length
        if end >= first:
            yield end, values


class View(NamedTuple):
    """The heat map of some replicas."""

    name: str
    per: str
    """What it counts the updates of a variable by: `step and replica`, for example."""
    steps: int
    """How many steps there are."""
    total: int
    """The lane of all variables together: where it has 0, the step updated nothing."""
    lanes: tuple[int, ...]
    """The lane of each pattern."""


class HeatMap:
    """What each variable of one optimizer got in each step."""

    def __init__(self, summary: Summary) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._summary = summary
        self._replica_names = replica_names(summary.trace)
        self.left_off = 0
        """Replicas that are like none of those shown, and have no view of their own."""
        self.views = self._views()
        """Each replica that is like no other, and all of them together, which come first if the
        replicas differ."""

    @property
    def patterns(self) -> dict[int, int]:
        """The pattern of each variable, by index."""
        patterns = enumerate(self._summary.patterns)
        return {index: number for number, each in patterns for index in each.variables}

    def _views(self) -> list[View]:
        summary = self._summary
        alike: dict[tuple[int, ...], list[int]] = {}
        most = min(_MOST_VIEWS, max(1, _MOST_CELLS // (1 + len(summary.patterns))))
        for replica in summary.replicas:
            if len(alike) == most:
                self.left_off += 1
            else:
                steps = summary.steps_on[replica]
                key = (steps, *self._lanes(replica))
                alike.setdefault(key, []).append(replica)
        copy = replica_noun(summary.trace)
        per = f"step and {copy}" if len(summary.replicas) > 1 else "step"
        views = [
            View(self._name(replicas), per, steps, total, tuple(lanes))
            for (steps, total, *lanes), replicas in alike.items()
        ]
        if len(summary.replicas) > 1:
            total, *rest = self._lanes(None)
            name = f"all {len(summary.replicas):,} {copy}s together"
            per = f"step, all {copy}s"
            views.insert(int(len(alike) == 1), View(name, per, summary.steps, total, tuple(rest)))
        return views

    def not_finite_since(self, lane: int) -> int:
        """The first step after which it was not finite; 0 if there is none, or if it is not known.

        A part of a trace does not know what was before its first step.
        """
        first = self.lanes[lane].first_not_finite
        return 0 if first == 1 < self._summary.trace.first_step else first

    @cached_property
    def levels(self) -> list[tuple[int, int]]:
        """The numbers of updates that a variable gets in a step, in few classes."""
        used = {lane for view in self.views for lane in view.lanes}
        return levels([self.lanes[each] for each in used])

    def _lanes(self, replica: int | None) -> list[int]:
        """The lane of all variables together, then that of each pattern."""
        summary, kinds = self._summary, (measures.dense, measures.sparse)
        seen = OBSERVATIONS if summary.effects else ()
        total = summary.timeline(*kinds, replica=replica, observations=seen)
        each = (
            pattern.timeline(*kinds, replica=replica, observations=seen)
            for pattern in summary.patterns
        )
        return [self._lane(timeline, total) for timeline in (total, *each)]

    def _lane(self, timeline: Timeline, total: Timeline) -> int:
        """The number of the lane of a timeline."""
        key = id(timeline), id(total)
        if key not in self._numbers:
            self._numbers[key] = len(self.lanes)
            self.lanes.append(Lane(timeline, total))
        return self._numbers[key]

    def _name(self, replicas: Sequence[int]) -> str:
        summary = self._summary
        if len(replicas) == len(summary.replicas):
            copy = replica_noun(summary.trace)
            return f"each of {len(replicas):,} {copy}s" if len(replicas) > 1 else f"the {copy}"
        name = shown(self._replica_names[replicas[0]])
        return f"{name}, and {len(replicas) - 1:,} like it" if len(replicas) > 1 else name


def levels(lanes: Sequence[Lane], most: int = 5) -> list[tuple[int, int]]:
    """The numbers of updates in a step, from 1 on, in at most so many classes.

    >>> from tracer.model.timeline import Stretch
    >>> levels([Lane(Timeline([Stretch(1, ((2, (1, 0)), (1, (2, 0))))]))])
    [(1, 1), (2, 2)]
    """
    counts = sorted(set[int]().union(*(lane.counts for lane in lanes)) - {0})
    size = -(-len(counts) // most) or 1
    groups = [counts[at : at + size] for at in range(0, len(counts), size)]
    return [(group[0], group[-1]) for group in groups]
