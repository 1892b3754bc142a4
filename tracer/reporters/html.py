"""The report as one HTML page that needs nothing else: no server, no network, no other file.

Everything in it is worked out here; the script only draws the heat map and the table. What it draws
are folded runs of steps, so that its size depends on how irregular a training was, not on how long.
Where it would still be too large, it leaves details off and says so.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup

from tracer.findings.rule_list import Finding, findings
from tracer.layout import cut, shown
from tracer.model import callers, labels, measures
from tracer.model.dialects import dialect_of
from tracer.model.programs import endings, runs
from tracer.model.records import Line
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import listed, some
from tracer.reporters import caller_tree, cells, colors, layer_tree, tables, template, tracks
from tracer.reporters.answer import question, sentences
from tracer.reporters.columns import VariableRow
from tracer.reporters.heatmap import HeatMap
from tracer.reporters.text import headline
from tracer.reporters.tracings import tracings
from tracer.reporters.trees import in_order

_CHARACTERS = 2_000_000  # of the table of variables, and as many of the lanes: of 6 MB in all
_OPTIMIZERS = 50
_ROWS = 500  # of each other table, and boxes of callers, of all optimizers together
_FEWEST = 30  # of each optimizer
_BARS = 40  # of a chart
_NAME = 120  # characters of a command
_NOTES = 200


def render(trace: Trace, by: None = None) -> str:
    """The report as a page."""
    summaries = summaries_of(trace)
    drawn = summaries[:_OPTIMIZERS]
    parts = max(1, len(drawn))
    found = findings(trace)
    variable = dialect_of(trace).variable
    fields = VariableRow._fields[1 : None if trace.has_effects else -2]
    columns = [variable, *(name.removeprefix("requests_").replace("_", " ") for name in fields)]
    optimizers = [_drawn(summary, _CHARACTERS // parts) for summary in drawn]
    data = {
        "first": trace.first_step,
        "columns": columns,
        "variable": variable,
        "never": cells.NEVER,
        "first_not_finite": cells.FIRST,
        "most": tracks.COLUMNS,
        "optimizers": optimizers,
    }
    script = template.source("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.render(
        "report.html",
        trace=trace,
        title=_title(trace, found),
        question=question(trace),
        answers=sentences(trace),
        findings=found[:_NOTES],
        runs=list(runs(trace)),
        endings=endings(trace),
        variables=len({index for summary in summaries for index in summary.variables}),
        variable=variable,
        columns=columns,
        optimizers=list(zip(drawn, optimizers, strict=True)),
        optimizers_left=len(summaries) - len(drawn),
        most_notes=_NOTES,
        most=max(_FEWEST, _ROWS // parts),
        most_bars=_BARS,
        light=colors.LIGHT,
        dark=colors.DARK,
        style=Markup(template.source("report.css")),
        script=Markup(script),
        hash=Markup(f"'sha256-{digest}'"),
        data=data,
        first_not_finite=cells.FIRST,
        boxes_of=lambda whole: sorted(_boxes(whole), key=lambda box: (-box[2].executions, box[0])),
        callers=callers,
        caller_tree=caller_tree,
        headline=headline,
        in_order=in_order,
        labels=labels,
        layer_tree=layer_tree,
        log1p=math.log1p,
        measures=measures,
        tables=tables,
        some=some,
        tracings=tracings,
    )


def _title(trace: Trace, found: Sequence[Finding]) -> str:
    """Which program it is of, when it ran, and what was found: the first line of the page."""
    parts = []
    if trace.programs:
        first = min(trace.programs, key=lambda each: each.started)
        began = datetime.fromtimestamp(first.started, timezone.utc)
        parts = [f"{cut(first.command, _NAME, _NAME // 2)}, {began:%Y-%m-%d %H:%M} UTC"]
    severities = [each.severity for each in found]
    counts = [some(severities.count(x), x) for x in ("error", "warning") if x in severities]
    return shown(": ".join([*parts, listed(counts) or "no errors and no warnings"]))


def _drawn(summary: Summary, most: int) -> dict[str, Any]:
    """What the script draws: the heat map, and the table of variables in as many characters."""
    heat = HeatMap(summary)
    grain, described, found = tracks.fitting(summary, heat, most)
    states, marks = described.legend()
    table: list[list[Any]] = []
    for index, row in zip(summary.variables, tables.by_variable(summary), strict=True):
        values = [shown(value) if isinstance(value, str) else value for value in row]
        most -= len(json.dumps(values)) + 8
        if most < 0:
            break
        table.append([values[0] or "(no name)", *values[1:], heat.patterns[index]])
    usual = summary.spread(measures.updates)[(0,)] * 2 >= summary.steps
    odd = {cells.SKIPPED, cells.OTHERS, "" if usual else described.expected}
    return {
        "views": [view._asdict() for view in heat.views],
        "odd": [color for state, color in described.states.items() if state in odd],
        "states": states,
        "marks": marks,
        "crosses": any(each["since"] for each in found),
        "grain": grain,
        "tracks": found,
        "cells": list(described.rows),
        "variables": table,
        "left": len(summary.variables) - len(table),
        "most": max([1, *(row[3] for row in table)]),
        "replicas_left": heat.left_off,
    }


def _boxes(
    caller: callers.Caller, depth: int = 0, begin: int = 0
) -> Iterator[tuple[int, int, callers.Caller, str]]:
    """The callers as boxes: depth, executions to the left, and colour; a child after its caller."""
    for child in caller.children:
        if child.executions:
            yield depth, begin, child, _color(child)
            yield from _boxes(child, depth + 1, begin)
            begin += child.executions


def _color(caller: callers.Caller) -> str:
    """What it is, which is its colour."""
    line = caller.line or Line("")
    program = "program" if line.file else "framework"
    return "method" if caller.method else "graph" if line.graph else program
