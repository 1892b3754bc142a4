"""The heat map as a picture, for TensorBoard.

It has at most 20 rows, in which variables with the same updates are one, and 120 columns.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import vl_convert

from tracer.layout import distinct, shown
from tracer.model.summary import Summary
from tracer.model.wording import some
from tracer.reporters import template
from tracer.reporters.cells import FIRST, Cells
from tracer.reporters.colors import LIGHT
from tracer.reporters.heatmap import HeatMap, coarser

_COLUMNS = 120
_ROWS = 20
_LABEL = 16  # characters of a name
_SCALE = 2  # so that it is sharp on a card of TensorBoard, and can be made larger


def picture(summary: Summary) -> bytes | None:
    """The heat map of an optimizer's replicas as a PNG; None if it has no steps or no updates."""
    heat = HeatMap(summary)
    view = heat.views[0] if heat.views else None
    if view is None or not view.steps or not heat.levels:
        return None
    members: dict[int, list[str]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(shown(summary.trace.variables[variable].name))
    kept = list(members)[:_ROWS]
    labels = distinct([members[pattern][0] for pattern in kept], _LABEL)
    cells, size, rows = Cells(summary, heat), -(-view.steps // _COLUMNS), []
    for label, pattern in zip(labels, kept, strict=True):
        lane = heat.lanes[view.lanes[pattern]]
        columns = [
            cells.number(cell)
            for stretch in coarser(lane.timeline, size).stretches
            for _, cell in stretch.cycle * stretch.turns
        ]
        table = list(cells.rows)
        edges = [min(at * size, view.steps) for at in range(len(columns) + 1)]
        states, bars, *_ = zip(*(table[number] for number in columns), strict=True)
        drawn = _joined(states, edges), _joined(bars, edges)
        rows.append((label, len(members[pattern]) - 1, *drawn, lane.not_finite_since))
    svg = template.render(
        "heatmap.svg",
        view=view,
        several=len(summary.replicas) > 1,
        size=size,
        left=len(members) - len(rows),
        variable=summary.dialect.variable,
        legend=[each for legend in cells.legend() for each in legend],
        first_not_finite=FIRST,
        rows=rows,
        first=summary.trace.first_step,
        colors=LIGHT,
        some=some,
    )
    return vl_convert.svg_to_png(svg, scale=_SCALE)


def _joined(colors: Sequence[str], edges: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """The colours, equal neighbours as one, each with the steps before it and its last step."""
    at = 0
    for color, group in groupby(colors):
        end = at + sum(1 for _ in group)
        if color:
            yield color, edges[at], edges[end]
        at = end
