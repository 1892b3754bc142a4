"""The parts of TensorFlow that other modules use; see `functions` for the rest.

Importing this module imports TensorFlow.

Facts about TensorFlow are given with the file of TensorFlow 2.21 that shows them.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.python.data.ops import structured_function
from tensorflow.python.distribute import distribute_lib, mirrored_run
from tensorflow.python.eager import context as eager_context, record
from tensorflow.python.eager.polymorphic_function import saved_model_utils
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import (
    control_flow_v2_func_graphs,
    resource_variable_ops,
    script_ops,
)
from tensorflow.python.saved_model import save_context

from tracer.core.call_paths import frames_from
from tracer.core.late_wrap import SESSION_GRAPH

EagerTensor = ops.EagerTensor
Graph = ops.Graph
FuncGraph = func_graph.FuncGraph
ResourceVariable = resource_variable_ops.BaseResourceVariable
stop_recording = record.stop_recording
TrackableConstant = saved_model_utils.TrackableConstant
unique_number = ops.uid


def in_eager() -> bool:
    """`tf.executing_eagerly()` with one Python call less, for each call of an apply method."""
    return bool(eager_context.context()._thread_local_data.is_eager)


@contextmanager
def outside_of_graphs() -> Iterator[None]:
    """Run in eager mode, while the graph of a function or of a Session is being built.

    `init_scope` leaves only the graphs of functions (`framework/ops.py`).
    """
    with ops.init_scope(), eager_context.eager_mode():
        yield


def value_in(handle: tf.Tensor, dtype: tf.DType) -> Any:
    """The value of the variable with this handle, as an array, even while a graph is built."""
    with nullcontext() if tf.executing_eagerly() else outside_of_graphs():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def make_variable(initial: object, where: str) -> tf.Variable:
    """Create an int64 variable on a device, hidden from creator scopes, strategies, checkpoints.

    A direct call of `ResourceVariable` bypasses the creator stack of `tf.Variable`
    (`ops/variables.py`, `VariableMetaclass`); `init_scope` lifts it out of a graph being traced.
    """
    with outside_of_graphs(), ops.device(where):
        return resource_variable_ops.ResourceVariable(
            initial, dtype=tf.int64, trainable=False, name="optimizer_tracer"
        )


def replica_id() -> int | None:
    """The id of the current replica in its worker; None in a cross-replica context.

    The public `replica_id_in_sync_group` is a tensor, so it would add an op to the user's graph. It
    also numbers the replicas of all workers, while the ids in `extended.update` start at 0 in each
    worker (`distribute/collective_all_reduce_strategy.py`).
    """
    replica = distribute_lib.get_replica_context()
    number = None if replica is None else replica._replica_id_in_sync_group
    if isinstance(number, int):
        return int(replica.strategy.extended._get_local_replica_id(number))
    return None if replica is None else 0


def update_replica_id() -> int | None:
    """The replica whose component `extended.update` updates now; None outside such an update.

    Under strategies with one copy of each variable, the id is a device or the variable
    (`distribute/distribute_lib.py`, `UpdateContext`): the copy is replica 0.
    """
    # `get_update_replica_id()`, which raises and catches an error outside an update.
    number = distribute_lib._update_replica_id.__dict__.get("current")
    return number if number is None or isinstance(number, int) else 0


def host_callback(function: Callable[[], object]) -> tf.Operation:
    """A stateful op of a v1 graph that calls `function()` at each run."""
    return script_ops.numpy_function(lambda: function(), [], [], stateful=True, name=_CALLBACK)


_CALLBACK = "optimizer_tracer"
"""The name of ops that call Python in the graph of a Session."""


_CONTROL_FLOW = "Merge", "RefMerge", "Exit", "RefExit"
"""Ops that end a `cond` or a `while_loop` of v1: their inputs run in a branch or in each iteration.
"""


def runs_functions(op: tf.Operation) -> bool:
    """True for ops like `If`, `While` and `StatefulPartitionedCall`."""
    values = op.node_def.attr.values()
    return any(value.HasField("func") or value.list.func for value in values)


def ends_before(op: tf.Operation) -> list[object] | None:
    """What a callback waits for to run once, just before `op`; None if the updates are inside `op`.

    A control edge from an `If` or a `Case` does not wait for the ops in the branch: its outputs do.
    """
    if op.type in _CONTROL_FLOW or runs_functions(op):
        return None
    before = [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    outputs = [output for each in before if runs_functions(each) for output in each.outputs]
    return [*before, *(tf.identity(output, name=_CALLBACK) for output in outputs)]


def call_before(function: Callable[[], object], updates: Iterable[tf.Operation]) -> bool:
    """Call `function()` before the first of these ops, whenever a Session runs any of them.

    The call belongs to the current control flow context, so only ops in that context trigger it.
    False if there are none.
    """
    context = ops.get_default_graph()._get_control_flow_context()
    near = [op for op in updates if op._get_control_flow_context() is context]
    if near:
        callback = host_callback(function)
        for op in near:
            op._add_control_input(callback)
    return bool(near)


def is_called_before(op: tf.Operation) -> bool:
    """True if `call_before` has added a call before this op."""
    return any(_CALLBACK in each.name for each in op.control_inputs)


def graphs_around(graph: tf.Graph) -> list[tf.Graph]:
    """The graphs of functions from `graph` outwards; `graph` itself may be of a Session."""
    graphs = [graph]
    while isinstance(graph := getattr(graph, "outer_graph", None), FuncGraph):
        graphs.append(graph)
    return graphs


def may_repeat(graph: tf.Graph) -> bool:
    """True if one call of the outermost function may run the graph being traced several times.

    It is part of a loop, or tf.data runs it for each element.
    """
    loop = control_flow_v2_func_graphs.WhileBodyFuncGraph
    return any(isinstance(each, loop) for each in graphs_around(graph)) or any(
        frame.f_code.co_filename == structured_function.__file__
        for frame in frames_from(sys._getframe(1))
    )


def called_graph(graph: tf.Graph) -> tf.Graph:
    """The graph of the function that must be called to run `graph`: itself, or one around it.

    Branches and loop bodies have graphs of their own, which run only with the function around them.
    A graph of a Session runs as a whole, with the functions that it calls.
    """
    while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
        graph = graph.outer_graph
    if ops.executing_eagerly_outside_functions():
        return graph
    around = graphs_around(graph)[-1]
    return getattr(around, "outer_graph", around)


def call_time_capture(
    graph: tf.Graph,
    name: str,
    ask: Callable[[], tf.Tensor],
    otherwise: tf.Tensor,
    is_otherwise: Callable[[], bool],
) -> tf.Tensor | None:
    """An int64 scalar in `graph` with the result of `ask()` at each call of its function.

    None for a graph that cannot capture. `ask` returns an eager tensor, or one of the graph that
    contains the call; a SavedModel gets `otherwise`, an eager tensor. `otherwise` is also the
    answer if `is_otherwise()`, which is checked first and must be fast.
    `FuncGraph.capture_call_time_value` is similar, but it passes the question to the eager caller
    of the outermost function, and a branch or a loop cannot pass it on. Captures are in
    `core/function/capture/capture_container.py`; `ConcreteFunction.captured_inputs` calls the
    callable ones.
    """
    if not isinstance(graph, FuncGraph) or graph.name.startswith(_BACKWARD):
        return None
    captures = graph._function_captures
    spec = trace_type.from_value(
        tf.TensorSpec((), tf.int64), trace_type.InternalTracingContext(True)
    )
    with graph.as_default(), ops.control_dependencies(None):
        inside = spec.placeholder_value(trace_type.InternalPlaceholderContext(graph))

    def values() -> list[tf.Tensor]:
        if is_otherwise():
            return [otherwise]
        plain_capture(captures, name, otherwise)
        return [otherwise if save_context.in_save_context() else ask()]

    values.output_spec = spec  # type: ignore[attr-defined]
    captures.add_or_replace(
        key=name, external=values, internal=inside, tracetype=spec, is_by_ref=True
    )
    return inside


def plain_capture(captures: Any, name: str, value: tf.Tensor) -> None:
    """Make the capture of `call_time_capture` look like a captured `value`, after tracing.

    The function still asks at each call, as it has its own list of captures. But a SavedModel
    exports from the list of the graph, and supports only captured values.
    """
    if list(captures.by_ref_internal) == [name]:  # else in another order than the inputs
        _, inside, spec = captures.pop(name, is_by_ref=True)
        captures.add_or_replace(key=id(value), external=value, internal=inside, tracetype=spec)


_BACKWARD = "__backward_"
"""TensorFlow's prefix for the gradient of a function, which is called with the captures of the time
when it was traced (`eager/polymorphic_function/concrete_function.py`).
"""


def constant(value: int) -> tf.Tensor:
    """An eager int64 scalar in host memory, also while a graph is traced."""
    with outside_of_graphs(), ops.device("CPU:0"):
        return tf.constant(value, tf.int64)


def with_flags(stamp: tf.Tensor, flags: int) -> tf.Tensor:
    """`stamp` with these bits set, a scalar in the current graph."""
    return tf.raw_ops.BitwiseOr(x=stamp, y=tf.constant(flags, tf.int64))


_ARITHMETIC = (
    *("Add", "AddV2", "AddN", "Sub", "Mul", "Neg", "Div", "RealDiv"),
    *("Identity", "Reshape", "StopGradient", "PreventGradient"),
)


def _is_reordered(tensor: tf.Tensor) -> bool:
    """Whether Grappler may compute a tensor in a graph in another order, with other rounding.

    Grappler reorders sums, products and quotients of each other, unless another op waits for the
    inner ones or reads them: `AddOpsRewriteStage` and `MinimizeBroadcasts` in
    `tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc`, `ConstantPushDown` in
    `constant_folding.cc` next to it.
    """
    return tensor.op.type in _ARITHMETIC and not tensor.op.control_inputs


def made_of(tensor: tf.Tensor) -> list[tf.Tensor]:
    """The inputs of the arithmetic that computes a tensor, to wait for instead of it."""
    every, waiting = dict[int, tf.Tensor](), [tensor]
    while waiting:
        each = waiting.pop()
        if id(each) not in every:
            every[id(each)] = each
            waiting += each.op.inputs if _is_reordered(each) else ()
    return [each for each in every.values() if not _is_reordered(each)]


def replica_run(thread: threading.Thread | None = None) -> object:
    """An object shared by the threads of one `strategy.run`; None on other threads."""
    return getattr(thread or threading.current_thread(), "coord", None)


def run_in(frame: FrameType) -> object:
    """The shared object of the `strategy.run` that this frame executes; else None.

    `MirroredStrategy` runs each replica in its own thread. `merge_call` pauses them and continues
    in the thread that called `strategy.run`, which may call it again, for new threads
    (`distribute/mirrored_run.py`, `_call_for_each_replica`, which shares its
    local `coord` with them).
    """
    if frame.f_code is not mirrored_run._call_for_each_replica.__code__:
        return None
    return frame.f_locals.get("coord")


_NUMBER = re.compile(r"_\d+(?=_|$)")


def updates_since(graph: tf.Graph, start: int) -> list[tf.Operation]:
    """The stateful ops of `graph` except reads, from number `start` on."""
    return [
        op
        for op in graph.get_operations()[start:]
        if op._is_stateful and op.type != "ReadVariableOp"
    ]


def function_name(graph: tf.Graph) -> str:
    """The name of the function with this graph, without the numbers that TensorFlow adds."""
    if not isinstance(graph, FuncGraph):
        return SESSION_GRAPH
    return "/".join(_NUMBER.sub("", each.name) for each in reversed(graphs_around(graph)))
