"""The analysis behind all that is said of a trace: a `Summary` for each root optimizer.

Findings, reports, assertions and comparisons read it. It has the counts of the whole optimizer, and
a `Pattern` for the variables that got the same in every step. What is counted is a `Selection`, as
those in `tracer.model.measures`; in which steps it was is a `Timeline`, so that a trace of a
million steps takes no longer than one of a hundred. No TensorFlow.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from tracer.model.dialects import Dialect, dialect_of
from tracer.model.measures import Measure, counting, steps, tries, updates
from tracer.model.records import (
    Block,
    Effect,
    Entry,
    Graph,
    Kind,
    Observation,
    Optimizer,
    Remark,
    Role,
    contribution,
)
from tracer.model.runs import Run, apart, segments, union
from tracer.model.selection import Selection
from tracer.model.timeline import Timeline, Train, Values, added, trains
from tracer.model.trace import Trace


class Pattern:
    """Variables that got the same in every step, on each replica and by each method."""

    def __init__(
        self,
        summary: "Summary",
        variables: Sequence[int],
        cells: Iterable[tuple[int, Entry]],
        effects: Iterable[Effect],
    ) -> None:
        self.variables = tuple(variables)
        """Their indices, in the order of the trace."""
        self.effects = tuple(effects)
        """What was seen of each of them; none where that was not asked for."""
        self._summary = summary
        self._on: dict[int | None, list[tuple[Block, Entry]]] = {None: []}
        for number, entry in cells:
            block = summary.blocks[number]
            self._on[None].append((block, entry))
            self._on.setdefault(block.replica, []).append((block, entry))
        self._timelines: dict[tuple[object, ...], Timeline] = {}

    @cached_property
    def argument(self) -> bool:
        """Whether it is the argument of a function, which stands for several variables."""
        return self._summary.trace.variables[self.variables[0]].argument

    @property
    def cells(self) -> Sequence[tuple[Block, Entry]]:
        """What one execution of a block does to each of the variables; entries name none."""
        return self._on[None]

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas on which a gradient was handed over, or an update tried."""
        asked = {"update", "vain", "request"}
        return tuple(sorted({block.replica for block, entry in self.cells if entry.role in asked}))

    def has(self, measure: Selection) -> bool:
        """Whether any of it is counted, be it in a graph that never ran."""
        return any(measure.holds(entry) for _, entry in self.cells)

    def _counted(self, measure: Selection, replica: int | None) -> Iterator[tuple[Block, int]]:
        """The blocks that hold what is counted, each with how often one execution counts."""
        for block, entry in self._on.get(replica, ()):
            if measure.holds(entry):
                yield block, entry.times

    def total(self, measure: Selection, replica: int | None = None) -> int:
        """What is counted of each of the variables, on all replicas or on one."""
        return sum(block.total * times for block, times in self._counted(measure, replica))

    def observed(self, what: Observation) -> int:
        """After how many steps it was seen of each of the variables, each replica counted."""
        return sum(effect.total for effect in self.effects if effect.what == what)

    def unplaced(self, measure: Selection) -> int:
        """That part of the total which ran in a step, but it is not known in which."""
        counted = self._counted(measure, None)
        return sum(block.unplaced * times for block, times in counted if not block.outside)

    @property
    def placed(self) -> bool:
        """Whether the step is known of each update and of each gradient."""
        every = counting(["update", "vain", "request"], ("dense", "sparse", "none"))
        return all(not block.unplaced for block, _ in self._counted(every, None))

    def runs(self, measure: Selection, replica: int | None = None) -> list[tuple[Run, int]]:
        """The steps in which it was counted, with what one execution counts."""
        return [
            (run, times) for block, times in self._counted(measure, replica) for run in block.runs
        ]

    def timeline(
        self,
        *measures: Selection,
        replica: int | None = None,
        observations: Sequence[Observation] = (),
    ) -> Timeline:
        """What each step counted of each variable by each of `measures`, on all replicas or one.

        Then, by each of `observations`, whether this was seen of it after the step.
        """
        key = (*measures, replica, *observations)
        if key not in self._timelines:
            summary, width = self._summary, len(measures) + len(observations)
            sums: dict[int, Values] = {}
            weighted = [
                (summary.runs_of[id(block)], place, times)
                for place, measure in enumerate(measures)
                for block, times in self._counted(measure, replica)
                if not block.outside
            ]
            weighted += [
                (summary.index_of(apart(effect.runs)), len(measures) + place, 1)
                for place, what in enumerate(observations)
                for effect in self.effects
                if effect.what == what and replica in (None, effect.replica)
            ]
            for runs, place, times in weighted:
                one = tuple(times * (place == each) for each in range(width))
                sums[runs] = added(sums.get(runs, (0,) * width), one)
            steps = summary.steps if replica is None else summary.steps_on[replica]
            self._timelines[key] = summary.folded(sums, steps, width)
        return self._timelines[key]


class Execution(NamedTuple):
    """What was executed."""

    role: Role
    kind: Kind | None
    method: int
    optimizer: int
    outside: bool
    """Whether that was outside any step."""


