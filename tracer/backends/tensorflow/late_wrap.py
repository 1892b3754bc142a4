"""Find functions that were traced before their optimizer was wrapped.

Their graphs hold no counter, so their steps are not counted. The optimizer's own iterations cannot
show this: they stand still while a loss scale skips, jump when a checkpoint is restored, and other
code may change them. So the functions themselves are found when the optimizer is wrapped. The
graphs of a `tf.function` are cleared, so that its next call traces a graph with a counter. A
`ConcreteFunction` that is still alive then is noted when it is called; what may run unseen is noted
at once: a graph of a Session, the function of a dataset, one that is being called or traced.
"""

import gc
import inspect
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    Written,
    bound_to,
    concrete_functions,
    forget_functions_of,
    functions_alive,
    graphs_being_traced,
    is_under_way,
    ops_in,
    written_by,
    written_so_far,
)
from tracer.backends.tensorflow.variables import canonical, own_handles, value_of
from tracer.core import late_wrap
from tracer.core.instances import instances
from tracer.core.late_wrap import Late
from tracer.core.patches import Patch
from tracer.core.reachable import held_by, reachable
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
        self._bounds: dict[int, list[int]] = defaultdict(list)
        """When tracing of each optimizer began, ended, began again, ..., as `unique_number`s."""
        self._watched: dict[int, WeakSet[Any]] = defaultdict(WeakSet)
        """By optimizer, the functions whose calls are noted."""

    def begin(self, index: int, optimizer: Any) -> None:
        """Note that functions traced with this optimizer from now on are counted."""
        if not self._is_traced(index):
            self._bounds[index].append(compat.unique_number())

    def let_go(self, index: int) -> None:
        """Note that functions traced with this optimizer from now on are not counted."""
        if self._is_traced(index):
            self._bounds[index].append(compat.unique_number())

    def find(self, late: Late, retrace: bool) -> None:
        """Clear the graphs of each `tf.function` that uses an optimizer, and watch what is left."""
        self.begin(late.number, late.optimizer)
        being_traced = graphs_being_traced()
        any_function = bool(functions_alive()[0] or being_traced)
        handles = frozenset(map(id, own_handles(late.optimizer) if any_function else ()))
        is_update = _updates_by(late)
        by_name = is_update if late.kind.name == "v1" else None
        stale = WeakSet(
            function
            for function in _users_of(late, handles, by_name)
            if bisect(self._bounds[late.number], written_by(function.graph).time) % 2 == 0
        )
        if retrace:
            self.retraced(late.name, forget_functions_of({each.graph for each in stale}))
        of_sessions = WeakSet(_session_graphs(late, is_update))
        if stale or of_sessions:
            gc.collect()  # what only garbage holds is gone from both
        for function in list(stale):
            self._watch(late, function)
        for graph in list(of_sessions):
            self.missed(late.name, "a graph of a Session", graph)
        for graph in being_traced:
            if _uses(graph, written_so_far(graph), handles, by_name):
                region = compat.called_graph(graph)
                self.missed(late.name, compat.function_name(region), region)

    def _watch(self, late: Late, function: Any) -> None:
        """Note the calls of a function: each evaluates its captures
        (`ConcreteFunction.captured_inputs`). Without captures, its caller passes the variables.
        """
        graph, name = ref(function.graph), compat.function_name(function.graph)

        def called() -> None:
            if self._is_traced(late.number):
                self.missed(late.name, name, graph())

        def capture() -> Any:
            called()
            return first() if callable(first) else [first]

        if is_under_way(function):
            called()
        elif function._captured_inputs and function not in self._watched[late.number]:
            self._watched[late.number].add(function)
            first, *others = function._captured_inputs
            ours = [capture, *others]
            Patch(function, "_captured_inputs", ours, "to see uncounted calls", "gone").put_in()

    def _is_traced(self, index: int) -> bool:
        return len(self._bounds[index]) % 2 == 1


