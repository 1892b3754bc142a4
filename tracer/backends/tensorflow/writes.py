"""Find out which variables graphs write to, and apply methods that write to none.

A traced method that says `variable = variable - rate * gradient` adds no op that writes to its
variable. A gradient or a rate of 0 is different: the method writes, even if the value stays the
same. A method counts as writing unless its ops provably do not.

Facts about TensorFlow are given with the file of TensorFlow 2.21 that shows them.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from tracer.backends.tensorflow.compat import (
    EagerTensor,
    FuncGraph,
    ResourceVariable,
    graphs_around,
    runs_functions,
)
from tracer.backends.tensorflow.variables import canonical, copies_of

_READS = (
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "Identity",
)


class Written(NamedTuple):
    """The variables that a graph writes to."""

    captured: frozenset[int]
    """The ids of captured handles, which live as long as the graph."""
    anything: bool
    """Whether it writes to any variable, including one passed as an argument."""
    time: int
    """The `unique_number` of its newest tensor."""


_written_by: WeakKeyDictionary[Any, Written] = WeakKeyDictionary()


def written_by(graph: Any) -> Written:
    """The variables that the finished graph of a function writes to; cached."""
    known = _written_by.get(graph)
    if known is None:
        known = _written_by[graph] = written_so_far(graph)
    return known


def written_so_far(graph: Any) -> Written:
    """The variables that a graph writes to, which may still be traced."""
    origin = origins(graph)
    inside = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource} | {*origin}
    operations = graph.get_operations() if inside else ()
    written = inside & {id(tensor) for op in operations for tensor in written_inputs(op).values()}
    captured = frozenset(id(_handle(origin[each], origin)) for each in written if each in origin)
    tensors = (tensor for op in graph.get_operations() for tensor in op.outputs)
    return Written(captured, bool(written), max((each._id for each in tensors), default=0))


def writes_to(graph: Any, variable: Any) -> bool:
    """Whether a graph, or one of those around it, may write to a variable that it captured."""
    handles = {id(handle) for handle in handles_of(variable)}
    graphs = graphs_around(graph) if handles else ()
    functions = (each for each in graphs if isinstance(each, FuncGraph))
    return any(handles & written_so_far(each).captured for each in functions)


def _handle(tensor: Any, origin: Mapping[int, Any]) -> Any:
    """The eager tensor that a captured tensor stands for; None if unknown."""
    while not (tensor is None or isinstance(tensor, EagerTensor)):
        tensor = origin.get(id(tensor))
    return tensor


def written_inputs(op: Any) -> dict[int, Any]:
    """The resource inputs of an op, by position, that the op may write to.

    A call, a branch or a loop only reads inputs that TensorFlow marked as read-only
    (`framework/auto_control_deps_utils.py`).
    """
    if op.type in _READS:
        return {}
    found = {place: each for place, each in enumerate(op.inputs) if each.dtype == tf.resource}
    if found:
        with suppress(ValueError):
            for place in op.get_attr("_read_only_resource_inputs"):
                found.pop(place, None)
    return found


def origins(graph: Any) -> dict[int, Any]:
    """By the id of a tensor in a graph or an outer graph, the outer tensor captured as it."""
    functions = (each for each in graphs_around(graph) if isinstance(each, FuncGraph))
    return {id(inner): outer for each in functions for outer, inner in each.captures}


def may_write(op: Any, handles: Collection[int], origin: Mapping[int, Any]) -> bool:
    """True unless an op of a graph provably writes to none of these handles, which are ids.

    An op that calls Python may write to any variable, and so may a stateful function: its body may
    call Python. `origin` is that of the graph.
    """
    if "PyFunc" in op.type or (op._is_stateful and runs_functions(op)):
        return True
    written = [_handle(tensor, origin) for tensor in written_inputs(op).values()]
    return any(each is None or id(each) in handles for each in written)


def handles_of(variable: Any) -> Collection[Any]:
    """The handles of all copies of a variable; empty if there may be unknown copies."""
    own, raw = canonical(variable), getattr(variable, "_value", variable)  # of Keras 3
    found = [*copies_of(own)]
    found += [getattr(each, "_v", None) for each in found]
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return ()
    known = [each for each in (*found, raw) if isinstance(each, ResourceVariable)]
    return list({id(each.handle): each.handle for each in known}.values())
