"""What a cell of the heat map is: its state, which is its colour, its mark, and its words."""

from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary
from tracer.model.wording import some
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
        self._noun = summary.dialect.variable
        why = reason(summary)
        self._cause = why.text if why.everywhere else ""
        self.expected = why.expected
        """Why steps updated nothing, if that is as it should be; else empty."""
        self.states = states(heat.levels, self.expected)
        self.table: list[list[object]] = []
        """Of each number the colours of its state and its mark, and the words on both."""
        self._numbers: dict[tuple[Cell, bool], int] = {}
        self._rows: dict[tuple[object, ...], int] = {}

    def number(self, cell: Cell, never: bool) -> int:
        """The number of a cell of a variable, which perhaps was `never` updated."""
        key = cell, never
        if key not in self._numbers:
            state, mark = self.state(cell, never), mark_of(cell)
            row: tuple[object, ...] = (
                self.states[state],
                MARKS.get(mark, ""),
                self._updates(cell, state),
                _weights(cell) if self._summary.effects else "",
            )
            if row not in self._rows:
                self._rows[row] = len(self.table)
                self.table.append([*row])
            self._numbers[key] = self._rows[row]
        return self._numbers[key]

    def state(self, cell: Cell, never: bool) -> str:
        """Which of the states the steps are in."""
        if never:
            return NEVER
        if cell.without == cell.steps:
            return (self.expected or SKIPPED) if cell.idle == cell.steps else OTHERS
        if cell.without:
            return PART if self.expected and cell.without == cell.idle else SOME
        mean = -(-(cell.dense + cell.sparse) // cell.steps)
        return next(level(low, high) for low, high in self._levels if mean <= high)

    def legend(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The states and the marks that there are, with their colours."""
        used = {color for row in self.table for color in row[:2]}
        states, marks = (
            [(text, color) for text, color in each.items() if color in used]
            for each in (self.states, MARKS)
        )
        return states, marks

    def _updates(self, cell: Cell, state: str) -> str:
        """How many updates there were, or why there were none."""
        total, why = cell.dense + cell.sparse, self._cause
        if state == NEVER:
            known = f", {why}" if why and not self._levels else ""
            return f"none: the {self._noun} was never updated{known}"
        if state == SKIPPED:
            nothing = "the step" if cell.steps == 1 else "these steps"
            return f"none: {why or f'{nothing} updated nothing'}"
        if not total:
            expected = state == self.expected
            return f"none: {state}" if expected else f"none, while other {self._noun}s were updated"
        kinds = f"{cell.dense:,} dense, {cell.sparse:,} sparse"
        if not (cell.dense and cell.sparse):
            kinds = "dense" if cell.dense else "sparse"
        if cell.least == cell.most:
            steps = f"{cell.most:,} in each step"
        elif cell.without:
            steps = f"in {cell.steps - cell.without:,} of the {cell.steps:,} steps"
        else:
            steps = f"{cell.least:,} to {cell.most:,} in a step"
        return f"{steps}: {total:,} in all, {kinds}"


def mark_of(cell: Cell) -> str:
    """Which of `MARKS` the steps have; empty if the updates changed the variable."""
    if cell.not_finite:
        return NOT_FINITE
    if not cell.ineffective:
        return ""
    return UNCHANGED if cell.ineffective == cell.steps - cell.without else PARTLY


def _weights(cell: Cell) -> str:
    """What the steps did to the weights."""
    if not cell.compared:
        return "not compared"

    def among(number: int) -> str:
        if cell.compared == 1:
            return ""
        if number == cell.compared:
            return " in each step"
        return f" in {number:,} of the {some(cell.compared, 'step')}"

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


def level(low: int, high: int) -> str:
    """The name of a class of counts."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def states(levels: list[tuple[int, int]], expected: str = "") -> dict[str, str]:
    """What a cell can be, in the order of the legend, each with its colour.

    `expected` is why steps updated nothing, if that is as it should be.
    """
    chosen = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    shown = {level(*each): f"level{shade}" for each, shade in zip(levels, chosen, strict=True)}
    odd = {SOME: "some", OTHERS: "others"}
    if expected:
        return {**shown, PART: "part", expected: "expected", **odd, NEVER: "never"}
    return {**shown, **odd, SKIPPED: "skipped", NEVER: "never"}
