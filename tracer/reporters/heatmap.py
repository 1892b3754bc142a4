"""The heat map as numbers: what the steps did to each variable, with equal steps folded.

Variables with the same history share a pattern, and patterns with the same counts share a lane, so
a model of thousands of variables and a million steps becomes a handful of lanes. If effects were
recorded, the history includes them.
"""

import math
from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from operator import mul
from typing import Any

from tracer.layout import shown
from tracer.model import measures
from tracer.model.phrases import reason, replica_names, replica_noun
from tracer.model.summary import Summary
from tracer.model.timeline import Stretch, Timeline, Values
from tracer.model.words import first_true, some, span

MAX_STRETCHES = 5_000
"""In a more irregular run, cells do not tell steps that updated no variable at all."""
_MAX_LEVELS = 5
_MAX_VIEWS = 32
_MAX_CELLS = 100_000  # patterns times views


Cell = namedtuple(
    "Cell",
    "least most steps dense sparse without compared unchanged not_finite ineffective idle never",
)
"""The counts of some steps in a row, for one variable.

`least` and `most` are the fewest and most updates in one of the `steps`, `dense` and `sparse` the
totals. The other fields count steps: those without an update of it (`without`), or of any variable
(`idle`); those in which it was `compared`, and was `unchanged` or `not_finite`; those in which it
was updated but unchanged (`ineffective`); all of them if it was `never` updated in the run.
"""


def added_up(parts: Iterable[tuple[int, Any]]) -> Cell:
    """The sum of cells, each of them multiplied.

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
    """The same steps with one cell for each `size` steps; the last cell has the rest."""
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
"""The history of a variable: a `timeline` with a `Cell` for each step from step 1 on.

`not_finite_since` is the first step after which the variable was not finite; 0 if none.
"""


def lane(timeline: Timeline, total: Timeline) -> Lane:
    """The lane for dense and sparse updates and `OBSERVATIONS` in each step.

    `total` has the updates of all variables.
    """
    updated = any(dense or sparse for dense, sparse, *_ in timeline.spread)
    if updated and (0,) in total.spread and len(total.stretches) <= MAX_STRETCHES:
        timeline = timeline.joined(total.map(lambda values: (int(values == (0,)),)))
    parts = timeline.parts() if any(values[4] for values in timeline.spread) else ()
    since = next((steps.first for steps, values in parts if values[4]), 0)

    def cell(values: Values) -> Cell:
        dense, sparse, *others = values
        compared, unchanged, not_finite, idle, *_ = (*(int(n > 0) for n in others), 0)
        updates, without = dense + sparse, int(not dense + sparse)
        seen = compared, unchanged, not_finite, unchanged * (1 - without)
        never = int(not updated)
        return Cell(updates, updates, 1, dense, sparse, without, *seen, idle, never)

    return Lane(timeline.map(cell), since)


View = namedtuple("View", "name per steps lanes")
"""The heat map of some replicas over `steps` steps, with the lane of each pattern.

`per` is the unit of a variable's updates, such as `step and replica`.
"""


class HeatMap:
    """The history of each variable of one optimizer."""

    def __init__(self, summary: Summary) -> None:
        patterns = enumerate(summary.patterns)
        self.patterns = {index: number for number, each in patterns for index in each.variables}
        """The pattern of each variable, by index."""
        self.lanes: list[Lane] = []
        self._numbers: dict[tuple[int, int], int] = {}  # of the lanes, by their timelines' ids
        self.left_off = 0
        """The number of replicas without a view, unlike all replicas shown."""
        self.views = self._views(summary)
        """One view for each group of equal replicas, and one of all replicas together, which comes
        first if replicas differ.
        """
        most = Cell._fields.index("most")
        counts = sorted({cell[most] for each in self.lanes for cell in each.timeline.spread} - {0})
        size = -(-len(counts) // _MAX_LEVELS) or 1
        groups = [counts[at : at + size] for at in range(0, len(counts), size)]
        self.levels = [(group[0], group[-1]) for group in groups]
        """Classes of the number of updates of a variable in a step, from 1 on."""

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
        """The number of the lane of each pattern, on a replica or on all replicas."""
        counted = measures.dense, measures.sparse, *measures.effects
        total = summary.timeline(measures.updates, replica=replica)
        numbers = []
        for pattern in summary.patterns:
            timeline = pattern.timeline(*counted, replica=replica)
            number = self._numbers.setdefault((id(timeline), id(total)), len(self.lanes))
            if number == len(self.lanes):
                self.lanes.append(lane(timeline, total))
            numbers.append(number)
        return tuple(numbers)


# The description of a cell: its state, which has a colour, its mark, and its words.

NEVER = "never updated"
SKIPPED = "step updated nothing"
OTHERS = "not in this step"
SOME = "not in some of the steps"
PART = "in some of the steps"
"""The state if all steps without an update updated nothing, by design."""
MARKS = {
    "unchanged by each update": "unchanged",
    "unchanged by some of the updates": "partly",
    "not finite": "infinite",
}
"""Effects of updates that are worth a mark, with the mark's colour."""
UNCHANGED, PARTLY, NOT_FINITE = MARKS
FIRST = "not finite for the first time"


