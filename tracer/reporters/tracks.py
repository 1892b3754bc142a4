"""The cells of the heat map at several sizes, so that the page zooms without counting.

A track is a list of sizes, the finest first. Size 0 has a cell for each run of equal steps; size
`n` has one for each `n` steps. After each size come the cells, as `[first, turns, period, length,
cell, length, cell, ...]` for steps that repeat a cycle: the length is in steps for size 0, and in
cells for the others. A size is left out if the page never needs it; of the last one, a row of
`COLUMNS` cells shows all steps.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from tracer.model.summary import Summary
from tracer.model.timeline import Stretch
from tracer.reporters.cells import Cells
from tracer.reporters.heatmap import HeatMap, Lane, added_up, coarser

COLUMNS = 240
"""The most cells in a row of the page."""
FACTOR = 4
"""How many cells of a size are one of the next."""
_DIGITS = 4  # that a number takes, with its comma


def fitting(summary: Summary, heat: HeatMap, most: int) -> tuple[int, Cells, list[dict[str, Any]]]:
    """The track of each lane, the finest that take at most so many characters, with their cells.

    Before them the steps that an irregular track keeps together.
    """
    steps, grain = summary.steps, 1
    while True:
        least = sum(min(lane.size, 2 * steps // grain) for lane in heat.lanes)
        if least * _DIGITS <= most or grain >= steps:
            cells = Cells(summary, heat)
            tracks: list[dict[str, Any]] = [
                {"sizes": track(lane, steps, cells, grain), "since": lane.not_finite_since}
                for lane in heat.lanes
            ]
            taken = len(json.dumps([tracks, list(cells.rows)], separators=(",", ":")))
            if taken <= most or grain >= steps:
                return grain, cells, tracks
        grain *= FACTOR


def track(lane: Lane, steps: int, cells: Cells, grain: int) -> list[list[Any]]:
    """The cells of a lane, of at least `grain` steps each if it is an irregular one."""
    made: list[list[Any]] = []
    stretches: Sequence[Stretch] = lane.timeline.stretches
    size = grain
    if grain == 1 or lane.size <= 2 * steps // grain:
        made.append([0, *_numbers(cells, lane.never, 0, stretches)])
        if sum(len(each.cycle) * each.turns for each in stretches) <= COLUMNS:
            return made
        size, finest = FACTOR, _mean_run(stretches, steps)
        while size * FACTOR <= finest:
            size *= FACTOR
    stretches = list(coarser(stretches, size))
    while True:
        made.append([size, *_numbers(cells, lane.never, size, stretches)])
        if size * COLUMNS >= steps:
            return made
        stretches = list(coarser(stretches, FACTOR))
        size *= FACTOR


def _mean_run(stretches: Sequence[Stretch], steps: int) -> float:
    """The steps of a run where runs are so short that a page of exact ones is narrowest."""
    pairs = zip(stretches, stretches[COLUMNS:], strict=False)
    means = [
        steps / sum(len(each.cycle) * each.turns for each in stretches),
        *(
            each.period / len(each.cycle)
            for each in stretches
            if len(each.cycle) * each.turns > COLUMNS
        ),
        *((after.first - before.first) / COLUMNS for before, after in pairs),
    ]
    return min(means)


def _numbers(
    cells: Cells, never: bool, size: int, stretches: Iterable[Stretch]
) -> Iterator[list[int]]:
    """The stretches as lists of numbers, those that do not repeat in one list.

    Equal cells of one size that follow each other are joined.
    """
    for once, group in groupby(stretches, key=lambda each: each.turns == 1):
        for each in [list(group)] if once else [[each] for each in group]:
            parts = [part for stretch in each for part in stretch.cycle]
            period, scale = sum(length for length, _ in parts), size or 1
            found = [(each[0].first - 1) * scale + 1, each[0].turns, period * scale]
            for length, values in parts:
                number = cells.number(added_up([(1 if size else length, values)]), never)
                if size and len(found) > 3 and found[-1] == number:
                    found[-2] += length
                else:
                    found += [length, number]
            yield found
