"""The report as one HTML page that needs nothing else: no server, no network, no other file.

Everything in it is worked out here; the script only draws the heat map and the table. What it draws
are folded runs of steps, so that its size depends on how irregular a training was, not on how long.
Where it would still be too large, it leaves details off and says so.
"""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tracer.findings.catalogue import Finding, findings
from tracer.layout import cut, shown
from tracer.model import measures
from tracer.model.callers import LACKING, Caller, known
from tracer.model.dialects import dialect_of
from tracer.model.labels import FIRST_TRACING, replica_ids, replica_names, replica_noun, why_idle
from tracer.model.programs import endings, runs
from tracer.model.records import Graph
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import listed, some
from tracer.reporters import caller_tree, cells, colors, layer_tree, tracks
from tracer.reporters.answer import question, sentences
from tracer.reporters.heatmap import HeatMap, View
from tracer.reporters.rows import by_method, by_replica, by_variable, by_worker
from tracer.reporters.text import headline
from tracer.reporters.tracings import tracings
from tracer.reporters.trees import Node, in_order

_CHARACTERS = 2_000_000  # of the table of variables, and as many of the lanes: of 6 MB in all
_DIGITS = 4  # that a number of a lane takes, with its comma
_OPTIMIZERS = 50
_ROWS = 500  # of each other table, of all optimizers together
_LONGEST = 1_000  # characters of a note or of the name of a graph
_BOXES = 500  # of callers, and as many rows of trees, of all optimizers together
_FEWEST = 30  # of each optimizer
_BARS = 40  # of a chart
_NAME = 120  # characters of a box
_CHAIN = 400  # characters of a row of a tree
_NOTES = 200
_CALLERS = {
    "your program": "program",
    "framework": "framework",
    "graph": "graph",
    "method": "method",
}
"""What a box of the chart of callers can be, with its colour."""
_COLUMNS = (
    "shape",
    "dtype",
    "updates",
    "dense",
    "sparse",
    "least per step",
    "most per step",
    "without gradient",
    "unchanged",
    "not finite",
)
"""The headers of the fields of a `VariableRow` behind the name."""


