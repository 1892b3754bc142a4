"""Functions that were traced before their optimizer was wrapped: found, and watched.

Their graphs hold no counter, so what they run is not counted. An optimizer's own count of its steps
cannot tell: it stands still while a loss scale skips, it moves when a checkpoint is restored, and
others may move it. So the functions themselves are found when the optimizer is wrapped. A
`tf.function` forgets its graphs, so that its next call traces one that is counted. Others cannot (a
`ConcreteFunction` that the program holds, a function of a SavedModel, a call that is under way), so
the graphs are watched while the optimizer is wrapped: a trace is incomplete if one of them was
called, and only then.

Which functions use an optimizer, `users` finds out. Such a one is watched through what it
captures: TensorFlow asks for that at each call (`ConcreteFunction.captured_inputs`), in eager mode
and while another function that calls it is traced.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    concrete_functions,
    feeds_a_dataset,
    is_traced,
    running_functions,
    trace_anew,
)
from tracer.backends.tensorflow.own_variables import iterations_of, own_handles
from tracer.backends.tensorflow.users import (
    Functions,
    functions_alive,
    has_updates_by,
    look,
    updates_by,
)
from tracer.backends.tensorflow.variables import canonical
from tracer.backends.tensorflow.writes import Written, written_by, written_so_far
from tracer.core import backend
from tracer.core.late_wrap import PIPELINE, SESSION_GRAPH, StaleFunction
from tracer.kinds import OptimizerKind

_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable, and do not set it, as an initializer does."""

_WRITE = re.compile("Apply|Assign|Scatter")


