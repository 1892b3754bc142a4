"""The cells of the heat map at several sizes, so that the page zooms without counting.

A track is a list of sizes, the finest first. Size 0 has a cell for each run of equal steps; size
`n` has one for each `n` steps. After each size come the cells, as `[first, turns, period, length,
cell, length, cell, ...]` for steps that repeat a cycle: the length is in steps for size 0, and in
cells for the others. A size is left out if the page never needs it; of the last one, a row of
`COLUMNS` cells shows all steps.
"""

import math
from collections.abc import Iterator
from itertools import groupby

from tracer.model.timeline import Stretch
from tracer.reporters.cells import Cells
from tracer.reporters.heatmap import Cell, Lane, added_up, together

COLUMNS = 240
"""The most cells in a row of the page."""
FACTOR = 4
"""How many cells of a size are one of the next."""

Track = list[list[object]]


def track(lane: Lane, steps: int, cells: Cells, grain: int) -> Track:
    """The cells of a lane, of at least `grain` steps each if it is an irregular one."""
    exact = grain == 1 or lane.size <= 2 * steps // grain
    stretches = lane.exact if exact else ()
    made: Track = []
    if exact:
        made.append([0, *_numbers(cells, lane.never, 0, _runs(stretches))])
    size = 1 if exact else grain
    if exact and sum(len(each.cycle) * each.turns for each in stretches) <= COLUMNS:
        return made
    finest = _mean_run(stretches, steps) if exact else 0
    memory: dict[tuple[int, int], Cell] = {}
    while True:
        if size > 1 and size * FACTOR > finest:
            sums = _sums(lane, stretches, steps, size, memory)
            made.append([size, *_numbers(cells, lane.never, size, sums)])
        if size * COLUMNS >= steps and made and made[-1][0]:
            return made
        size *= FACTOR


_Cycle = tuple[int, int, list[tuple[int, Cell]]]
"""The first step, how often the cycle turns, and the cycle."""


def _runs(stretches: tuple[Stretch, ...]) -> Iterator[_Cycle]:
    for each in stretches:
        cycle = [
            (length, together([(length, values)])._replace(idle=length * idle))
            for length, (*values, idle) in each.cycle
        ]
        yield each.first, each.turns, cycle


def _mean_run(stretches: tuple[Stretch, ...], steps: int) -> float:
    """The steps of a run where runs are so short that a page of exact ones is narrowest."""
    means = [steps / sum(len(each.cycle) * each.turns for each in stretches)]
    means += [
        each.period / len(each.cycle)
        for each in stretches
        if len(each.cycle) * each.turns > COLUMNS
    ]
    means += [
        (after.first - before.first) / COLUMNS
        for before, after in zip(stretches, stretches[COLUMNS:], strict=False)
    ]
    return min(means)


def _sums(
    lane: Lane,
    stretches: tuple[Stretch, ...],
    steps: int,
    size: int,
    memory: dict[tuple[int, int], Cell],
) -> Iterator[_Cycle]:
    """A cell for each `size` steps; those of a stretch that repeat are worked out once."""

    def cell(first: int) -> Cell:
        part = size // FACTOR
        starts = range(first, first + size, part)
        parts = [memory[part, each] for each in starts if (part, each) in memory]
        known = len(parts) == FACTOR
        made = added_up(parts) if known else lane.cell(first, min(first + size - 1, steps))
        memory[size, first] = made
        return made

    at = 1
    for stretch in stretches:
        unit = math.lcm(stretch.period if len(stretch.cycle) > 1 else 1, size)
        turns = (stretch.last + 1 - at) // unit
        if turns > 1:
            yield at, turns, [(1, cell(first)) for first in range(at, at + unit, size)]
            at += turns * unit
        while at <= stretch.last:
            yield at, 1, [(1, cell(at))]
            at += size
    while at <= steps:
        yield at, 1, [(1, cell(at))]
        at += size


def _plain(cycles: Iterator[_Cycle]) -> Iterator[_Cycle]:
    """The same, with what does not repeat in one list."""
    for once, group in groupby(cycles, key=lambda each: each[1] == 1):
        found = list(group)
        if once:
            yield found[0][0], 1, [part for _, _, cycle in found for part in cycle]
        else:
            yield from found


def _numbers(cells: Cells, never: bool, size: int, cycles: Iterator[_Cycle]) -> Iterator[list[int]]:
    """The cycles as lists of numbers; equal cells of one size that follow each other are joined."""
    for first, turns, parts in _plain(cycles):
        found = [first, turns, (size or 1) * sum(length for length, _ in parts)]
        for length, cell in parts:
            number = cells.number(cell, never)
            if size and len(found) > 3 and found[-1] == number:
                found[-2] += length
            else:
                found += [length, number]
        yield found
