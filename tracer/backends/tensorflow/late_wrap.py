"""Find and watch functions that were traced before their optimizer was wrapped.

Their graphs hold no counter, so their steps are not counted. The optimizer's own iterations cannot
show this: they stand still while a loss scale skips, jump when a checkpoint is restored, and other
code may change them. So the functions themselves are found when the optimizer is wrapped. The
graphs of a `tf.function` are cleared, so that its next call traces a graph with a counter. Other
functions cannot be traced again (a `ConcreteFunction` that the program holds, a function of a
SavedModel, a call under way), so they are watched while the optimizer is wrapped: a trace is
incomplete if one of them was called. Calls of a few functions are invisible (functions of a
dataset, functions being traced at that moment, callers of a watched function): a trace is
incomplete if one of these is alive.

`users` finds the functions that use an optimizer. A function is watched through one of its
captures, which TensorFlow evaluates at each call (`ConcreteFunction.captured_inputs`), in eager
mode and while a function that calls it is traced.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    concrete_functions,
    feeds_a_dataset,
    forget_graphs,
    running_functions,
)
from tracer.backends.tensorflow.users import (
    Functions,
    has_updates_by,
    look,
    updates_by,
)
from tracer.backends.tensorflow.variables import canonical, iterations_of, own_handles
from tracer.backends.tensorflow.writes import Written, written_by, written_so_far
from tracer.core import late_wrap
from tracer.core.late_wrap import IN_PART, PIPELINE, SESSION_GRAPH, StaleFunction
from tracer.kinds import OptimizerKind

_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable; excludes assignments, as by an initializer."""

_WRITE = re.compile("Apply|Assign|Scatter")


