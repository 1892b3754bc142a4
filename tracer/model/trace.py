"""`Trace`: what an optimizer did, frozen, and every question that can be put to it.

No TensorFlow: a saved trace is read and queried on a machine that has none.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

from tracer.errors import unknown_name
from tracer.model import records
from tracer.model.records import (
    Block,
    Entry,
    Graph,
    Kind,
    Method,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)

T = TypeVar("T")
What = Literal["updates", "executions", "calls", "requests"]
By = Literal["variable", "step", "replica", "worker", "optimizer", "method", "kind", "context"]

_ROLES: dict[str, frozenset[str]] = {
    "updates": frozenset({"update"}),
    "executions": frozenset({"step", "update", "apply"}),
    "requests": frozenset({"request"}),
}
_KINDS = ("dense", "sparse", "none")


class _Filter(NamedTuple):
    """Resolved filters: sets of indices, None where a filter was not given."""

    kind: Kind | None
    methods: frozenset[int] | None
    variables: frozenset[int] | None
    replicas: frozenset[int] | None
    optimizers: frozenset[int] | None
    steps: range | None


class Trace:
    """A frozen record of what one or more optimizers did, and the questions that it answers.

    It knows no finding, no report and no file: `tracer.CallTrace` is what users get, and says what
    the filters mean.
    """

    first_step: int = 1
    """The number that the first step has in the run; only an excerpt begins later."""
    only: str = ""
    """What an excerpt is limited to, for people; empty for a whole trace."""

    def __init__(
        self,
        data: TraceData,
        *,
        identify: Callable[[object], int | None] = lambda variable: None,
    ) -> None:
        self._data = data
        self._identify = identify
        self._derived: dict[Callable[[Trace], Any], Any] = {}

    def derived(self, make: Callable[["Trace"], T]) -> T:
        """What `make` works out of the trace; it does so once, for a trace never changes.

        It is given a copy, lest the trace and what was made of it keep each other alive.
        """
        if make not in self._derived:
            twin = copy.copy(self)
            twin._derived = {}
            self._derived[make] = make(twin)
        found: T = self._derived[make]
        return found

    # What the trace holds.

    @property
    def data(self) -> TraceData:
        """All of it, as the plain records that a trace file holds."""
        return self._data

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers traced, nested ones after their root."""
        return self._data.optimizers

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that an optimizer was asked to update, in the order it was asked."""
        return self._data.variables

    @property
    def methods(self) -> tuple[Method, ...]:
        """The intercepted methods that were called."""
        return self._data.methods

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas that took part, by worker and id."""
        return self._data.replicas

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers; `("",)` for a local run."""
        return tuple(sorted({replica.worker for replica in self._data.replicas}))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What executed as a whole: one graph's body or an eager step, each on one replica."""
        return self._data.blocks

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """What was traced to graphs: each function with each signature, by replica."""
        return self._data.graphs

    @property
    def environment(self) -> Mapping[str, str]:
        """The versions and the strategy of the run."""
        return self._data.environment

    @property
    def complete(self) -> bool:
        """False if something was not seen; `notes` say what."""
        return self._data.complete

    @property
    def finished(self) -> bool:
        """False for the file of a run that still went on, or that was killed: see `tracer run`."""
        return self._data.finished

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside the counts, one sentence each."""
        return self._data.notes

    def index_of(self, variable: object) -> int | None:
        """The place in `variables` of this variable itself; None if the trace does not know it.

        A trace that was loaded knows names only, and so does one of variables that are gone.
        """
        return self._identify(variable)

    @cached_property
    def steps(self) -> int:
        """The number of steps: of the optimizer and the replica that ran most of them."""
        return max(self.steps_by_replica().values(), default=0)

    def steps_by_replica(self) -> dict[tuple[int, int], int]:
        """The number of steps for each `(root optimizer, replica)`, as indices."""
        steps: dict[tuple[int, int], int] = defaultdict(int)
        for block in self._data.blocks:
            if block.step:
                steps[block.root, block.replica] += block.total
        return dict(steps)

    # Questions.

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
        chosen = self._filter(kind, None, variable, step, replica, worker, optimizer)
        return self._sum("updates", chosen)

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
        """How often the work of a method really ran; of all intercepted ones if none is named."""
        chosen = self._filter(kind, method, variable, step, replica, worker, optimizer)
        return self._sum("executions", chosen)

    def requests(
        self,
        kind: Kind | None = None,
        variable: object = None,
        step: int | range | None = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> int:
        """How many gradients the outermost `apply_gradients` got; kind `"none"` is no gradient."""
        chosen = self._filter(kind, None, variable, step, replica, worker, optimizer)
        return self._sum("requests", chosen)

    def calls(
        self,
        method: str | None = None,
        context: Literal["eager", "tracing"] | None = None,
        kind: Kind | None = None,
        variable: object = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> int:
        """How often Python called a method; `context` is `"eager"` or `"tracing"` (a graph)."""
        if context not in (None, "eager", "tracing"):
            raise unknown_name("context", context, ("eager", "tracing"))
        chosen = self._filter(kind, method, variable, None, replica, worker, optimizer)
        rows = self._call_rows(chosen)
        return sum(number for where, number in rows if context in (None, where["context"]))

    def count(
        self, what: What, by: By | Iterable[By], **filters: Any
    ) -> dict[tuple[Any, ...], int]:
        """The counts of `"updates"`, `"executions"`, `"calls"` or `"requests"`, split by `by`.

        `by` names one or more of `variable`, `step`, `replica`, `worker`, `optimizer`, `method`,
        `kind` and, for calls, `context`; the keys are tuples in that order. Calls have no step.
        Executions whose step is not known are left out of a split by step.
        """
        names = (by,) if isinstance(by, str) else tuple(by)
        if what != "calls" and what not in _ROLES:
            raise unknown_name("count", what, [*_ROLES, "calls"])
        keys = {"variable", "replica", "worker", "optimizer", "method", "kind"}
        keys |= {"context"} if what == "calls" else {"step"}
        for name in names:
            if name not in keys:
                raise unknown_name(f"key to split {what} by:", name, sorted(keys))
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        for where, number in self._rows(what, filters, by_step="step" in names):
            counts[tuple(where[name] for name in names)] += number
        return dict(counts)

    def per_step(
        self, what: Literal["updates", "executions", "requests"], **filters: Any
    ) -> Iterator[tuple[int, int, int]]:
        """The count in each step, as `(first_step, last_step, count)` for runs of equal steps.

        The runs cover every step from 1 to `steps` without a gap, those that a filter leaves out
        with 0; memory does not grow with steps.
        """
        if what not in _ROLES:
            raise unknown_name("count per step", what, _ROLES)
        chosen = self._filter_from(what, filters)
        weighted = [
            (run, weight * run.times)
            for block, weight in self._weights(what, chosen)
            for run in _placed(block, chosen.steps)
        ]
        return records.segments(weighted, self.steps)

    def __repr__(self) -> str:
        names = ", ".join(optimizer.name for optimizer in self.optimizers) or "no optimizer"
        state = "" if self.complete else ", incomplete"
        counts = f"{self.steps} steps, {self.updates()} updates"
        return f"<{type(self).__name__} of {names}: {counts}{state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # it holds dicts, like the records it is made of

    # How they are answered.

    def _filter_from(self, what: str, filters: Mapping[str, Any]) -> _Filter:
        allowed: tuple[str, ...] = ("kind", "variable", "replica", "worker", "optimizer")
        allowed += ("method",) if what in ("executions", "calls") else ()
        allowed += ("step",) if what != "calls" else ()
        for name in filters:
            if name not in allowed:
                raise TypeError(f"{what} has no filter {name!r}; it has {', '.join(allowed)}")
        order = ("kind", "method", "variable", "step", "replica", "worker", "optimizer")
        return self._filter(*(filters.get(name) for name in order))

    def _filter(
        self,
        kind: Kind | None,
        method: str | None,
        variable: object,
        step: int | range | None,
        replica: int | None,
        worker: str | None,
        optimizer: str | None,
    ) -> _Filter:
        if kind is not None and kind not in _KINDS:
            raise unknown_name("kind", kind, _KINDS)
        methods = optimizers = replicas = None
        if method is not None:
            methods = self._named("method", method, [each.name for each in self.methods])
        if optimizer is not None:
            optimizers = self._named("optimizer", optimizer, [o.name for o in self.optimizers])
        if worker is not None:
            replicas = self._named("worker", worker, [r.worker for r in self.replicas])
        if replica is not None:
            ids = [each.id for each in self.replicas]
            if replica not in ids:
                raise unknown_name("replica", replica, sorted(set(ids)))
            chosen = frozenset(index for index, id in enumerate(ids) if id == replica)
            replicas = chosen if replicas is None else replicas & chosen
        variables = None if variable is None else self._variables(variable)
        return _Filter(kind, methods, variables, replicas, optimizers, _steps(step))

    def _named(self, noun: str, pattern: str, names: list[str]) -> frozenset[int]:
        """The indices of the names that are `pattern` or, if none is, that it matches as a glob."""
        exact = frozenset(index for index, name in enumerate(names) if name == pattern)
        found = exact or frozenset(
            index for index, name in enumerate(names) if fnmatchcase(name, str(pattern))
        )
        if not found:
            raise unknown_name(noun, pattern, dict.fromkeys(names))
        return found

    def _variables(self, variable: object) -> frozenset[int]:
        names = [each.name for each in self.variables]
        if isinstance(variable, str):
            return self._shards(variable) or self._named("variable", variable, names)
        index = self.index_of(variable)
        if index is not None:
            return frozenset({index})
        if type(variable).__name__ == "ShardedVariable":
            return frozenset[int]().union(*map(self._variables, variable.variables))  # type: ignore[attr-defined]
        name = plain_name(variable)
        if sum(known.split("#")[0] == name for known in names) > 1:
            raise unknown_name("variable that can be told by the object alone:", name, names)
        if name not in names:  # and it is no glob: a path may hold brackets
            raise unknown_name("variable", name, names)
        return frozenset({names.index(name)})

    def _shards(self, name: str) -> frozenset[int]:
        """The shards of the sharded variable `name`, which has no updates of its own."""
        if not name:
            return frozenset()
        return frozenset(i for i, each in enumerate(self.variables) if each.part_of == name)

    def _weights(self, what: What, chosen: _Filter) -> Iterator[tuple[Block, int]]:
        """Each block with what one execution of it adds to the count."""
        for block in self._data.blocks:
            if chosen.replicas is None or block.replica in chosen.replicas:
                weight = sum(
                    records.contribution(entry, chosen.variables)
                    for entry in block.entries
                    if self._matches(entry, what, chosen)
                )
                if weight:
                    yield block, weight

    def _matches(self, entry: Entry, what: What, chosen: _Filter) -> bool:
        return (
            entry.role in _ROLES[what]
            and (chosen.kind is None or entry.kind == chosen.kind)
            and (chosen.methods is None or entry.method in chosen.methods)
            and (chosen.optimizers is None or entry.optimizer in chosen.optimizers)
        )

    def _sum(self, what: What, chosen: _Filter) -> int:
        return sum(
            weight * _executions(block, chosen.steps)
            for block, weight in self._weights(what, chosen)
        )

    def _rows(
        self, what: What, filters: Mapping[str, Any], by_step: bool
    ) -> Iterator[tuple[dict[str, Any], int]]:
        chosen = self._filter_from(what, filters)
        if what == "calls":
            yield from self._call_rows(chosen)
            return
        for block, _ in self._weights(what, chosen):
            if by_step:
                counts = [
                    (step, run.times)
                    for run in _placed(block, chosen.steps)
                    for step in range(run.first, run.last + 1, run.stride)
                ]
            else:
                counts = [(0, _executions(block, chosen.steps))]
            for entry in block.entries:
                if self._matches(entry, what, chosen):
                    for where in self._places(entry, block.replica, chosen.variables):
                        for step, number in counts:
                            yield {**where, "step": step}, number * entry.times

    def _call_rows(self, chosen: _Filter) -> Iterator[tuple[dict[str, Any], int]]:
        for calls in self._data.calls:
            if (
                (chosen.kind is None or calls.kind == chosen.kind)
                and (chosen.methods is None or calls.method in chosen.methods)
                and (chosen.optimizers is None or calls.optimizer in chosen.optimizers)
                and (chosen.replicas is None or calls.replica in chosen.replicas)
            ):
                for where in self._places(calls, calls.replica, chosen.variables):
                    yield {**where, "context": "eager"}, calls.eager
                    yield {**where, "context": "tracing"}, calls.tracing

    def _places(
        self, entry: Entry | records.Calls, replica: int, only: frozenset[int] | None
    ) -> Iterator[dict[str, Any]]:
        """One dict of names for each variable of `entry`, or one for an entry without variables."""
        where = {
            "optimizer": self.optimizers[entry.optimizer].name,
            "method": self.methods[entry.method].name,
            "kind": entry.kind,
            "replica": self.replicas[replica].id,
            "worker": self.replicas[replica].worker,
        }
        if not entry.variables and only is None:
            yield {**where, "variable": None}
        for index in entry.variables:
            if only is None or index in only:
                yield {**where, "variable": self.variables[index].name}


def plain_name(variable: object) -> str:
    """The framework's name of `variable`: the path of Keras 3 or else TensorFlow's.

    A variable of TensorFlow that one of Keras 3 holds has the name of that one. Raises `TypeError`
    for an object that is no variable.
    """
    path = getattr(variable, "path", None)
    if type(variable).__module__.startswith("tensorflow."):
        from tracer.variables import keras_path  # TensorFlow is there, or there were no variable

        path = keras_path(variable)
    return path if isinstance(path, str) and path else tensorflow_name(variable)


def tensorflow_name(variable: object) -> str:
    """TensorFlow's name of `variable`, without `:0` and replica.

    Raises `TypeError` for an object that is no variable.
    """
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"variable must be a name, a glob or a variable, not {variable!r}")
    name = name.removesuffix(":0")
    head, mark, number = name.rpartition("/replica_")
    return head if mark and number.isdigit() else name


def _steps(step: int | range | None) -> range | None:
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int | range):
        raise TypeError(f"step must be an int or a range, not {step!r}")
    if isinstance(step, int):
        return range(step, step + 1)
    return step if step.step > 0 else step[::-1]


def _executions(block: Block, steps: range | None) -> int:
    if steps is None:
        return block.total
    return sum(run.within(steps) for run in block.runs)


def _placed(block: Block, steps: range | None) -> Iterable[records.Run]:
    """The runs of `block`, or the parts of them that are in `steps`."""
    if steps is None:
        return block.runs
    return [part for run in block.runs if (part := run.only(steps)) is not None]
