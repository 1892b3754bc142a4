"""The heat map of the page: what the steps did to each variable, in at most `COLUMNS` columns.

A row is a variable of one optimizer, on all replicas together. A column is one step or, in a longer
run, as many steps as every other; neighbouring columns in the same state are one cell.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from tracer.model import counts as measures
from tracer.model.phrases import reason
from tracer.model.timeline import Timeline, Values
from tracer.model.trace import Pattern, Summary
from tracer.model.words import first_true, some

COLUMNS = 200
MAX_ROWS = 300


class Counts(NamedTuple):
    """The counts of one variable in some steps in a row."""

    steps: int
    updates: int
    updated: int
    """How many of the steps updated the variable."""
    unchanged: int
    """How many updated it and still left it unchanged."""
    not_finite: int
    """How many left it not finite."""


def counts(parts: Iterable[tuple[int, Values]]) -> Counts:
    """Add up steps, given as their number with the updates, and perhaps the effects, in each.

    >>> counts([(3, (2, 1, 0, 0)), (1, (0, 1, 1, 0))])
    Counts(steps=4, updates=6, updated=3, unchanged=0, not_finite=0)
    """
    every = [(number, *values, 0, 0, 0) for number, values in parts]
    return Counts(
        sum(number for number, *_ in every),
        sum(number * updates for number, updates, *_ in every),
        sum(number for number, updates, *_ in every if updates),
        sum(number for number, updates, seen, same, *_ in every if updates and 0 < same == seen),
        sum(number for number, _, _, _, not_finite, *_ in every if not_finite),
    )


class Cell(NamedTuple):
    """Columns in the same state; column 0 is the first of the heat map."""

    column: int
    width: int
    state: str
    """A class in the style of the page."""
    text: str


class HeatMap:
    """The rows of one optimizer, odd ones first, with at most `most` cells and `MAX_ROWS` rows."""

    def __init__(self, summary: Summary, most: int) -> None:
        self._steps = summary.steps
        self._all = summary.timeline(measures.updates)
        self.size = -(-summary.steps // COLUMNS) or 1
        """The number of steps in a column; the last one may have fewer."""
        self.columns = -(-summary.steps // self.size)
        self.ticks = sorted({1, (summary.steps + 1) // 2, summary.steps})
        """The first, the middle and the last step."""
        why, lost = reason(summary), summary.step_unknown(measures.updates)
        known = why.text if why.everywhere else ""
        self._idle = first_true(
            (lost, "unknown"), (known and why.usual, "expected"), (1, "nothing")
        )
        self._words = {
            "updated": "updated",
            "some": "updated in some of the steps",
            "others": f"no update, while other {summary.dialect.variable}s were updated",
            "expected": f"no update: {known}",
            "nothing": f"no update: {known or 'the step updated nothing'}",
            "unknown": "no update known",
            "never": "never updated",
            "unchanged": "unchanged by updates",
            "infinite": "not finite after the step",
        }
        self.rows = list(self._rows(summary, most))
        """The name of each variable, with its cells."""
        self.left = len(summary.variables) - len(self.rows)
        """The number of variables without a row."""
        used = {cell.state for _, cells in self.rows for cell in cells}
        self.legend = {state: text for state, text in self._words.items() if state in used}
        """What the states in use mean."""

    def _rows(self, summary: Summary, most: int) -> Iterator[tuple[str, list[Cell]]]:
        counted = [measures.updates, *(measures.effects if summary.effects else ())]
        patterns = summary.patterns if summary.steps else []
        timelines = {pattern: pattern.timeline(*counted) for pattern in patterns}
        number = 0
        for pattern in sorted(
            patterns, key=lambda own: not (own.replicas and self._is_odd(timelines[own]))
        ):
            cells = list(self._cells(pattern, timelines[pattern]))
            for index in pattern.variables:
                number, most = number + 1, most - len(cells)
                if number > MAX_ROWS or most < 0:
                    return
                yield summary.trace.variables[index].name, cells

    def _is_odd(self, timeline: Timeline) -> bool:
        """Whether steps look like a mistake: missing updates, or effects of an update."""
        whole = counts((number, values) for values, number in timeline.spread.items())
        missed = whole.steps - whole.updated > self._all.spread[(0,)]
        return missed or not whole.updated or bool(whole.unchanged or whole.not_finite)

    def _cells(self, pattern: Pattern, timeline: Timeline) -> Iterator[Cell]:
        """The cells of a variable of this pattern."""
        states = ["never"] * self.columns
        if pattern.total(measures.updates):
            states = [self._state(timeline, column) for column in range(self.columns)]
        column = 0
        for state, columns in groupby(states):
            width = len(list(columns))
            first, last = column * self.size + 1, min((column + width) * self.size, self._steps)
            found = counts(timeline.within(first, last))
            of = f" in {found.updated:,} of {found.steps:,} steps" if found.steps > 1 else ""
            text = f"{some(found.updates, 'update')}{of}" if found.updated else self._words[state]
            text += f"; unchanged in {some(found.unchanged, 'step')}" if found.unchanged else ""
            text += f"; not finite in {some(found.not_finite, 'step')}" if found.not_finite else ""
            steps = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
            yield Cell(column, width, state, f"{steps}: {text}")
            column += width

    def _state(self, timeline: Timeline, column: int) -> str:
        """The state of the steps in a column."""
        steps = column * self.size + 1, min((column + 1) * self.size, self._steps)
        found, of_all = counts(timeline.within(*steps)), counts(self._all.within(*steps))
        return first_true(
            (found.not_finite, "infinite"),
            (0 < found.updated == found.unchanged, "unchanged"),
            (found.updated == found.steps, "updated"),
            (found.updated, "some"),
            (of_all.updated and self._idle != "unknown", "others"),
            (True, self._idle),
        )
