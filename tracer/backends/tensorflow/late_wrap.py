"""Find functions that were traced before their optimizer was wrapped.

Their graphs hold no counter, so their steps are not counted. The optimizer's own iterations cannot
show this: they stand still while a loss scale skips, jump when a checkpoint is restored, and other
code may change them. So the functions themselves are found when the optimizer is wrapped. The
graphs of a `tf.function` are cleared, so that its next call traces a graph with a counter. An older
graph that is called all the same is noted, such as a `ConcreteFunction` that the program holds.
Where calls are not seen, a graph is noted at once: a graph of a Session, the function of a dataset,
a function that is being traced, one that calls an older one.
"""

import gc
import inspect
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    bound_to,
    concrete_functions,
    feeds_a_dataset,
    forget_graphs,
    functions_alive,
    graphs_being_traced,
    ops_in,
    running_functions,
)
from tracer.backends.tensorflow.variables import canonical, iterations_of, own_handles
from tracer.backends.tensorflow.writes import Written, written_by, written_so_far
from tracer.core import late_wrap
from tracer.core.late_wrap import Late
from tracer.core.patches import Patch
from tracer.core.reachable import held_by, reachable
from tracer.core.registry import bindings
from tracer.kinds import kind_of

_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable; excludes assignments, as by an initializer."""
_WRITE = re.compile("Apply|Assign|Scatter")
_MAX_STEPS = 6
"""How many references to follow from a function's Python code to an optimizer."""


class StaleFunctions(late_wrap.StaleFunctions):
    """The stale functions of TensorFlow, and graphs of Sessions."""

    reads_again = "; its Python values are read again then, and its stateful random ops restart"

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__(note)
        self._watched: dict[int, WeakSet[Any]] = defaultdict(WeakSet)
        """By optimizer, the functions whose calls are noted."""
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
        any_function = functions_alive()[0] or graphs_being_traced()
        handles = frozenset(map(id, own_handles(late.optimizer) if any_function else ()))
        is_update = _updates_by(late.name) if late.kind.name == "v1" else None
        users = {id(each): each for each in _users_of(late.optimizer, handles, is_update)}
        stale = {
            key: function
            for key, function in users.items()
            if bisect(self._bounds[late.number], written_by(function.graph).time) % 2 == 0
        }
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
            if _uses(graph, written_so_far(graph), handles, is_update):
                region = compat.called_graph(graph)
                self.missed(late.name, compat.function_name(region), unseen=True)
        if _in_session_graph(late):
            gc.collect()  # the graph of a test that has ended
            if _in_session_graph(late):
                self.missed(late.name, "a graph of a Session", unseen=True)

    def _called(self, index: int, optimizer: str, function: str) -> None:
        """Note a call of a stale function: in eager mode, or by a function that is being traced."""
        if self._is_traced(index):
            self.missed(optimizer, function, unseen=not compat.in_eager())

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


def _users_of(
    optimizer: Any, handles: Collection[int], is_update: Callable[[Any], bool] | None
) -> Iterator[Any]:
    """Yield the living concrete functions that use an optimizer, some perhaps twice.

    A function uses it if its graph writes to one of `handles`, the optimizer's own variables (its
    iterations, a slot variable), or if its Python code reaches the optimizer and its graph writes
    to any variable, or, for a v1 optimizer, if an op `is_update`.
    """
    concretes, polymorphics = functions_alive()
    for concrete in concretes:
        if _uses(concrete.graph, written_by(concrete.graph), handles, is_update):
            yield concrete
    for function in polymorphics:
        for concrete in concrete_functions(function):
            if written_by(concrete.graph).anything:
                if concrete.graph not in _in_code:
                    _in_code[concrete.graph] = _optimizers_in(function.python_function)
                if id(optimizer) in _in_code[concrete.graph]:
                    yield concrete


_in_code: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()
"""The ids of the optimizers that the Python code of a graph reaches."""


def _optimizers_in(code: Any) -> frozenset[int]:
    held = reachable(code, _follow, _MAX_STEPS)
    owners = [owner for each in held if (owner := bound_to(each)) is not None]
    return frozenset(id(each) for each in (*held, *owners) if kind_of(type(each)) is not None)


def _uses(
    graph: Any, written: Written, handles: Collection[int], is_update: Callable[[Any], bool] | None
) -> bool:
    """True if a graph writes to one of `handles`, or an op of it is such an update."""
    if not written.captured.isdisjoint(handles):
        return True
    return is_update is not None and any(map(is_update, ops_in(graph)))


def _updates_by(name: str) -> Callable[[Any], bool]:
    """Make the test whether an op in a graph is an update by an optimizer of this name.

    The updates are under the optimizer's name, or under the `name` that a call gave instead
    (`training/optimizer.py`): any that is not the name of another traced optimizer. A loss scale
    around an optimizer adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    names = {getattr(each.optimizer(), "_name", None) for each in list(bindings.values())}
    others = "|".join(re.escape(each) for each in names - {name} if isinstance(each, str))
    own = re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")
    given = re.compile(rf"(^|/)(?!({others})(-wrapped)?(_\d+)?/)[^/]+/update(_|/)")

    def is_update(op: Any) -> bool:
        # The program itself may assign variables, in a scope like `agent/update_target`.
        return bool(
            (own.search(op.name) and _WRITE.search(op.type))
            or (given.search(op.name) and _UPDATE.search(op.type))
        )

    return is_update


def _follow(value: Any) -> Iterator[Any]:
    yield from held_by(value)
    # Look at the class: a variable of a strategy answers any name by adding an op.
    if hasattr(type(value), "python_function") and inspect.isroutine(value.python_function):
        yield value.python_function


def _in_session_graph(late: Late) -> bool:
    """True if a living graph of a Session contains uncounted updates by an optimizer.

    A `legacy` or a `v1` optimizer puts them under `NAME/update...`: see `_updates_by`. An optimizer
    whose class has its own step may put them anywhere, so for it each update op counts as one.
    """
    kind, graphs = late.kind.name, list[Any]()
    if kind == "v1" or (kind == "legacy" and late.own_steps):
        graphs = compat.session_graphs_alive()
    elif kind == "legacy" and iterations_of(late.optimizer) is None:
        graph = getattr(canonical(getattr(late.optimizer, "_iterations", None)), "graph", None)
        graphs = [] if graph is None else [graph]
    is_update = _updates_by(late.name)
    return any(
        (_UPDATE.search(op.type) if late.own_steps else is_update(op))
        and not compat.is_called_before(op)
        for graph in graphs
        for op in graph.get_operations()
    )
