"""What writes to a variable: the ops of a graph, and what stands in the memory of a variable.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from tracer.backends.tensorflow.compat import (
    EagerTensor,
    FuncGraph,
    ResourceVariable,
    called_graph,
    function_name,
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
    written = {
        id(tensor)
        for op in graph.get_operations()
        if inside and op.type not in _READS
        for position, tensor in enumerate(op.inputs)
        if id(tensor) in inside and tensor.dtype == tf.resource and position not in _read_only(op)
    }
    captured = frozenset(id(outer_of[each]) for each in written if each in outer_of)
    return Written(captured, bool(written))


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
        written = {
            position
            for position, tensor in enumerate(op.inputs)
            if id(tensor) in inside and tensor.dtype == tf.resource
        }
        if op.type in _READS or not written - set(_read_only(op) if written else ()):
            continue
        bodies = _called_by(op, root)
        first = 1 if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0
        if not bodies or None in bodies:
            yield _write(op, root)
            continue
        for body in bodies:
            inputs = dict(enumerate(body.inputs, first))
            theirs = {id(inputs[position]) for position in written if position in inputs}
            yield from _writes_in(body, theirs, root)


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


def _read_only(op: Any) -> Collection[int]:
    """Which inputs a call, a branch or a loop only reads, as TensorFlow marked them
    (`framework/auto_control_deps_utils.py`).
    """
    try:
        return tuple(op.get_attr("_read_only_resource_inputs"))
    except ValueError:
        return ()


_HARMLESS = re.compile("Read|IsInitialized|^Print|^Assert$|^Random|Truncated|^NoOp$|^Identity")
"""The types of stateful ops that write to no variable, or to that of a generator alone."""


class OpsOf:
    """The ops of a graph, asked which of them may write to a variable."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._ops = graph.get_operations()
        self._captured: dict[int, dict[int, Any]] = {}

    def may_write(self, handles: Collection[Any], start: int, end: int) -> bool:
        """Whether one of the ops from `start` to `end` may write to what has these handles.

        An op writes if the handle is an input that is not only read; what is called by it gets the
        handle in that way as well. An op that may do anything, as one that calls Python, may write.
        """
        ids = {id(handle) for handle in handles}
        return not ids or any(self._may(op, ids) for op in reversed(self._ops[start:end]))

    def _may(self, op: Any, ids: Collection[int]) -> bool:
        inputs = list(op.inputs)
        if any(tensor.dtype._is_ref_dtype for tensor in inputs):
            return True
        if op.type in _READS:
            return False
        resources = {
            place: tensor for place, tensor in enumerate(inputs) if tensor.dtype == tf.resource
        }
        for place in _read_only(op) if resources else ():
            resources.pop(place, None)
        for tensor in resources.values():
            handle = self._origin(tensor)
            if handle is None or id(handle) in ids:
                return True
        if not op._is_stateful or _HARMLESS.search(op.type):
            return False
        calls = any(value.HasField("func") or value.list.func for value in _attributes(op))
        return calls or not resources

    def _origin(self, tensor: Any) -> Any:
        """The handle of a variable that `tensor` is in a graph; None if that is not known."""
        while not isinstance(tensor, EagerTensor):
            graph = tensor.graph
            captured = self._captured.get(id(graph))
            if captured is None:
                pairs = graph.captures if isinstance(graph, FuncGraph) else ()
                captured = {id(inner): outer for outer, inner in pairs}
                self._captured[id(graph)] = captured
            tensor = captured.get(id(tensor))
            if tensor is None:
                return None
        return tensor


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