class Summary:
    """The counts of one root optimizer, together with the optimizers nested in it."""

    def __init__(self, trace: Trace, root: int) -> None:
        self.trace = trace
        self.root = root
        self.blocks = _whatever_path(block for block in trace.blocks if block.root == root)
        self.replicas = tuple(sorted({block.replica for block in self.blocks}))
        known = trace.steps_by_replica()
        self.steps_on = {replica: known.get((root, replica), 0) for replica in self.replicas}
        self._timelines: dict[tuple[object, ...], Timeline] = {}
        self._indices: dict[tuple[Run, ...], int] = {}
        self._trains: list[tuple[Train, ...]] = []

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

    def remarks(self, *codes: str) -> Iterator[tuple[Optimizer, Remark]]:
        """The remarks with one of these codes, each with the optimizer that it is on."""
        for optimizer in self.optimizers:
            yield from ((optimizer, each) for each in optimizer.remarks if each.code in codes)

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
        behind, leading = (self._updates_by_step(replica) for replica in (replicas, leaders))
        late, ahead = next(behind, None), next(leading, None)
        while late is not None and ahead is not None:
            if late[2] < ahead[2]:
                return missing, max(late[0], ahead[0])
            if late[1] <= ahead[1]:
                late = next(behind, None)
            else:
                ahead = next(leading, None)
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

    def graphs(self, measure: Measure, paths: Collection[int] | None = None) -> tuple[int, int]:
        """How many graph tracings hold something that counts, and how many of them never ran.

        The replicas of a worker are traced into one graph, which is counted once. With `paths`
        only those count that one of these paths of calls led to.
        """
        among = None if paths is None else self._called_by(paths)
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

    def _called_by(self, paths: Collection[int]) -> list[Block]:
        """The blocks that one of these paths led to; of graphs that never ran see `_runners`."""
        ran_by = self.trace.derived(_runners)
        return [each for each in self.by_path() if ran_by.get(each.path, each.path) in paths]

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
    def executions(self) -> Mapping[Execution, int]:
        """What was executed how often, that of each variable counted; 0 if it was only traced."""
        counts: Counter[Execution] = Counter()
        for block in self.blocks:
            for e in block.entries:
                key = Execution(e.role, e.kind, e.method, e.optimizer, block.outside)
                counts[key] += block.total * contribution(e, None)
        return counts

    @cached_property
    def has_run(self) -> bool:
        """Whether anything was executed, and not only traced."""
        return any(block.total for block in self.blocks)

    @cached_property
    def compiled(self) -> bool:
        """Whether anything was traced into a graph."""
        return any(block.context == "graph" for block in self.blocks)

    @cached_property
    def updated(self) -> frozenset[int]:
        """The variables that were updated, and the arguments that stand for some."""
        patterns = (each for each in self.patterns if each.total(updates))
        return frozenset(index for each in patterns for index in each.variables)

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """What steps did to the variables; none where it was not asked for."""
        return tuple(each for each in self.trace.data.effects if each.root == self.root)

    @cached_property
    def patterns(self) -> list[Pattern]:
        """All variables, those together that got the same, in the order of their first one."""
        effects: dict[int, list[Effect]] = {}
        for effect in self.effects:
            for variable in effect.variables:
                effects.setdefault(variable, []).append(effect)
        together: dict[tuple[object, ...], list[int]] = {}
        cells_of = self._cells
        for variable in self.variables:
            seen = tuple(
                (each.replica, each.what, each.total, each.runs)
                for each in effects.get(variable, ())
            )
            key = self.trace.variables[variable].argument, cells_of.get(variable, ()), seen
            together.setdefault(key, []).append(variable)
        return [
            Pattern(self, variables, cells_of.get(variables[0], ()), effects.get(variables[0], ()))
            for variables in together.values()
        ]

    @cached_property
    def _cells(self) -> dict[int, tuple[tuple[int, Entry], ...]]:
        """For each variable, the blocks that it is in (`representatives`), with what they do to it.

        Entries of one list of variables are put together first: there are few different lists.
        """
        times_of: dict[tuple[int, ...], Counter[tuple[int, Entry]]] = {}
        for number, block in zip(self.representatives, self.blocks, strict=True):
            for entry in block.entries:
                plain = structs.replace(entry, variables=(), times=1)
                times_of.setdefault(entry.variables, Counter())[number, plain] += entry.times
        lists_with: dict[int, list[int]] = {}
        for index, variables in enumerate(times_of):
            for variable in variables:
                lists_with.setdefault(variable, []).append(index)
        counters = list(times_of.values())
        known: dict[tuple[int, ...], tuple[tuple[int, Entry], ...]] = {}
        for lists in dict.fromkeys(map(tuple, lists_with.values())):
            times = sum((counters[index] for index in lists), Counter[tuple[int, Entry]]())
            known[lists] = tuple(
                (number, structs.replace(entry, times=times[number, entry]))
                for number, entry in sorted(times, key=lambda each: (each[0], repr(each[1])))
            )
        return {variable: known[tuple(lists)] for variable, lists in lists_with.items()}

    @cached_property
    def asked(self) -> list[Pattern]:
        """The patterns of variables that were handed over or updated, and are no arguments."""
        return [each for each in self.patterns if each.replicas and not each.argument]

    def timeline(
        self,
        *measures: Measure,
        replica: int | None = None,
        observations: Sequence[Observation] = (),
        variables: frozenset[int] | None = None,
    ) -> Timeline:
        """What each step counted by each of `measures`: every step from 1 on.

        Then, by each of `observations`, of how many variables this was seen after the step, of
        `variables` only if they are given.
        """
        width = len(measures) + len(observations)
        sums: dict[int, Values] = {}
        for block in self.blocks if replica is None else self._blocks_on[replica]:
            if not block.outside:
                weights = tuple(measure(block) for measure in measures)
                if any(weights):
                    runs = self.runs_of[id(block)]
                    weights += (0,) * len(observations)
                    sums[runs] = added(sums.get(runs, (0,) * width), weights)
        for place, what in enumerate(observations):
            one = tuple(int(len(measures) + place == each) for each in range(width))
            if seen := tuple(self._seen(what, replica, variables)):
                runs = self.index_of(seen)
                sums[runs] = added(sums.get(runs, (0,) * width), one)
        steps = self.steps if replica is None else self.steps_on[replica]
        return self.folded(sums, steps, width)

    def folded(self, sums: Mapping[int, Values], steps: int, width: int) -> Timeline:
        """The timeline of so many steps in which runs, by their index, count so much.

        To find where anything changes takes the most time, and most measures change alike. So it is
        done once for all that count the same runs, each as much as the others.
        """
        key = steps, width, frozenset(sums.items())
        if key not in self._timelines:
            different = set(sums.values())
            if len(different) == 1 and different != {(1,)}:
                (weights,) = different
                alike = self.folded(dict.fromkeys(sums, (1,)), steps, 1)
                self._timelines[key] = alike.times(weights)
            else:
                weighted = (
                    (t, values) for each, values in sums.items() for t in self._trains[each]
                )
                self._timelines[key] = Timeline.of_trains(weighted, steps, width)
        return self._timelines[key]

    def spread(self, *measures: Measure, replica: int | None = None) -> Counter[Values]:
        """In how many steps each combination of counts by `measures` occurred."""
        return self.timeline(*measures, replica=replica).spread

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

    def observed(
        self,
        what: Observation,
        replica: int | None = None,
        variables: frozenset[int] | None = None,
    ) -> int:
        """How often it was seen after a step, of all variables or of some, each one counted."""
        return sum(
            effect.total * _number_in(effect, variables)
            for effect in self.effects
            if effect.what == what and replica in (None, effect.replica)
        )

    def _seen(
        self, what: Observation, replica: int | None, variables: frozenset[int] | None
    ) -> list[Run]:
        """After which steps it was seen of how many variables.

        Single steps are added up first: each variable may have others.
        """
        regular: list[Run] = []
        single: Counter[int] = Counter()
        for effect in self.effects:
            number = _number_in(effect, variables)
            if number and effect.what == what and replica in (None, effect.replica):
                for run in apart(effect.runs):
                    if run.count == 1:
                        single[run.first] += number
                    else:
                        regular.append(Run(run.first, run.stride, run.count, number))
        return regular + [Run(step, 1, 1, number) for step, number in sorted(single.items())]

    @cached_property
    def runs_of(self) -> dict[int, int]:
        """For each block, by its id, the index of its runs: replicas do the same in a step."""
        return {id(block): self.index_of(block.runs) for block in self.blocks}

    def index_of(self, runs: tuple[Run, ...]) -> int:
        """The index of these runs; their trains are in `_trains`."""
        if runs not in self._indices:
            self._indices[runs] = len(self._trains)
            self._trains.append(trains(runs))
        return self._indices[runs]