class StaleFunctions(backend.StaleFunctions):
    """Functions of TensorFlow that were traced before, and graphs of Sessions."""

    begins_anew = "; stateful random ops in there began their sequence anew"

    def __init__(self) -> None:
        super().__init__()
        self._forgetful: list[_Forgetful] = []
        self._watched: list[_Question] = []
        self._since: dict[int, int] = {}
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._in_part: WeakSet[Any] = WeakSet()  # graphs of which only the end is counted
        self._in_pipelines: list[tuple[StaleFunction, ref[Any]]] = []
        self._run_by_sessions: defaultdict[int, WeakSet[Any]] = defaultdict(WeakSet)
        self._looked_at: dict[int, tuple[int, bool]] = {}

    def begin(self, index: int) -> None:
        """What is traced from now on with an optimizer is counted, until it is let go."""
        self._since.setdefault(index, compat.unique_number())

    def find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find what uses an optimizer uncounted, and watch that from now on."""
        functions = look()
        looked_at = functions.newest, retrace
        if self._looked_at.get(index) == looked_at and not functions.being_traced:
            for question in self._watched:
                if question.stale.optimizer == index:
                    question.ask()
        else:
            self._looked_at[index] = looked_at
            self._find(functions, index, optimizer, kind, name, retrace)
        if kind.name == "v1" or (kind.name == "legacy" and own):
            self._find_in_sessions(index, name, own, functions.session_graphs)
        elif kind.name == "legacy" and iterations_of(optimizer) is None:
            graph = getattr(canonical(getattr(optimizer, "_iterations", None)), "graph", None)
            self._find_in_sessions(index, name, own, [] if graph is None else [graph])

    def settle(self, index: int, optimizer: Any, kind: OptimizerKind, name: str) -> None:
        """Look again for what was not finished when it was found."""
        self._find(look(), index, optimizer, kind, name, retrace=False)

    def _find(
        self,
        functions: Functions,
        index: int,
        optimizer: Any,
        kind: OptimizerKind,
        name: str,
        retrace: bool,
    ) -> None:
        """Find the functions that use an optimizer uncounted, and count their calls from now on.

        If `retrace`, they forget their graphs, if they can.
        """
        self.unsettled.discard(index)
        watched = {id(each.function()) for each in self._watched if each.stale.optimizer == index}
        self._in_pipelines = [each for each in self._in_pipelines if each[0].optimizer != index]
        handles = frozenset(map(id, own_handles(optimizer)))
        scope = name if kind.name == "v1" else ""
        forgettable = set()
        for function in functions.users_of(optimizer, handles, _methods_of(kind), scope):
            graph = self._uncounted(index, function.graph, handles, scope)
            if graph is None:
                continue
            stale = StaleFunction(index, compat.function_name(graph))
            if graph is function.graph:
                forgettable.add(id(function))
            else:
                stale = stale._replace(caller=compat.function_name(function.graph))
            if feeds_a_dataset(function):
                self._in_pipelines.append((stale._replace(caller=PIPELINE), ref(function)))
            elif id(function) not in watched and function._captured_inputs:
                # What captures nothing gets the variables as arguments, of a function around it.
                self._watched.append(_Question(function, stale, self._called))
        for question in self._watched:
            if question.stale.optimizer == index:
                question.ask()
        if forgettable:
            self._forget(index, forgettable, functions.polymorphics_of(forgettable), retrace)
        for graph in functions.being_traced:
            region = compat.called_graph(graph)
            if index not in self._since and _uses(graph, written_so_far(graph), handles, scope):
                self.calls[StaleFunction(index, compat.function_name(region))] += 1
                self._in_part.add(region)
            if region in self._in_part:
                self.unsettled.add(index)

    def _uncounted(
        self, index: int, graph: Any, handles: Collection[int], scope: str
    ) -> Any | None:
        """The graph of a function that uses an optimizer, or of one that it calls, if that is not
        counted; None if all is.

        A function is counted if its tracing ended while the optimizer was traced.
        """
        inner = [each.graph for each in graph._functions.values()]
        users = [each for each in inner if _uses(each, written_by(each), handles, scope)]
        for each in (graph, *users):
            time = written_by(each).time
            since = self._since.get(index)
            if each in self._in_part or not (
                (since is not None and time >= since)
                or any(begin <= time < end for begin, end in self._spans[index])
            ):
                return each
        return None

    def _forget(
        self, index: int, stale: Collection[int], polymorphics: Iterable[Any], retrace: bool
    ) -> None:
        """Let the functions forget their graphs that are `stale`; say which of them are running."""
        running = {id(function) for function in running_functions()}
        for function in polymorphics:
            graphs = [each for each in concrete_functions(function) if id(each) in stale]
            if graphs:
                name = compat.function_name(graphs[0].graph)
                if id(function) in running:
                    self.calls[StaleFunction(index, name)] += 1
                known = _Forgetful(
                    StaleFunction(index, name), ref(function), _written_by_all(graphs)
                )
                if retrace and trace_anew(function):
                    self._forgetful.append(known)

    def in_pipelines(self) -> list[StaleFunction]:
        """The functions of living datasets, which do not ask for what they captured."""
        alive = (stale for stale, function in self._in_pipelines if function() is not None)
        return list(dict.fromkeys(each for each in alive if each.optimizer in self._since))

    def traced_anew(self) -> Counter[StaleFunction]:
        """The functions that were traced again since they forgot their graphs."""
        return Counter(
            each.stale
            for each in list(self._forgetful)
            if (function := each.function()) is not None and is_traced(function)
        )

    def other_now(self) -> list[StaleFunction]:
        """Those of them that no longer write to all of the variables that they wrote to before."""
        return [
            each.stale
            for each in list(self._forgetful)
            if (graphs := each.graphs()) and each.written - _written_by_all(graphs)
        ]

    def _find_in_sessions(self, index: int, name: str, own: bool, graphs: list[Any]) -> None:
        """Note when a Session runs one of `graphs` that holds updates already.

        They are those of a `legacy` or a `v1` optimizer called `name`, which puts them under
        `NAME/update...` (`training/optimizer.py`, `optimizer_v2/optimizer_v2.py`). One whose class
        has its `own` step may put them anywhere, so each update is taken for one of them.
        """
        by_name = updates_by(name)
        for graph in graphs:
            if graph not in self._run_by_sessions[index] and any(
                (_UPDATE.search(op.type) if own else by_name.search(op.name))
                and _WRITE.search(op.type)
                and not compat.is_called_before(op)
                for op in graph.get_operations()
            ):
                self._run_by_sessions[index].add(graph)
                compat.watch_runs(graph, self)

    def ran_by_session(self, graph: Any) -> None:
        """A Session runs a graph with updates that are not counted."""
        for index in list(self._since):
            if graph in self._run_by_sessions[index]:
                self.calls[StaleFunction(index, SESSION_GRAPH)] += 1

    def let_go(self, index: int) -> None:
        """Give back what was captured by the functions that are watched for an optimizer."""
        for question in self._watched:
            if question.stale.optimizer == index:
                question.give_back()
        self._spans[index].append((self._since.pop(index, 0), compat.unique_number()))
        self.unsettled.discard(index)

    def _called(self, stale: StaleFunction) -> None:
        """A stale function is called: now, or whenever the function that is traced now runs."""
        if not compat.in_eager():
            caller = compat.function_name(compat.current_graph())
            stale = stale._replace(caller=stale.caller or caller)
            self.unsettled.add(stale.optimizer)
        self.calls[stale] += 1


def _uses(graph: Any, written: Written, handles: Collection[int], scope: str) -> bool:
    """Whether a graph writes to one of `handles`, or has ops under `scope`, if that is given."""
    return not written.captured.isdisjoint(handles) or bool(scope and has_updates_by(graph, scope))


def _methods_of(kind: OptimizerKind) -> set[str]:
    return {*kind.step_methods, *(method.name for method in kind.apply_methods)}


class _Forgetful(NamedTuple):
    """A `tf.function` that was let forget its graphs."""

    stale: StaleFunction
    function: ref[Any]
    written: frozenset[int]
    """The ids of the handles that its graphs wrote to."""

    def graphs(self) -> list[Any]:
        """What it was traced to since."""
        function = self.function()
        return [] if function is None else concrete_functions(function)


def _written_by_all(functions: Iterable[Any]) -> frozenset[int]:
    """The ids of the handles that the graphs of these concrete functions write to."""
    return frozenset().union(*(written_by(each.graph).captured for each in functions))


class _Question:
    """Stands among what a function captured, for the first of it, and reports when that is asked.

    Several recorders may watch one function: then the first is the question of another one.
    """

    def __init__(
        self, function: Any, stale: StaleFunction, called: Callable[[StaleFunction], None]
    ) -> None:
        self.function = ref(function)
        self.stale = stale
        self._called = called
        self._first: Any = None
        self._asked = False

    def ask(self) -> None:
        """Report each call from now on."""
        function = self.function()
        if function is not None and not self._asked:
            self._asked = True
            first, *others = function._captured_inputs
            if self not in _questions(first):
                self._first = first
                function._captured_inputs = [self, *others]

    def give_back(self) -> None:
        """Report no more; the function gets what it captured, but for questions of others."""
        self._asked = False
        function = self.function()
        if function is not None:
            first, *others = function._captured_inputs
            while isinstance(first, _Question) and not first._asked:
                first = first._first
            function._captured_inputs = [first, *others]

    def __call__(self) -> Any:
        if self._asked:
            self._called(self.stale)
        return self._first() if callable(self._first) else [self._first]


def _questions(first: Any) -> Iterator[_Question]:
    while isinstance(first, _Question):
        yield first
        first = first._first


def forget_graphs_with(handles: Iterable[Any]) -> None:
    """Let each `tf.function` one of whose graphs captured one of `handles` be traced anew."""
    wanted = {id(handle) for handle in handles}
    for function in functions_alive()[1]:
        if any(_captures(each, wanted) for each in concrete_functions(function)):
            trace_anew(function)


def _captures(function: Any, handles: Collection[int]) -> bool:
    """Whether the graph of a concrete function captured a tensor with one of these ids."""
    return any(id(outer) in handles for outer, _ in function.graph.captures)
