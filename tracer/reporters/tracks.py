"""The cells of the heat map at several sizes, so that the page zooms without counting.

A track is a list of sizes, the finest first. Size 0 has a cell for each run of equal steps; size
`n` has one for each `n` steps. After each size come the cells, as `[first, turns, period, length,
cell, length, cell, ...]` for steps that repeat a cycle: the length is in steps for size 0, and in
cells for the others. Of the last size, a row of `COLUMNS` cells shows all steps.
"""

import json
import math
from collections.abc import Iterator
from itertools import accumulate, groupby
from operator import sub
from typing import Any

from tracer.model.summary import Summary
from tracer.model.timeline import Timeline
from tracer.reporters.cells import Cells
from tracer.reporters.heatmap import HeatMap, added_up, coarser

COLUMNS = 240
"""The most cells in a row of the page."""
FACTOR = 4
"""How many cells of a size are one of the next."""


def fitting(summary: Summary, heat: HeatMap, most: int) -> tuple[int, Cells, list[dict[str, Any]]]:
    """The track of each lane, the finest that take at most so many characters, with their cells.

    Before them the steps that an irregular track keeps together.
    """
    steps, grain = summary.steps, 1
    while True:
        cells = Cells(summary, heat)
        tracks: list[dict[str, Any]] = [
            {"sizes": track(each.timeline, cells, grain), "since": each.not_finite_since}
            for each in heat.lanes
        ]
        taken = len(json.dumps([tracks, list(cells.rows)], separators=(",", ":")))
        if taken <= most or grain >= steps:
            return grain, cells, tracks
        grain *= FACTOR


def track(timeline: Timeline, cells: Cells, grain: int) -> list[list[Any]]:
    """The cells of a lane, of at least `grain` steps each if it is an irregular one."""
    made: list[list[Any]] = []
    steps, size = max((each.last for each in timeline.stretches), default=0), 0
    if grain > 1 and _numbers(timeline) > 2 * steps // grain:
        timeline, size = coarser(timeline, grain), grain
    while True:
        made.append([size, *_lists(timeline, size, cells)])
        cycles = [each.cycle * min(each.turns, 1 + COLUMNS) for each in timeline.stretches]
        ends = [0, *accumulate(length for cycle in cycles for length, _ in cycle)]
        if len(ends) <= 1 + COLUMNS:
            return made
        narrowest = min(map(sub, ends[COLUMNS:], ends))  # that a page of these cells can be
        factor = FACTOR ** max(1, int(math.log(narrowest / COLUMNS, FACTOR)))
        timeline, size = coarser(timeline, factor), factor * (size or 1)


def _numbers(timeline: Timeline) -> int:
    """How many numbers it takes to write it down."""
    return sum(2 + 2 * len(each.cycle) for each in timeline.stretches)


def _lists(timeline: Timeline, size: int, cells: Cells) -> Iterator[list[int]]:
    """The stretches as lists of numbers, those that do not repeat in one list.

    Equal cells of one size that follow each other are joined.
    """
    for once, group in groupby(timeline.stretches, key=lambda each: each.turns == 1):
        for each in [list(group)] if once else [[each] for each in group]:
            parts: list[tuple[int, Any]] = [part for stretch in each for part in stretch.cycle]
            period, scale = sum(length for length, _ in parts), size or 1
            found = [(each[0].first - 1) * scale + 1, each[0].turns, period * scale]
            for length, cell in parts:
                number = cells.number(cell if size else added_up([(length, cell)]))
                if size and len(found) > 3 and found[-1] == number:
                    found[-2] += length
                else:
                    found += [length, number]
            yield found
