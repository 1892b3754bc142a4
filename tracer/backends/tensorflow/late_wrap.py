"""Find functions that were traced before their optimizer was wrapped.

Their graphs hold no counter, so their steps are not counted. The optimizer's own iterations cannot
show this: they stand still while a loss scale skips, jump when a checkpoint is restored, and other
code may change them. So the functions themselves are found when the optimizer is wrapped. The
graphs of a `tf.function` are cleared, so that its next call traces a graph with a counter. An older
graph that is called all the same is noted, such as a `ConcreteFunction` that the program holds, or
a graph of a Session. Where calls are not seen, a graph is noted at once:
the function of a dataset, a function that is being traced, one that calls an older one.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any
from weakref import WeakSet

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    concrete_functions,
    feeds_a_dataset,
    forget_graphs,
    functions_alive,
    graphs_being_traced,
    ops_in,
    running_functions,
)
from tracer.backends.tensorflow.variables import (
    TRACED_PER_VARIABLE,
    canonical,
    iterations_of,
    own_handles,
)
from tracer.backends.tensorflow.writes import Written, written_by, written_so_far
from tracer.core import late_wrap
from tracer.core.late_wrap import Late
from tracer.core.patches import Patch

_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable; excludes assignments, as by an initializer."""
_WRITE = re.compile("Apply|Assign|Scatter")
_SESSION = "a graph of a Session"


class StaleFunctions(late_wrap.StaleFunctions):
    """The stale functions of TensorFlow, and graphs of Sessions."""

    reads_again = "; its Python values are read again then, and its stateful random ops restart"

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__(note)
        self._watched: dict[int, WeakSet[Any]] = defaultdict(WeakSet)
        """By optimizer, the functions whose calls are noted."""
        self._sessions: dict[tuple[int, str], WeakSet[Any]] = defaultdict(WeakSet)
        """By the index and the name of an optimizer, the graphs of Sessions."""
        self._bounds: dict[int, list[int]] = defaultdict(list)
        """When tracing of each optimizer began, ended, began again, ..., as `unique_number`s."""

    def begin(self, index: int, optimizer: Any) -> None:
        """Note that functions traced with this optimizer from now on are counted."""
        if not self._is_traced(index):
            self._bounds[index].append(compat.unique_number())

    def let_go(self, index: int) -> None:
        """Note that functions traced with this optimizer from now on are not counted."""
        if self._is_traced(index):
            self._bounds[index].append(compat.unique_number())

    def find(self, late: Late, retrace: bool) -> None:
        """Clear the graphs of each `tf.function` that uses an optimizer, and watch them all: one
        that is called again is not that of its `tf.function` alone.
        """
        self.begin(late.number, late.optimizer)
        handles = frozenset(map(id, own_handles(late.optimizer)))
        stale = {}
        for function in functions_alive()[0]:
            written = written_by(function.graph)
            was_traced = bisect(self._bounds[late.number], written.time) % 2 == 1
            if not was_traced and _uses(function.graph, written, late, handles):
                stale[id(function)] = function
        running = [id(each) for each in running_functions()] if stale else ()
        for key, function in stale.items():
            name = compat.function_name(function.graph)
            in_dataset = feeds_a_dataset(function)
            if key in running or in_dataset:
                self.missed(late.name, name, unseen=in_dataset)
            elif function._captured_inputs and function not in self._watched[late.number]:
                # A function without captures gets the variables from its caller.
                self._watched[late.number].add(function)
                _watch(function, partial(self._called, late.number, late.name, name))
        again = []
        for function in functions_alive()[1] if stale and retrace else ():
            graphs = [each.graph for each in concrete_functions(function) if id(each) in stale]
            if graphs and forget_graphs(function):
                again.append(compat.function_name(graphs[0]))
        self.retraced(late.name, again)
        for graph in graphs_being_traced():
            if _uses(graph, written_so_far(graph), late, handles):
                region = compat.called_graph(graph)
                self.missed(late.name, compat.function_name(region), unseen=True)
        for graph in _session_graphs(late):
            self._sessions[late.number, late.name].add(graph)
            compat.watch_runs(graph, self)

    def _called(self, index: int, optimizer: str, function: str) -> None:
        """Note a call of a stale function: in eager mode, or by a function that is being traced."""
        if self._is_traced(index):
            self.missed(optimizer, function, unseen=not compat.in_eager())

    def ran_by_session(self, graph: Any) -> None:
        """Note that a Session runs a graph with uncounted updates."""
        for (index, optimizer), graphs in list(self._sessions.items()):
            if graph in graphs and self._is_traced(index):
                self.missed(optimizer, _SESSION)

    def _is_traced(self, index: int) -> bool:
        return len(self._bounds[index]) % 2 == 1


def _watch(function: Any, called: Callable[[], None]) -> None:
    """Call `called` at each call of a function: it evaluates the captures
    (`ConcreteFunction.captured_inputs`).
    """
    first, *others = function._captured_inputs

    def capture() -> Any:
        called()
        return first() if callable(first) else [first]

    ours = [capture, *others]
    Patch(function, "_captured_inputs", ours, "to see calls that are not counted", "gone").put_in()


def _uses(graph: Any, written: Written, late: Late, handles: Collection[int]) -> bool:
    """True if a graph contains updates by an optimizer.

    It writes to one of `handles`, the optimizer's own variables (its iterations, a slot variable),
    or, for a v1 optimizer, its ops have the optimizer's name. A class with its own step may write
    to neither, so each graph that writes to any variable counts as its. Nor does the function in
    which tf_keras compiles an update; which optimizer it belongs to does not matter.
    """
    compiled = late.kind.name == "keras2" and graph.name.startswith(TRACED_PER_VARIABLE)
    if compiled or (late.own_steps and written.anything):
        return True
    by_name = late.kind.name == "v1" and _updates_by(late.name)
    return not written.captured.isdisjoint(handles) or bool(
        by_name and any(by_name.search(op.name) for op in ops_in(graph))
    )


def _updates_by(name: str) -> re.Pattern[str]:
    """A pattern in the names of the ops by which an optimizer of this name updates.

    A loss scale around it adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    return re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")


def _session_graphs(late: Late) -> list[Any]:
    """The living graphs of Sessions that already contain updates by an optimizer.

    A `legacy` or a `v1` optimizer puts them under `NAME/update...` (`training/optimizer.py`,
    `optimizer_v2/optimizer_v2.py`). An optimizer whose class has its own step may put them
    anywhere, so for it each update op counts as one.
    """
    graphs = []
    if late.kind.name == "v1" or (late.kind.name == "legacy" and late.own_steps):
        graphs = compat.session_graphs_alive()
    elif late.kind.name == "legacy" and iterations_of(late.optimizer) is None:
        graph = getattr(canonical(getattr(late.optimizer, "_iterations", None)), "graph", None)
        graphs = [] if graph is None else [graph]
    by_name, by_type = _updates_by(late.name), _WRITE
    if late.own_steps:
        by_name, by_type = re.compile(""), _UPDATE
    return [
        graph
        for graph in graphs
        if any(
            by_name.search(op.name) and by_type.search(op.type) and not compat.is_called_before(op)
            for op in graph.get_operations()
        )
    ]
