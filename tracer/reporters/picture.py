"""The heat map as a picture, for TensorBoard.

It has at most 20 rows, in which variables with the same updates are one, and 120 columns.
"""

from typing import Any

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
    if not summary.steps or not heat.levels:
        return None
    view, cells = heat.views[0], Cells(summary, heat)
    members: dict[int, list[str]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(shown(summary.trace.variables[variable].name))
    kept, size, rows = list(members)[:_ROWS], -(-view.steps // _COLUMNS), []
    labels = distinct([members[pattern][0] for pattern in kept], _LABEL)
    for label, pattern in zip(labels, kept, strict=True):
        lane = heat.lanes[view.lanes[pattern]]
        stretches = coarser(lane.timeline, size).stretches
        found: list[Any] = [cell for each in stretches for _, cell in each.cycle * each.turns]
        numbers = list(map(cells.number, found))
        rows.append((label, len(members[pattern]) - 1, numbers, lane.not_finite_since))
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
        cells=list(cells.rows),
        first=summary.trace.first_step,
        colors=LIGHT,
        some=some,
    )
    return vl_convert.svg_to_png(svg, scale=_SCALE)
