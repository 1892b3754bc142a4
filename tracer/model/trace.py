"""`Trace`: what an optimizer did, frozen, and every question that can be put to it.

No TensorFlow: a saved trace is read and queried on a machine that has none.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Literal, TypeVar

from tracer.errors import is_mistake, shown, unknown_name
from tracer.model import callers, effects, records
from tracer.model.callers import Caller
from tracer.model.names import NAMES_ONLY, Objects
from tracer.model.records import (
    Block,
    Entry,
    Graph,
    GraphTracing,
    Kind,
    Method,
    Optimizer,
    Program,
    Replica,
    Role,
    TraceData,
    Variable,
)
from tracer.model.runs import Run, segments, woven
from tracer.model.selection import (
    ALL,
    DISCARDED,
    EXECUTIONS,
    REQUESTS,
    UPDATES,
    Filters,
    Selection,
    select_entries,
)
from tracer.model.wording import some

T = TypeVar("T")

__tracebackhide__ = is_mistake
What = Literal[
    "updates",
    "executions",
    "discarded",
    "calls",
    "requests",
    "compared",
    "unchanged",
    "not_finite",
]
SplitBy = Literal[
    "variable", "step", "replica", "worker", "optimizer", "method", "kind", "context", "caller"
]

_FEW = 10  # items of a text
_ROLES: dict[str, frozenset[Role]] = {
    "updates": UPDATES,
    "executions": EXECUTIONS,
    "discarded": DISCARDED,
    "requests": REQUESTS,
}


class PerStep(Iterator[tuple[int, int, int]]):
    """The steps in a row that count the same; as a text it shows the first of them."""

    def __init__(self, begin: Callable[[], Iterator[tuple[int, int, int]]]) -> None:
        self._begin = begin
        self._left = begin()

    def __next__(self) -> tuple[int, int, int]:
        return next(self._left)

    def __repr__(self) -> str:
        first = [
            f"{a:,}{'' if a == b else f'-{b:,}'}: {n:,}" for a, b, n in islice(self._begin(), _FEW)
        ]
        return f"<in each step: {', '.join(first)}{', ...' if len(first) == _FEW else ''}>"


class Trace:
    """A frozen record of what one or more optimizers did, and the questions that it answers.

    It knows no finding, no report and no file: `tracer.CallTrace` is what users get, and says what
    the filters mean.
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
        """What `make` works out of the trace; it does so once, for a trace never changes.

        It is given a copy: else the trace and what was made of it would keep each other alive.
        """
        if make not in self._derived:
            twin = copy.copy(self)
            twin._derived = self._derived.copy()
            self._derived[make] = make(twin)
        made: T = self._derived[make]
        return made

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
    def graph_tracings(self) -> tuple[GraphTracing, ...]:
        """The graph tracings as events, in the order in which they began; of many the first."""
        return self._data.graph_tracings

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
    def programs(self) -> tuple[Program, ...]:
        """The processes that ran under `tracer run`, and how they ended."""
        return self._data.programs

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside the counts, one sentence each."""
        return self._data.notes

    @property
    def only(self) -> str:
        """What an excerpt is limited to, for people; empty for a whole trace."""
        return self._data.only

    @property
    def first_step(self) -> int:
        """The number that the first step has in the run; only an excerpt begins later."""
        return self._data.first_step

    @property
    def objects(self) -> Objects:
        """How the trace tells which of its variables an object is."""
        return self._objects

    @cached_property
    def steps(self) -> int:
        """The number of steps: of the optimizer and the replica that ran most of them."""
        return max(self.steps_by_replica().values(), default=0)

    @property
    def has_effects(self) -> bool:
        """Whether it says what steps did to the variables: `count("unchanged", ...)`."""
        return bool(self._data.effects)

    def steps_by_replica(self) -> dict[tuple[int, int], int]:
        """The number of steps for each `(root optimizer, replica)`, as indices."""
        steps: dict[tuple[int, int], int] = defaultdict(int)
        for block in self._data.blocks:
            if block.step:
                steps[block.root, block.replica] += block.total
        return dict(steps)

    # Questions.

    def selection(
        self,
        what: What = "executions",
        filters: Filters = ALL,
    ) -> Selection:
        """The entries of `what` that the filters leave, with what one execution of each counts."""
        return select_entries(self._data, self._objects, _ROLES.get(what), filters)

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
        filters = Filters(kind, variable, step, replica, worker, optimizer)
        return self._total("updates", filters)

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
        filters = Filters(kind, variable, step, replica, worker, optimizer, method)
        return self._total("executions", filters)

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
        filters = Filters(kind, variable, step, replica, worker, optimizer)
        return self._total("requests", filters)

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
        filters = Filters(kind, variable, None, replica, worker, optimizer, method)
        rows = self._call_rows(self.selection("calls", filters))
        return sum(number for keys, number in rows if context in (None, keys["context"]))

    def count(
        self, what: What, by: SplitBy | Iterable[SplitBy], **filters: Any
    ) -> dict[tuple[Any, ...], int]:
        """The counts of `"updates"`, `"executions"`, `"calls"` and so on, split by `by`.

        `"requests"` are the gradients that were handed over; `"discarded"` are the executions of
        apply methods whose result was thrown away, so that they are no updates: Keras on JAX
        computes an update in each step that only accumulates.

        `by` names one or more of `variable`, `step`, `replica`, `worker`, `optimizer`, `method`,
        `kind`, `caller` and, for calls, `context`; the keys are tuples in that order. Calls have no
        step. Executions whose step is not known are left out of a split by step. A caller is a path
        of calls as a text, `train.py:41 main > Model.fit > Adam.apply_gradients`; None if it is not
        known.

        Where effects were asked for (`tracer.wrap(optimizer, effects=True)`) there are three more
        counts, of the steps that were handed a variable: `"compared"` is in how many of them it was
        looked at, `"unchanged"` in how many no bit of it was another one after the step, and
        `"not_finite"` after how many something in it was infinite or NaN. They have no method, no
        kind and no caller. If they were not asked for, `tracer.UnknownName` says so.
        """
        names = (by,) if isinstance(by, str) else tuple(by)
        if what != "calls" and what not in _ROLES and what not in effects.OBSERVATIONS:
            raise unknown_name("count", what, [*_ROLES, "calls", *effects.OBSERVATIONS])
        keys = {"variable", "replica", "worker", "optimizer", "method", "kind", "caller"}
        keys |= {"context"} if what == "calls" else {"step"}
        if what in effects.OBSERVATIONS:
            keys = set(effects.FILTERS)
        for name in names:
            if name not in keys:
                raise unknown_name(f"key to split {what} by:", name, sorted(keys))
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        for keys_of_row, number in self._rows(what, filters, by_step="step" in names):
            counts[tuple(keys_of_row[name] for name in names)] += number
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

        The runs cover every step from 1 to `steps` without a gap, those that a filter leaves out
        with 0; memory does not grow with steps.
        """
        if what not in _ROLES and what not in effects.OBSERVATIONS:
            raise unknown_name("count per step", what, [*_ROLES, *effects.OBSERVATIONS])
        selection = self._selection_from(what, filters)
        counted: dict[int, list[Run]] = defaultdict(list)
        if what in effects.OBSERVATIONS:
            for effect, variables in effects.selected(self._data, what, selection):
                counted[len(variables)] += effects.runs_in(effect, selection.steps)
        for block, number in self._blocks_with(selection) if what in _ROLES else ():
            counted[number] += selection.runs(block)
        weighted = [
            (run, number * run.times) for number, runs in counted.items() for run in woven(runs)
        ]
        return PerStep(lambda: segments(weighted, self.steps))

    def callers(
        self,
        method: str | None = None,
        kind: Kind | None = None,
        variable: object = None,
        step: int | range | None = None,
        replica: int | None = None,
        worker: str | None = None,
        optimizer: str | None = None,
    ) -> Caller:
        """Who calls: a tree from the program's outermost lines to the intercepted methods.

        Its root stands for the run: its `executions` are what `executions` gives for the same
        filters, and its `calls` what `calls` gives; Python calls have no step. Each `Caller` has a
        `line`, its counts, and as `children` what it called, the widest branch first.
        """
        filters = Filters(kind, variable, step, replica, worker, optimizer, method)
        return callers.tree(self._data, self.selection("executions", filters))

    def __repr__(self) -> str:
        names = ", ".join(shown(each.name) for each in self.optimizers) or "no optimizer"
        state = "" if self.complete else ", incomplete"
        counts = f"{some(self.steps, 'step')}, {some(self.updates(), 'update')}"
        return f"<{type(self).__name__} of {names}: {counts}{state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # it holds dicts, like the records it is made of

    # How they are answered.

    def _selection_from(self, what: What, filters: Mapping[str, Any]) -> Selection:
        allowed: tuple[str, ...] = ("kind", "variable", "replica", "worker", "optimizer")
        allowed += ("method",) if what in ("executions", "calls") else ()
        allowed += ("step",) if what != "calls" else ()
        if what in effects.OBSERVATIONS:
            effects.require_effects(self._data, what, self.steps)
            allowed = effects.FILTERS
        for name in filters:
            if name not in allowed:
                raise TypeError(f"{what} has no filter {name!r}; it has {', '.join(allowed)}")
        return self.selection(what, Filters(**filters))

    def _blocks_with(self, selection: Selection) -> Iterator[tuple[Block, int]]:
        """The blocks that hold what is selected, with what one execution of each counts."""
        for block in self._data.blocks:
            number = selection.count(block)
            if number:
                yield block, number

    def _total(self, what: What, filters: Filters) -> int:
        selection = self.selection(what, filters)
        return sum(
            number * selection.executions(block) for block, number in self._blocks_with(selection)
        )

    def _rows(
        self, what: What, filters: Mapping[str, Any], by_step: bool
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """What can be split by, for each count that is added up."""
        selection = self._selection_from(what, filters)
        if what == "calls":
            yield from self._call_rows(selection)
            return
        if what in effects.OBSERVATIONS:
            yield from effects.rows(self._data, what, selection, by_step)
            return
        for block, _ in self._blocks_with(selection):
            if by_step:
                executions = [
                    (step, run.times)
                    for run in selection.runs(block)
                    for step in range(run.first, run.last + 1, run.stride)
                ]
            else:
                executions = [(0, selection.executions(block))]
            caller = callers.path_text(self._data, block.path)
            for entry in block.entries:
                if selection.holds(entry):
                    for keys in self._keys(entry, block.replica, selection.variables):
                        keys["caller"] = caller
                        for step, number in executions:
                            yield {**keys, "step": step}, number * entry.times

    def _call_rows(self, selection: Selection) -> Iterator[tuple[dict[str, Any], int]]:
        for calls in self._data.calls:
            if selection.holds_calls(calls):
                caller = callers.path_text(self._data, calls.path)
                for keys in self._keys(calls, calls.replica, selection.variables):
                    keys["caller"] = caller
                    yield {**keys, "context": "eager"}, calls.eager
                    yield {**keys, "context": "tracing"}, calls.tracing

    def _keys(
        self, entry: Entry | records.Calls, replica: int, only: frozenset[int] | None
    ) -> Iterator[dict[str, Any]]:
        """One dict of names for each variable of `entry`, or one for an entry without variables."""
        keys = {
            "optimizer": self.optimizers[entry.optimizer].name,
            "method": self.methods[entry.method].name,
            "kind": entry.kind,
            "replica": self.replicas[replica].id,
            "worker": self.replicas[replica].worker,
        }
        if not entry.variables and only is None:
            yield {**keys, "variable": None}
        for index in entry.variables:
            if only is None or index in only:
                yield {**keys, "variable": self.variables[index].name}
