"""Implements `Trace`, the frozen counts of optimizers, and the `Summary` of each root optimizer.

A `Trace` is what users query. A `Summary` has the counts of one root optimizer with those inside
it, for findings, reports and assertions, and a `Pattern` for variables with equal counts in each
step.
No TensorFlow: a saved trace is read and queried on any machine.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, overload

from msgspec import structs

from tracer.errors import is_mistake, unknown_name
from tracer.model.counts import (
    EXECUTIONS,
    ROLES,
    Counts,
    Measure,
    Selection,
    What,
    counted,
    counting,
    of_methods,
    require_effects,
    rising,
    select_entries,
    updates,
)
from tracer.model.dialects import DIALECTS
from tracer.model.evidence import ClassMethod, Observed
from tracer.model.names import Objects
from tracer.model.records import (
    OBSERVATIONS,
    Block,
    Entry,
    Finding,
    Graph,
    Kind,
    Method,
    Optimizer,
    Replica,
    Role,
    TraceData,
    Variable,
)
from tracer.words import some

__tracebackhide__ = is_mistake

T = TypeVar("T")
Seen = TypeVar("Seen", bound=Observed)

SplitBy = Literal[
    "variable", "step", "replica", "worker", "optimizer", "method", "kind", "context", "caller"
]

_COMMON = ("kind", "variable", "replica", "worker", "optimizer")
_FILTERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(ROLES, (*_COMMON, "step")),
    "executions": (*_COMMON, "method", "step"),
    "calls": (*_COMMON, "method"),
    **dict.fromkeys(OBSERVATIONS, ("variable", "step", "replica", "worker", "optimizer")),
}
"""The filters of each query."""


def _of_data(name: str) -> Any:
    """A field of the records, as a read-only attribute."""
    return property(lambda trace: getattr(trace.data, name))


class Trace:
    """A frozen trace of one or more optimizers: exact counts, per variable, step and replica.

    `tracer.trace_of`, `tracer.record` and `tracer.load` make it. All filters are optional, and all
    given filters must match:

    - `kind`: `"dense"` or `"sparse"` (the gradient was a `tf.IndexedSlices`); for requests also
      `"none"`.
    - `variable`: a name, a glob (`"encoder/*"`), or the variable itself.
    - `step`: a step, numbered from 1 on each replica, or a `range` of steps.
    - `replica`: its id, an int; `worker`: its name in TensorFlow (`"worker:0"`).
    - `optimizer`: its name or a glob.
    - `method`: the name of an intercepted method.

    A filter raises `tracer.UnknownName` if the trace has nothing of that name.
    """

    def __init__(self, data: TraceData, objects: Objects = None) -> None:
        self.data = data
        """All data, as the plain records of a trace file."""
        self.objects = objects
        """How the trace identifies an object as one of its variables."""
        self._derived: dict[object, Any] = {}

    def derived(self, make: Callable[["Trace"], T]) -> T:
        """Return `make` of the trace, computed once, because a trace never changes."""
        if make not in self._derived:
            self._derived[make] = make(self)
        made: T = self._derived[make]
        return made

    # Contents.

    optimizers: tuple[Optimizer, ...] = _of_data("optimizers")
    """The traced optimizers, nested ones after their root."""
    variables: tuple[Variable, ...] = _of_data("variables")
    """The variables that an optimizer was asked to update, in that order; then those of the models
    that it trains."""
    methods: tuple[Method, ...] = _of_data("methods")
    """The intercepted methods that were called."""
    replicas: tuple[Replica, ...] = _of_data("replicas")
    """The replicas that took part, by worker and id."""
    graphs: tuple[Graph, ...] = _of_data("graphs")
    """A `Graph` for each function and signature that was traced, by replica, in the order of the
    first tracings."""
    complete: bool = _of_data("complete")
    """False if the trace missed anything: `notes` have it, and any unknown effects."""

    finished: bool = _of_data("finished")
    """False if the run had not ended when `tracer run` wrote the file, or was killed."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the trace missed, and on other facts that matter for the counts."""
        return tuple(map(str, self.data.notes))

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers; `("",)` for a local run."""
        return tuple(sorted({replica.worker for replica in self.data.replicas}))

    @cached_property
    def steps(self) -> int:
        """The number of steps, on the replica and of the optimizer with the most steps."""
        return max(self.steps_by_replica().values(), default=0)

    def steps_by_replica(self) -> dict[tuple[int, int], int]:
        """The number of steps for each `(root optimizer, replica)`, as indices."""
        steps: dict[tuple[int, int], int] = defaultdict(int)
        for block in self.data.blocks:
            if block.step:
                steps[block.root, block.replica] += block.total
        return dict(steps)

    @cached_property
    def counts(self) -> Counts:
        """The counts of all blocks, by measures: for reports and checks."""
        return Counts(counted(self.data), {0: self.steps})

    # What layers above say about a trace: imported when asked for.

    def answer(self) -> str:
        """How often the apply methods ran in this run, in two sentences."""
        return str(import_module("tracer.reporters.text").answer(self))

    def findings(self) -> list[Finding]:
        """What looks wrong in the run, errors first, with why it matters and what to do.

        `tracer explain CODE` says when a rule reports something.
        """
        return [*import_module("tracer.findings.rule").findings(self)]

    def save(self, path: str | Path) -> None:
        """Write the trace to the file `path`, which `tracer.load` reads.

        If `path` is a folder, or ends in a slash, the file is named after the worker
        (`worker-0.json`): each worker of a run can save to the same folder, which `tracer.load`
        then reads as one run.

        Raises `tracer.TraceFileError` if the file cannot be written; an earlier file is then kept.
        """
        tracefile = import_module("tracer.model.tracefile")
        tracefile.save(self.data, tracefile.file_at(path, self))

    def _repr_html_(self) -> str:
        """The report, which a notebook shows for a trace in the last line of a cell."""
        return str(import_module("tracer.reporters.formats").for_notebook(self))

    # Queries.

    def updates(
        self,
        kind: Kind | None = None,
        variable: object = None,
        step: int | range | None = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> int:
        """How many updates really ran: executions of the outermost apply method on a variable."""
        return self._total(
            "updates",
            step=step,
            kind=kind,
            variable=variable,
            replica=replica,
            worker=worker,
            optimizer=optimizer,
        )

    def executions(
        self,
        method: str | None = None,
        kind: Kind | None = None,
        variable: object = None,
        step: int | range | None = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> int:
        """How often the work of a method really ran; without `method`, of all traced methods."""
        return self._total(
            "executions",
            step=step,
            kind=kind,
            variable=variable,
            replica=replica,
            worker=worker,
            optimizer=optimizer,
            method=method,
        )

    def calls(
        self,
        method: str | None = None,
        kind: Kind | None = None,
        variable: object = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> int:
        """How often Python called a method, eagerly or while a graph was traced."""
        return self._total(
            "calls",
            kind=kind,
            variable=variable,
            replica=replica,
            worker=worker,
            optimizer=optimizer,
            method=method,
        )

    @overload
    def count(self, what: What, by: None = None, **filters: object) -> int: ...

    @overload
    def count(
        self, what: What, by: SplitBy | Iterable[SplitBy], **filters: object
    ) -> dict[tuple[Any, ...], int]: ...

    def count(
        self, what: What, by: SplitBy | Iterable[SplitBy] | None = None, **filters: object
    ) -> int | dict[tuple[Any, ...], int]:
        """The count of `"updates"`, `"executions"`, `"calls"` and so on; split by `by` if given.

        `"requests"` are the gradients that were passed; those of kind `"none"` were None.
        `"discarded"` are the executions of apply methods whose result was thrown away, so they are
        not updates: Keras on JAX computes an update in each step that only accumulates.

        `by` names one or more of `variable`, `step`, `replica`, `worker`, `optimizer`, `method`,
        `kind`, `caller` and, for calls, `context`; the keys are tuples in the order of `by`. Calls
        have no step. A split by step omits executions whose step is not known. A caller is a
        line of the program as text, `train.py:7 main`; for a graph, the line that traced it, the
        graph, and the line in it, `train.py:6 main > step > train.py:4 step`; None if unknown.

        With `effects=True` there are three more counts of steps that got a variable: `"compared"`
        (its bits were compared), `"unchanged"` (the step changed no bit) and `"not_finite"` (it
        held infinity or NaN after the step). They have no method, kind or caller. Without effects
        they raise `tracer.UnknownName`.
        """
        if what not in ROLES:
            raise unknown_name("count", what, ROLES)
        if by is None:
            return self._total(what, **filters)
        names = (by,) if isinstance(by, str) else tuple(by)
        every = {*get_args(SplitBy)} - {"step" if what == "calls" else "context"}
        known = {*_FILTERS[what]} if what in OBSERVATIONS else every
        for name in names:
            if name not in known:
                raise unknown_name(f"key to split {what} by:", name, sorted(known))
        data = self.data
        paths = [data.lines_of(path) for path in range(len(data.paths))]
        labels: dict[str, Sequence[object]] = {
            "variable": [variable.name for variable in data.variables],
            "optimizer": [optimizer.name for optimizer in data.optimizers],
            "method": [method.name for method in data.methods],
            "replica": [replica.id for replica in data.replicas],
            "worker": [replica.worker for replica in data.replicas],
            "caller": [" > ".join(line.label for line in path) or None for path in paths],
        }
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        counted, selection = self._selected(what, filters)
        for key, number in counted.by([_KEYS.get(name, name) for name in names], selection).items():
            named = (
                labels[name][value] if name in labels and value is not None else value
                for name, value in zip(names, key, strict=True)
            )
            counts[tuple(named)] += number
        return dict(counts)

    def per_step(
        self,
        what: Literal[
            "updates",
            "executions",
            "discarded",
            "requests",
            "compared",
            "unchanged",
            "not_finite",
        ],
        **filters: object,
    ) -> Iterator[tuple[int, int, int]]:
        """The count in each step, as `(first_step, last_step, count)` for runs of equal steps.

        The runs cover all steps from 1 to `steps`; steps that a filter excludes have 0. Memory does
        not grow with the number of steps.
        """
        if what not in (known := [each for each in ROLES if each != "calls"]):
            raise unknown_name("count per step", what, known)
        counted, selection = self._selected(what, filters)
        timeline = counted.timeline(selection)
        return ((first, last, n) for first, last, (n,) in timeline.spans())

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        return f"<Trace of {some(self.steps, 'step')}, {some(self.updates(), 'update')}{state}>"

    # Implementation.

    def _selected(self, what: What, filters: Mapping[str, Any]) -> tuple[Counts, Selection]:
        if what in OBSERVATIONS:
            require_effects(self.data, what, self.steps)
        for name in filters:
            if name not in _FILTERS[what]:
                known = ", ".join(_FILTERS[what])
                raise TypeError(f"{what} has no filter {name!r}; it has {known}")
        step = filters.get("step")
        others = {name: wanted for name, wanted in filters.items() if name != "step"}
        selection = select_entries(self.data, self.objects, what, **others)
        return self.counts if step is None else self.counts.within(rising(step)), selection

    def _total(self, what: What, **filters: object) -> int:
        counts, selection = self._selected(what, filters)
        return counts.total(selection)


_KEYS = {"worker": "replica", "caller": "path"}
"""The field of the records for each key of `count` that has another name."""


def has_all_workers(trace: Trace) -> bool:
    """Whether all workers of the cluster, and so all shards, are in the trace."""
    cluster = trace.data.environment.get("cluster", "")
    return not cluster or {*cluster.split(", ")} <= {*trace.workers}


# The counts of each root optimizer.


class Pattern(Counts):
    """Variables with equal counts in every step, on each replica and by each method.

    Each count is for one variable.
    """

    def __init__(
        self,
        variables: Sequence[int],
        argument: bool,
        counted: Iterable[Block],
        steps_on: Mapping[int, int],
    ) -> None:
        super().__init__(counted, steps_on)
        self.variables = tuple(variables)
        """The indices of the variables, in the order of the trace."""
        self.argument = argument
        """Whether this is an argument of a function, which stands for several variables."""

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas on which a gradient was passed, or an update tried."""
        return tuple(sorted({each.replica for each in self._on[None] if _asked(each)}))

    @property
    def steps_known(self) -> bool:
        """Whether the steps of all updates and gradients are known."""
        return not any(_asked(each) and each.step_unknown for each in self._on[None])


