"""The heat map as a picture, for TensorBoard.

It has at most 20 rows, in which variables with the same updates are one, and 120 columns.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import groupby

import vl_convert

from tracer.layout import distinct, shown
from tracer.model.summary import Summary
from tracer.model.wording import some
from tracer.reporters.cells import FIRST, MARKS, Cells, mark_of
from tracer.reporters.colors import LIGHT
from tracer.reporters.heatmap import Cell, HeatMap, Lane, View

_COLUMNS = 120
_ROWS = 20
_HEIGHT = 20  # of a row, in pixels, and of a line of text
_LABELS = 150  # pixels of the labels
_WIDTH = 200  # of the cells, so that with the labels they fill a card of TensorBoard, 340 pixels
_CHARACTERS = 48  # of a line of text, so that it fits
_SCALE = 2  # so that it is sharp there, and can be made larger
_TEXT = "#24292f"
_CROSS = "\N{MULTIPLICATION SIGN}"


def picture(summary: Summary) -> bytes | None:
    """The heat map of an optimizer's replicas as a PNG; None if it has no steps or no updates."""
    heat = HeatMap(summary)
    view = heat.views[0] if heat.views else None
    if view is None or not view.steps or not heat.levels:
        return None
    cells = Cells(summary, heat)
    members: dict[int, list[int]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(variable)
    rows = list(members)[:_ROWS]
    drawn, used = _cells(heat, view, rows, cells)
    title = [view.name] if len(summary.replicas) > 1 else []
    if (size := -(-view.steps // _COLUMNS)) > 1:
        title.append(f"a column is {size:,} steps")
    if len(members) > len(rows):
        title.append(f"{some(len(members) - len(rows), 'more row')} left out")
    texts = [
        *((each, "") for each in title or [some(view.steps, "step")]),
        (f"updates of a {summary.dialect.variable} per {view.per}", ""),
        *((text, color) for text, color in cells.states.items() if color in used),
        *((text, color) for text, color in MARKS.items() if color in used),
    ]
    if FIRST in used:
        texts.append((f"{_CROSS} {FIRST}", ""))
    top = 12 + _HEIGHT * len(texts)
    parts = [
        *_lines(texts),
        f'<g transform="translate({_LABELS} {top})">',
        *drawn,
        *_labels(summary, [members[pattern] for pattern in rows]),
        *_axis(view.steps, summary.trace.first_step, _HEIGHT * len(rows)),
        "</g>",
    ]
    height = top + _HEIGHT * (len(rows) + 2)
    return vl_convert.svg_to_png(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH + 20}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="{_TEXT}">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>',
        scale=_SCALE,
    )


def _cells(
    heat: HeatMap, view: View, rows: Sequence[int], cells: Cells
) -> tuple[list[str], set[str]]:
    """The cells and marks of the rows, and the colours that they have."""
    used: set[str] = set()
    drawn: list[str] = []

    def put(color: str, row: int, columns: range, margin: float, edge: str = "") -> None:
        used.add(color)
        scale = _WIDTH / view.steps
        left, width = (columns.start - 1) * scale, len(columns) * scale
        stroke = f' stroke="{LIGHT[edge]}"' if edge else ""
        drawn.append(
            f'<rect x="{left:.2f}" y="{row * _HEIGHT + margin}" width="{width:.2f}" '
            f'height="{_HEIGHT - 2 * margin}" fill="{LIGHT[color]}"{stroke}/>'
        )

    for row, pattern in enumerate(rows):
        lane = heat.lanes[view.lanes[pattern]]
        for color, columns in _joined(lane, view.steps, partial(_color, cells, lane.never)):
            put(color, row, columns, 1)
        for color, columns in _joined(lane, view.steps, lambda cell: MARKS.get(mark_of(cell), "")):
            if color:
                thick = color == "infinite"
                put(color, row, columns, 5 if thick else 7, "thick" if thick else "thin")
        if since := heat.not_finite_since(view.lanes[pattern]):
            used.add(FIRST)
            x, y = (since - 0.5) * _WIDTH / view.steps, row * _HEIGHT + 14
            drawn.append(
                f'<text x="{x:.2f}" y="{y}" text-anchor="middle" stroke="white" stroke-width="3" '
                f'paint-order="stroke">{_CROSS}</text>'
            )
    return drawn, used


def _color(cells: Cells, never: bool, cell: Cell) -> str:
    return cells.states[cells.state(cell, never)]


def _joined(lane: Lane, steps: int, color: Callable[[Cell], str]) -> Iterator[tuple[str, range]]:
    """The colours of the columns with their steps, equal neighbours as one: no lines between."""
    size = -(-steps // _COLUMNS)
    columns = (range(at, min(at + size, steps + 1)) for at in range(1, steps + 1, size))
    colored = ((color(lane.cell(each[0], each[-1])), each) for each in columns)
    for name, group in groupby(colored, key=lambda each: each[0]):
        found = [each for _, each in group]
        yield name, range(found[0].start, found[-1].stop)


def _lines(texts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The lines above the cells, each with a colour if it explains one."""
    names = distinct([text for text, _ in texts], _CHARACTERS)
    for number, (text, (_, color)) in enumerate(zip(names, texts, strict=True)):
        y = 12 + _HEIGHT * number
        if color:
            yield (
                f'<rect x="12" y="{y}" width="12" height="12" fill="{LIGHT[color]}" '
                f'stroke="{LIGHT["thin"]}" stroke-width="0.5"/>'
            )
        yield f'<text x="{30 if color else 12}" y="{y + 11}">{escape(text)}</text>'


def _labels(summary: Summary, rows: Sequence[Sequence[int]]) -> Iterator[str]:
    """The name of the first variable of each row, and how many more there are."""
    names = [shown(summary.trace.variables[variables[0]].name) for variables in rows]
    labels = zip(distinct(names, 16), rows, strict=True)
    for number, (name, variables) in enumerate(labels):
        more = f" +{len(variables) - 1:,}" if len(variables) > 1 else ""
        y = number * _HEIGHT + 14
        yield f'<text x="-6" y="{y}" text-anchor="end">{escape(name + more)}</text>'


def _axis(steps: int, first: int, y: int) -> Iterator[str]:
    """The first and the last step, below the cells."""
    yield f'<text x="{_WIDTH / 2}" y="{y + 32}" text-anchor="middle">step</text>'
    yield f'<text x="0" y="{y + 16}">{first:,}</text>'
    if steps > 1:
        yield f'<text x="{_WIDTH}" y="{y + 16}" text-anchor="end">{first + steps - 1:,}</text>'
