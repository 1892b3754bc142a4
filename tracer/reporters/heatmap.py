"""The heat map as numbers: the updates of each variable in each step, with equal steps folded.

Variables that got the same in every step share a pattern, and patterns that count the same share a
lane, so that a model of thousands of variables and a million steps is a handful of lanes.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tracer.model.labels import replica_names
from tracer.model.records import Kind
from tracer.model.runs import Run
from tracer.model.stretches import Stretch, Values, folded
from tracer.model.tally import Group, Tally, Weights
from tracer.reporters.layout import shown

_MOST_VIEWS = 32
_MOST_CELLS = 100_000  # patterns times views


class Cell(NamedTuple):
    """What some steps in a row have in common."""

    steps: int = 0
    without: int = 0
    """How many of the steps have no update."""
    dense: int = 0
    sparse: int = 0
    least: int = 0
    """The fewest updates in one of the steps."""
    most: int = 0


class Lane:
    """The dense and the sparse updates in each step, from step 1 on."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.stretches = tuple(stretches)
        self._starts = [each.first for each in self.stretches]

    @property
    def size(self) -> int:
        """The numbers that it takes to write it down."""
        return sum(2 + 3 * len(each.cycle) for each in self.stretches)

    @property
    def counts(self) -> set[int]:
        """The numbers of updates that occur in a step."""
        return {sum(values) for each in self.stretches for _, values in each.cycle}

    def within(self, first: int, last: int) -> Cell:
        """The steps from `first` to `last` together.

        >>> lane = Lane([Stretch(1, ((3, (0, 0)), (1, (2, 1))), turns=4)])
        >>> lane.within(3, 8)
        Cell(steps=6, without=4, dense=4, sparse=2, least=0, most=3)
        """
        cell = Cell()
        at = max(0, bisect_right(self._starts, first) - 1)
        for number in range(at, len(self.stretches)):  # a slice would copy half a million
            stretch = self.stretches[number]
            if stretch.first > last:
                break
            low, high = max(first, stretch.first), min(last, stretch.last)
            if low <= high:
                for steps, values in _parts(stretch, low - stretch.first, high - low + 1):
                    cell = _more(cell, steps, values)
        return cell

    def runs(self) -> Iterator[tuple[int, int, Values]]:
        """Runs of equal steps, as `(first, last, (dense, sparse))`."""
        begin, end, before = 1, 0, None
        for stretch in self.stretches:
            for _ in range(stretch.turns):
                for length, values in stretch.cycle:
                    if values != before:
                        if before is not None:
                            yield begin, end, before
                        begin, before = end + 1, values
                    end += length
        if before is not None:
            yield begin, end, before


def _parts(stretch: Stretch, start: int, length: int) -> Iterator[tuple[int, Values]]:
    """How often each combination of counts occurs in `length` steps from `start` (from 0) on."""
    turns, rest = divmod(length, stretch.period)
    if turns:
        yield from ((number * turns, values) for number, values in stretch.cycle)
    start %= stretch.period
    for number, values in (*stretch.cycle, *stretch.cycle):
        taken = min(max(0, number - start), rest)
        if taken:
            yield taken, values
        start, rest = max(0, start - number), rest - taken


def _more(cell: Cell, number: int, values: Values) -> Cell:
    dense, sparse = values
    updates = dense + sparse
    return Cell(
        cell.steps + number,
        cell.without + (0 if updates else number),
        cell.dense + number * dense,
        cell.sparse + number * sparse,
        min(cell.least, updates) if cell.steps else updates,
        max(cell.most, updates),
    )


class View(NamedTuple):
    """The heat map of some replicas."""

    name: str
    per: str
    """What it counts the updates of a variable by: `step and replica`, for example."""
    steps: int
    """How many steps there are."""
    total: int
    """The lane of all variables together: where it has 0, the step updated nothing."""
    lanes: tuple[int, ...]
    """The lane of each pattern."""


