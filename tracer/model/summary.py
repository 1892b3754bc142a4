"""The counts behind reports and findings: a `Summary` for each root optimizer.

Nothing here walks through the steps one by one: blocks record arithmetic runs of steps, and
`stretches` folds them, so that a trace of a million steps takes no longer than one of a hundred.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from tracer.model.dialects import Dialect, dialect_of
from tracer.model.measures import Measure, steps, tries, updates
from tracer.model.records import (
    Block,
    Effect,
    Entry,
    Graph,
    Kind,
    Observation,
    Optimizer,
    Role,
)
from tracer.model.runs import Run, apart, segments, union
from tracer.model.timeline import Stretch, Train, Values, added, cycles, pieces, trains, weighed
from tracer.model.trace import Trace

Weights = tuple[tuple[int, int], ...]
"""Numbers of blocks (`Summary.representatives`), each with how often one execution of it counts."""


class Group(NamedTuple):
    """Variables that are in the same entries, so that all that is counted of them is equal."""

    variables: list[int]
    entries: list[tuple[int, Block, Entry]]
    """Each with its block, and the number of that (`Summary.representatives`)."""

    def weights(self, role: Role, *kinds: Kind) -> Weights:
        """What is done to each of the variables: equal for variables that count the same."""
        weights: Counter[int] = Counter()
        for number, _, entry in self.entries:
            if entry.role == role and entry.kind in kinds:
                weights[number] += entry.times
        return tuple(sorted(weights.items()))


class Summary:
    """The counts of one root optimizer, together with the optimizers nested in it."""

    def __init__(self, trace: Trace, root: int) -> None:
        self.trace = trace
        self.root = root
        self.blocks = _whatever_path(block for block in trace.blocks if block.root == root)
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
            optimizer
            for i, optimizer in enumerate(everyone)
            if optimizer.root == self.root and i != self.root
        )
        return (everyone[self.root], *nested)

    @cached_property
    def dialect(self) -> Dialect:
        """What the users of these optimizers call things."""
        return dialect_of(self.trace, self.optimizers)

    @cached_property
    def variables(self) -> tuple[int, ...]:
        """The indices of the variables that this optimizer was asked to update, or traced for."""
        asked = {i for block in self.blocks for entry in block.entries for i in entry.variables}
        called = {variable for variables in self._calls.values() for variable in variables}
        return tuple(i for i in range(len(self.trace.variables)) if i in asked or i in called)

    @cached_property
    def groups(self) -> list[Group]:
        """The variables that are in any entry, those together that are in the same ones."""
        entries_of: dict[tuple[int, ...], list[tuple[int, Block, Entry]]] = {}
        for number, block in zip(self.representatives, self.blocks, strict=True):
            for entry in block.entries:
                entries_of.setdefault(entry.variables, []).append((number, block, entry))
        sets_with: dict[int, list[int]] = {}  # for each variable the sets that it is in
        for index, variables in enumerate(entries_of):
            for variable in variables:
                sets_with.setdefault(variable, []).append(index)
        in_same_sets: dict[tuple[int, ...], list[int]] = {}
        for variable, indices in sorted(sets_with.items()):
            in_same_sets.setdefault(tuple(indices), []).append(variable)
        entries = list(entries_of.values())
        return [
            Group(variables, [each for index in indices for each in entries[index]])
            for indices, variables in in_same_sets.items()
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
        blocks: dict[int, list[Block]] = {replica: [] for replica in self.replicas}
        for block in self.blocks:
            blocks[block.replica].append(block)
        return blocks

    def behind(self, replicas: Sequence[int], leaders: Sequence[int]) -> tuple[int, int | None]:
        """By how many updates `replicas` are behind `leaders`, and since which step.

        None for the step if their steps are the same as far as they are known.
        """
        missing = sum(self.total(updates, replica) for replica in leaders) - sum(
            self.total(updates, replica) for replica in replicas
        )
        ours, theirs = (self._updates_by_step(replica) for replica in (replicas, leaders))
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

    def by_path(self) -> Iterator[Block]:
        """The blocks, each with the path of calls that led to it; `blocks` are whatever it is."""
        return (block for block in self.trace.blocks if block.root == self.root)

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

    def graphs(self, measure: Measure, among: Sequence[Block] | None = None) -> tuple[int, int]:
        """How many graph tracings hold something that counts, and how many of them never ran.

        The replicas of a worker are traced into one graph, which is counted once. `among`
        are the blocks to look at, if not all.
        """
        of_worker: dict[str, tuple[int, int]] = {}
        for replica in self.replicas:
            worker = self.trace.replicas[replica].worker
            by_function: dict[str, tuple[int, int]] = {}
            for block in self._blocks_on[replica] if among is None else among:
                if block.replica == replica and measure(block):
                    function = self._function_around(block)
                    traced, idle = by_function.get(function, (0, 0))
                    by_function[function] = (traced + block.graphs, idle + block.idle)
            traced = idle = 0
            for function, (blocks, blocks_idle) in by_function.items():
                most, most_idle = self._tracings.get((worker, function), (blocks, blocks_idle))
                if blocks == blocks_idle:  # nothing of what counts ran, whatever else did
                    most_idle = most
                traced, idle = traced + min(blocks, most), idle + min(blocks_idle, most_idle)
            of_worker[worker] = max(of_worker.get(worker, (0, 0)), (traced, idle))
        return sum(t for t, _ in of_worker.values()), sum(i for _, i in of_worker.values())

    def _function_around(self, block: Block) -> str:
        """The function that was traced, if it is known: a block may be a branch inside it.

        A graph with two steps or two branches has two blocks, which are one graph tracing.
        """
        worker = self.trace.replicas[block.replica].worker
        outer = block.function
        while outer and (worker, outer) not in self._tracings:
            outer = outer.rpartition("/")[0]
        return outer or block.function

    @cached_property
    def _tracings(self) -> dict[tuple[str, str], tuple[int, int]]:
        """How often each function of a worker was traced, and how many of these never ran."""
        known: dict[tuple[str, str], tuple[int, int]] = {}
        for graph in self.trace.graphs:
            if graph.root == self.root and graph.tracings:
                key = self.trace.replicas[graph.replica].worker, graph.function
                tracings, idle = known.get(key, (0, 0))
                known[key] = tracings + graph.tracings, idle + graph.idle
        return known

    @cached_property
    def idle_as_usual(self) -> bool:
        """Whether graphs never ran, and each is the first of a function that was traced twice.

        TensorFlow traces a function that makes variables once to make them, and once more to run
        it. A trace that does not tell its graphs apart is judged by their number.
        """
        if not self.dialect.traces_twice:
            return False
        idle = [each for each in self.trace.graphs if each.root == self.root and each.idle]
        if idle:
            return all(is_first_only(each) for each in idle)
        traced, never_ran = self.graphs(steps)
        workers = {self.trace.replicas[replica].worker for replica in self.replicas}
        return never_ran == len(workers) < traced

    @cached_property
    def idle_parts(self) -> bool:
        """Whether parts of graphs never ran, beyond those of first tracings (`idle_as_usual`).

        A part is a branch or a loop's body. The graph that it is in may well have run.
        """
        first: Counter[str] = Counter()  # tracings that never ran, by worker
        for graph in self.trace.graphs:
            if graph.root == self.root:
                first[self.trace.replicas[graph.replica].worker] += graph.idle
        idle: Counter[tuple[int, tuple[Entry, ...]]] = Counter()
        for block in self.blocks:
            if not block.step:
                idle[block.replica, block.entries] += block.idle
        return any(
            number > (first[self.trace.replicas[replica].worker] if first else 1)
            for (replica, _), number in idle.items()
        )

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
        counts: dict[int, dict[int | None, tuple[int, int]]] = {}
        for (method, variables, tracing), number in groups.items():
            of_method = counts.setdefault(method, {})
            for variable in variables or (None,):
                eager, traced = of_method.get(variable, (0, 0))
                add = (0, number) if tracing else (number, 0)
                of_method[variable] = (eager + add[0], traced + add[1])
        return counts

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """What steps did to the variables; none where it was not asked for."""
        return tuple(each for each in self.trace.data.effects if each.root == self.root)

    def stretches(
        self,
        *measures: Measure,
        replica: int | None = None,
        observations: Sequence[Observation] = (),
    ) -> list[Stretch]:
        """What each step counted by each of `measures`: every step from 1 on, equal ones folded.

        Then, by each of `observations`, of how many variables this was seen after the step.
        """
        return list(cycles(self._uneven(measures, replica, observations)))

    def spread(self, *measures: Measure, replica: int | None = None) -> Counter[Values]:
        """In how many steps each combination of counts by `measures` occurred."""
        counts: Counter[Values] = Counter()
        for stretch in self._uneven(measures, replica):
            for length, values in stretch.cycle:
                counts[values] += length * stretch.turns
        return counts

    def rates(self, measure: Measure, replica: int) -> Counter[int]:
        """In how many of the steps that called for an update `measure` counted how many.

        A step without one, of which the work was thrown away, is one that it counts in.
        """
        if not self._empty_on[replica]:
            return Counter(
                {count: n for (count,), n in self.spread(measure, replica=replica).items()}
            )
        counts: Counter[int] = Counter()
        for (made, count), number in self.spread(tries, measure, replica=replica).items():
            if made or count:
                counts[count] += number
        return counts

    @cached_property
    def _empty_on(self) -> dict[int, int]:
        return {each: self.spread(tries, replica=each)[(0,)] for each in self.replicas}

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """For each block the first block that ran on the same replica in the same steps."""
        first: dict[tuple[int, tuple[Run, ...], int, bool], int] = {}
        return tuple(
            first.setdefault((block.replica, block.runs, block.total, block.outside), number)
            for number, block in enumerate(self.blocks)
        )

    def _uneven(
        self,
        measures: Sequence[Measure],
        replica: int | None,
        observations: Sequence[Observation] = (),
    ) -> list[Stretch]:
        """The steps as the runs give them, before cycles are looked for.

        To cut the steps where anything changes takes the most time, and most measures cut them
        alike. So that is done once for all that count the same blocks, each block as much as the
        others, and what they count in a piece is worked out from how often the blocks ran in it.
        """
        zero = (0,) * len(measures)
        sums: dict[int, Values] = {}  # by the index in `_trains`: replicas do the same in a step
        for block in self.blocks if replica is None else self._blocks_on[replica]:
            if not block.outside:
                weights = tuple(measure(block) for measure in measures)
                if any(weights):
                    index = self._train_of[id(block)]
                    sums[index] = added(sums.get(index, zero), weights)
        last = self.steps if replica is None else self.steps_on[replica]
        different = set(sums.values())
        if len(different) != 1 or observations:
            rest = (0,) * len(observations)
            weighted = [
                (each, (*sums[index], *rest)) for index in sums for each in self._trains[index]
            ]
            for place, what in enumerate(observations):
                values = (*zero, *(int(place == each) for each in range(len(observations))))
                weighted += [(each, values) for each in trains(self._seen(what, replica))]
            return pieces(weighted, last, len(measures) + len(observations))
        (weights,) = different
        return list(weighed(self._pieces(tuple(sums), last), weights))

    def _seen(self, what: Observation, replica: int | None) -> list[Run]:
        """After which steps it was seen of how many variables.

        Single steps are added up first: each variable may have others.
        """
        regular: list[Run] = []
        single: Counter[int] = Counter()
        for effect in self.effects:
            if effect.what == what and replica in (None, effect.replica):
                number = len(effect.variables)
                for run in apart(effect.runs):
                    if run.count == 1:
                        single[run.first] += number
                    else:
                        regular.append(Run(run.first, run.stride, run.count, number))
        return regular + [Run(step, 1, 1, number) for step, number in sorted(single.items())]

    def _pieces(self, indices: tuple[int, ...], last: int) -> list[Stretch]:
        """The steps up to `last`, with how many of the trains at these indices ran in each."""
        known = self._known_pieces.get((indices, last))
        if known is None:
            weighted = [(each, (1,)) for index in indices for each in self._trains[index]]
            known = self._known_pieces[indices, last] = pieces(weighted, last, 1)
        return known

    @cached_property
    def _train_of(self) -> dict[int, int]:
        """For each block, by its id, the index of its runs in `_trains`."""
        indices: dict[tuple[Run, ...], int] = {}
        return {id(block): indices.setdefault(block.runs, len(indices)) for block in self.blocks}

    @cached_property
    def _trains(self) -> list[tuple[Train, ...]]:
        """The different runs of blocks."""
        return [trains(runs) for runs in dict.fromkeys(block.runs for block in self.blocks)]


def is_first_only(graph: Graph) -> bool:
    """Whether of its tracings no other than the first never ran: that one made the variables."""
    return graph.idle == 1 < graph.tracings


def _whatever_path(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The blocks, in which those are one that differ in their path alone."""
    all_blocks = tuple(blocks)
    if len({block.path for block in all_blocks}) <= 1:
        return all_blocks
    alike: dict[Block, list[Block]] = {}
    for block in all_blocks:
        same = structs.replace(block, path=None, total=0, runs=(), graphs=0, idle=0)
        alike.setdefault(same, []).append(block)
    found: list[Block] = []
    for same, group in alike.items():
        if len({block.path for block in group}) == 1:
            found += group
        else:
            found.append(
                structs.replace(
                    same,
                    total=sum(block.total for block in group),
                    runs=tuple(union(run for block in group for run in block.runs)),
                    graphs=sum(block.graphs for block in group),
                    idle=sum(block.idle for block in group),
                )
            )
    return tuple(found)


def summaries_of(trace: Trace) -> list[Summary]:
    """One summary for each root optimizer, in the order of the trace."""
    return list(trace.derived(_tallies))


def _tallies(trace: Trace) -> tuple[Summary, ...]:
    roots = (i for i, optimizer in enumerate(trace.optimizers) if optimizer.root == i)
    return tuple(Summary(trace, root) for root in roots)
