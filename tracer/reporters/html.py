"""The report as one HTML page that needs nothing else: no server, no network, no other file.

What it draws are folded runs of steps, so that its size depends on how irregular a training was,
not on how long. Where it would still be too large, it leaves details off and says so.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tracer.findings.catalogue import Finding, findings
from tracer.model import measures
from tracer.model.callers import LACKING, Caller, known
from tracer.model.dialects import dialect_of
from tracer.model.labels import FIRST_TRACING, replica_ids, replica_names, replica_noun, why_idle
from tracer.model.programs import endings, runs
from tracer.model.records import Graph
from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import listed, some
from tracer.reporters import caller_tree, charts, layer_tree
from tracer.reporters.answer import question, sentences
from tracer.reporters.heatmap import HeatMap, Lane
from tracer.reporters.layout import cut, shown
from tracer.reporters.rows import by_method, by_replica, by_variable, by_worker
from tracer.reporters.text import headline
from tracer.reporters.tracings import tracings
from tracer.reporters.trees import Node, in_order

_CHARACTERS = 2_000_000  # of the table of variables, and as many of the lanes: of 6 MB in all
_DIGITS = 6  # that a number of a lane takes, with its comma
_OPTIMIZERS = 50
_ROWS = 500  # of each other table, of all optimizers together
_LONGEST = 1_000  # characters of a note or of the name of a graph
_BOXES = 500  # of callers, and as many rows of trees, of all optimizers together
_FEWEST = 30  # of each optimizer
_BARS = 40  # of a chart
_NAME = 120  # characters of a box
_CHAIN = 400  # characters of a row of a tree
_NOTES = 200
_THEMES = {"light": charts.LIGHT, "dark": charts.DARK}


def render(trace: Trace, by: None = None) -> str:
    """The report as a page."""
    summaries = summaries_of(trace)
    drawn = [(summary, HeatMap(summary)) for summary in summaries[:_OPTIMIZERS]]
    share = _CHARACTERS // max(1, len(drawn))
    most = _ROWS // max(1, len(drawn))
    boxes = max(_FEWEST, _BOXES // max(1, len(drawn)))
    variable = dialect_of(trace).variable
    found = findings(trace)
    data = {
        "first": trace.first_step,
        "themes": {
            n: {**finding, "config": charts.config(finding)} for n, finding in _THEMES.items()
        },
        "charts": {
            "heat": charts.heat_map(variable, effects=trace.has_effects),
            "bars": charts.bars(),
            "points": charts.points(),
            "icicle": charts.icicle(),
        },
        "words": {
            "never": charts.NEVER,
            "skipped": charts.SKIPPED,
            "part": charts.PART,
            "idle": charts.IDLE,
            "others": charts.OTHERS,
            "some": charts.SOME,
            **({"marks": charts.MARKS, "first": charts.FIRST} if trace.has_effects else {}),
        },
        "effects": trace.has_effects,
        "variable": variable,
        "optimizers": [_optimizer(summary, heat, share, boxes) for summary, heat in drawn],
    }
    scripts = [charts.library(), _resource("report.js")]
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
        optimizers_left=len(summaries) - len(drawn),
        optimizers=[
            _tables(summary, heat, most, boxes, named=len(drawn) > 1) for summary, heat in drawn
        ],
        environment=trace.environment,
        style=Markup(_resource("report.css")),
        scripts=[Markup(finding) for finding in scripts],
        hashes=[_hash(finding) for finding in scripts],
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
        "name": shown(summary.optimizers[0].name),
        "steps": summary.steps,
        "variables": len(summary.variables),
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


def _boxes(summary: Summary, most: int) -> list[list[Any]]:
    """The callers as boxes with their left and right edges in executions, the widest first."""
    whole = caller_tree.tree(summary)
    if not known(summary.trace.data):
        return []
    boxes = sorted(_placed(whole, 0, 0), key=lambda box: (box[1] - box[2], box[0]))
    return boxes[:most]


def _placed(caller: Caller, depth: int, begin: int) -> Iterator[list[Any]]:
    for child in caller.children:
        if child.executions:
            end = begin + child.executions
            name = cut(caller_tree.label(child), _NAME, _NAME // 2)
            steps = f"{child.steps:,}" if caller_tree.has_steps(child) else ""
            yield [depth, begin, end, _kind(child), name, steps, f"{child.calls:,}"]
            yield from _placed(child, depth + 1, begin)
            begin = end


def _kind(caller: Caller) -> str:
    """Which of `charts.CALLERS` it is."""
    program, framework, graph, method = charts.CALLERS
    if caller.method or caller.line is None:
        return method
    if caller.line.graph:
        return graph
    return program if caller.line.file else framework


def _optimizer(summary: Summary, heat: HeatMap, share: int, boxes: int) -> dict[str, Any]:
    """What the script of the page draws of an optimizer, in about `share` characters each."""
    table: list[list[Any]] = []
    taken = 0
    for index, row in zip(summary.variables, by_variable(summary), strict=True):
        values = [shown(value) if isinstance(value, str) else value for value in row]
        taken += len(json.dumps(values)) + 8
        if taken > share:
            break
        table.append([*values, heat.patterns[index]])
    grain = _grain(heat.lanes, summary.steps, share)
    names = replica_names(summary.trace)
    why = reason(summary)
    calm = why.expected
    return {
        "views": [graph._asdict() for graph in heat.views],
        "levels": heat.levels,
        "calm": calm,
        "cause": why.text if why.everywhere else "",
        "updated": bool(heat.levels),
        "states": charts.states(heat.levels, calm),
        "colors": {n: charts.colors(theme, heat.levels, calm) for n, theme in _THEMES.items()},
        "grain": grain,
        "lanes": [_lane(graph, summary.steps, grain) for graph in heat.lanes],
        **(
            {"firsts": [heat.not_finite_since(each) for each in range(len(heat.lanes))]}
            if summary.effects
            else {}
        ),
        "variables": table,
        "left": len(summary.variables) - len(table),
        "replicas": [
            [shown(names[index]), row.dense, row.sparse]
            for index, row in zip(summary.replicas[:_BARS], by_replica(summary), strict=False)
        ],
        "graphs": [
            [_graph(graph), graph.tracings * graph.step_calls, graph.steps]
            for graph in _graphs(summary)[:_BARS]
        ],
        "callers": _boxes(summary, boxes),
    }


def _graphs(summary: Summary) -> list[Graph]:
    return [each for each in summary.trace.graphs if each.root == summary.root]


def _graph(graph: Graph) -> str:
    name = shown(f"{graph.function}({graph.signature})")
    return cut(name, _LONGEST, _LONGEST // 2)


def _grain(lanes: Sequence[Lane], steps: int, share: int) -> int:
    """The fewest steps that the page can tell apart: 1, or a power of ten."""
    grain = 1
    while sum(_numbers(lane, steps, grain) for lane in lanes) * _DIGITS > share:
        grain *= 10
    return grain


def _numbers(lane: Lane, steps: int, grain: int) -> int:
    return lane.size if grain == 1 else min(lane.size, _coarse(lane, steps, grain))


def _coarse(lane: Lane, steps: int, grain: int) -> int:
    """The numbers that a lane takes if it is written down for each `grain` steps."""
    return -(-steps // grain) * (9 if lane.has_effects else 5)


def _lane(lane: Lane, steps: int, grain: int) -> list[Any] | dict[str, Any]:
    """The stretches of a lane or, if they would take more, a cell for each `grain` steps."""
    if grain > 1 and lane.size > _coarse(lane, steps, grain):
        cells = (
            lane.within(first, min(first + grain - 1, steps))
            for first in range(1, steps + 1, grain)
        )
        return {"cells": [each[1:] if lane.has_effects else each[1:6] for each in cells]}
    return [
        [
            stretch.first,
            stretch.turns,
            *(n for length, values in stretch.cycle for n in (length, *values)),
        ]
        for stretch in lane.timeline.stretches
    ]
