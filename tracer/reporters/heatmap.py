"""The heat map as numbers: what the steps did to each variable, with equal steps folded.

Variables that got the same in every step share a pattern, and patterns that count the same share a
lane, so that a model of thousands of variables and a million steps is a handful of lanes. Where
effects were asked for, variables that are alike in those as well do so.
"""

import math
from collections import namedtuple
from collections.abc import Iterable
from operator import mul
from typing import Any

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


Cell = namedtuple(
    "Cell",
    "least most steps dense sparse without compared unchanged not_finite ineffective idle never",
)
"""What some steps in a row have in common.

`least` and `most` are the fewest and the most updates in one of the `steps`, `dense` and `sparse`
all of them. What follows is in how many of the steps it was so: there was no update (`without`),
nor one of any variable (`idle`); the variable was `compared`, and `unchanged` or `not_finite` then;
it was updated and unchanged (`ineffective`); it was `never` updated, in no step of the run."""


def added_up(parts: Iterable[tuple[int, Any]]) -> Cell:
    """Cells, each so many times, as one.

    >>> added_up([(3, Cell(0, 0, 1, *[0] * 9)), (2, Cell(2, 2, 1, 2, *[0] * 8))])[:4]
    (0, 2, 5, 4)
    """
    numbers, cells = zip(*parts, strict=True)
    if len(cells) == 1:
        least, most, *counts = cells[0]
        return Cell(least, most, *(numbers[0] * each for each in counts))
    least, most, *counts = zip(*cells, strict=True)
    return Cell(min(least), max(most), *(sum(map(mul, numbers, each)) for each in counts))


def coarser(timeline: Timeline, size: int) -> Timeline:
    """The same steps with a cell for each `size` of them; the last one has those that are left."""
    regular, steps, begin = dict[int, tuple[int, int]](), 0, 0
    for stretch in timeline.stretches:
        begin, steps = -(-steps // size), stretch.last
        unit = math.lcm(stretch.period, size) // size if len(stretch.cycle) > 1 else 1
        turns = (steps // size - begin) // unit
        regular[begin] = (unit, turns) if turns > 1 else (1, 1)
    found, begin = list[Stretch](), 0
    while begin * size < steps:
        unit, turns = regular.get(begin, (1, 1))
        within = (timeline.within(n * size + 1, (n + 1) * size) for n in range(begin, begin + unit))
        found.append(Stretch(begin + 1, tuple((1, added_up(each)) for each in within), turns))
        begin += unit * turns
    return Timeline(found)


Lane = namedtuple("Lane", "timeline not_finite_since")
"""What the steps did to a variable: a `timeline` with a `Cell` for each step from step 1 on.

`not_finite_since` is the first step after which the variable was not finite; 0 if there is none, or
if it is not known: a part of a trace does not know what was before its first step."""


def lane(timeline: Timeline, total: Timeline, first_step: int = 1) -> Lane:
    """The lane of dense and sparse updates and of `OBSERVATIONS` in each step.

    `total` has the updates of all variables. Step 1 has the number `first_step` in the run.
    """
    updated = any(dense or sparse for dense, sparse, *_ in timeline.spread)
    if updated and (0,) in total.spread and len(total.stretches) <= MAX_STRETCHES:
        timeline = timeline.beside(total.map(lambda values: (int(values == (0,)),)))
    parts = timeline.parts() if any(values[4] for values in timeline.spread) else ()
    since = next((steps.first for steps, values in parts if values[4]), 0)

    def cell(values: Values) -> Cell:
        dense, sparse, *others = values
        compared, unchanged, not_finite, idle, *_ = (*(int(n > 0) for n in others), 0)
        updates, without = dense + sparse, int(not dense + sparse)
        seen = compared, unchanged, not_finite, unchanged * (1 - without)
        never = int(not updated)
        return Cell(updates, updates, 1, dense, sparse, without, *seen, idle, never)

    return Lane(timeline.map(cell), 0 if since == 1 < first_step else since)


View = namedtuple("View", "name per steps lanes")
"""The heat map of some replicas, in so many `steps`, with the lane of each pattern.

`per` is what it counts the updates of a variable by: `step and replica`, for example."""


class HeatMap:
    """What each variable of one optimizer got in each step."""

    def __init__(self, summary: Summary) -> None:
        patterns = enumerate(summary.patterns)
        self.patterns = {index: number for number, each in patterns for index in each.variables}
        """The pattern of each variable, by index."""
        self.lanes: list[Lane] = []
        self._numbers: dict[tuple[int, int], int] = {}  # of the lanes, by their timelines' ids
        self.left_off = 0
        """Replicas that are like none of those shown, and have no view of their own."""
        self.views = self._views(summary)
        """Each replica that is like no other, and all of them together, which come first if the
        replicas differ."""
        most = Cell._fields.index("most")
        counts = sorted({cell[most] for each in self.lanes for cell in each.timeline.spread} - {0})
        size = -(-len(counts) // _MAX_LEVELS) or 1
        groups = [counts[at : at + size] for at in range(0, len(counts), size)]
        self.levels = [(group[0], group[-1]) for group in groups]
        """The numbers of updates that a variable gets in a step, from 1 on, in few classes."""

    def _views(self, summary: Summary) -> list[View]:
        alike: dict[tuple[int, ...], list[int]] = {}
        most = min(_MAX_VIEWS, max(1, _MAX_CELLS // (1 + len(summary.patterns))))
        for replica in summary.replicas:
            if len(alike) < most:
                key = (summary.steps_on[replica], *self._lanes(summary, replica))
                alike.setdefault(key, []).append(replica)
        noun, names = replica_noun(summary.trace), replica_names(summary.trace)
        number = len(summary.replicas)
        self.left_off = number - sum(map(len, alike.values()))
        per = f"step and {noun}" if number > 1 else "step"
        views = []
        for (steps, *lanes), (first, *others) in alike.items():
            name = shown(names[first]) + (f", and {len(others):,} like it" if others else "")
            if len(others) == number - 1:
                name = f"each of {number:,} {noun}s" if others else f"the {noun}"
            views.append(View(name, per, steps, tuple(lanes)))
        if number > 1:
            name, lanes_of_all = f"all {number:,} {noun}s together", self._lanes(summary)
            together = View(name, f"step, all {noun}s", summary.steps, lanes_of_all)
            views.insert(int(len(alike) == 1), together)
        return views

    def _lanes(self, summary: Summary, replica: int | None = None) -> tuple[int, ...]:
        """The number of the lane of each pattern, on a replica or on all of them."""
        counted = measures.dense, measures.sparse, *measures.effects
        total = summary.timeline(measures.updates, replica=replica)
        numbers = []
        for pattern in summary.patterns:
            timeline = pattern.timeline(*counted, replica=replica)
            number = self._numbers.setdefault((id(timeline), id(total)), len(self.lanes))
            if number == len(self.lanes):
                self.lanes.append(lane(timeline, total, summary.trace.first_step))
            numbers.append(number)
        return tuple(numbers)
