"""The charts as Vega-Lite specifications, for the page, where its script gives them data, and for
pictures. The library that draws them is a part of the extras `html` and `tensorboard`.
"""

from functools import cache
from typing import Any

import vl_convert

from tracer.model.tally import Tally
from tracer.model.wording import some
from tracer.reporters.heatmap import Cell, HeatMap, View
from tracer.reporters.layout import cut, shown

Spec = dict[str, Any]

_LITE = "https://vega.github.io/schema/vega-lite/v6.json"

NEVER = "never updated"
SKIPPED = "step updated nothing"
OTHERS = "not in this step"
SOME = "not in some of the steps"

LIGHT = {
    "odd": ["#1c1c20", "#d55e00", "#e8b100", "#f3dd8f"],
    "levels": ["#9ecae8", "#5aa2d4", "#2277b4", "#0d5288", "#06315a"],
    "kinds": ["#2277b4", "#d98200"],
    "text": "#24292f",
    "grid": "#d8dee4",
}
"""Blues for counts, and for what is odd colours that the colour-blind can tell from them."""
DARK = {
    "odd": ["#ffffff", "#f2600c", "#f2c744", "#7d6a30"],
    "levels": ["#1f4f78", "#2a6ea6", "#3f8ecb", "#6cb0e6", "#a3d0f5"],
    "kinds": ["#57a8de", "#f0a33a"],
    "text": "#e6edf3",
    "grid": "#3d444d",
}

_COLUMNS = 200  # of a picture
_ROWS = 40


@cache
def library() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed, which gives a page `vegaEmbed`."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def heat_map() -> Spec:
    """Rows are variables, columns are steps; data sets `cells` and `cursor`, and some parameters.

    A cell has `row` (a number), `a` and `b` (the edges, in steps), `state` (its colour) and the
    texts of its tooltip.
    """
    steps = {"domain": {"expr": "[from, to]"}, "nice": False, "zero": False}
    axes = {
        "x": {
            "field": "a",
            "type": "quantitative",
            "title": "step",
            "scale": steps,
            "axis": {"format": ",d", "tickMinStep": 1, "grid": False, "labelFlush": True},
        },
        "x2": {"field": "b"},
        "y": {
            "field": "row",
            "type": "ordinal",
            "title": None,
            "scale": {"domain": {"expr": "rows"}, "paddingInner": 0.12, "paddingOuter": 0.06},
            "axis": {"labelExpr": "labels[datum.value]", "labelLimit": 0, "ticks": False},
        },
    }
    tips = [
        {"field": name, "type": "nominal", "title": name}
        for name in ("variable", "steps", "on", "updates")
    ]
    cells: Spec = {
        "data": {"name": "cells"},
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            **axes,
            "color": {
                "field": "state",
                "type": "nominal",
                "scale": {"domain": [], "range": []},
                "legend": {"title": "updates of a variable in a step", "orient": "top"},
            },
            "tooltip": tips,
        },
    }
    cursor: Spec = {
        "data": {"name": "cursor"},
        "mark": {"type": "rect", "clip": True, "fillOpacity": 0, "strokeWidth": 3},
        "encoding": axes,
    }
    return {
        "$schema": _LITE,
        "width": "container",
        "datasets": {"cells": [], "cursor": []},
        "params": [
            {"name": "from", "value": 0.5},
            {"name": "to", "value": 1.5},
            {"name": "rows", "value": []},
            {"name": "labels", "value": []},
        ],
        "layer": [cells, cursor],
    }


def bars() -> Spec:
    """Dense and sparse updates as bars; data set `bars` of `name`, `kind` and `updates`."""
    return {
        "$schema": _LITE,
        "width": "container",
        "datasets": {"bars": []},
        "data": {"name": "bars"},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "title": None},
            "x": {
                "field": "updates",
                "type": "quantitative",
                "title": "updates",
                "axis": {"format": ",d", "tickMinStep": 1},
            },
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": ["dense", "sparse"], "range": []},
                "legend": {"title": None, "orient": "top"},
            },
            "order": {"field": "kind"},
            "tooltip": [
                {"field": "name", "type": "nominal", "title": "of"},
                {"field": "kind", "type": "nominal"},
                {"field": "updates", "type": "quantitative", "format": ",d"},
            ],
        },
    }


