"""What writes to a variable: the ops of a graph, and what stands in the memory of a variable.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from tracer.backends.tensorflow.compat import (
    EagerTensor,
    FuncGraph,
    ResourceVariable,
    called_graph,
    function_name,
    graphs_around,
    stop_recording,
)
from tracer.backends.tensorflow.functions import ops_in

_READS = (
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "Identity",
)


class Written(NamedTuple):
    """What a graph writes to."""

    captured: frozenset[int]
    """The ids of the handles that it captured; they live as long as the graph."""
    anything: bool
    """Whether it writes to any variable, also to one that is an argument."""


_written_by: WeakKeyDictionary[Any, Written] = WeakKeyDictionary()


def written_by(graph: Any) -> Written:
    """Which variables the finished graph of a function writes to: asked again, it is known."""
    known = _written_by.get(graph)
    if known is None:
        known = _written_by[graph] = _find_written(graph)
    return known


def _find_written(graph: Any) -> Written:
    outer_of = {id(inner): outer for outer, inner in graph.captures}
    inside = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource} | {*outer_of}
    operations = graph.get_operations() if inside else ()
    written = inside & {id(tensor) for op in operations for tensor in written_inputs(op).values()}
    captured = frozenset(id(outer_of[each]) for each in written if each in outer_of)
    return Written(captured, bool(written))


def written_inputs(op: Any) -> dict[int, Any]:
    """The inputs of an op, by position, that may be of variables to which it writes.

    A call, a branch or a loop only reads what TensorFlow marked so
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


class Write(NamedTuple):
    """An op in a graph, or in a function that it calls, that writes to a variable."""

    time: int
    """The `unique_number` that the newest of its inputs got, so that it was added after that."""
    function: str
    """The function in whose graph it is."""
    called: bool
    """Whether that is another function than the one that was asked for, which calls it."""


def writes_of(graph: Any, handles: Collection[int] | None) -> Iterator[Write]:
    """Each `Write` to a variable in one of these `handles`, or in any if None.

    A call is none by itself, but what it calls is looked at.
    """
    return _writes_in(graph, _inside(graph, handles), graph)


def ops_named(graph: Any, name: re.Pattern[str]) -> Iterator[Write]:
    """The ops of which a part of the name is such a one, as far as they have inputs."""
    for op in ops_in(graph):
        if name.search(op.name) and op.inputs and not _called_by(op, graph):
            yield _write(op, graph)


def _write(op: Any, root: Any) -> Write:
    region = called_graph(op.graph)
    time = max(tensor._id for tensor in op.inputs)
    return Write(time, function_name(region), region is not called_graph(root))


def _inside(graph: Any, handles: Collection[int] | None) -> set[int]:
    """The ids of the tensors in `graph` that are such handles."""
    if not isinstance(graph, FuncGraph):
        return set()
    known: set[int] = set()
    if handles is None:
        known = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource}
    elif isinstance(graph.outer_graph, FuncGraph):
        known = _inside(graph.outer_graph, handles)
    return known | {
        id(inner)
        for outer, inner in graph.captures
        if handles is None or id(outer) in handles or id(outer) in known
    }


def _writes_in(graph: Any, inside: Collection[int], root: Any) -> Iterator[Write]:
    for op in graph.get_operations() if inside else ():
        written = [place for place, each in written_inputs(op).items() if id(each) in inside]
        if not written:
            continue
        bodies = _called_by(op, root)
        if not bodies or None in bodies:
            yield _write(op, root)
            continue
        first = 1 if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0
        for body in bodies:
            inputs = dict(enumerate(body.inputs, first))
            passed = {id(inputs[place]) for place in written if place in inputs}
            yield from _writes_in(body, passed, root)


def _called_by(op: Any, root: Any) -> list[Any]:
    """The graphs of the functions that an op calls, None for one that is not known."""
    if not op.type.endswith(("PartitionedCall", "If", "While", "Case", "XlaLaunch")):
        return []
    names = [
        function.name
        for value in _attributes(op)
        for function in ([value.func] if value.HasField("func") else value.list.func)
    ]
    known = (root._functions.get(name) or op.graph._functions.get(name) for name in names)
    return [getattr(function, "graph", None) for function in known]


def traced_at(graph: Any) -> int:
    """The `unique_number` that the newest tensor of a graph got."""
    return max((each._id for op in graph.get_operations() for each in op.outputs), default=0)


_HARMLESS = re.compile("Read|IsInitialized|^Print|^Assert$|^Random|Truncated|^NoOp$|^Identity")
"""The types of stateful ops that write to no variable, or to that of a generator alone."""


def origins(graph: Any) -> dict[int, Any]:
    """By the id of a tensor in a graph, or in one around it, what that graph captured as it."""
    functions = (each for each in graphs_around(graph) if isinstance(each, FuncGraph))
    return {id(inner): outer for each in functions for outer, inner in each.captures}


def may_write(ops: Iterable[Any], handles: Collection[Any], origin: Mapping[int, Any]) -> bool:
    """Whether one of these ops may write to what has these handles; `origin` is of their graph.

    An op writes if the handle is an input that is not only read; what is called by it gets the
    handle in that way as well. An op that may do anything, as one that calls Python, may write.
    """
    ids = {id(handle) for handle in handles}
    return not ids or any(_may_write(op, ids, origin) for op in ops)


def _may_write(op: Any, ids: Collection[int], origin: Mapping[int, Any]) -> bool:
    if any(tensor.dtype._is_ref_dtype for tensor in op.inputs):
        return True
    written = written_inputs(op)
    for handle in written.values():
        while not (handle is None or isinstance(handle, EagerTensor)):
            handle = origin.get(id(handle))
        if handle is None or id(handle) in ids:
            return True
    if op.type in _READS or not op._is_stateful or _HARMLESS.search(op.type):
        return False
    return not written or any(each.HasField("func") or each.list.func for each in _attributes(op))


def _attributes(op: Any) -> Iterable[Any]:
    return list(op.node_def.attr.values())


_LARGEST = 1 << 24
"""A variable of more bytes is not looked at: while its memory is held, a write has to copy it."""


def held(variable: Any) -> Any:
    """What `variable` holds, a tensor in its own memory; None if that cannot be had.

    While it is held, whatever writes to the variable takes other memory: an op that works in place
    copies first where it is not the only one to refer to it (`kernels/training_op_helpers.h`,
    `PrepareToUpdateVariable`).
    """
    if not isinstance(variable, ResourceVariable) or "CPU" not in str(variable.device):
        return None
    if not isinstance(variable.handle, EagerTensor):
        return None
    tensor = _read(variable)
    size = tensor.shape.num_elements() * tensor.dtype.size
    if not 0 < size <= _LARGEST or _address(tensor) is None or not holds(variable, tensor):
        return None
    return tensor


def holds(variable: Any, tensor: Any) -> bool:
    """Whether `variable` is still in the memory of what `held` gave."""
    return _address(_read(variable)) == _address(tensor)


def _read(variable: Any) -> Any:
    with stop_recording():
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _address(tensor: Any) -> int | None:
    """Where a tensor is in memory; None for a scalar, which Python gets a copy of."""
    array = tensor._numpy()
    data = getattr(array, "__array_interface__", {}).get("data") if tensor.shape.rank else None
    return None if data is None else int(data[0])