class HeatMap:
    """What each variable of one optimizer got in each step."""

    def __init__(self, tally: Tally) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[object, int] = {}
        self._tally = tally
        self._patterns = _Patterns(tally)
        self._replica_names = replica_names(tally.trace)
        self.left_off = 0
        """Replicas that are like none of those shown, and have no view of their own."""
        self.views = self._views()
        """Each replica that is like no other, and all of them together, which come first if the
        replicas differ."""

    @property
    def patterns(self) -> dict[int, int]:
        """The pattern of each variable, by index."""
        return self._patterns.of_variable

    def _views(self) -> list[View]:
        tally = self._tally
        alike: dict[tuple[int, ...], list[int]] = {}
        most = min(_MOST_VIEWS, max(1, _MOST_CELLS // (1 + len(self._patterns.sizes))))
        for replica in tally.replicas:
            if len(alike) == most:
                self.left_off += 1
            else:
                steps = tally.steps_on[replica]
                key = (steps, *self._lanes([replica], steps))
                alike.setdefault(key, []).append(replica)
        per = "step and replica" if len(tally.replicas) > 1 else "step"
        views = [
            View(self._name(replicas), per, steps, total, tuple(lanes))
            for (steps, total, *lanes), replicas in alike.items()
        ]
        if len(tally.replicas) > 1:
            total, *rest = self._lanes(tally.replicas, tally.steps)
            name = f"all {len(tally.replicas):,} replicas together"
            per = "step, all replicas"
            views.insert(int(len(alike) == 1), View(name, per, tally.steps, total, tuple(rest)))
        return views

    @cached_property
    def levels(self) -> list[tuple[int, int]]:
        """The numbers of updates that a variable gets in a step, in few classes."""
        used = {lane for view in self.views for lane in view.lanes}
        return levels([self.lanes[each] for each in used])

    def _lanes(self, replicas: Sequence[int], steps: int) -> list[int]:
        """The lane of all variables together, then that of each pattern."""
        done = [self._patterns.done[replica] for replica in replicas]
        sizes = self._patterns.sizes
        everything = [
            (runs, (dense * sizes[pattern], sparse * sizes[pattern]))
            for on_replica in done
            for pattern, pairs in on_replica.items()
            for runs, (dense, sparse) in pairs
        ]
        return [self._lane(everything, steps)] + [
            self._lane([pair for each in done for pair in each.get(pattern, ())], steps)
            for pattern in range(len(sizes))
        ]

    def _lane(self, weighted: Sequence[tuple[int, Values]], steps: int) -> int:
        """The number of the lane with these runs."""
        sums: dict[int, Values] = {}
        for runs, (dense, sparse) in weighted:
            before = sums.get(runs, (0, 0))
            sums[runs] = before[0] + dense, before[1] + sparse
        key = (steps, frozenset(sums.items()))
        if key not in self._numbers:
            named = self._patterns.runs
            pairs = [(run, values) for runs, values in sums.items() for run in named[runs]]
            self._numbers[key] = len(self.lanes)
            self.lanes.append(Lane(folded(pairs, steps, 2)))
        return self._numbers[key]

    def _name(self, replicas: Sequence[int]) -> str:
        tally = self._tally
        if len(replicas) == len(tally.replicas):
            return f"each of {len(replicas):,} replicas" if len(replicas) > 1 else "the replica"
        name = shown(self._replica_names[replicas[0]])
        return f"{name}, and {len(replicas) - 1:,} like it" if len(replicas) > 1 else name


_Done = list[tuple[int, Values]]
"""Numbers of runs (`_Patterns.runs`), and what is done to a variable in each of their steps."""


class _Patterns:
    """Which variables get the same in every step, and what they get on each replica."""

    def __init__(self, tally: Tally) -> None:
        numbers: dict[tuple[Run, ...], int] = {}
        run_of = [numbers.setdefault(block.runs, len(numbers)) for block in tally.blocks]
        self.runs = list(numbers)
        """The different runs of blocks."""
        pattern_of: dict[tuple[Weights, Weights], int] = {((), ()): 0}
        of_variable: dict[int, int] = {}
        for group in tally.groups:
            weights = _inside(tally, group, "dense"), _inside(tally, group, "sparse")
            pattern = pattern_of.setdefault(weights, len(pattern_of))
            of_variable.update(dict.fromkeys(group.variables, pattern))
        used = Counter(of_variable.get(variable, 0) for variable in tally.variables)
        self.sizes = list(used.values())
        """The number of variables of each pattern, in the order of their first variables."""
        number_of = {pattern: number for number, pattern in enumerate(used)}
        self.of_variable = {
            variable: number_of[of_variable.get(variable, 0)] for variable in tally.variables
        }
        self.done: dict[int, dict[int, _Done]] = {replica: {} for replica in tally.replicas}
        """What is done on each replica to each pattern."""
        for (dense, sparse), pattern in pattern_of.items():
            updates: list[tuple[int, Values]] = [
                *((block, (times, 0)) for block, times in dense),
                *((block, (0, times)) for block, times in sparse),
            ]
            for block, values in updates:
                done = self.done[tally.blocks[block].replica]
                done.setdefault(number_of[pattern], []).append((run_of[block], values))


def _inside(tally: Tally, group: Group, kind: Kind) -> Weights:
    """The updates of each of the variables in steps."""
    weights = group.weights("update", kind)
    return tuple(each for each in weights if not tally.blocks[each[0]].outside)


def levels(lanes: Sequence[Lane], most: int = 5) -> list[tuple[int, int]]:
    """The numbers of updates in a step, from 1 on, in at most so many classes.

    >>> levels([Lane([Stretch(1, ((2, (1, 0)), (1, (2, 0))))])])
    [(1, 1), (2, 2)]
    """
    counts = sorted(set[int]().union(*(lane.counts for lane in lanes)) - {0})
    size = -(-len(counts) // most) or 1
    groups = [counts[at : at + size] for at in range(0, len(counts), size)]
    return [(group[0], group[-1]) for group in groups]
