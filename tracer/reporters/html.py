"""The report as one self-contained HTML page: no server, no network, no other file.

Everything on it is computed here; the script only draws the heat map and the table. It draws folded
runs of steps, so the page's size depends on how irregular the training was, not on its length. If
the page would still be too large, it omits details and says so.
"""

import base64
import hashlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from itertools import accumulate, groupby
from operator import sub
from typing import Any

import jinja2
from markupsafe import Markup

from tracer.findings.run_rules import Finding, findings
from tracer.layout import cut, shown
from tracer.model import measures, phrases, rates
from tracer.model.summary import Summary, summaries_of
from tracer.model.timeline import Timeline
from tracer.model.trace import Trace
from tracer.model.words import dialect_of, listed, some
from tracer.reporters import colors, heatmap, tables
from tracer.reporters.answer import in_all, question, sentences
from tracer.reporters.text import headline


def fill(name: str, **values: Any) -> str:
    """Render the template with these values, which are escaped, control characters included."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracer.reporters"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters.update(
        number="{:,}".format, cut=lambda text, width: cut(shown(text), width, width // 2)
    )
    return environment


def source(name: str) -> str:
    """The text of a file that goes into the page unchanged."""
    return (files("tracer.reporters") / "templates" / name).read_text(encoding="utf-8")


# The cells of the heat map at several sizes, so that the page zooms without counting.
#
# A track is a list of sizes, the finest first. Size 0 has a cell for each run of equal steps; size
# `n` has one for each `n` steps. After each size come the cells, as `[first, turns, period, length,
# cell, length, cell, ...]` for steps that repeat a cycle. `length` is in steps for size 0, else in
# cells. At the last size, all steps fit into a row of `COLUMNS` cells.

COLUMNS = 240
"""The most cells in a row of the page."""
FACTOR = 4
"""How many cells of one size make a cell of the next."""


def fitting(
    summary: Summary, heat: heatmap.HeatMap, most: int
) -> tuple[int, heatmap.Cells, list[dict[str, Any]]]:
    """The tracks of all lanes, as fine as fits into `most` characters, with their cells.

    The first item is how many steps a cell of an irregular track has at least.
    """
    steps, grain = summary.steps, 1
    while True:
        cells = heatmap.Cells(summary, heat)
        tracks: list[dict[str, Any]] = [
            {"sizes": track(each.timeline, cells, grain), "since": each.not_finite_since}
            for each in heat.lanes
        ]
        taken = len(json.dumps([tracks, list(cells.rows)], separators=(",", ":")))
        if taken <= most or grain >= steps:
            return grain, cells, tracks
        grain *= FACTOR


def track(timeline: Timeline, cells: heatmap.Cells, grain: int) -> list[list[Any]]:
    """The cells of a lane; if it is irregular, each has at least `grain` steps."""
    made: list[list[Any]] = []
    steps, size = max((each.last for each in timeline.stretches), default=0), 0
    if grain > 1 and _numbers(timeline) > 2 * steps // grain:
        timeline, size = heatmap.coarser(timeline, grain), grain
    while True:
        made.append([size, *_lists(timeline, size, cells)])
        cycles = [each.cycle * min(each.turns, 1 + COLUMNS) for each in timeline.stretches]
        ends = [0, *accumulate(length for cycle in cycles for length, _ in cycle)]
        if len(ends) <= 1 + COLUMNS:
            return made
        narrowest = min(map(sub, ends[COLUMNS:], ends))  # the least span of `COLUMNS` cells
        factor = FACTOR ** max(1, int(math.log(narrowest / COLUMNS, FACTOR)))
        timeline, size = heatmap.coarser(timeline, factor), factor * (size or 1)


def _numbers(timeline: Timeline) -> int:
    """How many numbers the serialized timeline has."""
    return sum(2 + 2 * len(each.cycle) for each in timeline.stretches)


def _lists(timeline: Timeline, size: int, cells: heatmap.Cells) -> Iterator[list[int]]:
    """The stretches as lists of numbers; stretches that do not repeat share a list.

    Equal cells of one size in a row are joined.
    """
    for once, group in groupby(timeline.stretches, key=lambda each: each.turns == 1):
        for each in [list(group)] if once else [[each] for each in group]:
            parts: list[tuple[int, Any]] = [part for stretch in each for part in stretch.cycle]
            period, scale = sum(length for length, _ in parts), size or 1
            found = [(each[0].first - 1) * scale + 1, each[0].turns, period * scale]
            for length, cell in parts:
                number = cells.number(cell if size else heatmap.added_up([(length, cell)]))
                if size and len(found) > 3 and found[-1] == number:
                    found[-2] += length
                else:
                    found += [length, number]
            yield found


# The page.

_MAX_CHARACTERS = 2_000_000  # for the table of variables, and for the lanes; 6 MB in all
_MAX_OPTIMIZERS = 50
_MAX_ROWS = 500  # of each other table, over all optimizers
_MIN_ROWS = 30  # of each optimizer
_MAX_BARS = 40  # of a chart
_MAX_NAME = 120  # characters of a command
_MAX_NOTES = 200


def render(trace: Trace) -> str:
    """The report as a page."""
    summaries = summaries_of(trace)
    drawn = summaries[:_MAX_OPTIMIZERS]
    parts = max(1, len(drawn))
    found = findings(trace)
    variable = dialect_of(trace.data).variable
    empty: tuple[str, ...] = () if trace.has_effects else ("unchanged", "not_finite")
    if all(each.shards == 1 for each in trace.variables):
        empty += ("shards",)
    columns = _columns(variable, empty)
    optimizers = [_drawn(summary, _MAX_CHARACTERS // parts) for summary in drawn]
    data = {
        "first": 1,
        "columns": columns,
        "fields": [*tables.VariableRow._fields, "pattern"],
        "variable": variable,
        "never": heatmap.NEVER,
        "first_not_finite": heatmap.FIRST,
        "most": COLUMNS,
        "optimizers": optimizers,
    }
    script = source("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return fill(
        "report.html",
        trace=trace,
        title=_title(trace, found),
        question=question(trace),
        answers=sentences(trace),
        totals=in_all(trace, answered=True),
        findings=found[:_MAX_NOTES],
        runs=list(phrases.runs(trace)),
        endings=phrases.endings(trace),
        variables=len({index for summary in summaries for index in summary.variables}),
        variable=variable,
        columns=columns,
        optimizers=list(zip(drawn, optimizers, strict=True)),
        optimizers_left=len(summaries) - len(drawn),
        most_notes=_MAX_NOTES,
        most=max(_MIN_ROWS, _MAX_ROWS // parts),
        most_bars=_MAX_BARS,
        light=colors.LIGHT,
        dark=colors.DARK,
        style=Markup(source("report.css")),
        script=Markup(script),
        hash=Markup(f"'sha256-{digest}'"),
        data=data,
        first_not_finite=heatmap.FIRST,
        headline=headline,
        phrases=phrases,
        rates=rates,
        log1p=math.log1p,
        measures=measures,
        tables=tables,
        some=some,
        tracings=tables.tracings,
    )


def _title(trace: Trace, found: Sequence[Finding]) -> str:
    """The page's title: the program, when it ran, and the number of findings."""
    parts = ["optimizer-tracer"]
    if trace.programs:
        first = min(trace.programs, key=lambda each: each.started)
        began = datetime.fromtimestamp(first.started, timezone.utc)
        parts = [f"{cut(first.command, _MAX_NAME, _MAX_NAME // 2)}, {began:%Y-%m-%d %H:%M} UTC"]
    severities = [each.severity for each in found]
    counts = [some(severities.count(x), x) for x in ("error", "warning") if x in severities]
    return shown(": ".join([*parts, listed(counts) or "no errors and no warnings"]))


