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

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    concrete_functions,
    feeds_a_dataset,
    graphs_being_traced,
    running_functions,
    trace_anew,
)
from tracer.backends.tensorflow.own_variables import iterations_of, own_handles
from tracer.backends.tensorflow.users import (
    Functions,
    being_written,
    functions_alive,
    look,
    updates_by,
    writes_in,
)
from tracer.backends.tensorflow.variables import canonical
from tracer.backends.tensorflow.writes import Write, traced_at, writes_of, written_by
from tracer.core import backend
from tracer.core.older import PIPELINE, SESSION_GRAPH, Older
from tracer.kinds import OptimizerKind

_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable, and do not set it, as an initializer does."""

_WRITE = re.compile("Apply|Assign|Scatter")


class OlderFunctions(backend.OlderFunctions):
    """Functions of TensorFlow that were traced before, and graphs of Sessions."""

    begins_anew = "; stateful random ops in there began their sequence anew"

    def __init__(self) -> None:
        super().__init__()
        self._forgetful: list[_Forgetful] = []
        self._watched: list[tuple[int, ref[Any], _Question]] = []
        self._since: dict[int, int] = {}
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._in_pipelines: list[tuple[Older, ref[Any]]] = []

    def begin(self, index: int, since: int | None = None) -> None:
        """What is traced from now on with an optimizer, or `since` then, is counted.

        Until it is let go.
        """
        self._since.setdefault(index, compat.unique_number() if since is None else since)

    @property
    def watching(self) -> bool:  # type: ignore[override]
        """Whether there is any function, or graph of a Session, of which calls are counted here."""
        return bool(self._watched or self._in_pipelines or self.unsettled)

    def find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find what uses an optimizer uncounted, and watch that from now on."""
        self._find(index, optimizer, kind, name, retrace)
        if kind.name == "v1" or (kind.name == "legacy" and own):
            self._find_in_sessions(index, name, own, compat.session_graphs_alive())
        elif kind.name == "legacy" and iterations_of(optimizer) is None:
            graph = getattr(canonical(getattr(optimizer, "_iterations", None)), "graph", None)
            self._find_in_sessions(index, name, own, [] if graph is None else [graph])

    def settle(self, index: int, optimizer: Any, kind: OptimizerKind, name: str) -> None:
        """Look again for what was not finished when it was found."""
        self._find(index, optimizer, kind, name, retrace=False)

    def _find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, retrace: bool
    ) -> None:
        """Find what uses an optimizer that is alive."""
        if optimizer is None:
            return
        scope = name if kind.name == "v1" else ""
        self.watch(index, optimizer, own_handles(optimizer), _methods_of(kind), scope, retrace)

    def watch(
        self,
        index: int,
        optimizer: Any,
        variables: Collection[Any],
        methods: Collection[str],
        scope: str,
        retrace: bool,
    ) -> None:
        """Find the graphs that use `optimizer` uncounted, and count their calls from now on.

        If `retrace`, the functions that they are of forget them. `variables` are the optimizer's
        own, `methods` the names of those by which it updates others; a v1 optimizer names its ops
        under `scope`, empty for the others. A graph may be counted in part: what was added to it
        while the optimizer was traced is counted, wherever it is called.
        """
        self.unsettled.discard(index)
        watched = {id(known()) for at, known, _ in self._watched if at == index}
        forgettable = set()
        handles = {id(handle) for handle in variables}
        functions = look()
        for function in functions.users_of(optimizer, variables, methods, scope):
            older = self.uncounted(index, function.graph, handles, scope)
            if not older:
                continue
            graph = function.graph
            own = [write for write in older if not write.called]
            # What was traced meanwhile, and only calls what is older, would call it again.
            anew = bool(own) or not self._counted(index, traced_at(graph))
            name = compat.function_name(graph)
            known = Older(index, name) if anew else Older(index, older[0].function, name)
            if feeds_a_dataset(function):
                self._in_pipelines.append((known._replace(caller=PIPELINE), ref(function)))
            elif id(function) not in watched:
                self._watch(known, function)
            if anew:
                forgettable.add(id(function))
        if forgettable:
            self._forget(index, forgettable, functions.polymorphics_of(forgettable), retrace)
        for graph in graphs_being_traced():
            writes = being_written(graph, handles, scope)
            if any(not self._counted(index, write.time) for write in writes):
                self.calls[Older(index, compat.function_name(compat.called_graph(graph)))] += 1
                self.unsettled.add(index)

    def uncounted(
        self, index: int, graph: Any, handles: Collection[int], scope: str
    ) -> list[Write]:
        """What a function that uses an optimizer writes with it and is not counted: see `watch`."""
        writes = writes_in(graph, handles, scope)
        if not writes:  # it names the optimizer
            writes = list(writes_of(graph, None))
        return [write for write in writes if not self._counted(index, write.time)]

    def _counted(self, index: int, time: int) -> bool:
        """Whether what a graph got at this time is counted for an optimizer."""
        since = self._since.get(index)
        return (since is not None and time >= since) or any(
            begin <= time < end for begin, end in self._spans[index]
        )

    def _forget(
        self, index: int, older: Collection[int], polymorphics: Iterable[Any], retrace: bool
    ) -> None:
        """Let the functions forget their graphs that are `older`; say which of them are running."""
        running = {id(function) for function in running_functions()}
        for function in polymorphics:
            graphs = [each for each in concrete_functions(function) if id(each) in older]
            if graphs:
                name = compat.function_name(graphs[0].graph)
                if id(function) in running:
                    self.calls[Older(index, name)] += 1
                known = _Forgetful(Older(index, name), ref(function), _written_by_all(graphs))
                if retrace and trace_anew(function):
                    self._forgetful.append(known)

    def in_pipelines(self) -> list[Older]:
        """The functions of living datasets, which do not ask for what they captured."""
        return list(dict.fromkeys(older for older, f in self._in_pipelines if f() is not None))

    def traced_anew(self) -> Counter[Older]:
        """The functions that were traced again since they forgot their graphs."""
        return Counter(each.older for each in list(self._forgetful) if each.graphs())

    def other_now(self) -> list[Older]:
        """Those of them that no longer write to all of the variables that they wrote to before."""
        return [
            each.older
            for each in list(self._forgetful)
            if (graphs := each.graphs()) and each.written - _written_by_all(graphs)
        ]

    def _find_in_sessions(self, index: int, name: str, own: bool, graphs: list[Any]) -> None:
        """Note which `graphs` of Sessions hold updates already: nobody sees who runs them.

        They are those of a `legacy` or a `v1` optimizer called `name`, which puts them under
        `NAME/update...` (`training/optimizer.py`, `optimizer_v2/optimizer_v2.py`). One whose class
        has its `own` step may put them anywhere, so each update is taken for one of them.
        """
        by_name = updates_by(name)
        older = Older(index, SESSION_GRAPH)
        found = [
            (older, ref(graph))
            for graph in graphs
            if any(
                (_UPDATE.search(op.type) if own else by_name.search(op.name))
                and _WRITE.search(op.type)
                and not compat.is_called_before(op)
                for op in graph.get_operations()
            )
        ]
        if found:
            graphs.clear()
            gc.collect()  # a graph refers to itself, so it outlives its program
            self._in_pipelines += found

    def let_go(self, index: int) -> None:
        """Give back what was captured by the functions that are watched for an optimizer."""
        for watched, function, question in self._watched:
            if watched == index:
                question.asked = False
                _give_back(function())
        self._spans[index].append((self._since.pop(index, 0), compat.unique_number()))
        self._in_pipelines = [each for each in self._in_pipelines if each[0].optimizer != index]
        self.unsettled.discard(index)
        self._watched = [each for each in self._watched if each[0] != index]

    def _watch(self, older: Older, function: Any) -> None:
        captured = list(function._captured_inputs)
        if not captured:  # it gets the variable as an argument, and needs nothing else
            return
        question = _Question(captured[0], older, self._called)
        function._captured_inputs = [question, *captured[1:]]
        self._watched.append((older.optimizer, ref(function), question))

    def _called(self, older: Older) -> None:
        """An older function is called: now, or whenever the function that is traced now runs."""
        if not compat.in_eager():
            caller = compat.function_name(compat.current_graph())
            older = older._replace(caller=older.caller or caller)
            self.unsettled.add(older.optimizer)
        self.calls[older] += 1


