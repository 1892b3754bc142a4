"""What a cell of the heat map is: its state, which is its colour, its mark, and its words."""

from functools import cache

from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary
from tracer.model.wording import some, span
from tracer.reporters.heatmap import Cell, HeatMap

NEVER = "never updated"
SKIPPED = "step updated nothing"
OTHERS = "not in this step"
SOME = "not in some of the steps"
PART = "in some of the steps"
"""The state if all steps without an update updated nothing at all, as they should."""
MARKS = {
    "unchanged by each update": "unchanged",
    "unchanged by some of the updates": "partly",
    "not finite": "infinite",
}
"""What updates did to the weights, where that is worth a mark, with its colour."""
UNCHANGED, PARTLY, NOT_FINITE = MARKS
FIRST = "not finite for the first time"


class Cells:
    """Describes the cells of one optimizer; cells that are described alike have one number."""

    def __init__(self, summary: Summary, heat: HeatMap) -> None:
        self._summary = summary
        self._levels = heat.levels
        why = reason(summary)
        self._cause = why.text if why.everywhere else ""
        self.expected = self._cause if why.usual else ""
        """Why steps updated nothing, if that is as it should be; else empty."""
        self.states = states(heat.levels, self.expected)
        self.rows: dict[tuple[str, str, str, str], int] = {}
        """The colours of state and mark, and the words on both, with the number that they have."""
        self.number = cache(self._number)
        """The number of a cell of a variable, which perhaps was never updated."""

    def _number(self, cell: Cell, never: bool) -> int:
        state = self._state(cell, never)
        color, mark = self.states[state], MARKS.get(mark_of(cell), "")
        weights = _weights(cell) if self._summary.effects else ""
        return self.rows.setdefault(
            (color, mark, self._updates(cell, state), weights), len(self.rows)
        )

    def legend(self) -> tuple[list[tuple[str, str]], ...]:
        """The states and the marks that there are, with their colours."""
        used = {color for row in self.rows for color in row[:2]}
        return tuple(
            [(text, color) for text, color in each.items() if color in used]
            for each in (self.states, MARKS)
        )

    def _state(self, cell: Cell, never: bool) -> str:
        """Which of the states the steps are in."""
        if never:
            return NEVER
        if cell.without == cell.steps:
            return (self.expected or SKIPPED) if cell.idle == cell.steps else OTHERS
        if cell.without:
            return PART if self.expected and cell.without == cell.idle else SOME
        mean = -(-(cell.dense + cell.sparse) // cell.steps)
        return next(span(each) for each in self._levels if mean <= each[1])

    def _updates(self, cell: Cell, state: str) -> str:
        """How many updates there were, or why there were none."""
        total, noun, why = cell.dense + cell.sparse, self._summary.dialect.variable, self._cause
        if state == NEVER:
            known = f", {why}" if why and not self._levels else ""
            return f"none: the {noun} was never updated{known}"
        if state == SKIPPED:
            nothing = "the step" if cell.steps == 1 else "these steps"
            return f"none: {why or f'{nothing} updated nothing'}"
        if not total:
            others = f", while other {noun}s were updated"
            return f"none{f': {state}' if state == self.expected else others}"
        kinds = f"{cell.dense:,} dense, {cell.sparse:,} sparse"
        if not (cell.dense and cell.sparse):
            kinds = "dense" if cell.dense else "sparse"
        steps = (
            f"{span((cell.least, cell.most))} in {'each' if cell.least == cell.most else 'a'} step"
        )
        if cell.without:
            steps = f"in {cell.steps - cell.without:,} of the {cell.steps:,} steps"
        return f"{steps}: {total:,} in all, {kinds}"


def mark_of(cell: Cell) -> str:
    """Which of `MARKS` the steps have; empty if the updates changed the variable."""
    if cell.not_finite or not cell.ineffective:
        return NOT_FINITE if cell.not_finite else ""
    return UNCHANGED if cell.ineffective == cell.steps - cell.without else PARTLY


def _weights(cell: Cell) -> str:
    """What the steps did to the weights."""
    if not cell.compared:
        return "not compared"

    def among(number: int) -> str:
        part = f" in {number:,} of the {some(cell.compared, 'step')}"
        each = "" if cell.compared == 1 else " in each step"
        return each if number == cell.compared else part

    text = f"changed{among(cell.compared)}"
    if cell.unchanged:
        text = f"unchanged{among(cell.unchanged)}"
        if not cell.ineffective:
            text += (
                ", as nothing updated it" if cell.compared == 1 else ", none of which updated it"
            )
    if cell.not_finite:
        text += f"; not finite{among(cell.not_finite)}"
    if cell.compared < cell.steps:
        text += f"; {some(cell.steps - cell.compared, 'step')} not compared"
    return text


def states(levels: list[tuple[int, int]], expected: str = "") -> dict[str, str]:
    """What a cell can be, in the order of the legend, each with its colour.

    `expected` is why steps updated nothing, if that is as it should be.
    """
    shades = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    shown = {span(each): f"level{shade}" for each, shade in zip(levels, shades, strict=True)}
    odd = {SOME: "some", OTHERS: "others"}
    if expected:
        return {**shown, PART: "part", expected: "expected", **odd, NEVER: "never"}
    return {**shown, **odd, SKIPPED: "skipped", NEVER: "never"}