def _columns(variable: str, empty: Collection[str]) -> list[dict[str, Any]]:
    """The columns of the table of variables: the field and the title of each."""
    titles = {name: name.replace("_", " ") for name in tables.VariableRow._fields}
    titles |= {"variable": variable, "requests_without_gradient": "without gradient"}
    last = ("shape", "dtype", "shards")
    return [
        {"field": name, "title": title, "figures": name not in ("variable", *last)}
        for name, title in sorted(titles.items(), key=lambda each: each[0] in last)
        if name not in empty
    ]


def _drawn(summary: Summary, most: int) -> dict[str, Any]:
    """What the script draws: the heat map and the table of variables, in `most` characters."""
    heat = heatmap.HeatMap(summary)
    grain, described, found = fitting(summary, heat, most)
    states, marks = described.legend()
    table: list[list[Any]] = []
    widest = 1
    for index, row in zip(summary.variables, tables.by_variable(summary), strict=True):
        named = row._replace(variable=row.variable or "(no name)")
        values = [shown(value) if isinstance(value, str) else value for value in named]
        most -= len(json.dumps(values)) + 8
        if most < 0:
            break
        table.append([*values, heat.patterns[index]])
        widest = max(widest, row.updates)
    usual = summary.spread(measures.updates)[(0,)] * 2 >= summary.steps
    odd = {heatmap.SKIPPED, heatmap.OTHERS, "" if usual else described.expected}
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
        "most": widest,
        "replicas_left": heat.left_off,
    }