def render(trace: Trace, by: None = None) -> str:
    """The report as a page."""
    summaries = summaries_of(trace)
    drawn = [(summary, HeatMap(summary)) for summary in summaries[:_OPTIMIZERS]]
    share = _CHARACTERS // max(1, len(drawn))
    most = _ROWS // max(1, len(drawn))
    boxes = max(_FEWEST, _BOXES // max(1, len(drawn)))
    variable = dialect_of(trace).variable
    found = findings(trace)
    columns = [variable, *_COLUMNS[: None if trace.has_effects else -2]]
    optimizers = [
        {**_heat(summary, heat, share), **_variables(summary, heat, share)}
        for summary, heat in drawn
    ]
    data = {
        "first": trace.first_step,
        "columns": columns,
        "variable": variable,
        "never": cells.NEVER,
        "first_not_finite": cells.FIRST,
        "most": tracks.COLUMNS,
        "optimizers": optimizers,
    }
    script = _resource("report.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracer.reporters"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    return environment.get_template("report.html").render(
        trace=trace,
        title=_title(trace, found),
        question=question(trace),
        answers=sentences(trace),
        notes=[cut(shown(note), _LONGEST, _LONGEST // 2) for note in trace.notes[:_NOTES]],
        notes_left=max(0, len(trace.notes) - _NOTES),
        only=trace.only,
        findings=found[:_NOTES],
        runs=list(runs(trace)),
        endings=endings(trace),
        facts=_facts(trace),
        noun=replica_noun(trace),
        variable=variable,
        first_tracing=FIRST_TRACING,
        kinds=_CALLERS,
        first_not_finite=cells.FIRST,
        optimizers_left=len(summaries) - len(drawn),
        optimizers=[
            {
                **_tables(summary, heat, most, boxes, named=len(drawn) > 1),
                "number": number,
                "drawn": each,
            }
            for number, (each, (summary, heat)) in enumerate(zip(optimizers, drawn, strict=True))
        ],
        columns=columns,
        environment=trace.environment,
        style=Markup(colors.css() + _resource("report.css")),
        script=Markup(script),
        hash=_hash(script),
        data=Markup(_inert(data)),
    )


def _resource(name: str) -> str:
    return (files("tracer.reporters") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _inert(data: object) -> str:
    """JSON that nothing in a page can take for anything but text."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _title(trace: Trace, found: Sequence[Finding]) -> str:
    """Which program it is of, when it ran, and what was found: the first line of the page."""
    parts = []
    if trace.programs:
        first = min(trace.programs, key=lambda each: each.started)
        began = datetime.fromtimestamp(first.started, timezone.utc)
        parts = [f"{cut(first.command, _NAME, _NAME // 2)}, {began:%Y-%m-%d %H:%M} UTC"]
    severities = Counter(each.severity for each in found)
    counts = [some(severities[each], each) for each in ("error", "warning") if severities[each]]
    return shown(": ".join([*parts, listed(counts) or "no errors and no warnings"]))


def _facts(trace: Trace) -> list[tuple[str, str]]:
    """The figures at the top."""
    least = "" if trace.complete else "at least "
    facts = [("steps", trace.steps), ("updates", trace.updates())]
    asked = {index for summary in summaries_of(trace) for index in summary.variables}
    facts.append((f"{dialect_of(trace).variable}s", len(asked)))
    copy = replica_noun(trace)
    if len(trace.replicas) > 1:
        facts.append((f"{copy}s", len(trace.replicas)))
    if len(trace.workers) > 1 and copy != "rank":
        facts.append(("workers", len(trace.workers)))
    counted = ("steps", "updates")
    return [(name, f"{least if name in counted else ''}{number:,}") for name, number in facts]


def _tables(
    summary: Summary, heat: HeatMap, most: int, boxes: int, *, named: bool
) -> dict[str, Any]:
    """What the template shows of an optimizer."""
    graphs, copy = _graphs(summary), replica_noun(summary.trace)
    lost = []
    if number := summary.unplaced(measures.updates):
        lost.append(f"Of {some(number, 'update')} the step is not known: not in the heat map.")
    if number := summary.outside(measures.updates):
        lost.append(f"{some(number, 'update')} outside any step: not in the heat map.")
    if heat.left_off:
        lost.append(
            f"{some(heat.left_off, copy)} without a view of their own: they are in that of "
            f"all {copy}s together."
        )
    methods, replicas, workers = by_method(summary), by_replica(summary), by_worker(summary)
    return {
        "headline": headline(summary, named=named),
        "lost": lost,
        "noun": copy,
        "program": summary.dialect.program,
        "step_method": summary.dialect.step_method,
        "names": [replica_ids(summary.trace)[index] for index in summary.replicas[:most]],
        "workers": workers[:most] if len(workers) > 1 and copy != "rank" else [],
        "replicas": replicas[:most] if len(replicas) > 1 else [],
        "devices": any(row.device for row in replicas),
        "replicas_left": max(0, len(summary.replicas) - most),
        "methods": methods[:most],
        "graphs": [
            (_graph(each), shown(summary.trace.replicas[each.replica].worker), each)
            for each in graphs[:most]
        ],
        "of_workers": len(summary.trace.workers) > 1,
        "graphs_left": max(0, len(graphs) - most),
        "points": _points(graphs),
        "bars": _bars(summary),
        "idle": 0 if summary.idle_as_usual else sum(each.idle for each in graphs),
        "usual": summary.idle_as_usual,
        "why_idle": why_idle(summary) if not graphs or summary.idle_parts else "",
        "traced": any(row.calls_tracing for row in methods),
        **_trees(summary, boxes),
        **_events(summary, most),
    }


def _trees(summary: Summary, most: int) -> dict[str, Any]:
    """Who calls, and the layers, as rows of tables."""
    callers = _rows_of(caller_tree.nodes(summary, "odd"), caller_tree.JOINT)
    layers = _rows_of(layer_tree.nodes(summary, "odd", "odd"), summary.dialect.separator)
    return {
        "callers_known": known(summary.trace.data),
        "lacking": LACKING,
        "called": caller_tree.methods(summary),
        "callers": callers[:most],
        "callers_left": max(0, len(callers) - most),
        "layers": layers[:most],
        "layers_left": max(0, len(layers) - most),
        "boxes": _boxes(summary, most),
    }


def _rows_of(nodes: Sequence[Node], joint: str) -> list[dict[str, Any]]:
    return [
        {
            "depth": depth,
            "name": cut(joint.join(node.names), _CHAIN, _CHAIN // 2),
            "note": node.note,
            "cells": node.cells,
            "style": node.style,
        }
        for depth, node in in_order(nodes)
    ]


def _events(summary: Summary, most: int) -> dict[str, Any]:
    """The graph tracings in order of time."""
    events = tracings(summary.trace, summary.root)
    return {
        "tracings": [
            each._replace(cause=cut(each.cause, _LONGEST, _LONGEST // 2)) for each in events[:most]
        ],
        "tracings_left": max(0, len(events) - most),
    }


def _boxes(summary: Summary, most: int) -> list[dict[str, Any]]:
    """The callers as boxes with their edges in percent of all executions, the widest first."""
    if not known(summary.trace.data):
        return []
    whole = caller_tree.tree(summary)
    total = sum(child.executions for child in whole.children)
    boxes = sorted(_placed(whole, 0, 0), key=lambda box: (box[1] - box[2], box[0]))[:most]
    return [
        {
            "depth": depth,
            "left": 100 * begin / total,
            "width": 100 * (end - begin) / total,
            "color": _kind(caller),
            "name": cut(caller_tree.label(caller), _NAME, _NAME // 2),
            "tip": _tip(caller),
        }
        for depth, begin, end, caller in boxes
    ]


def _tip(caller: Caller) -> str:
    """What a box says of a caller."""
    name = cut(caller_tree.label(caller), _NAME, _NAME // 2)
    steps = f"{some(caller.steps, 'step')}, " if caller_tree.has_steps(caller) else ""
    executions, calls = some(caller.executions, "execution"), some(caller.calls, "Python call")
    return f"{name}: {executions}, {steps}{calls}"


def _placed(caller: Caller, depth: int, begin: int) -> Iterator[tuple[int, int, int, Caller]]:
    for child in caller.children:
        if child.executions:
            end = begin + child.executions
            yield depth, begin, end, child
            yield from _placed(child, depth + 1, begin)
            begin = end


def _kind(caller: Caller) -> str:
    """Which colour of `_CALLERS` it has."""
    if caller.method or caller.line is None:
        return "method"
    if caller.line.graph:
        return "graph"
    return "program" if caller.line.file else "framework"


def _bars(summary: Summary) -> list[tuple[str, int, int, float]]:
    """The name of each replica, its dense and sparse updates, and the percent that one takes."""
    names, rows = replica_names(summary.trace), by_replica(summary)[:_BARS]
    most = max((row.dense + row.sparse for row in rows), default=0)
    return [
        (shown(names[index]), row.dense, row.sparse, 100 / (most or 1))
        for index, row in zip(summary.replicas, rows, strict=False)
    ]


def _points(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Calls and executions of each graph on an axis of logarithms, with the axis, in percent."""
    counts = [(each.tracings * each.step_calls, each.steps) for each in graphs[:_BARS]]
    most = max((max(each) for each in counts), default=0)
    whole = math.log1p(most) or 1
    ticks = [10**power for power in range(len(str(most))) if 10**power <= most]
    return {
        "rows": [
            (_graph(graph), *((n, 100 * math.log1p(n) / whole) for n in numbers))
            for graph, numbers in zip(graphs, counts, strict=False)
        ],
        "ticks": [(n, 100 * math.log1p(n) / whole) for n in (0, *ticks)],
    }


def _variables(summary: Summary, heat: HeatMap, share: int) -> dict[str, Any]:
    """The rows of the table of variables, each with its pattern, in at most `share` characters."""
    table: list[list[Any]] = []
    taken = 0
    for index, row in zip(summary.variables, by_variable(summary), strict=True):
        values = [shown(value) if isinstance(value, str) else value for value in row]
        values[0] = values[0] or "(no name)"
        taken += len(json.dumps(values)) + 8
        if taken > share:
            break
        table.append([*values, heat.patterns[index]])
    return {
        "variables": table,
        "left": len(summary.variables) - len(table),
        "most": max([1, *(row[3] for row in table)]),
    }


def _heat(summary: Summary, heat: HeatMap, share: int) -> dict[str, Any]:
    """The heat map: its cells at each size, the finest such that they fit."""
    grain = 1
    while True:
        described = cells.Cells(summary, heat)
        found = _tracks(summary, heat, described, grain, share)
        if found is not None:
            break
        grain *= tracks.FACTOR
    states, marks = described.legend()
    return {
        "views": [_view(view, heat, described) for view in heat.views],
        "states": states,
        "marks": marks,
        "crosses": any(each["since"] for each in found),
        "grain": grain,
        "tracks": found,
        "cells": described.table,
    }


def _tracks(
    summary: Summary, heat: HeatMap, described: cells.Cells, grain: int, share: int
) -> list[dict[str, Any]] | None:
    """The track of each lane; None if they would take more than `share` characters."""
    steps, found = summary.steps, list[dict[str, Any]]()
    drawn = {lane for view in heat.views for lane in view.lanes}
    least = sum(min(lane.size, 2 * steps // grain) for lane in heat.lanes)
    left = share if least * _DIGITS <= share else -1
    for number, lane in enumerate(heat.lanes):
        if left < 0 and grain < steps:
            return None
        track = tracks.track(lane, steps, described, grain) if number in drawn else []
        found.append({"sizes": track, "since": heat.not_finite_since(number)})
        left -= len(json.dumps(track, separators=(",", ":")))
    too_large = left < len(json.dumps(described.table)) and grain < steps
    return None if too_large else found


def _view(view: View, heat: HeatMap, described: cells.Cells) -> dict[str, Any]:
    """A view, with the states that must never be too thin to see."""
    odd = {cells.SKIPPED, cells.OTHERS}
    if view.steps and heat.lanes[view.total].within(1, view.steps).without * 2 < view.steps:
        odd.add(described.expected)
    colors = [color for state, color in described.states.items() if state in odd]
    return {**view._asdict(), "odd": colors}


def _graphs(summary: Summary) -> list[Graph]:
    return [each for each in summary.trace.graphs if each.root == summary.root]


def _graph(graph: Graph) -> str:
    name = shown(f"{graph.function}({graph.signature})")
    return cut(name, _LONGEST, _LONGEST // 2)