def uncounted_users(
    functions: Functions,
    optimizer: Any,
    kind: OptimizerKind,
    name: str,
    known: tuple[Any, int] | None,
) -> Iterator[Any]:
    """Those of the functions that use an optimizer called `name`, and are not counted for it.

    It is `known`, as the `OlderFunctions` of its recorder and its index, if it was ever traced.
    """
    scope = name if kind.name == "v1" else ""
    variables = own_handles(optimizer)
    handles = {id(handle) for handle in variables}
    for function in functions.users_of(optimizer, variables, _methods_of(kind), scope):
        if known is None or known[0].uncounted(known[1], function.graph, handles, scope):
            yield function


def _methods_of(kind: OptimizerKind) -> set[str]:
    return {*kind.step_methods, *(method.name for method in kind.apply_methods)}


class _Forgetful(NamedTuple):
    """A `tf.function` that was let forget its graphs."""

    older: Older
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
    """Stands among what a function captured for `first`, and tells when that is asked for.

    Several recorders may watch one function: then `first` is the question of another one.
    """

    def __init__(self, first: Any, older: Older, called: Callable[[Older], None]) -> None:
        self.first = first
        self.older = older
        self.called = called
        self.asked = True

    def __call__(self) -> Any:
        if self.asked:
            self.called(self.older)
        return self.first() if callable(self.first) else [self.first]


def _give_back(function: Any) -> None:
    """Give a function what it captured, but for the questions that are still asked of it."""
    if function is not None and isinstance(function._captured_inputs[0], _Question):
        first, *others = function._captured_inputs
        while isinstance(first, _Question) and not first.asked:
            first = first.first
        function._captured_inputs = [first, *others]


def forget_graphs_with(handles: Iterable[Any]) -> None:
    """Let each `tf.function` one of whose graphs captured one of `handles` be traced anew."""
    wanted = {id(handle) for handle in handles}
    for function in functions_alive()[1]:
        if any(_captures(each, wanted) for each in concrete_functions(function)):
            trace_anew(function)


def _captures(function: Any, handles: Collection[int]) -> bool:
    """Whether the graph of a concrete function captured a tensor with one of these ids."""
    return any(id(outer) in handles for outer, _ in function.graph.captures)
