"""Find the functions that TensorFlow keeps, and which variables their graphs write to.

A traced method that says `variable = variable - rate * gradient` adds no op that writes to its
variable. A gradient or a rate of 0 is different: the method writes, even if the value stays the
same. A method counts as writing unless its ops provably do not.

Facts about TensorFlow are given with the file of TensorFlow 2.21 that shows them.
"""

import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Set
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import tensorflow as tf
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.autograph.pyct import origin_info
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
    polymorphic_function,
    tf_method_target,
)
from tensorflow.python.framework import auto_control_deps_utils, func_graph

from tracer.backends.tensorflow.compat import (
    EagerTensor,
    FuncGraph,
    ResourceVariable,
    function_name,
    graphs_around,
    runs_functions,
)
from tracer.backends.tensorflow.variables import canonical, copies_of
from tracer.core.call_paths import frames_from, qualified
from tracer.core.instances import instances
from tracer.model.records import Line

_alive: tuple[set[str], list[ReferenceType[Any]]] = (set(), [])


def functions_alive() -> tuple[list[Any], list[Any]]:
    """Every living `ConcreteFunction`, and every living `tf.function`.

    The search goes through all objects, so weak references to its result are kept until
    TensorFlow has a new function.
    """
    global _alive
    classes = (concrete_function.ConcreteFunction, polymorphic_function.Function)
    names = set(eager_context.context().list_function_names())
    if not names <= _alive[0]:
        _alive = (names, [ref(each) for each in instances(classes)])
    functions = [each for known in _alive[1] if (each := known()) is not None]
    concretes = [each for each in functions if isinstance(each, classes[0])]
    return concretes, [each for each in functions if not isinstance(each, classes[0])]


def concrete_functions(function: Any) -> list[Any]:
    return list(function._function_cache.values())


def ops_in(graph: tf.Graph) -> Iterator[tf.Operation]:
    """The ops in a function's graph, its branches and loops, and the functions that it calls.

    TensorFlow keeps all of them with the graph (`framework/ops.py`, `_functions`).
    """
    inner = (function.graph for function in graph._functions.values())
    for each in (graph, *inner):
        yield from each.get_operations()


def bound_to(value: object) -> object:
    """The object that a `tf.function` method is bound to, from TensorFlow's stand-in for it."""
    return value.target if isinstance(value, tf_method_target.TfMethodTarget) else None


_PATIENCE = 5
"""How many seconds to wait for a function that is being traced."""


def forget_functions_of(graphs: Collection[tf.Graph]) -> list[str]:
    """Clear the graphs of each `tf.function` that has one of these graphs, so that its next call
    traces it; returns the names of those functions.

    A function of a SavedModel has a class of its own, and no Python code to trace. A function that
    created variables in its first call must not create them again, so only its graphs are cleared
    (`polymorphic_function.py`, `Function._call`).
    """
    names = []
    for function in functions_alive()[1] if graphs else ():
        own = [each.graph for each in concrete_functions(function) if each.graph in graphs]
        # Another thread may be tracing it and wrap an optimizer, while this one traces another.
        is_plain = bool(own) and type(function) is polymorphic_function.Function
        if is_plain and function._lock.acquire(timeout=_PATIENCE):
            try:
                function._function_cache.clear()
            finally:  # a signal handler may raise: a half-cleared function would be broken
                function._function_cache.clear()
                function._lock.release()
            names.append(function_name(own[0]))
    return names


def is_under_way(function: Any) -> bool:
    """True if a thread calls this `ConcreteFunction`, or tf.data runs it: it looks at its captures
    no more (`data/ops/structured_function.py`).
    """
    called = (
        frame.f_locals["self"]
        for stack in stacks().values()
        for frame in stack
        if frame.f_code is _CALL_FLAT
    )
    return "_tf_data_function" in function.function_def.attr or function in called


_CALL = polymorphic_function.Function._call.__code__
_CALL_FLAT = concrete_function.ConcreteFunction._call_flat.__code__
_CALL_CONCRETE = concrete_function.ConcreteFunction._call_impl.__code__
_TRACE = func_graph.func_graph_from_py_func.__code__


def stacks() -> dict[int, list[FrameType]]:
    """The frames of each thread, innermost first; of this thread only the frames of the callers.

    A frame that referred to itself would keep the program's objects alive until it is collected.
    """
    frames = sys._current_frames()
    frames[threading.get_ident()] = sys._getframe(2)
    return {thread: [*frames_from(each)] for thread, each in frames.items()}


def graphs_being_traced() -> list[tf.Graph]:
    """The graphs of functions, branches and loops that threads are tracing now."""
    graphs = (graph_traced_by(frame) for stack in stacks().values() for frame in stack)
    return [graph for graph in graphs if graph is not None]