_asked = counting(["update", "request"], ("dense", "sparse", "none"))


_INNER = {"_update_step_xla": "update_step"}
"""The method for which each of these only prepares the gradient, if names do not show it."""

_Cells = frozenset[tuple[tuple[int, Entry], int]]
"""The counts of a variable: (number of a block, entry without variables), and how often."""


class Summary(Counts):
    """The counts of one root optimizer and its nested optimizers."""

    def __init__(self, trace: Trace, root: int) -> None:
        self.trace = trace
        self.root = root
        members = [index for index, each in enumerate(trace.optimizers) if each.root == root]
        members.sort(key=lambda index: index != root)  # a loss scale can join its optimizer later
        self.optimizers = tuple(trace.optimizers[index] for index in members)
        """The root, then its nested optimizers."""
        self.dialect = DIALECTS[trace.data.library(self.optimizers)]
        """The terms of these optimizers' framework."""
        self.blocks = [block for block in trace.data.blocks if block.root == root]
        self.effects = [effect for effect in trace.data.effects if effect.root == root]
        """What steps did to the variables; empty if effects were not requested."""
        self.not_updated = [row for row in trace.data.not_updated if row.root == root]
        """The variables of the trained models that the optimizer does not get."""
        self.replicas = tuple(sorted({block.replica for block in self.blocks}))
        known = trace.steps_by_replica()
        steps_on = {replica: known.get((root, replica), 0) for replica in self.replicas}
        own = (block for block in counted(trace.data) if block.root == root)
        super().__init__(own, steps_on)

    @cached_property
    def workers(self) -> dict[str, list[int]]:
        """The replicas of each worker."""
        replicas = defaultdict[str, list[int]](list)
        for index in self.replicas:
            replicas[self.trace.replicas[index].worker].append(index)
        return replicas

    @property
    def is_partitioned(self) -> bool:
        """Whether each rank updates some of the variables and sends them to the others."""
        return any(
            optimizer.class_name.endswith(".ZeroRedundancyOptimizer")
            for optimizer in self.optimizers
        )

    def is_sharded(self, pattern: Pattern) -> bool:
        """Whether each rank updates its own shard of the variables, which may be empty."""
        return any(self.trace.variables[variable].shards > 1 for variable in pattern.variables)

    def replicas_with(self, pattern: Pattern) -> tuple[int, ...]:
        """The replicas that have the variables: a rank may have no part of a sharded one."""
        return pattern.replicas if self.is_sharded(pattern) else self.replicas

    @property
    def asked_on(self) -> Sequence[int]:
        """The replicas that passed any variable: a rank may have no part of the sharded ones."""
        asked = sorted({replica for pattern in self.asked for replica in pattern.replicas})
        is_sharded = any(self.trace.variables[index].shards > 1 for index in self.variables)
        return asked if asked or is_sharded else self.replicas

    def evidence(self, kind: type[Seen]) -> Iterator[tuple[Optimizer, Seen]]:
        """The evidence of this kind, each with its optimizer."""
        every = ((each, own) for each in self.optimizers for own in each.evidence)
        return ((each, own) for each, own in every if isinstance(own, kind))

    def methods_that(self, what: str) -> list[tuple[Optimizer, ClassMethod]]:
        """The methods of the classes of which this is remarkable, each with its optimizer."""
        return [pair for pair in self.evidence(ClassMethod) if pair[1].what == what]

    @cached_property
    def variables(self) -> tuple[int, ...]:
        """The indices of the variables that this optimizer gets, or that its models have."""
        return tuple(sorted({*self.passed, *chain(*(e.variables for e in self.not_updated))}))

    @cached_property
    def passed(self) -> tuple[int, ...]:
        """The indices of the variables that this optimizer gets, or was traced for."""
        lists = {entry.variables for block in self._on[None] for entry in block.entries}
        return tuple(sorted({*chain(*lists)}))

    @cached_property
    def methods(self) -> tuple[int, ...]:
        """The indices of the methods that were executed or called."""
        return tuple(sorted(self._methods_with(*EXECUTIONS, "call")))

    def _methods_with(self, *roles: Role) -> set[int]:
        return {method for (method,) in self.by(["method"], counting(roles, None))}

    @cached_property
    def apply_methods(self) -> list[int]:
        """The indices of the methods that make the updates, for the question of a report.

        If a method only prepares the gradient for another (the default
        `_resource_apply_sparse_duplicate_indices`, `_update_step_xla`), the other is meant.
        """
        names = {index: self.trace.methods[index].name for index in self.methods}
        by_name = {name: index for index, name in names.items()}
        applied = {index for index in names if self.trace.methods[index].role == "apply"}
        chosen: set[int] = set()
        for maker in self._methods_with("update", "discarded", "zeroed") or applied:
            prepares = names[maker].removesuffix("_duplicate_indices")
            inner = by_name.get(_INNER.get(prepares, prepares), maker)
            runs, runs_inside = (self.total(of_methods([index])) for index in (maker, inner))
            chosen.add(inner if runs_inside >= runs else maker)
        return sorted(chosen, key=lambda index: ("sparse" in names[index], index))

    def outside(self, measure: Measure) -> int:
        """The part of the total that ran outside of steps."""
        return sum(block.total * measure(block) for block in self.blocks if block.outside)

    def graphs(self, measure: Measure) -> tuple[int, int]:
        """The number of graph tracings of functions with counted entries, and how many never ran.

        A graph of a Session is not traced.
        """
        functions = {f"{block.function}/" for block in self.blocks if measure(block)}
        traced = [
            graph
            for graph in self.trace.graphs
            if graph.root == self.root
            and any(name.startswith(f"{graph.function}/") for name in functions)  # or a branch
        ]
        return sum(graph.tracings for graph in traced), sum(graph.idle for graph in traced)

    @cached_property
    def idle_as_usual(self) -> bool:
        """Whether graphs never ran, and each of them is the first of a function traced twice.

        TensorFlow traces a function that makes variables once to make them, and once to run it.
        """
        idle = [graph for graph in self.trace.graphs if graph.root == self.root and graph.idle]
        return self.dialect.traces_twice and bool(idle) and all(map(is_first_only, idle))

    def calls(self, method: int) -> tuple[int, int]:
        """The number of Python calls of a method: eagerly, and while tracing."""
        calls = self.by(["context"], counting(["call"], None, [method]))
        return calls["eager",], calls["tracing",]

    @cached_property
    def updated(self) -> frozenset[int]:
        """The updated variables, including arguments that stand for variables."""
        patterns = (pattern for pattern in self.patterns if pattern.total(updates))
        return frozenset(index for pattern in patterns for index in pattern.variables)

    @cached_property
    def patterns(self) -> list[Pattern]:
        """All variables, grouped by equal counts, in order of their first one.

        Blocks with the same runs on a replica share one number. Entries are first grouped by their
        list of variables, as there are few different lists.
        """
        first: dict[object, int] = {}
        times_of: dict[tuple[int, ...], Counter[tuple[int, Entry]]] = defaultdict(Counter)
        blocks = [*self.blocks, *self.effects]
        for number, block in enumerate(blocks):
            at = first.setdefault((block.replica, block.runs, block.total, block.outside), number)
            for entry in block.entries:
                plain = structs.replace(entry, variables=(), times=1)
                times_of[entry.variables][at, plain] += entry.times
        counters, lists_with = [*times_of.values()], defaultdict[int, list[int]](list)
        for index, variables in enumerate(times_of):
            for variable in variables:
                lists_with[variable].append(index)

        @cache
        def cells(*lists: int) -> _Cells:
            times = sum((counters[index] for index in lists), Counter[tuple[int, Entry]]())
            return frozenset(times.items())

        together: dict[tuple[bool, _Cells], list[int]] = defaultdict(list)
        for variable in self.variables:
            is_argument = self.trace.variables[variable].argument
            together[is_argument, cells(*lists_with[variable])].append(variable)
        return [
            Pattern(
                alike,
                argument,
                (
                    structs.replace(blocks[at], entries=(structs.replace(entry, times=times),))
                    for (at, entry), times in parts
                ),
                self.steps_on,
            )
            for (argument, parts), alike in together.items()
        ]

    @cached_property
    def asked(self) -> list[Pattern]:
        """The patterns of passed or updated variables, without arguments."""
        return [pattern for pattern in self.patterns if pattern.replicas and not pattern.argument]

    @cached_property
    def idle_on(self) -> dict[int, int]:
        """How many steps updated nothing, by replica."""
        return {replica: self.spread(updates, replica=replica)[(0,)] for replica in self.replicas}


def is_first_only(graph: Graph) -> bool:
    """Whether only the first tracing never ran: it made the variables."""
    return graph.idle == 1 < graph.tracings


def summaries_of(trace: Trace) -> list[Summary]:
    """The summaries of all root optimizers, in the order of the trace."""
    return list(trace.derived(_summaries))


def _summaries(trace: Trace) -> tuple[Summary, ...]:
    roots = (index for index, optimizer in enumerate(trace.optimizers) if optimizer.root == index)
    return tuple(Summary(trace, root) for root in roots)
