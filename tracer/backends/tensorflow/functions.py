"""The functions that TensorFlow keeps: those that were traced, and what `tf.function` gives.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import sys
import threading
from collections.abc import Iterable, Iterator, Set
from types import CodeType, FrameType
from typing import Any
from weakref import ReferenceType, ref

from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.autograph.pyct import origin_info
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
    polymorphic_function,
    tf_method_target,
)
from tensorflow.python.framework import func_graph

from tracer.core.call_paths import frames_above, qualified
from tracer.core.instances import instances
from tracer.model.records import Line


def newest_function() -> int:
    """A number that changes when a function is traced."""
    names = eager_context.context().list_function_names()
    return hash(frozenset(names))


_alive: tuple[int, list[ReferenceType[Any]]] = (-1, [])


def functions_alive() -> tuple[list[Any], list[Any]]:
    """Every living `ConcreteFunction`, and every `tf.function`.

    To look for them takes a walk over all objects, so they are kept, weakly, as long as TensorFlow
    knows of no new function.
    """
    global _alive
    classes = (concrete_function.ConcreteFunction, polymorphic_function.Function)
    newest = newest_function()
    if newest != _alive[0]:
        _alive = (newest, [ref(each) for each in instances(classes)])
    functions = [each for known in _alive[1] if (each := known()) is not None]
    concretes = [each for each in functions if isinstance(each, classes[0])]
    return concretes, [each for each in functions if not isinstance(each, classes[0])]


def concrete_functions(function: Any) -> list[Any]:
    """The functions that a `tf.function` was traced to."""
    return list(function._function_cache.values())


def ops_in(graph: Any) -> Iterator[Any]:
    """The ops in the graph of a function, in its branches and loops, and in what it calls:
    TensorFlow keeps all of them with the graph (`framework/ops.py`, `_functions`).
    """
    inner = (function.graph for function in graph._functions.values())
    for each in (graph, *inner):
        yield from each.get_operations()


def bound_to(value: Any) -> Any:
    """The object whose `tf.function` method it is, for what TensorFlow calls such a one with."""
    return value.target if isinstance(value, tf_method_target.TfMethodTarget) else None


_PATIENCE = 5
"""Seconds for which a function that is being traced is waited for."""


def forget_graphs(function: Any) -> bool:
    """Let a `tf.function` forget its graphs, so that its next call traces it; False if it cannot.

    A function of a SavedModel has a class of its own, and no Python code to trace. What made its
    variables in its first call is not asked to again: only the graphs are forgotten
    (`polymorphic_function.py`, `Function._call`).
    """
    if type(function) is not polymorphic_function.Function:
        return False
    # Another thread may be tracing it, and wrap an optimizer there whose function this one traces.
    if not function._lock.acquire(timeout=_PATIENCE):
        return False
    try:
        function._function_cache.clear()
    except BaseException:  # of a signal handler: half cleared, the function would be broken
        function._function_cache.clear()
        raise
    finally:
        function._lock.release()
    return True


def forget_graphs_with(handles: Iterable[Any]) -> None:
    """Let each `tf.function` one of whose graphs captured one of `handles` be traced again."""
    wanted = {id(handle) for handle in handles}
    for function in functions_alive()[1]:
        graphs = (each.graph for each in concrete_functions(function))
        if any(id(outer) in wanted for graph in graphs for outer, _ in graph.captures):
            forget_graphs(function)


def running_functions() -> list[Any]:
    """Each `tf.function` that a thread has called and that is at work, but for what it traces."""
    running = []
    for stack in _stacks().values():
        traced = False
        for frame in stack:
            if frame.f_code is _CALL and not traced:
                running.append(frame.f_locals["self"])
            traced = frame.f_code is _TRACE or (traced and frame.f_code is not _CALL)
    return running


_CALL = polymorphic_function.Function._call.__code__
_CALL_CONCRETE = concrete_function.ConcreteFunction._call_impl.__code__
_TRACE = func_graph.func_graph_from_py_func.__code__


def _stacks() -> dict[int, list[FrameType]]:
    """The frames of each thread, the innermost first; of this one those around who asks.

    A frame that held itself would hold all that the program works with, until it is collected.
    """
    frames = sys._current_frames()
    frames[threading.get_ident()] = sys._getframe(2)
    return {thread: frames_above(each) for thread, each in frames.items()}


def feeds_a_dataset(function: Any) -> bool:
    """Whether tf.data runs this function, and nobody is asked for what it captured
    (`data/ops/structured_function.py`).
    """
    return "_tf_data_function" in function.function_def.attr


def graphs_being_traced() -> list[Any]:
    """The graphs of functions, branches and loops that a thread is tracing now."""
    graphs = (graph_traced_by(frame) for stack in _stacks().values() for frame in stack)
    return [graph for graph in graphs if graph is not None]


def graph_traced_by(frame: FrameType) -> Any | None:
    """The graph that Python's frame builds by calling a function, if it is one that does."""
    return frame.f_locals.get("func_graph") if frame.f_code is _TRACE else None


def any_is_inside(threads: Set[int]) -> bool:
    """Whether one of these threads, but for this one, is in a function that it has called."""
    others = threads - {threading.get_ident()}
    return bool(others) and any(
        frame.f_code in (_CALL, _CALL_CONCRETE)
        for thread, stack in _stacks().items()
        if thread in others
        for frame in stack
    )


def author_of(code: CodeType, line: int) -> Line | None:
    """The line of the author's program from which AutoGraph made a line of `code`.

    AutoGraph keeps the code that it made with each function that it converted, and the source of
    each of its lines (`autograph/pyct/transpiler.py`, `_PythonFnFactory`).
    """
    place = origin_info.LineLocation(code.co_filename, line)
    for original, factories in list(autograph._TRANSPILER._cache._cache.items()):
        for factory in list(factories.values()):
            if factory.module.__file__ == code.co_filename:
                origin = factory.source_map.get(place)
                inner = None if origin is None else origin.function_name
                number = original.co_firstlineno if origin is None else origin.loc.lineno
                name = qualified(original) if inner in (None, original.co_name) else str(inner)
                name = code.co_name if code.co_name == "<lambda>" else name
                return Line(name, original.co_filename, number)
    return None
