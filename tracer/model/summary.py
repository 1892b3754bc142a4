"""Summarizes a trace for findings, reports and assertions: one `Summary` for each root optimizer.

A `Summary` has the counts of the optimizer, and a `Pattern` for variables with equal counts in each
step. A measure is a `Selection`, as in `tracer.model.counts`; the counts by step are a
`Timeline`, so a trace of a million steps takes no longer than one of a hundred. No TensorFlow.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import TypeVar

from msgspec import structs

from tracer.model.counts import (
    EXECUTIONS,
    CountedRole,
    Counts,
    Measure,
    Selection,
    StepKinds,
    as_block,
    counted as all_counted,
    counting,
    of_methods,
    updates,
)
from tracer.model.evidence import Observed
from tracer.model.records import (
    Block,
    Entry,
    Graph,
    Optimizer,
)
from tracer.model.timeline import Values, added
from tracer.model.trace import Trace
from tracer.model.words import dialect_of

Seen = TypeVar("Seen", bound=Observed)


class Pattern(Counts):
    """Variables with equal counts in every step, on each replica and by each method.

    Each count is for one variable.
    """

    def __init__(
        self, variables: Sequence[int], argument: bool, counted: Iterable[Block], kinds: StepKinds
    ) -> None:
        super().__init__(counted, kinds)
        self.variables = tuple(variables)
        """The indices of the variables, in the order of the trace."""
        self.argument = argument
        """Whether this is an argument of a function, which stands for several variables."""

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas on which a gradient was passed, or an update tried."""
        return tuple(sorted({each.replica for each in self._on[None] if _asked(each)}))

    def has(self, measure: Selection) -> bool:
        """Whether any entry is counted, even in a graph that never ran."""
        return any(measure.holds(entry) for block in self._on[None] for entry in block.entries)

    @property
    def steps_known(self) -> bool:
        """Whether the steps of all updates and gradients are known."""
        return not any(_asked(each) and each.step_unknown for each in self._on[None])


_asked = counting(["update", "request"], ("dense", "sparse", "none"))


_INNER = {"_update_step_xla": "update_step"}
"""The method for which each of these only prepares the gradient, if names do not show it."""

_Cells = tuple[tuple[int, Entry], ...]
"""The counts of a variable: numbers of blocks, each with an entry without variables."""


