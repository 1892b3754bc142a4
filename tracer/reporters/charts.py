"""The charts as Vega-Lite specifications, for the page, where its script gives them data, and for
pictures. The library that draws them is a part of the extras `html` and `tensorboard`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import vl_convert

from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary
from tracer.model.wording import some
from tracer.reporters.heatmap import Cell, HeatMap, View
from tracer.reporters.layout import distinct, shown

Spec = dict[str, Any]

_END = "\n// whole\n"
"""Where a copy of the library ends that was written to its end."""

_LITE = "https://vega.github.io/schema/vega-lite/v6.json"

NEVER = "never updated"
SKIPPED = "step updated nothing"
OTHERS = "not in this step"
SOME = "not in some of the steps"
IDLE = "never ran"
CALLERS = ("your program", "framework", "graph", "method")
"""What an element of the tree of callers can be."""
PART = "in some of the steps"
"""Where no more is missing than steps that updated nothing as they should."""
UNCHANGED = "unchanged by each update"
HARDLY = "unchanged by some of the updates"
NOT_FINITE = "not finite"
FIRST = "not finite for the first time"
MARKS = (UNCHANGED, HARDLY, NOT_FINITE)
"""What updates did to the weights, if there is something to say: a mark in the cell."""
_CROSS = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"

LIGHT = {
    "odd": ["#1c1c20", "#d55e00", "#e8b100", "#f3dd8f"],
    "calm": ["#b4b9be", "#d3e6f5"],
    "levels": ["#9ecae8", "#5aa2d4", "#2277b4", "#0d5288", "#06315a"],
    "kinds": ["#2277b4", "#d98200"],
    "callers": ["#9ecae8", "#e3e7ec", "#c9e3cd", "#f5d3a2"],
    "marks": ["#ffffff", "#9aa1a9", "#a5005f"],
    "edges": ["#24292f", "#ffffff"],
    "text": "#24292f",
    "grid": "#d8dee4",
}
"""Blues for counts, a grey and a pale blue where steps update nothing by design, for what is odd
colours that the colour-blind can tell from them. Marks differ in their height and their edge too.
"""
DARK = {
    "odd": ["#ffffff", "#f2600c", "#f2c744", "#7d6a30"],
    "calm": ["#5c636b", "#16304a"],
    "levels": ["#1f4f78", "#2a6ea6", "#3f8ecb", "#6cb0e6", "#a3d0f5"],
    "kinds": ["#57a8de", "#f0a33a"],
    "callers": ["#1d4d76", "#2f3742", "#1f4a33", "#64431a"],
    "marks": ["#0f141a", "#737b85", "#ff8ac4"],
    "edges": ["#e6edf3", "#0f141a"],
    "text": "#e6edf3",
    "grid": "#3d444d",
}

_COLUMNS = 120  # of a picture
_ROWS = 20
_WIDTH = 200  # of its cells, so that with the labels it fills a card of TensorBoard, 340 pixels
_SCALE = 2  # so that it is sharp there, and can be made larger


@cache
def library() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed, which gives a page `vegaEmbed`.

    To make it takes three seconds of processor time, so it is kept in the user's cache folder.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "optimizer-tracer"
    kept = folder / f"vega-embed-{version('vl-convert-python')}.js"
    try:
        text = kept.read_text(encoding="utf-8")
        if text.endswith(_END):
            return text
    except (OSError, ValueError):  # it is not there yet, or it is damaged
        pass
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;") + _END
    with suppress(OSError):  # it is made again the next time
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(
            "w", dir=folder, encoding="utf-8", suffix=".tmp", delete=False
        ) as file:
            file.write(text)
        os.replace(file.name, kept)
    return text


def heat_map(noun: str, *, effects: bool) -> Spec:
    """Rows are variables, columns are steps; data sets `cells` and `cursor`, and some parameters.

    The users of the variables call each a `noun`.

    A cell has `row` (a number), `a` and `b` (the edges, in steps), `state` (its colour) and the
    texts of its tooltip. With `effects` the cells that are hovered over are `hits`, above what is
    seen: `cells`, `marks`, which have the same edges and a `mark`, and `firsts`, with their `row`
    and the step `at` which a variable was not finite first.
    """
    axes = _axes_of_heat_map()
    tips = [
        {"field": name, "type": "nominal", "title": noun if name == "variable" else name}
        for name in ("variable", "steps", "on", "updates", *(["weights"] if effects else []))
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
                "legend": {"orient": "top"},
            },
            "tooltip": tips,
        },
    }
    cursor: Spec = {
        "data": {"name": "cursor"},
        "mark": {"type": "rect", "clip": True, "fillOpacity": 0, "strokeWidth": 3},
        "encoding": axes,
    }
    if effects:
        hits: Spec = {
            **cells,
            "data": {"name": "hits"},
            "mark": {**cells["mark"], "fill": "transparent"},
        }
        hits["encoding"] = {**axes, "tooltip": tips}
        layers = [cells, *_marks(axes), hits, cursor]
    else:
        layers = [cells, cursor]
    sets = [layer["data"]["name"] for layer in layers]
    return {
        "$schema": _LITE,
        "width": "container",
        "datasets": {name: [] for name in sets},
        "params": [
            {"name": "from", "value": 0.5},
            {"name": "to", "value": 1.5},
            {"name": "rows", "value": []},
            {"name": "labels", "value": []},
        ],
        "layer": layers,
    }


def _axes_of_heat_map() -> Spec:
    return {
        "x": {
            "field": "a",
            "type": "quantitative",
            "title": "step",
            "scale": {"domain": {"expr": "[from, to]"}, "nice": False, "zero": False},
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


def _marks(axes: Spec) -> Iterator[Spec]:
    """The layers that say what updates did to the weights: thin bars, thick ones, and crosses."""
    for marks, height in (((UNCHANGED, HARDLY), 0.3), ((NOT_FINITE,), 0.55)):
        yield {
            "data": {"name": "marks"},
            "transform": [{"filter": {"field": "mark", "oneOf": list(marks)}}],
            "mark": {"type": "rect", "clip": True, "height": {"band": height}, "strokeWidth": 1},
            "encoding": {
                **axes,
                "fill": {
                    "field": "mark",
                    "type": "nominal",
                    "scale": {"domain": list(MARKS), "range": []},
                    "legend": {"orient": "top", "title": "weights after the step"},
                },
            },
        }
    yield {
        "data": {"name": "firsts"},
        "mark": {"type": "point", "clip": True, "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": {**axes["x"], "field": "at"},
            "y": axes["y"],
            "shape": {
                "field": "mark",
                "type": "nominal",
                "scale": {"domain": [FIRST], "range": [_CROSS]},
                "legend": {"orient": "top", "title": " "},
            },
        },
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
                "scale": {"domain": ["Python calls", "executions", IDLE], "range": []},
                "legend": {"title": None, "orient": "top"},
            },
            "shape": {
                "field": "what",
                "type": "nominal",
                "scale": {
                    "domain": ["Python calls", "executions", IDLE],
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


def icicle() -> Spec:
    """Who calls: a box for each caller, above what it called, as wide as its executions.

    Data set `boxes`: `depth`, `a` and `b` (the edges, in executions), `kind` (one of `CALLERS`),
    `name`, and the texts of its tooltip. A box that is too narrow for a text has none.
    """
    width = "(scale('x', datum.b) - scale('x', datum.a))"
    place = {
        "y": {"field": "depth", "type": "ordinal", "title": None, "axis": None, "sort": None},
        "x": {
            "field": "a",
            "type": "quantitative",
            "title": "executions",
            "scale": {"nice": False, "zero": True},
            "axis": {
                "format": ",d",
                "tickMinStep": 1,
                "tickCount": {"expr": "max(2, width / 120)"},
                "grid": False,
                "labelFlush": True,
            },
        },
        "tooltip": [
            {"field": name, "type": "nominal", "title": title}
            for name, title in (
                ("name", "caller"),
                ("executions", "executions"),
                ("steps", "steps"),
                ("calls", "Python calls"),
            )
        ],
    }
    boxes = {
        "mark": {"type": "rect", "strokeWidth": 1.5, "cornerRadius": 2},
        "encoding": {
            **place,
            "x2": {"field": "b"},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": list(CALLERS), "range": []},
                "legend": {"title": None, "orient": "top"},
            },
        },
    }
    texts = {
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "middle",
            "dx": 5,
            "fontSize": 12,
            "limit": {"expr": f"max(1, {width} - 10)"},
            "opacity": {"expr": f"{width} < 30 ? 0 : 1"},
        },
        "encoding": {**place, "text": {"field": "name", "type": "nominal"}},
    }
    return {
        "$schema": _LITE,
        "width": "container",
        "datasets": {"boxes": []},
        "data": {"name": "boxes"},
        "layer": [boxes, texts],
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


def states(levels: list[tuple[int, int]], calm: str = "") -> list[str]:
    """What a cell can be, in the order of the legend.

    `calm` is why steps updated nothing, if that is as it should be.
    """
    counts = [level(*each) for each in levels]
    if calm:
        return [*counts, PART, calm, SOME, OTHERS, NEVER]
    return [*counts, SOME, OTHERS, SKIPPED, NEVER]


def colors(theme: dict[str, Any], levels: list[tuple[int, int]], calm: str = "") -> list[str]:
    """The colours of `states`, in their order."""
    blues = theme["levels"]
    chosen = {1: [2], 2: [1, 3], 3: [0, 2, 4]}.get(len(levels), range(len(levels)))
    never, skipped, others, some = theme["odd"]
    rest = [*reversed(theme["calm"]), some, others] if calm else [some, others, skipped]
    return [*(blues[each] for each in chosen), *rest, never]


def picture(summary: Summary) -> bytes | None:
    """The heat map of an optimizer's replicas as a PNG; None if it has no steps or no updates.

    It has at most 20 rows, in which variables with the same updates are one, and 120 columns.
    """
    heat = HeatMap(summary)
    calm = reason(summary).expected
    view = heat.views[0] if heat.views else None
    if view is None or not view.steps or not heat.levels:
        return None
    rows = list(dict.fromkeys(heat.patterns.values()))[:_ROWS]
    members: dict[int, list[int]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(variable)
    size = -(-view.steps // _COLUMNS)
    before = summary.trace.first_step - 1
    cells: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    firsts: list[dict[str, Any]] = []
    for row, pattern in enumerate(rows):
        lane = heat.lanes[view.lanes[pattern]]
        if since := heat.not_finite_since(view.lanes[pattern]):
            firsts.append({"row": row, "at": before + since, "mark": FIRST})
        for first in range(1, view.steps + 1, size):
            last = min(first + size - 1, view.steps)
            edges = {"row": row, "a": before + first - 0.5, "b": before + last + 0.5}
            _put(cells, {**edges, "state": _state(heat, view, pattern, first, last, calm)}, "state")
            _put(marks, {**edges, "mark": _mark(lane.within(first, last))}, "mark")
    noun = summary.dialect.variable
    spec = heat_map(noun, effects=bool(summary.effects))
    spec["width"], spec["height"] = _WIDTH, {"step": 20}
    spec["datasets"]["cells"] = cells
    if summary.effects:
        marks = [each for each in marks if each["mark"]]
        spec["datasets"] |= {"marks": marks, "firsts": firsts}
        _paint_marks(spec["layer"][1:4], marks, firsts)
    values = {
        "from": before + 0.5,
        "to": before + view.steps + 0.5,
        "rows": list(range(len(rows))),
        "labels": _labels(summary, [members[pattern] for pattern in rows]),
    }
    spec["params"] = [{"name": name, "value": value} for name, value in values.items()]
    color = spec["layer"][0]["encoding"]["color"]
    present = {cell["state"] for cell in cells}
    used = [
        (state, shade)
        for state, shade in zip(
            states(heat.levels, calm), colors(LIGHT, heat.levels, calm), strict=True
        )
        if state in present
    ]
    color["scale"] = {"domain": [a for a, _ in used], "range": [b for _, b in used]}
    color["legend"] |= {"title": [f"updates of a {noun}", f"per {view.per}"], "columns": 1}
    del spec["layer"][0]["encoding"]["tooltip"]
    where = view.name if len(summary.replicas) > 1 else ""
    columns = f"a column is {size:,} steps" if size > 1 else ""
    more = len(set(heat.patterns.values())) - len(rows)
    left = f"{some(more, 'more row')} left out" if more else ""
    spec["title"] = {
        "text": list(filter(None, [where, columns, left])) or some(view.steps, "step"),
        "anchor": "start",
        "fontWeight": "normal",
        "fontSize": 13,
    }
    spec["padding"] = 12
    spec["config"] = {**config(LIGHT), "background": "white"}
    if summary.effects:
        spec["config"]["legend"]["layout"] = {"top": {"direction": "vertical"}}
    return vl_convert.vegalite_to_png(spec, scale=_SCALE)


def _put(cells: list[dict[str, Any]], cell: dict[str, Any], what: str) -> None:
    """Append a cell, or make the last one longer if it is alike: else thin lines were between."""
    last = cells[-1] if cells else None
    if last and last["row"] == cell["row"] and last[what] == cell[what]:
        last["b"] = cell["b"]
    else:
        cells.append(cell)


def _mark(cell: Cell) -> str:
    """Which of `MARKS` the steps have; empty if the updates changed the variable."""
    if cell.not_finite:
        return NOT_FINITE
    if not cell.ineffective:
        return ""
    return UNCHANGED if cell.ineffective == cell.steps - cell.without else HARDLY


def _paint_marks(layers: list[Spec], marks: list[Spec], firsts: list[Spec]) -> None:
    """Colour the layers of the marks, and leave out of the legend what is not there."""
    thin, thick, crosses = layers
    present = {each["mark"] for each in marks}
    used = [pair for pair in zip(MARKS, LIGHT["marks"], strict=True) if pair[0] in present]
    for layer, edge in zip((thin, thick), LIGHT["edges"], strict=True):
        layer["mark"]["stroke"] = edge
        fill = layer["encoding"]["fill"]
        fill["scale"] = {"domain": [a for a, _ in used], "range": [b for _, b in used]}
        fill["legend"] = {**fill["legend"], "columns": 1} if present else None
    crosses["mark"] |= {"fill": LIGHT["text"], "stroke": LIGHT["edges"][1]}
    shape = crosses["encoding"]["shape"]
    shape["legend"] = {**shape["legend"], "title": None} if firsts else None


def _labels(summary: Summary, rows: list[list[int]]) -> list[str]:
    """The name of the first variable of each row, and how many more there are."""
    names = [shown(summary.trace.variables[variables[0]].name) for variables in rows]
    return [
        name + (f" +{len(variables) - 1:,}" if len(variables) > 1 else "")
        for name, variables in zip(distinct(names, 16), rows, strict=True)
    ]


def _state(heat: HeatMap, view: View, pattern: int, first: int, last: int, calm: str) -> str:
    """Which of `states` the steps are."""
    lane = heat.lanes[view.lanes[pattern]]
    if not lane.counts - {0}:
        return NEVER
    cell: Cell = lane.within(first, last)
    total = heat.lanes[view.total].within(first, last)
    if cell.without == cell.steps:
        return (calm or SKIPPED) if total.without == total.steps else OTHERS
    if cell.without:
        return PART if calm and cell.without == total.without else SOME
    mean = -(-(cell.dense + cell.sparse) // cell.steps)
    return next(level(low, high) for low, high in heat.levels if mean <= high)
