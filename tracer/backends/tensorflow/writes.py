"""Find apply methods that never write to their variable, by the ops of a graph or by memory.

A method that says `variable = variable - rate * gradient` runs, but changes nothing. A gradient or
a rate of 0 is different: the method writes, even if the value stays the same. In eager mode, each
call on a variable is checked until one has written to it. A site counts as writing unless it
provably does not.

Facts about TensorFlow are given with the file of TensorFlow 2.21 that shows them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from tracer.backends.tensorflow.compat import (
    EagerTensor,
    FuncGraph,
    ResourceVariable,
    eager_outside_functions,
    graphs_around,
    stop_recording,
)
from tracer.backends.tensorflow.variables import canonical, copies_of
from tracer.core.calls import Call
from tracer.core.interrupts import suppress_faults

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


_HARMLESS = re.compile("Read|IsInitialized|^Print|^Assert$|^Random|Truncated|^NoOp$|^Identity")
"""The types of stateful ops that write to no variable, except the state of a generator."""


def origins(graph: Any) -> dict[int, Any]:
    """By the id of a tensor in a graph or an outer graph, the outer tensor captured as it."""
    functions = (each for each in graphs_around(graph) if isinstance(each, FuncGraph))
    return {id(inner): outer for each in functions for outer, inner in each.captures}


def may_write(ops: Iterable[Any], handles: Collection[Any], origin: Mapping[int, Any]) -> bool:
    """True if one of these ops may write to a variable with these handles.

    An op writes if a handle is among its inputs and not read-only; functions that it calls get
    handles as inputs too. An op that may do anything, such as calling Python, may write. `origin`
    is that of the ops' graph.
    """
    ids = {id(handle) for handle in handles}
    return not ids or any(_may_write(op, ids, origin) for op in ops)


def _may_write(op: Any, ids: Collection[int], origin: Mapping[int, Any]) -> bool:
    if any(tensor.dtype._is_ref_dtype for tensor in op.inputs):
        return True
    written = written_inputs(op)
    for tensor in written.values():
        handle = _handle(tensor, origin)
        if handle is None or id(handle) in ids:
            return True
    if op.type in _READS or not op._is_stateful or _HARMLESS.search(op.type):
        return False
    return not written or any(each.HasField("func") or each.list.func for each in _attributes(op))


def _attributes(op: Any) -> Iterable[Any]:
    return list(op.node_def.attr.values())


_LARGEST = 1 << 24
"""The most bytes of a variable to check: while its value is held, a write has to copy it."""


def held(variable: Any) -> Any:
    """The value of `variable`, as a tensor in the variable's memory; None if impossible.

    While it is held, ops that write to the variable use other memory: an op that works in place
    first copies memory that is also referenced elsewhere (`kernels/training_op_helpers.h`,
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
    """True if `variable` still uses the memory of `tensor`, a result of `held`."""
    return _address(_read(variable)) == _address(tensor)


def _read(variable: Any) -> Any:
    with stop_recording():
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _address(tensor: Any) -> int | None:
    """The memory address of a tensor; None for a scalar, which Python gets as a copy."""
    array = tensor._numpy()
    data = getattr(array, "__array_interface__", {}).get("data") if tensor.shape.rank else None
    return None if data is None else int(data[0])


class _Traced(NamedTuple):
    """A traced call of an apply method, whose ops are numbered from `start` to `end`."""

    site: int
    handles: Collection[Any]
    start: int
    end: int


class WriteChecks:
    """The update sites that were seen to write to their variable, and those that were not."""

    def __init__(self) -> None:
        self._writing: set[int] = set()
        self._idle: set[int] = set()
        self._traced: WeakKeyDictionary[Any, list[_Traced]] = WeakKeyDictionary()

    def ineffective(self) -> set[int]:
        """The sites that were checked and have never written."""
        return self._idle - self._writing

    # In a graph.

    def traced(self, site: int, call: Call) -> bool:
        """Note a traced call of an apply method, whose ops are the latest of its graph.

        Returns whether that is the graph of a function, not of a Session.
        """
        in_function = bool(eager_outside_functions())
        if in_function and site not in self._writing:
            graph, start = call.place.graph, call.extra.start
            traced = _Traced(site, _copies(call.variable), start, graph.num_operations())
            self._traced.setdefault(graph, []).append(traced)
        return in_function

    def judge(self, graph: Any) -> None:
        """Find out which calls traced to `graph`, now complete, write to their variable."""
        calls = self._traced.pop(graph, [])
        if not calls:
            return
        ops, origin = graph.get_operations(), origins(graph)
        for each in calls:
            writes = True
            with suppress_faults():  # an unknown kind of op
                made = reversed(ops[each.start : each.end])
                writes = may_write(made, each.handles, origin)
            (self._writing if writes else self._idle).add(each.site)

    # In eager mode.

    def look(self, site: int, variable: Any) -> Any:
        """The value of `variable` before a call; None if no check is needed or possible."""
        if site in self._writing:
            return None
        before = None
        with suppress_faults():  # the variable cannot be read now
            before = held(canonical(variable)) if len(_copies(variable)) == 1 else None
        if before is None:
            self._writing.add(site)
        return before

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Check whether a call wrote to `variable`, which held `before`; False to check again.

        A call may not have reached the line that writes.
        """
        wrote = True
        with suppress_faults():
            wrote = not holds(canonical(variable), before)
        (self._writing if wrote else self._idle).add(site)
        return wrote


def _copies(variable: Any) -> Sequence[Any]:
    """The handles of all copies of a variable; empty if there may be unknown copies."""
    own, raw = canonical(variable), getattr(variable, "_value", variable)  # of Keras 3
    found = [*copies_of(own)]
    found += [getattr(each, "_v", None) for each in found]
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return ()
    known = [each for each in (*found, raw) if isinstance(each, ResourceVariable)]
    return list({id(each.handle): each.handle for each in known}.values())