class Summary(Counts):
    """The counts of one root optimizer and its nested optimizers."""

    def __init__(self, trace: Trace, root: int) -> None:
        self.trace = trace
        self.root = root
        members = [index for index, each in enumerate(trace.optimizers) if each.root == root]
        members.sort(key=lambda index: index != root)  # a loss scale can join its optimizer later
        self.optimizers = tuple(trace.optimizers[index] for index in members)
        """The root, then its nested optimizers."""
        self.dialect = dialect_of(trace.data, self.optimizers)
        """The terms of these optimizers' framework."""
        self.blocks = [block for block in trace.blocks if block.root == root]
        self.effects = [each for each in trace.data.effects if each.root == root]
        """What steps did to the variables; empty if effects were not requested."""
        self.not_updated = [each for each in trace.data.not_updated if each.root == root]
        """The variables of the trained models that the optimizer does not get."""
        counted = [block for block in all_counted(trace.data) if block.root == root]
        self.replicas = tuple(sorted({block.replica for block in self.blocks}))
        known = trace.steps_by_replica()
        self.steps_on = {replica: known.get((root, replica), 0) for replica in self.replicas}
        super().__init__(counted, StepKinds(counted, self.steps_on))

    @property
    def steps(self) -> int:
        """The steps of the replica with the most steps."""
        return max(self.steps_on.values(), default=0)

    @cached_property
    def workers(self) -> dict[str, list[int]]:
        """The replicas of each worker."""
        replicas: dict[str, list[int]] = {}
        for index in self.replicas:
            replicas.setdefault(self.trace.replicas[index].worker, []).append(index)
        return replicas

    @property
    def is_partitioned(self) -> bool:
        """Whether each rank updates some of the variables and sends them to the others."""
        return any(each.class_name.endswith(".ZeroRedundancyOptimizer") for each in self.optimizers)

    def is_sharded(self, pattern: Pattern) -> bool:
        """Whether each rank updates its own shard of the variables, which may be empty."""
        return any(self.trace.variables[each].shards > 1 for each in pattern.variables)

    def replicas_with(self, pattern: Pattern) -> tuple[int, ...]:
        """The replicas that have the variables: a rank may have no part of a sharded one."""
        return pattern.replicas if self.is_sharded(pattern) else self.replicas

    @property
    def asked_on(self) -> Sequence[int]:
        """The replicas that passed any variable: a rank may have no part of the sharded ones."""
        asked = sorted({each for pattern in self.asked for each in pattern.replicas})
        is_sharded = any(each.shards > 1 for each in self.trace.variables)
        return asked if asked or is_sharded else self.replicas

    @property
    def only_worker(self) -> str:
        """The worker of all replicas, if the trace has other workers, too; else empty."""
        return next(iter(self.workers)) if len(self.workers) == 1 < len(self.trace.workers) else ""

    def evidence(self, kind: type[Seen]) -> Iterator[tuple[Optimizer, Seen]]:
        """Yield the evidence of this kind, each with its optimizer."""
        for optimizer in self.optimizers:
            for evidence in optimizer.evidence:
                if isinstance(evidence, kind):
                    yield optimizer, evidence

    @cached_property
    def variables(self) -> tuple[int, ...]:
        """The indices of the variables that this optimizer gets, or that its models have."""
        lists = {entry.variables for block in self._on[None] for entry in block.entries}
        return tuple(sorted({*chain(*lists, *(each.variables for each in self.not_updated))}))

    @cached_property
    def methods(self) -> tuple[int, ...]:
        """The indices of the methods that were executed or called."""
        return tuple(sorted(self._methods_with(*EXECUTIONS, "call")))

    def _methods_with(self, *roles: CountedRole) -> set[int]:
        return {method for (method,) in self.by(["method"], counting(roles, None))}

    @cached_property
    def apply_methods(self) -> list[int]:
        """The indices of the methods that make the updates, for the question of a report.

        If a method only prepares the gradient for another (the default
        `_resource_apply_sparse_duplicate_indices`, `_update_step_xla`), the other is meant.
        """
        methods = self.trace.methods
        makers = self._methods_with("update", "discarded", "zeroed")
        if not makers:
            makers = {index for index in self.methods if methods[index].role == "apply"}
        by_name = {methods[index].name: index for index in self.methods}
        chosen: set[int] = set()
        for maker in makers:
            name = methods[maker].name
            inner = by_name.get(_INNER.get(name, name.removesuffix("_duplicate_indices")), maker)
            runs, runs_inside = (self.total(of_methods([i])) for i in (maker, inner))
            chosen.add(inner if runs_inside >= runs else maker)
        return sorted(chosen, key=lambda index: ("sparse" in methods[index].name, index))

    def outside(self, measure: Measure) -> int:
        """The part of the total that ran outside of steps."""
        return sum(block.total * measure(block) for block in self.blocks if block.outside)

    def graphs(self, measure: Measure) -> tuple[int, int]:
        """The number of graph tracings with counted entries, and how many of these never ran.

        The replicas of a worker are traced into one graph, which counts once.
        """
        counts: dict[tuple[str, str], dict[int, Values]] = {}  # by replica
        for block in self.blocks:
            if measure(block):
                on = counts.setdefault(self._function_around(block), {})
                on[block.replica] = added(on.get(block.replica, (0, 0)), (block.graphs, block.idle))
        traced = never_ran = 0
        for function, on in counts.items():
            number, idle = max(on.values())
            most, most_idle = self._tracings.get(function, (number, idle))
            traced += min(number, most)
            # If no counted entry ran, other entries of the graph do not matter.
            never_ran += min(idle, most if number == idle else most_idle)
        return traced, never_ran

    def _function_around(self, block: Block) -> tuple[str, str]:
        """The worker and the traced function of a block, which may be a branch inside it.

        A graph with two steps or branches has two blocks, but is one graph tracing.
        """
        worker, outer = self.trace.replicas[block.replica].worker, block.function
        while outer and (worker, outer) not in self._tracings:
            outer = outer.rpartition("/")[0]
        return worker, outer or block.function

    @cached_property
    def _tracings(self) -> dict[tuple[str, str], Values]:
        """By worker and function: the number of tracings, and how many of these never ran."""
        known: dict[tuple[str, str], Values] = {}
        for graph in self.trace.graphs:
            if graph.root == self.root and graph.tracings:
                key = self.trace.replicas[graph.replica].worker, graph.function
                known[key] = added(known.get(key, (0, 0)), (graph.tracings, graph.idle))
        return known

    @cached_property
    def idle_as_usual(self) -> bool:
        """Whether graphs never ran, and each of them is the first of a function traced twice.

        TensorFlow traces a function that makes variables once to make them, and once to run it.
        """
        idle = [each for each in self.trace.graphs if each.root == self.root and each.idle]
        return self.dialect.traces_twice and bool(idle) and all(map(is_first_only, idle))

    @cached_property
    def idle_parts(self) -> bool:
        """Whether parts of graphs never ran, other than first tracings (`idle_as_usual`).

        A part is a branch or a loop body; its graph may have run.
        """
        tracings = self._tracings.items()
        first = Counter(worker for (worker, _), (_, idle) in tracings for _ in range(idle))
        idle: Counter[tuple[int, tuple[Entry, ...]]] = Counter()
        for block in self.blocks:
            if not block.step:
                idle[block.replica, block.entries] += block.idle
        return any(
            number > (first[self.trace.replicas[replica].worker] if first else 1)
            for (replica, _), number in idle.items()
        )

    def calls(self, method: int, replica: int | None = None) -> tuple[int, int]:
        """The number of Python calls of a method: eagerly, and while tracing."""
        called = counting(["call"], None, [method])
        calls = self.by(["context"], called if replica is None else called.on([replica]))
        return calls["eager",], calls["tracing",]

    @cached_property
    def has_run(self) -> bool:
        """Whether anything was executed, and not only traced."""
        return any(block.total for block in self.blocks)

    @cached_property
    def updated(self) -> frozenset[int]:
        """The updated variables, including arguments that stand for variables."""
        patterns = (each for each in self.patterns if each.total(updates))
        return frozenset(index for each in patterns for index in each.variables)

    @cached_property
    def patterns(self) -> list[Pattern]:
        """All variables, grouped by equal counts, in order of their first one.

        Blocks with the same runs on a replica share one number. Entries are first grouped by their
        list of variables, as there are few different lists.
        """
        first: dict[tuple[object, ...], int] = {}
        times_of: dict[tuple[int, ...], Counter[tuple[int, Entry]]] = {}
        counted = [*self.blocks, *map(as_block, self.effects)]
        for number, block in enumerate(counted):
            key = block.replica, block.runs, block.total, block.outside
            number = first.setdefault(key, number)
            for entry in block.entries:
                plain = structs.replace(entry, variables=(), times=1)
                times_of.setdefault(entry.variables, Counter())[number, plain] += entry.times
        lists_with: dict[int, list[int]] = defaultdict(list)
        for index, variables in enumerate(times_of):
            for variable in variables:
                lists_with[variable].append(index)
        counters = list(times_of.values())

        @cache
        def cells(lists: tuple[int, ...]) -> _Cells:
            times = sum((counters[index] for index in lists), Counter[tuple[int, Entry]]())
            ordered = sorted(times, key=lambda each: (each[0], repr(each[1])))
            return tuple((at, structs.replace(each, times=times[at, each])) for at, each in ordered)

        together: dict[tuple[bool, _Cells], list[int]] = {}
        for variable in self.variables:
            is_argument = self.trace.variables[variable].argument
            alike = is_argument, cells(tuple(lists_with[variable]))
            together.setdefault(alike, []).append(variable)
        return [
            Pattern(
                variables,
                argument,
                (structs.replace(counted[at], entries=(each,)) for at, each in parts),
                self._kinds,
            )
            for (argument, parts), variables in together.items()
        ]

    @cached_property
    def asked(self) -> list[Pattern]:
        """The patterns of passed or updated variables, without arguments."""
        return [each for each in self.patterns if each.replicas and not each.argument]

    @cached_property
    def idle_on(self) -> dict[int, int]:
        """How many steps updated nothing, by replica."""
        return {each: self.spread(updates, replica=each)[(0,)] for each in self.replicas}


def is_first_only(graph: Graph) -> bool:
    """Whether only the first tracing never ran: it made the variables."""
    return graph.idle == 1 < graph.tracings


def summaries_of(trace: Trace) -> list[Summary]:
    """The summaries of all root optimizers, in the order of the trace."""
    return list(trace.derived(_summaries))


def _summaries(trace: Trace) -> tuple[Summary, ...]:
    roots = (i for i, optimizer in enumerate(trace.optimizers) if optimizer.root == i)
    return tuple(Summary(trace, root) for root in roots)
