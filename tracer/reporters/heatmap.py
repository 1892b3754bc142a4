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
_LEVELS = 3  # classes of updates per step


class Counts(NamedTuple):
    """The counts of one variable in some steps in a row."""

    steps: int
    updates: int
    least: int
    """The fewest updates in one of the steps."""
    most: int
    updated: int
    """How many of the steps updated the variable."""
    unchanged: int
    """How many updated it and still left it unchanged."""
    not_finite: int
    """How many left it not finite."""


def counts(parts: Iterable[tuple[int, Values]]) -> Counts:
    """Add up steps, given as their number with the updates, and perhaps the effects, in each.

    >>> counts([(3, (2, 1, 0, 0)), (1, (0, 1, 1, 0))])
    Counts(steps=4, updates=6, least=0, most=2, updated=3, unchanged=0, not_finite=0)
    """
    every = [(number, *values, 0, 0, 0) for number, values in parts]
    return Counts(
        sum(number for number, *_ in every),
        sum(number * updates for number, updates, *_ in every),
        min(updates for _, updates, *_ in every),
        max(updates for _, updates, *_ in every),
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
        self._summary = summary
        counted = [measures.updates, *(measures.effects if summary.effects else ())]
        patterns = summary.patterns if summary.steps else []
        self._timelines = {pattern: pattern.timeline(*counted) for pattern in patterns}
        self._all = summary.timeline(measures.updates)
        self.size = -(-summary.steps // COLUMNS) or 1
        """The number of steps in a column; the last one may have fewer."""
        self.columns = -(-summary.steps // self.size)
        self._levels = self._classes()
        why = reason(summary)
        self._why = why.text if why.everywhere else ""
        self._nothing = "expected" if self._why and why.usual else "nothing"
        self._lost = summary.step_unknown(measures.updates)
        self.rows = list(self._rows(most))
        """The name of each variable, with its cells."""
        self.left = len(summary.variables) - len(self.rows)
        """The number of variables without a row."""

    @property
    def legend(self) -> dict[str, str]:
        """What the states in use mean."""
        words = {
            **{state: some((least, most), "update") for state, least, most in self._levels},
            "some": "in some of the steps",
            "others": f"none, while other {self._summary.dialect.variable}s were updated",
            self._nothing: self._why or "the step updated nothing",
            "unknown": "no update known",
            "never": "never updated",
            "unchanged": "unchanged by updates",
            "infinite": "not finite after the step",
        }
        used = {cell.state for _, cells in self.rows for cell in cells}
        return {state: text for state, text in words.items() if state in used}

    @property
    def ticks(self) -> list[int]:
        """The first, the middle and the last step."""
        return sorted({1, (self._summary.steps + 1) // 2, self._summary.steps})

    def _classes(self) -> list[tuple[str, int, int]]:
        """Classes of updates per step: the state of each, its least and its most updates."""
        spreads = (timeline.spread for timeline in self._timelines.values())
        numbers = sorted({number for spread in spreads for number, *_ in spread} - {0})
        size = -(-len(numbers) // _LEVELS) or 1
        classes = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        shades = {1: "2", 2: "13"}.get(len(classes), "123")
        return [(f"level{n}", e[0], e[-1]) for n, e in zip(shades, classes, strict=False)]

    def _rows(self, most: int) -> Iterator[tuple[str, list[Cell]]]:
        number = 0
        for pattern in sorted(self._timelines, key=lambda each: not self._odd(each)):
            cells = list(self._cells(pattern))
            for index in pattern.variables:
                number, most = number + 1, most - len(cells)
                if number > MAX_ROWS or most < 0:
                    return
                yield self._summary.trace.variables[index].name, cells

    def _odd(self, pattern: Pattern) -> bool:
        """Whether steps look like a mistake: missing updates, or effects of an update."""
        spread = self._timelines[pattern].spread
        whole = counts((number, values) for values, number in spread.items())
        missed = whole.steps - whole.updated > self._all.spread[(0,)]
        return missed or not whole.updated or bool(whole.unchanged or whole.not_finite)

    def _steps(self, column: int, width: int = 1) -> tuple[int, int]:
        """The first and the last step of columns."""
        return column * self.size + 1, min((column + width) * self.size, self._summary.steps)

    def _cells(self, pattern: Pattern) -> Iterator[Cell]:
        """The cells of a variable of this pattern."""
        timeline, never = self._timelines[pattern], not pattern.total(measures.updates)
        states = ["never" if never else self._state(timeline, at) for at in range(self.columns)]
        column = 0
        for state, columns in groupby(states):
            width = len(list(columns))
            first, last = self._steps(column, width)
            text = self._text(state, counts(timeline.within(first, last)))
            steps = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
            yield Cell(column, width, state, f"{steps}: {text}")
            column += width

    def _state(self, timeline: Timeline, column: int) -> str:
        """The state of the steps in a column."""
        steps = self._steps(column)
        found, of_all = counts(timeline.within(*steps)), self._all.within(*steps)
        mean = found.updates / found.steps
        return first_true(
            (found.not_finite, "infinite"),
            (0 < found.updated == found.unchanged, "unchanged"),
            (self._lost and not found.updated, "unknown"),
            (not found.updated, "others" if any(made for _, (made,) in of_all) else self._nothing),
            (found.updated < found.steps, "some"),
            *((mean <= most, state) for state, _, most in self._levels),
        )

    def _text(self, state: str, found: Counts) -> str:
        """What happened in steps with the same state."""
        each = " each" if found.steps > 1 else ""
        what = first_true(
            (state == "never", "never updated in the run"),
            (state == "others", "no update, while others were updated"),
            (state == self._nothing, f"no update: {self._why or 'the step updated nothing'}"),
            (not found.updated, "no update known" if self._lost else "no update"),
            (
                found.updated < found.steps,
                f"{some(found.updates, 'update')} in {found.updated:,} of {found.steps:,} steps",
            ),
            (True, f"{some((found.least, found.most), 'update')}{each}"),
        )
        if found.unchanged:
            what += f"; unchanged in {some(found.unchanged, 'step')}"
        if found.not_finite:
            what += f"; not finite after {some(found.not_finite, 'step')}"
        return what