def points() -> Spec:
    """Calls beside executions, as points of two shapes; data set `points` of `name`, `what`,
    `number`.
    """
    return {
        "$schema": _LITE,
        "width": "container",
        "datasets": {"points": []},
        "data": {"name": "points"},
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "y": {
                "field": "name",
                "type": "nominal",
                "sort": None,
                "title": None,
                "axis": {"grid": True},
            },
            "x": {
                "field": "number",
                "type": "quantitative",
                "title": None,
                "scale": {"type": "symlog", "domainMin": 0},
                "axis": {"format": ",d", "tickCount": 5},
            },
            "color": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": ["Python calls", "executions", "never ran"], "range": []},
                "legend": {"title": None, "orient": "top"},
            },
            "shape": {
                "field": "what",
                "type": "nominal",
                "scale": {
                    "domain": ["Python calls", "executions", "never ran"],
                    "range": ["circle", "diamond", "cross"],
                },
            },
            "tooltip": [
                {"field": "name", "type": "nominal", "title": "graph"},
                {"field": "what", "type": "nominal"},
                {"field": "number", "type": "quantitative", "format": ",d"},
            ],
        },
    }


def config(theme: dict[str, Any]) -> Spec:
    """How charts look in a theme."""
    quiet = {"labelColor": theme["text"], "titleColor": theme["text"]}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": theme["grid"]},
        "axis": {
            **quiet,
            "domainColor": theme["grid"],
            "tickColor": theme["grid"],
            "gridColor": theme["grid"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
        },
        "legend": {
            **quiet,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelLimit": 0,
            "titleLimit": 0,
        },
    }


def level(low: int, high: int) -> str:
    """The name of a class of counts."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def states(levels: list[tuple[int, int]]) -> list[str]:
    """What a cell can be, in the order of the legend."""
    return [*(level(*each) for each in levels), SOME, OTHERS, SKIPPED, NEVER]


def colors(theme: dict[str, Any], levels: list[tuple[int, int]]) -> list[str]:
    """The colours of `states`, in their order."""
    blues = theme["levels"]
    chosen = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    return [*(blues[each] for each in chosen), *reversed(theme["odd"])]


def picture(tally: Tally) -> bytes | None:
    """The heat map of an optimizer's replicas as a PNG; None if it has no steps or no updates.

    It has at most 40 rows, in which variables with the same updates are one, and 200 columns.
    """
    heat = HeatMap(tally)
    view = heat.views[0] if heat.views else None
    if view is None or not view.steps or not heat.levels:
        return None
    rows = list(dict.fromkeys(heat.patterns.values()))[:_ROWS]
    members: dict[int, list[int]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(variable)
    size = -(-view.steps // _COLUMNS)
    before = tally.trace.first_step - 1
    cells = []
    for row, pattern in enumerate(rows):
        for first in range(1, view.steps + 1, size):
            last = min(first + size - 1, view.steps)
            state = _state(heat, view, pattern, first, last)
            a, b = before + first - 0.5, before + last + 0.5
            cells.append({"row": row, "a": a, "b": b, "state": state})
    spec = heat_map()
    spec["width"], spec["height"] = 800, {"step": 22}
    spec["datasets"]["cells"] = cells
    values = {
        "from": before + 0.5,
        "to": before + view.steps + 0.5,
        "rows": list(range(len(rows))),
        "labels": [_label(tally, members[pattern]) for pattern in rows],
    }
    spec["params"] = [{"name": name, "value": value} for name, value in values.items()]
    color = spec["layer"][0]["encoding"]["color"]
    color["scale"] = {"domain": states(heat.levels), "range": colors(LIGHT, heat.levels)}
    del spec["layer"][0]["encoding"]["tooltip"]
    where = view.name if len(tally.replicas) > 1 else ""
    columns = f"a column is {size:,} steps" if size > 1 else ""
    more = len(set(heat.patterns.values())) - len(rows)
    left = f"{some(more, 'more row')} left out" if more else ""
    spec["title"] = {
        "text": ", ".join(filter(None, [where, columns, left])) or some(view.steps, "step"),
        "anchor": "start",
        "fontWeight": "normal",
        "fontSize": 13,
    }
    spec["padding"] = 12
    spec["config"] = {**config(LIGHT), "background": "white"}
    return vl_convert.vegalite_to_png(spec)


def _label(tally: Tally, variables: list[int]) -> str:
    name = shown(tally.trace.variables[variables[0]].name)
    more = f" and {len(variables) - 1:,} more" if len(variables) > 1 else ""
    return cut(name, 40, 20) + more


def _state(heat: HeatMap, view: View, pattern: int, first: int, last: int) -> str:
    """Which of `states` the steps are."""
    lane = heat.lanes[view.lanes[pattern]]
    if not lane.counts - {0}:
        return NEVER
    cell: Cell = lane.within(first, last)
    if cell.without == cell.steps:
        total = heat.lanes[view.total].within(first, last)
        return SKIPPED if total.without == total.steps else OTHERS
    if cell.without:
        return SOME
    mean = -(-(cell.dense + cell.sparse) // cell.steps)
    return next(level(low, high) for low, high in heat.levels if mean <= high)