class StaleFunctions(late_wrap.StaleFunctions):
    """The stale functions of TensorFlow, and graphs of Sessions."""

    reads_again = (
        "; its Python values were read again, and its stateful random ops restarted their sequence"
    )

    def __init__(self) -> None:
        super().__init__()
        self._forgetful: list[tuple[StaleFunction, ref[Any]]] = []
        """Each `tf.function` whose graphs were cleared."""
        self._listeners: dict[int, WeakKeyDictionary[Any, Callable[[], None]]] = defaultdict(
            WeakKeyDictionary
        )
        """By optimizer, the listener of each watched function."""
        self._unseen: dict[StaleFunction, WeakSet[Any]] = defaultdict(WeakSet)
        """Graphs that run uncounted, or partly so, without visible calls."""
        self._run_by_sessions: dict[int, WeakSet[Any]] = defaultdict(WeakSet)
        self._since: dict[int, int] = {}
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._looked_at: dict[int, tuple[int, bool]] = {}

    def begin(self, index: int) -> None:
        """Note that functions traced with this optimizer from now on are counted."""
        self._since.setdefault(index, compat.unique_number())

    def find_and_watch(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find the functions that use an optimizer uncounted, and watch them."""
        look(partial(self._find_and_watch, index, optimizer, kind, name, own, retrace))

    def _find_and_watch(
        self,
        index: int,
        optimizer: Any,
        kind: OptimizerKind,
        name: str,
        own: bool,
        retrace: bool,
        functions: Functions,
    ) -> None:
        looked_at = functions.newest, retrace
        if self._looked_at.get(index) != looked_at or functions.being_traced:
            self._looked_at[index] = looked_at
            handles = frozenset(map(id, own_handles(optimizer)))
            scope = name if kind.name == "v1" else ""
            methods = {*kind.step_methods, *(method.name for method in kind.apply_methods)}
            users = functions.users_of(optimizer, handles, methods, scope)
            stale = self._note_users(index, users, handles, scope)
            self._forget(index, stale, functions.polymorphic if stale else (), retrace)
            for graph in functions.being_traced if index not in self._since else ():
                if _uses(graph, written_so_far(graph), handles, scope):
                    region = compat.called_graph(graph)
                    known = StaleFunction(index, compat.function_name(region), IN_PART)
                    self._note_unseen(known, region)
        for function, listener in list(self._listeners[index].items()):
            _listen(function, listener)
        self._find_in_sessions(index, optimizer, kind, name, own, functions)
        self.begin(index)

    def _note_users(
        self, index: int, users: Iterable[Any], handles: Collection[int], scope: str
    ) -> set[int]:
        """Watch the functions that use an optimizer in an uncounted graph.

        Returns the ids of the functions that use it in their own graph.
        """
        own = set()
        for function in users:
            graph = self._uncounted(index, function.graph, handles, scope)
            if graph is None:
                continue
            stale = StaleFunction(index, compat.function_name(graph))
            if graph is function.graph:
                own.add(id(function))
            else:
                stale = stale._replace(caller=compat.function_name(function.graph))
            if feeds_a_dataset(function):
                self._note_unseen(stale._replace(caller=PIPELINE), function.graph)
            elif function._captured_inputs:
                # A function without captures gets its variables as arguments, from its caller.
                self._listeners[index].setdefault(function, partial(self._called, stale))
        return own

    def _uncounted(
        self, index: int, graph: Any, handles: Collection[int], scope: str
    ) -> Any | None:
        """The first uncounted graph that uses an optimizer, of a function or its callees, or None.

        A function is counted if its tracing ended while the optimizer was traced.
        """
        inner = [each.graph for each in graph._functions.values()]
        users = [each for each in inner if _uses(each, written_by(each), handles, scope)]
        for each in (graph, *users):
            time = written_by(each).time
            since = self._since.get(index)
            if any(
                each in graphs for stale, graphs in self._unseen.items() if stale.caller == IN_PART
            ) or not (
                (since is not None and time >= since)
                or any(begin <= time < end for begin, end in self._spans[index])
            ):
                return each
        return None

    def _forget(
        self, index: int, stale: Collection[int], polymorphics: Iterable[Any], retrace: bool
    ) -> None:
        """Clear the `stale` graphs of each `tf.function`, and note which functions are running."""
        running = {id(function) for function in running_functions()} if stale else ()
        for function in polymorphics:
            graphs = [each.graph for each in concrete_functions(function) if id(each) in stale]
            if graphs:
                known = StaleFunction(index, compat.function_name(graphs[0]))
                if id(function) in running:
                    self.calls[known] += 1
                if retrace and forget_graphs(function):
                    self._forgetful.append((known, ref(function)))

    def unseen(self) -> list[StaleFunction]:
        """The functions that run uncounted, or partly so, without visible calls."""
        return [
            stale
            for stale, graphs in list(self._unseen.items())
            if graphs and stale.optimizer in self._since
        ]

    def retraced(self) -> Counter[StaleFunction]:
        """The functions that were traced again after their graphs were cleared."""
        known = ((stale, function()) for stale, function in list(self._forgetful))
        return Counter(
            stale for stale, function in known if function and concrete_functions(function)
        )

    def _find_in_sessions(
        self,
        index: int,
        optimizer: Any,
        kind: OptimizerKind,
        name: str,
        own: bool,
        functions: Functions,
    ) -> None:
        """Watch Session graphs that already contain updates by an optimizer.

        A `legacy` or a `v1` optimizer called `name` puts them under `NAME/update...`
        (`training/optimizer.py`, `optimizer_v2/optimizer_v2.py`). An optimizer whose class has its
        `own` step may put them anywhere, so for it each update op counts as one.
        """
        graphs = []
        if kind.name == "v1" or (kind.name == "legacy" and own):
            graphs = functions.session_graphs
        elif kind.name == "legacy" and iterations_of(optimizer) is None:
            graph = getattr(canonical(getattr(optimizer, "_iterations", None)), "graph", None)
            graphs = [] if graph is None else [graph]
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
        """Note that a Session runs a graph with uncounted updates."""
        for index in list(self._since):
            if graph in self._run_by_sessions[index]:
                self.calls[StaleFunction(index, SESSION_GRAPH)] += 1

    def let_go(self, index: int) -> None:
        """Restore the captures of the functions that are watched for an optimizer."""
        self.calls.update(stale for stale in self.unseen() if stale.optimizer == index)
        for function, listener in list(self._listeners[index].items()):
            _listen_no_more(function, listener)
        self._spans[index].append((self._since.pop(index, 0), compat.unique_number()))

    def _called(self, stale: StaleFunction) -> None:
        """Note a call of a stale function: in eager mode, or in the function being traced."""
        if compat.in_eager():
            self.calls[stale] += 1
        else:
            graph = compat.current_graph()
            stale = stale._replace(caller=stale.caller or compat.function_name(graph))
            self._note_unseen(stale, compat.graphs_around(graph)[-1])

    def _note_unseen(self, stale: StaleFunction, graph: Any) -> None:
        """Note that a graph runs uncounted, without visible calls, in traces that are open now.

        Later traces are affected only while the graph is alive.
        """
        if graph not in self._unseen[stale]:
            self._unseen[stale].add(graph)
            self.calls[stale] += 1


def _uses(graph: Any, written: Written, handles: Collection[int], scope: str) -> bool:
    """True if a graph writes to one of `handles`, or has update ops under `scope`, if given."""
    return not written.captured.isdisjoint(handles) or bool(scope and has_updates_by(graph, scope))


class _Question:
    """Replaces a function's first capture, and calls the listeners whenever it is evaluated."""

    def __init__(self, first: Any) -> None:
        self.first = first
        self.listeners: list[Callable[[], None]] = []

    def __call__(self) -> Any:
        for listener in list(self.listeners):
            listener()
        return self.first() if callable(self.first) else [self.first]


def _listen(function: Any, listener: Callable[[], None]) -> None:
    """Call `listener` at each call of a function from now on."""
    first, *others = function._captured_inputs
    if not isinstance(first, _Question):
        first = _Question(first)
        function._captured_inputs = [first, *others]
    if listener not in first.listeners:
        first.listeners.append(listener)


def _listen_no_more(function: Any, listener: Callable[[], None]) -> None:
    """Stop calling `listener`; the last listener restores the capture."""
    first, *others = function._captured_inputs
    if isinstance(first, _Question) and listener in first.listeners:
        first.listeners.remove(listener)
        if not first.listeners:
            function._captured_inputs = [first.first, *others]
