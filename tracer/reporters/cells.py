"""What a cell of the heat map is: its state, which is its colour, its mark, and its words."""

from functools import cache

from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary
from tracer.model.wording import first_true, some, span
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
        """The number of a cell."""

    def _number(self, cell: Cell) -> int:
        state = self._state(cell)
        colors = self.states[state], MARKS.get(mark_of(cell), "")
        weights = _weights(cell) if self._summary.effects else ""
        row = (*colors, self._updates(cell, state), weights)
        return self.rows.setdefault(row, len(self.rows))

    def legend(self) -> tuple[list[tuple[str, str]], ...]:
        """The states and the marks that there are, with their colours."""
        used = {color for row in self.rows for color in row[:2]}
        return tuple(
            [(text, color) for text, color in each.items() if color in used]
            for each in (self.states, MARKS)
        )

    def _state(self, cell: Cell) -> str:
        """Which of the states the steps are in."""
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
    """Which of `MARKS` the steps have; empty if the updates changed the variable."""
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
    """What a cell can be, in the order of the legend, each with its colour.

    `expected` is why steps updated nothing, if that is as it should be.
    """
    shades = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    shown = {span(each): f"level{shade}" for each, shade in zip(levels, shades, strict=True)}
    odd = {SOME: "some", OTHERS: "others"}
    if expected:
        return {**shown, PART: "part", expected: "expected", **odd, NEVER: "never"}
    return {**shown, **odd, SKIPPED: "skipped", NEVER: "never"}
