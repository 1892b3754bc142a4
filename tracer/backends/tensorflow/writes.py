"""What writes to a variable, as its ops or its memory show, and which apply methods do not.

A method that says `variable = variable - rate * gradient` runs, and changes nothing. Gradients of 0
and a rate of 0 are no such case: then something is written, though it is what was there before. In
eager mode each call of an apply method on a variable is looked at until one has written to it. Of
what cannot be known nothing is said, so a site is taken to write unless the contrary is certain.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
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
    """What a graph writes to."""

    captured: frozenset[int]
    """The ids of the handles that it captured; they live as long as the graph."""
    anything: bool
    """Whether it writes to any variable, also to one that is an argument."""
    time: int
    """The `unique_number` that its newest tensor got."""


_written_by: WeakKeyDictionary[Any, Written] = WeakKeyDictionary()


class StaleGradients:
    """Which steps in a graph have gradients of weights as they were before the step before them."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
        """How many ops a graph had when the last step in it ended, by replica."""

    def ask(self, gradient: Any, graph: Any, replica: int) -> bool:
        """Whether the step that ends now in a graph has such a gradient.

        What of its ops is new since the last step does not read a variable then, and something else
        than constants and arguments is older. In the graph of a `Session` steps need not follow.
        """
        if not isinstance(graph, FuncGraph):
            return False
        ops, ends = graph.get_operations(), self._ends.setdefault(graph, {})
        old = {op.name for op in ops[: ends.get(replica, 0)]}
        ends[replica] = len(ops)
        todo = [getattr(gradient, "values", gradient)] if old and gradient is not None else []
        seen, is_old = set(), False
        while todo:
            op = todo.pop().op
            if op.name in old:
                is_old |= op.type not in ("Const", "Placeholder")
            elif op.name not in seen:
                seen.add(op.name)
                todo += op.inputs
                if any(each.dtype == tf.resource for each in op.inputs):
                    return False
        return is_old


def written_by(graph: Any) -> Written:
    """Which variables the finished graph of a function writes to: asked again, it is known."""
    known = _written_by.get(graph)
    if known is None:
        known = _written_by[graph] = written_so_far(graph)
    return known


def written_so_far(graph: Any) -> Written:
    """Which variables a graph writes to that is still being traced."""
    origin = origins(graph)
    inside = {id(tensor) for tensor in graph.inputs if tensor.dtype == tf.resource} | {*origin}
    operations = graph.get_operations() if inside else ()
    written = inside & {id(tensor) for op in operations for tensor in written_inputs(op).values()}
    captured = frozenset(id(_handle(origin[each], origin)) for each in written if each in origin)
    tensors = (tensor for op in graph.get_operations() for tensor in op.outputs)
    return Written(captured, bool(written), max((each._id for each in tensors), default=0))


def _handle(tensor: Any, origin: Mapping[int, Any]) -> Any:
    """What a tensor stands for outside of all graphs; None if that is not known."""
    while not (tensor is None or isinstance(tensor, EagerTensor)):
        tensor = origin.get(id(tensor))
    return tensor


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


class _Traced(NamedTuple):
    """A call of an apply method that was traced: its ops have the numbers from `start` to `end`."""

    site: int
    handles: Collection[Any]
    start: int
    end: int


class WriteChecks:
    """Which sites of updates were seen to write to their variable, and which not to."""

    def __init__(self) -> None:
        self._writing: set[int] = set()
        self._idle: set[int] = set()
        self._traced: WeakKeyDictionary[Any, list[_Traced]] = WeakKeyDictionary()

    def ineffective(self) -> set[int]:
        """The sites that were looked at and never wrote so far."""
        return self._idle - self._writing

    # In a graph.

    def traced(self, site: int, call: Call) -> bool:
        """An apply method was called, `call`, and its ops are the last ones of its graph.

        Whether that is the graph of a function, and not one of a Session.
        """
        in_function = bool(eager_outside_functions())
        if in_function and site not in self._writing:
            graph, start = call.place.graph, call.extra.start
            traced = _Traced(site, _copies(call.variable), start, graph.num_operations())
            self._traced.setdefault(graph, []).append(traced)
        return in_function

    def judge(self, graph: Any) -> None:
        """Find out which of the calls that were traced to `graph` write: it is complete."""
        calls = self._traced.pop(graph, [])
        if not calls:
            return
        ops, origin = graph.get_operations(), origins(graph)
        for each in calls:
            writes = True
            with suppress_faults():  # an op of a kind that nobody here knows
                made = reversed(ops[each.start : each.end])
                writes = may_write(made, each.handles, origin)
            (self._writing if writes else self._idle).add(each.site)

    # In eager mode.

    def look(self, site: int, variable: Any) -> Any:
        """What `variable` holds before a call; None if there is no need to look, or no way."""
        if site in self._writing:
            return None
        before = None
        with suppress_faults():  # a variable that cannot be read now
            before = held(canonical(variable)) if len(_copies(variable)) == 1 else None
        if before is None:
            self._writing.add(site)
        return before

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Look at `variable`, which held `before`, after a call; False to look at the next too.

        One that has not written yet may only not have come to where it writes.
        """
        wrote = True
        with suppress_faults():
            wrote = not holds(canonical(variable), before)
        (self._writing if wrote else self._idle).add(site)
        return wrote


def _copies(variable: Any) -> Sequence[Any]:
    """The handles of all copies of a variable; none if there may be others."""
    own, raw = canonical(variable), getattr(variable, "_value", variable)  # of Keras 3
    found = [*copies_of(own)]
    found += [getattr(each, "_v", None) for each in found]
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return ()
    known = [each for each in (*found, raw) if isinstance(each, ResourceVariable)]
    return list({id(each.handle): each.handle for each in known}.values())