class Cells:
    """Describes the cells of one optimizer; cells with equal descriptions share a number."""

    def __init__(self, summary: Summary, heat: HeatMap) -> None:
        self._summary = summary
        self._levels = heat.levels
        why = reason(summary)
        self._cause = why.text if why.everywhere else ""
        self.expected = self._cause if why.usual else ""
        """Why steps updated nothing, if that is by design; else empty."""
        self.states = states(heat.levels, self.expected)
        self.rows: dict[tuple[str, str, str, str], int] = {}
        """The numbers of descriptions: the colours of state and mark, and the words on both."""
        self.number = cache(self._number)

    def _number(self, cell: Cell) -> int:
        state = self._state(cell)
        colors = self.states[state], MARKS.get(mark_of(cell), "")
        weights = _weights(cell) if self._summary.effects else ""
        row = (*colors, self._updates(cell, state), weights)
        return self.rows.setdefault(row, len(self.rows))

    def legend(self) -> tuple[list[tuple[str, str]], ...]:
        """The states and marks in use, with their colours."""
        used = {color for row in self.rows for color in row[:2]}
        return tuple(
            [(text, color) for text, color in each.items() if color in used]
            for each in (self.states, MARKS)
        )

    def _state(self, cell: Cell) -> str:
        """The state of a cell's steps."""
        mean, all_without = (cell.dense + cell.sparse) / cell.steps, cell.without == cell.steps
        return first_true(
            (cell.never, NEVER),
            (all_without and cell.idle == cell.steps, self.expected or SKIPPED),
            (all_without, OTHERS),
            (self.expected and 0 < cell.without == cell.idle, PART),
            (cell.without, SOME),
            *((mean <= most, span((least, most))) for least, most in self._levels),
        )

    def _updates(self, cell: Cell, state: str) -> str:
        """How many updates there were, or why there were none."""
        total, noun, why = cell.dense + cell.sparse, self._summary.dialect.variable, self._cause
        nothing = f"{'the step' if cell.steps == 1 else 'these steps'} updated nothing"
        steps = f"in {'each' if cell.least == cell.most else 'a'} step"
        steps = f"{span((cell.least, cell.most))} {steps}"
        if cell.without:
            steps = f"in {cell.steps - cell.without:,} of the {cell.steps:,} steps"
        both = f"{cell.dense:,} dense, {cell.sparse:,} sparse"
        kinds = first_true((not cell.sparse, "dense"), (not cell.dense, "sparse"), (True, both))
        known = f", {why}" if why and not self._levels else ""
        return first_true(
            (state == NEVER, f"none: the {noun} was never updated{known}"),
            (state == SKIPPED, f"none: {why or nothing}"),
            (state == self.expected, f"none: {state}"),
            (state == OTHERS, f"none, while other {noun}s were updated"),
            (True, f"{steps}: {total:,} in all, {kinds}"),
        )


def mark_of(cell: Cell) -> str:
    """The mark of a cell's steps; empty if their updates changed the variable."""
    return first_true(
        (cell.not_finite, NOT_FINITE),
        (not cell.ineffective, ""),
        (cell.ineffective == cell.steps - cell.without, UNCHANGED),
        (True, PARTLY),
    )


def _weights(cell: Cell) -> str:
    """What the steps did to the weights."""
    each = "" if cell.compared == 1 else " in each step"

    def among(number: int) -> str:
        part = f" in {number:,} of the {some(cell.compared, 'step')}"
        return each if number == cell.compared else part

    why = ", as nothing updated it" if cell.compared == 1 else ", none of which updated it"
    said = (
        (not cell.unchanged, f"changed{each}"),
        (cell.unchanged, f"unchanged{among(cell.unchanged)}{'' if cell.ineffective else why}"),
        (cell.not_finite, f"not finite{among(cell.not_finite)}"),
        (cell.compared < cell.steps, f"{some(cell.steps - cell.compared, 'step')} not compared"),
    )
    return "; ".join(text for true, text in said if true) if cell.compared else "not compared"


def states(levels: list[tuple[int, int]], expected: str = "") -> dict[str, str]:
    """The states of cells, in the order of the legend, with their colours.

    `expected` is why steps updated nothing, if that is by design.
    """
    shades = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    shown = {span(each): f"level{shade}" for each, shade in zip(levels, shades, strict=True)}
    odd = {SOME: "some", OTHERS: "others"}
    if expected:
        return {**shown, PART: "part", expected: "expected", **odd, NEVER: "never"}
    return {**shown, **odd, SKIPPED: "skipped", NEVER: "never"}
