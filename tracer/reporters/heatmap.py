"""The heat map as numbers: the updates of each variable in each step, with equal steps folded.

Variables that got the same in every step share a pattern, and patterns that count the same share a
lane, so that a model of thousands of variables and a million steps is a handful of lanes. Where
effects were asked for, variables that are alike in those as well do so.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tracer.model.effects import OBSERVATIONS
from tracer.model.labels import replica_names, replica_noun
from tracer.model.records import Kind
from tracer.model.runs import Run, apart
from tracer.model.summary import Group, Summary, Weights
from tracer.model.timeline import Stretch, Values, added, folded
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
    compared: int = 0
    """In how many of the steps the variable was compared; 0 without effects, as what follows."""
    unchanged: int = 0
    ineffective: int = 0
    """In how many of the steps it was updated and unchanged."""
    not_finite: int = 0


_COUNTS = 2
"""The numbers of a step in a lane without effects."""


class Lane:
    """The dense and the sparse updates in each step, from step 1 on.

    Where there are effects, also on how many replicas the variable was compared, unchanged, and
    not finite after the step.
    """

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.stretches = tuple(stretches)
        self._starts = [each.first for each in self.stretches]

    @property
    def size(self) -> int:
        """The numbers that it takes to write it down."""
        return sum(2 + sum(1 + len(values) for _, values in each.cycle) for each in self.stretches)

    @property
    def has_effects(self) -> bool:
        """Whether they are in it: those of all steps have as many numbers."""
        return bool(self.stretches) and len(self.stretches[0].cycle[0][1]) > _COUNTS

    @property
    def counts(self) -> set[int]:
        """The numbers of updates that occur in a step."""
        return {sum(values[:_COUNTS]) for each in self.stretches for _, values in each.cycle}

    @property
    def first_not_finite(self) -> int:
        """The first step after which the variable was not finite; 0 if there is none."""
        for stretch in self.stretches if self.has_effects else ():
            step = stretch.first
            for length, values in stretch.cycle:
                if values[-1]:
                    return step
                step += length
        return 0

    def within(self, first: int, last: int) -> Cell:
        """The steps from `first` to `last` together.

        >>> lane = Lane([Stretch(1, ((3, (0, 0)), (1, (2, 1))), turns=4)])
        >>> lane.within(3, 8)[:6]
        (6, 4, 4, 2, 0, 3)
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
        """Runs of equal steps, as `(first, last, (dense, sparse))`; a lane without effects."""
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
    dense, sparse, *seen = values
    compared, unchanged, not_finite = seen or (0, 0, 0)
    updates = dense + sparse
    return Cell(
        cell.steps + number,
        cell.without + (0 if updates else number),
        cell.dense + number * dense,
        cell.sparse + number * sparse,
        min(cell.least, updates) if cell.steps else updates,
        max(cell.most, updates),
        cell.compared + number * bool(compared),
        cell.unchanged + number * bool(unchanged),
        cell.ineffective + number * bool(unchanged and updates),
        cell.not_finite + number * bool(not_finite),
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

    def __init__(self, summary: Summary) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[object, int] = {}
        self._tally = summary
        self._patterns = _Patterns(summary)
        self._replica_names = replica_names(summary.trace)
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
        summary = self._tally
        alike: dict[tuple[int, ...], list[int]] = {}
        most = min(_MOST_VIEWS, max(1, _MOST_CELLS // (1 + len(self._patterns.sizes))))
        for replica in summary.replicas:
            if len(alike) == most:
                self.left_off += 1
            else:
                steps = summary.steps_on[replica]
                key = (steps, *self._lanes([replica], steps))
                alike.setdefault(key, []).append(replica)
        copy = replica_noun(summary.trace)
        per = f"step and {copy}" if len(summary.replicas) > 1 else "step"
        views = [
            View(self._name(replicas), per, steps, total, tuple(lanes))
            for (steps, total, *lanes), replicas in alike.items()
        ]
        if len(summary.replicas) > 1:
            total, *rest = self._lanes(summary.replicas, summary.steps)
            name = f"all {len(summary.replicas):,} {copy}s together"
            per = f"step, all {copy}s"
            views.insert(int(len(alike) == 1), View(name, per, summary.steps, total, tuple(rest)))
        return views

    def not_finite_since(self, lane: int) -> int:
        """The first step after which it was not finite; 0 if there is none, or if it is not known.

        A part of a trace does not know what was before its first step.
        """
        first = self.lanes[lane].first_not_finite
        return 0 if first == 1 < self._tally.trace.first_step else first

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
            (runs, tuple(sizes[pattern] * value for value in values))
            for on_replica in done
            for pattern, pairs in on_replica.items()
            for runs, values in pairs
        ]
        return [self._lane(everything, steps)] + [
            self._lane([pair for each in done for pair in each.get(pattern, ())], steps)
            for pattern in range(len(sizes))
        ]

    def _lane(self, weighted: Sequence[tuple[int, Values]], steps: int) -> int:
        """The number of the lane with these runs."""
        sums: dict[int, Values] = {}
        zero = (0,) * self._patterns.width
        for runs, values in weighted:
            sums[runs] = added(sums.get(runs, zero), values)
        key = (steps, frozenset(sums.items()))
        if key not in self._numbers:
            named = self._patterns.runs
            pairs = [(run, values) for runs, values in sums.items() for run in named[runs]]
            self._numbers[key] = len(self.lanes)
            self.lanes.append(Lane(folded(pairs, steps, len(zero))))
        return self._numbers[key]

    def _name(self, replicas: Sequence[int]) -> str:
        summary = self._tally
        if len(replicas) == len(summary.replicas):
            copy = replica_noun(summary.trace)
            return f"each of {len(replicas):,} {copy}s" if len(replicas) > 1 else f"the {copy}"
        name = shown(self._replica_names[replicas[0]])
        return f"{name}, and {len(replicas) - 1:,} like it" if len(replicas) > 1 else name


_Done = list[tuple[int, Values]]
"""Numbers of runs (`_Patterns.runs`), and what is done to a variable in each of their steps."""


_Seen = tuple[tuple[int, int, int], ...]
"""Replicas, numbers of runs, and which of `OBSERVATIONS` was so of a variable in their steps."""


class _Patterns:
    """Which variables get the same in every step, and what they get on each replica."""

    def __init__(self, summary: Summary) -> None:
        self.width = _COUNTS + (len(OBSERVATIONS) if summary.effects else 0)
        """How many numbers a step has."""
        numbers: dict[tuple[Run, ...], int] = {}
        run_of = [numbers.setdefault(block.runs, len(numbers)) for block in summary.blocks]
        seen = _effects(summary, numbers)
        self.runs = list(numbers)
        """The different runs of blocks and effects."""
        pattern_of: dict[tuple[Weights, Weights, _Seen], int] = {}
        of_variable: dict[int, int] = {}
        weights_of: dict[int, tuple[Weights, Weights]] = {}
        for group in summary.groups:
            weights = _inside(summary, group, "dense"), _inside(summary, group, "sparse")
            weights_of.update(dict.fromkeys(group.variables, weights))
        for variable in summary.variables:
            key = (*weights_of.get(variable, ((), ())), seen.get(variable, ()))
            of_variable[variable] = pattern_of.setdefault(key, len(pattern_of))
        used = Counter(of_variable.values())
        self.sizes = [used[pattern] for pattern in range(len(pattern_of))]
        """The number of variables of each pattern, in the order of their first variables."""
        self.of_variable = of_variable
        self.done: dict[int, dict[int, _Done]] = {replica: {} for replica in summary.replicas}
        """What is done on each replica to each pattern."""
        for (dense, sparse, effects), pattern in pattern_of.items():
            for place, kind in enumerate((dense, sparse)):
                for block, times in kind:
                    done = self.done[summary.blocks[block].replica].setdefault(pattern, [])
                    done.append((run_of[block], self._at(place, times)))
            for replica, run, what in effects:
                done = self.done[replica].setdefault(pattern, [])
                done.append((run, self._at(_COUNTS + what, 1)))

    def _at(self, place: int, number: int) -> Values:
        return tuple(number * (place == each) for each in range(self.width))


def _effects(summary: Summary, numbers: dict[tuple[Run, ...], int]) -> dict[int, _Seen]:
    """What was seen of each variable; the runs get numbers."""
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for effect in summary.effects:
        if effect.replica in summary.steps_on:
            run = numbers.setdefault(apart(effect.runs), len(numbers))
            what = OBSERVATIONS.index(effect.what)
            for variable in effect.variables:
                seen.setdefault(variable, []).append((effect.replica, run, what))
    return {variable: tuple(sorted(each)) for variable, each in seen.items()}


def _inside(summary: Summary, group: Group, kind: Kind) -> Weights:
    """The updates of each of the variables in steps."""
    weights = group.weights("update", kind)
    return tuple(each for each in weights if not summary.blocks[each[0]].outside)


def levels(lanes: Sequence[Lane], most: int = 5) -> list[tuple[int, int]]:
    """The numbers of updates in a step, from 1 on, in at most so many classes.

    >>> levels([Lane([Stretch(1, ((2, (1, 0)), (1, (2, 0))))])])
    [(1, 1), (2, 2)]
    """
    counts = sorted(set[int]().union(*(lane.counts for lane in lanes)) - {0})
    size = -(-len(counts) // most) or 1
    groups = [counts[at : at + size] for at in range(0, len(counts), size)]
    return [(group[0], group[-1]) for group in groups]
