"""Implements `Trace`: the frozen counts of optimizers, and the queries on them.

No TensorFlow: a saved trace is read and queried on any machine.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, overload

from tracer.errors import is_mistake, shown, unknown_name
from tracer.model.counts import (
    ROLES,
    Counts,
    Selection,
    StepKinds,
    What,
    counted,
    require_effects,
    rising,
    select_entries,
)
from tracer.model.names import NAMES_ONLY, Objects
from tracer.model.records import (
    OBSERVATIONS,
    Block,
    Finding,
    Graph,
    GraphTracing,
    Kind,
    Method,
    Optimizer,
    Program,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.words import some

T = TypeVar("T")

__tracebackhide__ = is_mistake
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
    - `variable`: a name, a glob (`"encoder/*"`), or the variable itself; a sharded variable stands
      for all of its shards.
    - `step`: a step, numbered from 1 on each replica, or a `range` of steps.
    - `replica`: its id, an int; `worker`: its name in TensorFlow (`"worker:0"`).
    - `optimizer`: its name or a glob.
    - `method`: the name of an intercepted method.

    A filter raises `tracer.UnknownName` if the trace has nothing of that name.
    """

    def __init__(
        self,
        data: TraceData,
        objects: Objects = NAMES_ONLY,
    ) -> None:
        self._data = data
        self._objects = objects
        self._derived: dict[Callable[[Trace], Any], Any] = {}

    def derived(self, make: Callable[["Trace"], T]) -> T:
        """Return `make` of the trace, computed once, because a trace never changes.

        `make` gets a copy: otherwise the trace and the result would keep each other alive.
        """
        if make not in self._derived:
            twin = copy.copy(self)
            twin._derived = self._derived.copy()
            self._derived[make] = make(twin)
        made: T = self._derived[make]
        return made

    # Contents.

    @property
    def data(self) -> TraceData:
        """All data, as the plain records of a trace file."""
        return self._data

    optimizers: tuple[Optimizer, ...] = _of_data("optimizers")
    """The traced optimizers, nested ones after their root."""
    variables: tuple[Variable, ...] = _of_data("variables")
    """The variables that an optimizer was asked to update, in that order; then those of the models
    that it trains."""
    methods: tuple[Method, ...] = _of_data("methods")
    """The intercepted methods that were called."""
    replicas: tuple[Replica, ...] = _of_data("replicas")
    """The replicas that took part, by worker and id."""
    blocks: tuple[Block, ...] = _of_data("blocks")
    """Sites that always execute together: the body of a graph, or an eager step, on one replica."""
    graphs: tuple[Graph, ...] = _of_data("graphs")
    """A `Graph` for each function and signature that was traced, by replica."""
    graph_tracings: tuple[GraphTracing, ...] = _of_data("graph_tracings")
    """The first graph tracings, in the order in which they began."""
    environment: Mapping[str, str] = _of_data("environment")
    """The versions and the strategy of the run."""
    complete: bool = _of_data("complete")
    """False if the trace missed anything: `notes` have it, and any unknown effects."""
    finished: bool = _of_data("finished")
    """False if the run had not ended when `tracer run` wrote the file, or was killed."""
    programs: tuple[Program, ...] = _of_data("programs")
    """The processes that ran under `tracer run`, and how they ended."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the trace missed, and on other facts that matter for the counts."""
        return tuple(map(str, self.data.notes))

    @property
    def objects(self) -> Objects:
        """How the trace identifies an object as one of its variables."""
        return self._objects

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers; `("",)` for a local run."""
        return tuple(sorted({replica.worker for replica in self._data.replicas}))

    @cached_property
    def steps(self) -> int:
        """The number of steps, on the replica and of the optimizer with the most steps."""
        return max(self.steps_by_replica().values(), default=0)

    @property
    def has_effects(self) -> bool:
        """Whether steps compared the variables: then `count("unchanged", ...)` works."""
        return bool(self._data.effects)

    def steps_by_replica(self) -> dict[tuple[int, int], int]:
        """The number of steps for each `(root optimizer, replica)`, as indices."""
        steps: dict[tuple[int, int], int] = defaultdict(int)
        for block in self._data.blocks:
            if block.step:
                steps[block.root, block.replica] += block.total
        return dict(steps)

    @cached_property
    def counts(self) -> Counts:
        """The counts of all blocks, by measures: for reports and checks."""
        blocks = [*counted(self._data)]
        return Counts(blocks, StepKinds(blocks, {0: self.steps}))

    # What layers above say about a trace: imported when asked for.

    def answer(self) -> str:
        """How often the apply methods ran in this run, in two sentences."""
        return str(import_module("tracer.reporters.answer").answer(self))

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
        tracefile.save(self._data, tracefile.file_at(path, self))

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
    def count(self, what: What, by: None = None, **filters: Any) -> int: ...

    @overload
    def count(
        self, what: What, by: SplitBy | Iterable[SplitBy], **filters: Any
    ) -> dict[tuple[Any, ...], int]: ...

    def count(
        self, what: What, by: SplitBy | Iterable[SplitBy] | None = None, **filters: Any
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
        known = {*get_args(SplitBy)} - {"step" if what == "calls" else "context"}
        known = set(_FILTERS[what]) if what in OBSERVATIONS else known
        for name in names:
            if name not in known:
                raise unknown_name(f"key to split {what} by:", name, sorted(known))
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        counted, selection = self._selected(what, filters)
        for key, number in counted.by([_KEYS.get(name, name) for name in names], selection).items():
            counts[tuple(self._named(*each) for each in zip(names, key, strict=True))] += number
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
        **filters: Any,
    ) -> Iterator[tuple[int, int, int]]:
        """The count in each step, as `(first_step, last_step, count)` for runs of equal steps.

        The runs cover all steps from 1 to `steps`; steps that a filter excludes have 0. Memory does
        not grow with the number of steps.
        """
        if what not in (known := [each for each in ROLES if each != "calls"]):
            raise unknown_name("count per step", what, known)
        counted, selection = self._selected(what, filters)
        timeline = counted.timeline(selection)
        return ((first, last, n) for first, last, (n,) in timeline.spans(lambda counts: True))

    def __repr__(self) -> str:
        names = ", ".join(shown(each.name) for each in self.optimizers) or "no optimizer"
        state = "" if self.complete else ", incomplete"
        counts = f"{some(self.steps, 'step')}, {some(self.updates(), 'update')}"
        return f"<{type(self).__name__} of {names}: {counts}{state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # it holds dicts, like the records it is made of

    # Implementation.

    def _selected(self, what: What, filters: Mapping[str, Any]) -> tuple[Counts, Selection]:
        if what in OBSERVATIONS:
            require_effects(self._data, what, self.steps)
        for name in filters:
            if name not in _FILTERS[what]:
                known = ", ".join(_FILTERS[what])
                raise TypeError(f"{what} has no filter {name!r}; it has {known}")
        step = filters.get("step")
        others = {name: wanted for name, wanted in filters.items() if name != "step"}
        selection = select_entries(self._data, self._objects, what, **others)
        return self.counts if step is None else self.counts.within(rising(step)), selection

    def _total(self, what: What, **filters: Any) -> int:
        counts, selection = self._selected(what, filters)
        return counts.total(selection)

    def _named(self, name: str, value: Any) -> Any:
        """The value of a key of `count`, for an index or a value of the records."""
        data = self._data
        match name:
            case "replica":
                return data.replicas[value].id
            case "worker":
                return data.replicas[value].worker
            case "caller":
                return " > ".join(line.label for line in data.lines_of(value)) or None
            case "variable" | "optimizer" | "method" if value is not None:
                return getattr(data, f"{name}s")[value].name
        return value


_KEYS = {"worker": "replica", "caller": "path"}
"""The field of the records for each key of `count` that has another name."""


def has_all_workers(trace: Trace) -> bool:
    """Whether all workers of the cluster, and so all shards, are in the trace."""
    cluster = trace.environment.get("cluster", "")
    return not cluster or {*cluster.split(", ")} <= {*trace.workers}
