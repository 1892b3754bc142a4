"""The functions that TensorFlow keeps: those that were traced, and what `tf.function` gives.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
    polymorphic_function,
    tf_method_target,
)
from tensorflow.python.framework import func_graph


def newest_function() -> int:
    """A number that changes when a function is traced."""
    names = eager_context.context().list_function_names()
    return hash(frozenset(names))


def function_classes() -> list[type]:
    """The classes of functions that were traced, and of what `tf.function` gives.

    Of their subclasses those with an `__init__` of their own, which need not call that of the base
    class (`saved_model/load.py`, `_WrapperFunction`).
    """
    bases = (concrete_function.ConcreteFunction, polymorphic_function.Function)
    derived = (cls for base in bases for cls in base.__subclasses__())
    return [*bases, *(cls for cls in derived if "__init__" in vars(cls))]


def is_concrete(function: Any) -> bool:
    """Whether it is a function that was traced, and not what `tf.function` gives."""
    return isinstance(function, concrete_function.ConcreteFunction)


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


def trace_anew(function: Any) -> bool:
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
    finally:
        function._lock.release()
    return True


def running_functions() -> list[Any]:
    """Each `tf.function` that a thread has called and that is at work, but for what it traces."""
    call = polymorphic_function.Function._call.__code__
    trace = func_graph.func_graph_from_py_func.__code__
    running = []
    for frame in sys._current_frames().values():
        traced = False
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is trace:
                traced = True
            elif at.f_code is call:
                if not traced:
                    running.append(at.f_locals["self"])
                traced = False
            at = at.f_back
    return running


def feeds_a_dataset(function: Any) -> bool:
    """Whether tf.data runs this function, and nobody is asked for what it captured
    (`data/ops/structured_function.py`).
    """
    return "_tf_data_function" in function.function_def.attr


def graphs_being_traced() -> list[Any]:
    """The graphs of functions, branches and loops that a thread is tracing now."""
    trace = func_graph.func_graph_from_py_func.__code__
    graphs = []
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is trace:
                graphs.append(at.f_locals.get("func_graph"))
            at = at.f_back
    return [graph for graph in graphs if graph is not None]