def _number_in(effect: Effect, variables: frozenset[int] | None) -> int:
    """Of how many of these variables, or of all, it is the record."""
    return len(effect.variables if variables is None else variables.intersection(effect.variables))


def is_first_only(graph: Graph) -> bool:
    """Whether of its tracings no other than the first never ran: that one made the variables."""
    return graph.idle == 1 < graph.tracings


def _runners(trace: Trace) -> dict[int | None, int]:
    """For the paths of graphs that never ran the first path of one that did and was traced there.

    Of what never ran only that part of the path is known which is in the graph.
    """
    paths = trace.data.paths
    ran = {block.path for block in trace.blocks if block.total and block.path is not None}
    idle = {block.path for block in trace.blocks if block.path is not None} - ran
    runners: dict[int | None, int] = {}
    for path in idle:
        inner = paths[path]
        for other in sorted(ran):
            if paths[other][-len(inner) :] == inner:
                runners.setdefault(path, other)
    return runners


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
    """One for each root optimizer, in the order of the trace."""
    return list(trace.derived(_summaries))


def _summaries(trace: Trace) -> tuple[Summary, ...]:
    roots = (i for i, optimizer in enumerate(trace.optimizers) if optimizer.root == i)
    return tuple(Summary(trace, root) for root in roots)
