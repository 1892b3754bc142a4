"""The counts behind reports and findings: a `Tally` for each root optimizer, its steps folded.

Nothing here walks through the steps one by one: blocks record arithmetic runs of steps, and where
a run goes on regularly its steps are worked out for one period, so that a trace of a million
steps takes no longer than one of a hundred.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tracer.model.records import Block, Entry, Kind, Optimizer, Role, Run, contribution, segments
from tracer.model.trace import Trace

Values = tuple[int, ...]
Part = tuple[int, Values]
"""A number of steps in a row, and what each of them counts."""
Measure = Callable[[Block], int]
"""What one execution of a block counts."""

_LONGEST_CYCLE = 8  # parts; each is a row of a report
_TURNS = 3  # a cycle that turns fewer times than this is clearer written out


def counting(
    roles: Iterable[Role],
    kinds: Iterable[Kind | None] = ("dense", "sparse"),
    methods: Iterable[int] | None = None,
    variable: int | None = None,
) -> Measure:
    """A measure that counts entries of these roles, kinds, methods and variable (None for all)."""
    some_roles, some_kinds = frozenset(roles), frozenset(kinds)
    some_methods = None if methods is None else frozenset(methods)
    only = None if variable is None else frozenset({variable})

    def measure(block: Block) -> int:
        return sum(
            contribution(entry, only)
            for entry in block.entries
            if entry.role in some_roles
            and entry.kind in some_kinds
            and (some_methods is None or entry.method in some_methods)
        )

    return measure


updates = counting(["update"])
"""Counts updates of either kind."""
dense = counting(["update"], ["dense"])
"""Counts dense updates."""
sparse = counting(["update"], ["sparse"])
"""Counts sparse updates."""
requests = counting(["request"])
"""Counts the gradients handed to the outermost `apply_gradients` that were not `None`."""
missing = counting(["request"], ["none"])
"""Counts the gradients handed to the outermost `apply_gradients` that were `None`."""


def steps(block: Block) -> int:
    """Counts steps: executions of the outermost step method, not of those inside it."""
    return int(block.step)


def of_methods(methods: Iterable[int]) -> Measure:
    """A measure that counts the executions of the methods with these indices."""
    return counting(("step", "update", "apply"), ("dense", "sparse", "none", None), methods)


@dataclass(frozen=True)
class Stretch:
    """Steps that repeat `cycle`, `turns` times, from step `first` on."""

    first: int
    cycle: tuple[Part, ...]
    turns: int = 1

    @property
    def period(self) -> int:
        """The steps of one turn."""
        return sum(length for length, _ in self.cycle)

    @property
    def last(self) -> int:
        """The last step."""
        return self.first + self.period * self.turns - 1


class Alike(NamedTuple):
    """Variables that are in the same entries, so that all that is counted of them is equal."""

    variables: list[int]
    entries: list[tuple[int, Block, Entry]]
    """Each with its block, and the place of that (`Tally.places`)."""


class Tally:
    """The counts of one root optimizer, together with the optimizers nested in it."""

    def __init__(self, trace: Trace, root: int) -> None:
        self.trace = trace
        self.root = root
        self.blocks = tuple(block for block in trace.blocks if block.root == root)
        self.replicas = tuple(sorted({block.replica for block in self.blocks}))
        known = trace.steps_by_replica()
        self.steps_on = {replica: known.get((root, replica), 0) for replica in self.replicas}
        self._known_pieces: dict[tuple[tuple[int, ...], int], list[Stretch]] = {}

    @property
    def steps(self) -> int:
        """The steps of the replica that ran most of them."""
        return max(self.steps_on.values(), default=0)

    @cached_property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The root, then the optimizers nested in it."""
        everyone = self.trace.optimizers
        nested = (
            each for i, each in enumerate(everyone) if each.root == self.root and i != self.root
        )
        return (everyone[self.root], *nested)

    @cached_property
    def variables(self) -> tuple[int, ...]:
        """The indices of the variables that this optimizer was asked to update, or traced for."""
        asked = {i for block in self.blocks for entry in block.entries for i in entry.variables}
        called = {variable for variables in self._calls.values() for variable in variables}
        return tuple(i for i in range(len(self.trace.variables)) if i in asked or i in called)

    @cached_property
    def alike(self) -> list[Alike]:
        """The variables that are in any entry, those together that are in the same ones."""
        groups: dict[Values, list[tuple[int, Block, Entry]]] = {}
        for place, block in zip(self.places, self.blocks, strict=True):
            for entry in block.entries:
                groups.setdefault(entry.variables, []).append((place, block, entry))
        of_variable: dict[int, list[int]] = {}
        for number, variables in enumerate(groups):
            for variable in variables:
                of_variable.setdefault(variable, []).append(number)
        found: dict[Values, list[int]] = {}
        for variable, numbers in sorted(of_variable.items()):
            found.setdefault(tuple(numbers), []).append(variable)
        entries = list(groups.values())
        return [
            Alike(variables, [each for number in numbers for each in entries[number]])
            for numbers, variables in found.items()
        ]

    @cached_property
    def methods(self) -> tuple[int, ...]:
        """The indices of the methods that were executed or called."""
        used = {
            entry.method
            for block in self.blocks
            for entry in block.entries
            if entry.role != "request"
        }
        known = range(len(self.trace.methods))
        return tuple(i for i in known if i in used or i in self._calls)

    def total(self, measure: Measure, replica: int | None = None) -> int:
        """The count over the whole trace, or on one replica."""
        blocks = self.blocks if replica is None else self._blocks_on[replica]
        return sum(block.total * measure(block) for block in blocks)

    @cached_property
    def _blocks_on(self) -> dict[int, list[Block]]:
        found: dict[int, list[Block]] = {replica: [] for replica in self.replicas}
        for block in self.blocks:
            found[block.replica].append(block)
        return found

    def behind(self, replicas: Sequence[int], leaders: Sequence[int]) -> tuple[int, int | None]:
        """By how many updates `replicas` are behind `leaders`, and since which step.

        None for the step if their steps are alike as far as they are known.
        """
        missing = sum(self.total(updates, each) for each in leaders) - sum(
            self.total(updates, each) for each in replicas
        )
        ours, theirs = (self._updates_by_step(each) for each in (replicas, leaders))
        mine, its = next(ours, None), next(theirs, None)
        while mine is not None and its is not None:
            if mine[2] < its[2]:
                return missing, max(mine[0], its[0])
            if mine[1] <= its[1]:
                mine = next(ours, None)
            else:
                its = next(theirs, None)
        return missing, None

    def _updates_by_step(self, replicas: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        weighted = [
            (run, run.times * number)
            for replica in replicas
            for block in self._blocks_on[replica]
            if (number := updates(block))
            for run in block.runs
        ]
        return segments(weighted, self.steps)

    def outside(self, measure: Measure) -> int:
        """That part of the total which ran outside any step."""
        return sum(block.total * measure(block) for block in self.blocks if block.outside)

    def unplaced(self, measure: Measure) -> int:
        """That part of the total which ran in a step, but it is not known in which."""
        return sum(number * measure(block) for block, number in self._unplaced)

    @cached_property
    def _unplaced(self) -> list[tuple[Block, int]]:
        short = ((block, block.unplaced) for block in self.blocks if not block.outside)
        return [(block, number) for block, number in short if number]

    def graphs(self, measure: Measure) -> tuple[int, int]:
        """How many graph tracings hold something that counts, and how many of them never ran.

        The replicas of a worker are traced into one graph, which is counted once.
        """
        by_worker: dict[str, tuple[int, int]] = {}
        for replica in self.replicas:
            blocks = [block for block in self._blocks_on[replica] if measure(block)]
            traced, idle = sum(b.graphs for b in blocks), sum(b.idle for b in blocks)
            worker = self.trace.replicas[replica].worker
            by_worker[worker] = max(by_worker.get(worker, (0, 0)), (traced, idle))
        return sum(t for t, _ in by_worker.values()), sum(i for _, i in by_worker.values())

    def calls(self, method: int) -> tuple[int, int]:
        """How often Python called the method: eagerly, and while tracing a graph."""
        counts = self._calls.get(method, {}).values()
        return sum(eager for eager, _ in counts), sum(tracing for _, tracing in counts)

    @cached_property
    def _calls(self) -> dict[int, dict[int | None, tuple[int, int]]]:
        """The Python calls, eager and while tracing, by method and variable."""
        groups: Counter[tuple[int, tuple[int, ...], bool]] = Counter()
        for calls in self.trace.data.calls:
            if self.trace.optimizers[calls.optimizer].root == self.root:
                groups[calls.method, calls.variables, False] += calls.eager
                groups[calls.method, calls.variables, True] += calls.tracing
        found: dict[int, dict[int | None, tuple[int, int]]] = {}
        for (method, variables, tracing), number in groups.items():
            of_method = found.setdefault(method, {})
            for variable in variables or (None,):
                eager, traced = of_method.get(variable, (0, 0))
                add = (0, number) if tracing else (number, 0)
                of_method[variable] = (eager + add[0], traced + add[1])
        return found

    def stretches(self, *measures: Measure, replica: int | None = None) -> list[Stretch]:
        """What each step counted by each of `measures`: every step from 1 on, equal ones folded."""
        return list(_cycles(self._uneven(measures, replica)))

    def spread(self, *measures: Measure, replica: int | None = None) -> Counter[Values]:
        """In how many steps each combination of counts by `measures` occurred."""
        counts: Counter[Values] = Counter()
        for stretch in self._uneven(measures, replica):
            for length, values in stretch.cycle:
                counts[values] += length * stretch.turns
        return counts

    def rates(self, measure: Measure, replica: int) -> Counter[int]:
        """In how many of the steps that updated anything `measure` counted how many."""
        if not self._empty_on[replica]:
            return Counter(
                {count: n for (count,), n in self.spread(measure, replica=replica).items()}
            )
        counts: Counter[int] = Counter()
        for (made, count), number in self.spread(updates, measure, replica=replica).items():
            if made:
                counts[count] += number
        return counts

    @cached_property
    def _empty_on(self) -> dict[int, int]:
        return {each: self.spread(updates, replica=each)[(0,)] for each in self.replicas}

    @cached_property
    def places(self) -> tuple[int, ...]:
        """For each block the first block that ran on the same replica in the same steps."""
        first: dict[tuple[int, tuple[Run, ...], int, bool], int] = {}
        return tuple(
            first.setdefault((block.replica, block.runs, block.total, block.outside), number)
            for number, block in enumerate(self.blocks)
        )

    def _uneven(self, measures: Sequence[Measure], replica: int | None) -> list[Stretch]:
        """The steps as the runs give them, before cycles are looked for.

        To cut the steps where anything changes takes the most time, and most measures cut them
        alike. So that is done once for all that count the same blocks, each block as much as the
        others, and what they count in a piece is worked out from how often the blocks ran in it.
        """
        zero = (0,) * len(measures)
        sums: dict[int, Values] = {}  # by the place in `_trains`: replicas do the same in a step
        for block in self.blocks if replica is None else self._blocks_on[replica]:
            if not block.outside:
                weights = tuple(measure(block) for measure in measures)
                if any(weights):
                    place = self._train_of[id(block)]
                    sums[place] = _add(sums.get(place, zero), weights)
        last = self.steps if replica is None else self.steps_on[replica]
        alike = set(sums.values())
        if len(alike) != 1:
            weighted = [(each, sums[place]) for place in sums for each in self._trains[place]]
            return _merged(_regions(weighted, last, zero))
        (weights,) = alike
        return list(_weighed(self._pieces(tuple(sums), last), weights))

    def _pieces(self, places: tuple[int, ...], last: int) -> list[Stretch]:
        """The steps up to `last`, with how many of the trains at these places ran in each."""
        known = self._known_pieces.get((places, last))
        if known is None:
            weighted = [(each, (1,)) for place in places for each in self._trains[place]]
            known = self._known_pieces[places, last] = _merged(_regions(weighted, last, (0,)))
        return known

    @cached_property
    def _train_of(self) -> dict[int, int]:
        """For each block, by its id, the place of its runs in `_trains`."""
        places: dict[tuple[Run, ...], int] = {}
        return {id(block): places.setdefault(block.runs, len(places)) for block in self.blocks}

    @cached_property
    def _trains(self) -> list[tuple["_Train", ...]]:
        """The different runs of blocks."""
        return [_trains(runs) for runs in dict.fromkeys(block.runs for block in self.blocks)]


def tallies(trace: Trace) -> list[Tally]:
    """One tally for each root optimizer, in the order of the trace."""
    return list(trace.derived(_tallies))


def _tallies(trace: Trace) -> tuple[Tally, ...]:
    roots = (i for i, optimizer in enumerate(trace.optimizers) if optimizer.root == i)
    return tuple(Tally(trace, root) for root in roots)


def folded(weighted: Sequence[tuple[Run, Values]], steps: int, size: int) -> list[Stretch]:
    """What each of the steps 1 to `steps` counts, from runs with what each adds to a step.

    >>> for stretch in folded([(Run(1, 1, 12), (0, 1)), (Run(4, 4, 3), (5, 0))], 12, 2):
    ...     print(stretch)
    Stretch(first=1, cycle=((3, (0, 1)), (1, (5, 1))), turns=3)
    """
    alike: dict[Values, list[Run]] = {}
    for run, weights in weighted:
        alike.setdefault(weights, []).append(run)
    trains = [(train, weights) for weights, runs in alike.items() for train in _trains(runs)]
    pieces = _merged(_regions(trains, steps, (0,) * size))
    return list(_cycles(pieces))


class _Train(NamedTuple):
    """`length` steps in a row from `first` on, and again each `period` steps, `turns` times in all.

    One run of steps after the other as a partial batch leaves them, for each epoch one, is one
    train, and so is a run with a stride.
    """

    first: int
    length: int
    period: int
    turns: int
    times: int

    @property
    def window(self) -> tuple[int, int]:
        """The steps around it in which it goes on regularly: also the gaps before and after it."""
        gap = self.period - self.length if self.turns > 1 else 0
        last = self.first + (self.turns - 1) * self.period + self.length - 1
        return self.first - gap, last + gap + 1

    def within(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Where steps of it begin and end, from `begin` to before `end`."""
        number = max(0, -((self.first + self.length - 1 - begin) // self.period))
        for start in range(
            self.first + number * self.period,
            min(end, self.first + self.turns * self.period),
            self.period,
        ):
            yield max(start, begin), min(start + self.length, end)


def _trains(runs: Iterable[Run]) -> tuple[_Train, ...]:
    """The same steps in fewer pieces; a million steps are often one."""
    found = []
    alike: dict[tuple[int, int], list[int]] = {}
    for run in runs:
        if run.stride == 1 or run.count == 1:
            alike.setdefault((run.count, run.times), []).append(run.first)
        else:
            found.append(_Train(run.first, 1, run.stride, run.count, run.times))
    for (length, times), firsts in alike.items():
        firsts.sort()
        at = 0
        while at < len(firsts):
            end = at + 1
            period = firsts[end] - firsts[at] if end < len(firsts) else 0
            while end < len(firsts) and firsts[end] - firsts[end - 1] == period:
                end += 1
            if period <= length or end - at < _TURNS:
                end, period = at + 1, length
            found.append(_Train(firsts[at], length, period, end - at, times))
            at = end
    return tuple(found)


def _regions(
    weighted: Sequence[tuple[_Train, Values]], steps: int, zero: Values
) -> Iterator[Stretch]:
    """Stretches between the steps at which a train starts or ends."""
    starts: dict[int, list[int]] = {1: [], steps + 1: []}
    for number, (train, _) in enumerate(weighted):
        for edge in train.window:
            starts.setdefault(min(max(edge, 1), steps + 1), []).append(number)
    active: set[int] = set()
    edges = sorted(starts)
    for begin, end in pairwise(edges):
        for number in starts[begin]:
            low, high = weighted[number][0].window
            (active.add if low <= begin < high else active.discard)(number)
        yield from _region(begin, end, [weighted[number] for number in sorted(active)], zero)


def _region(
    begin: int, end: int, active: Sequence[tuple[_Train, Values]], zero: Values
) -> Iterator[Stretch]:
    """The steps from `begin` to before `end`, in which the trains in `active` go on regularly."""
    base, strided = zero, []
    for train, weights in active:
        values = tuple(weight * train.times for weight in weights)
        if train.turns == 1:
            base = _add(base, values)
        else:
            strided.append((train, values))
    if not strided:
        yield Stretch(begin, ((end - begin, base),))
        return
    period = math.lcm(*(train.period for train, _ in strided))
    turns = (end - begin) // period
    cycle = _parts(begin, begin + period, base, strided) if turns >= _TURNS else ()
    if len(cycle) == 1:
        yield Stretch(begin, ((period * turns, cycle[0][1]),))
        begin += period * turns
    elif 1 < len(cycle) <= _LONGEST_CYCLE:
        yield Stretch(begin, cycle, turns)
        begin += period * turns
    for length, values in _parts(begin, end, base, strided):
        yield Stretch(begin, ((length, values),))
        begin += length


def _weighed(pieces: Iterable[Stretch], weights: Values) -> Iterator[Stretch]:
    """The pieces, if each of what ran in them counts `weights`."""
    for piece in pieces:
        cycle = tuple(
            (length, tuple(times * weight for weight in weights))
            for length, (times,) in piece.cycle
        )
        yield Stretch(piece.first, cycle, piece.turns)


def _parts(
    begin: int, end: int, base: Values, strided: Sequence[tuple[_Train, Values]]
) -> tuple[Part, ...]:
    """Each step from `begin` to before `end`, equal neighbours together."""
    changes: dict[int, Values] = {}
    zero = (0,) * len(base)
    for train, values in strided:
        less = tuple(-value for value in values)
        for start, stop in train.within(begin, end):
            changes[start] = _add(changes.get(start, zero), values)
            changes[stop] = _add(changes.get(stop, zero), less)
    parts: list[Part] = []

    def put(length: int, values: Values) -> None:
        if parts and parts[-1][1] == values:
            length += parts.pop()[0]
        if length:
            parts.append((length, values))

    for step in sorted(changes):
        put(step - begin, base)
        begin, base = step, _add(base, changes[step])
    put(end - begin, base)
    return tuple(parts)


def _add(left: Values, right: Values) -> Values:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same steps, with neighbours that go on in the same way made one."""
    merged: list[Stretch] = []
    for stretch in stretches:
        before = merged[-1] if merged else None
        if before is None or len(before.cycle) != len(stretch.cycle):
            merged.append(stretch)
        elif len(stretch.cycle) == 1 and before.cycle[0][1] == stretch.cycle[0][1]:
            length = before.period + stretch.period
            merged[-1] = Stretch(before.first, ((length, stretch.cycle[0][1]),))
        elif len(stretch.cycle) > 1 and before.cycle == stretch.cycle:
            merged[-1] = Stretch(before.first, stretch.cycle, before.turns + stretch.turns)
        else:
            merged.append(stretch)
    return merged


def _cycles(pieces: Sequence[Stretch]) -> Iterator[Stretch]:
    """The same steps, with parts that come again in the same order made one cycle."""
    at = 0
    while at < len(pieces):
        size, turns = _repeats(pieces, at)
        if turns >= _TURNS:
            cycle = tuple(piece.cycle[0] for piece in pieces[at : at + size])
            yield Stretch(pieces[at].first, cycle, turns)
            at += size * turns
        else:
            yield pieces[at]
            at += 1


def _repeats(pieces: Sequence[Stretch], at: int) -> tuple[int, int]:
    """The fewest parts that come at least three times from `at` on, and how often they come."""
    for size in range(2, _LONGEST_CYCLE + 1):
        if at + _TURNS * size > len(pieces):
            break
        if pieces[at].cycle != pieces[at + size].cycle:
            continue  # the usual case where steps are skipped at random
        end = at
        while end < len(pieces) and len(pieces[end].cycle) == 1:
            if end >= at + size and pieces[end].cycle != pieces[end - size].cycle:
                break
            end += 1
        if (end - at) // size >= _TURNS:
            return size, (end - at) // size
    return 1, 1