def graph_traced_by(frame: FrameType) -> tf.Graph | None:
    """The graph that a frame builds by tracing a function; None for other frames."""
    return frame.f_locals.get("func_graph") if frame.f_code is _TRACE else None


def any_is_inside(threads: Set[int]) -> bool:
    """True if one of these threads is inside a call of a function."""
    return any(
        frame.f_code in (_CALL, _CALL_CONCRETE)
        for thread, stack in stacks().items()
        if thread in threads
        for frame in stack
    )


def author_of(code: CodeType, line: int) -> Line | None:
    """The line of the program from which AutoGraph generated a line of `code`.

    AutoGraph keeps the code generated for each function that it converted, and the source of each
    line (`autograph/pyct/transpiler.py`, `_PythonFnFactory`).
    """
    place = origin_info.LineLocation(code.co_filename, line)
    for original, factories in list(autograph._TRANSPILER._cache._cache.items()):
        for factory in list(factories.values()):
            if factory.module.__file__ == code.co_filename:
                origin = factory.source_map.get(place)
                number = original.co_firstlineno if origin is None else origin.loc.lineno
                inner = getattr(origin, "function_name", None)
                is_own = code.co_name == "<lambda>" or inner in (None, original.co_name)
                name = qualified(original) if is_own else str(inner)
                return Line(name, original.co_filename, number)
    return None


# The variables that graphs write to.


class Written(NamedTuple):
    """The variables that a graph writes to."""

    captured: frozenset[int]
    """The ids of captured handles, which live as long as the graph."""
    anything: bool
    """Whether it writes to any variable, including one passed as an argument."""
    time: int
    """The `unique_number` of its newest tensor."""


_written_by: WeakKeyDictionary[tf.Graph, Written] = WeakKeyDictionary()


def written_by(graph: tf.Graph) -> Written:
    """The variables that the finished graph of a function writes to; cached."""
    known = _written_by.get(graph)
    if known is None:
        known = _written_by[graph] = written_so_far(graph)
    return known


def written_so_far(graph: tf.Graph) -> Written:
    """The variables that a graph writes to, which may still be traced."""
    origin = origins(graph)
    inside = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource} | {*origin}
    operations = graph.get_operations() if inside else ()
    written = inside & {id(tensor) for op in operations for tensor in written_inputs(op)}
    captured = frozenset(id(_handle(origin[each], origin)) for each in written if each in origin)
    tensors = (tensor for op in graph.get_operations() for tensor in op.outputs)
    return Written(captured, bool(written), max((each._id for each in tensors), default=0))


def writes_to(graph: tf.Graph, variable: object) -> bool:
    """Whether a graph, or one of those around it, may write to a variable that it captured."""
    handles = handles_of(variable)
    functions = (each for each in graphs_around(graph) if isinstance(each, FuncGraph) and handles)
    return any(handles & written_so_far(each).captured for each in functions)


def _handle(tensor: tf.Tensor, origin: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """The eager tensor that a captured tensor stands for; None if unknown."""
    while not (tensor is None or isinstance(tensor, EagerTensor)):
        tensor = origin.get(id(tensor))
    return tensor


def written_inputs(op: tf.Operation) -> list[tf.Tensor]:
    """The resource inputs of an op that the op may write to.

    A call, a branch or a loop only reads inputs that TensorFlow marked as read-only.
    """
    if op.type in ("Identity", "VarIsInitializedOp"):
        return []
    return list(auto_control_deps_utils.get_read_write_resource_inputs(op)[1])


def origins(graph: tf.Graph) -> dict[int, tf.Tensor]:
    """By the id of a tensor in a graph or an outer graph, the outer tensor captured as it."""
    functions = (each for each in graphs_around(graph) if isinstance(each, FuncGraph))
    return {id(inner): outer for each in functions for outer, inner in each.captures}


def may_write(op: tf.Operation, handles: Collection[int], origin: Mapping[int, tf.Tensor]) -> bool:
    """True unless an op of a graph provably writes to none of these handles, which are ids.

    An op that calls Python may write to any variable, and so may a stateful function: its body may
    call Python. `origin` is that of the graph.
    """
    if "PyFunc" in op.type or (op._is_stateful and runs_functions(op)):
        return True
    written = [_handle(tensor, origin) for tensor in written_inputs(op)]
    return any(each is None or id(each) in handles for each in written)


def handles_of(variable: object) -> set[int]:
    """The ids of the handles of all copies of a variable; empty if there may be unknown copies."""
    own, raw = canonical(variable), getattr(variable, "_value", variable)  # of Keras 3
    copies = copies_of(own)
    found = (*copies, *(getattr(each, "_v", None) for each in copies), raw)
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return set()
    return {id(each.handle) for each in found if isinstance(each, ResourceVariable)}