def _users_of(
    late: Late, handles: Collection[int], is_update: Callable[[Any], bool] | None
) -> Iterator[Any]:
    """Yield the living concrete functions that use an optimizer.

    A function uses it if its graph writes to one of `handles`, the optimizer's own variables (its
    iterations, a slot variable), or if its Python code reaches the optimizer and its graph writes
    to any variable, or, for a v1 optimizer, if an op `is_update`.
    """
    concretes, polymorphics = functions_alive()
    for function in polymorphics:
        for concrete in concrete_functions(function):
            if concrete.graph not in _in_code and written_by(concrete.graph).anything:
                _in_code[concrete.graph] = _optimizers_in(function.python_function)
    for concrete in concretes:
        reached = _in_code.get(concrete.graph, ())
        written = written_by(concrete.graph)
        if id(late.optimizer) in reached or _uses(concrete.graph, written, handles, is_update):
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


def _updates_by(late: Late) -> Callable[[Any], bool]:
    """Make the test whether an op in a graph is an update by a v1 or a legacy optimizer.

    The updates are under the optimizer's name, or under the `name` that a call gave instead, which
    is not that of another optimizer; the op that a v1 call returns has it, too
    (`training/optimizer.py`). A loss scale around an optimizer adds to its name
    (`training/experimental/loss_scale_optimizer.py`).
    """
    own = re.compile(rf"(^|/){re.escape(late.name)}(-wrapped)?(_\d+)?/update")

    @cache
    def given() -> re.Pattern[str]:
        bases = [c for c in type(late.optimizer).__mro__ if c.__name__.startswith("Optimizer")]
        names = {getattr(each, "_name", None) for each in instances(bases)} - {late.name}
        others = "|".join(re.escape(each) for each in names if isinstance(each, str))
        return re.compile(rf"((?:^|.*/)(?!(?:{others})(?:-wrapped)?(?:_\d+)?/)[^/]+)/update(?:_|/)")

    def is_update(op: Any) -> bool:
        if own.search(op.name):
            return _WRITE.search(op.type) is not None
        if "/update" not in op.name or not _UPDATE.search(op.type):
            return False  # without a search of all objects for the other optimizers
        # The program itself may assign variables, in a scope like `agent/update_target`.
        call = given().match(op.name)
        return call is not None and (late.kind.name != "v1" or _has_op(op.graph, call[1]))

    return is_update


def _has_op(graph: Any, name: str) -> bool:
    with suppress(KeyError):
        return graph.get_operation_by_name(name) is not None
    return False


def _follow(value: Any) -> Iterator[Any]:
    yield from held_by(value)
    # Look at the class: a variable of a strategy answers any name by adding an op.
    if hasattr(type(value), "python_function") and inspect.isroutine(value.python_function):
        yield value.python_function


def _session_graphs(late: Late, is_update: Callable[[Any], bool]) -> list[Any]:
    """The living graphs of Sessions with uncounted updates by an optimizer.

    A `legacy` or a `v1` optimizer puts them under `NAME/update...`: see `_updates_by`. An optimizer
    whose class has its own step may put them anywhere, so for it each update op counts as one.
    """
    kind, graphs = late.kind.name, list[Any]()
    if kind == "v1" or (kind == "legacy" and late.own_steps):
        graphs = [
            each for each in instances([compat.Graph]) if not isinstance(each, compat.FuncGraph)
        ]
    elif kind == "legacy":
        iterations = getattr(late.optimizer, "_iterations", None)
        has_value = value_of(iterations, 1) is not None  # so it is in no graph of a Session
        graph = None if has_value else getattr(canonical(iterations), "graph", None)
        graphs = [] if graph is None else [graph]
    return [
        graph
        for graph in graphs
        if any(
            (_UPDATE.search(op.type) if late.own_steps else is_update(op))
            and not compat.is_called_before(op)
            for op in graph.get_operations()
        )
    ]
