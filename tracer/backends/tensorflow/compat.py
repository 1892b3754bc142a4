"""What is asked of TensorFlow's own modules; for functions and writes, see `functions`, `writes`.

Importing it imports TensorFlow.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.python.distribute import distribute_lib, mirrored_run
from tensorflow.python.eager import context as eager_context, record
from tensorflow.python.eager.polymorphic_function import (
    saved_model_utils,
)
from tensorflow.python.framework import func_graph, indexed_slices, ops
from tensorflow.python.ops import (
    control_flow_util,
    control_flow_v2_func_graphs,
    resource_variable_ops,
    script_ops,
)
from tensorflow.python.saved_model import save_context
from tensorflow.python.trackable.autotrackable import AutoTrackable as AutoTrackable

from tracer.core.backend import Surroundings
from tracer.core.instances import instances
from tracer.core.late_wrap import SESSION_GRAPH

EagerTensor = ops.EagerTensor
OpError = tf.errors.OpError
FuncGraph = func_graph.FuncGraph
ResourceVariable = resource_variable_ops.BaseResourceVariable
TensorFlowVariable = tf.Variable
IndexedSlices = indexed_slices.IndexedSlices
contexts: Any = eager_context
control_dependencies = ops.control_dependencies
current_graph = ops.get_default_graph
device = ops.device
eager_outside_functions = ops.executing_eagerly_outside_functions
stop_recording = record.stop_recording
unique_number = ops.uid


@contextmanager
def outside_of_graphs() -> Iterator[None]:
    """Eager mode, whatever graph is being built: that of a function, or of a Session.

    `init_scope` leaves the graphs of functions only (`framework/ops.py`).
    """
    with ops.init_scope(), eager_context.eager_mode():
        yield


def value_in(handle: Any, dtype: Any) -> Any:
    """What the variable with this handle holds, as an array, whatever graph is being built."""
    with nullcontext() if in_eager() else outside_of_graphs():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def in_eager() -> bool:
    """`tf.executing_eagerly()`, asked at every call of an apply method, without its two calls."""
    try:
        eager: bool = eager_context._context._thread_local_data.is_eager
    except AttributeError:  # there is no context before the first op
        eager = eager_context.executing_eagerly()
    return eager


def has_strategy() -> bool:
    """`tf.distribute.has_strategy()`, asked at every step, without the error that it catches.

    Where no strategy was entered, the thread's stack of them is empty (`distribute_lib.py`,
    `_get_per_thread_mode`).
    """
    entered = ops.get_default_graph()._distribution_strategy_stack
    return bool(entered) and bool(distribute_lib.has_strategy())


def make_variable(initial: Any, where: str) -> Any:
    """A variable on the device `where` that no creator scope, strategy or checkpoint learns of.

    `ResourceVariable` called directly passes by the creator stack that `tf.Variable` walks
    (`ops/variables.py`, `VariableMetaclass`); `init_scope` lifts it out of a graph being traced.
    """
    with outside_of_graphs(), ops.device(where):
        return resource_variable_ops.ResourceVariable(
            initial, trainable=False, name="optimizer_tracer"
        )


def replica_id() -> int | None:
    """The id of the current replica in its worker; None in a cross-replica context.

    The public `replica_id_in_sync_group` is a tensor and would add an op to the user's graph. With
    several workers it numbers the replicas of all of them, while the ids in `extended.update` begin
    at 0 in each (`distribute/collective_all_reduce_strategy.py`).
    """
    replica = distribute_lib.get_replica_context()
    if replica is None:
        return None
    number = replica._replica_id_in_sync_group
    if not isinstance(number, int):
        return 0
    return int(replica.strategy.extended._get_local_replica_id(number))


def update_replica_id() -> int | None:
    """The replica whose component `extended.update` updates now; None outside of such an update.

    Under strategies with one copy of each variable it is a device or the variable itself
    (`distribute/distribute_lib.py`, `UpdateContext`): that one copy is replica 0.
    """
    # `get_update_replica_id()`, which raises and catches an error where there is none.
    number = distribute_lib._update_replica_id.__dict__.get("current")
    if number is None or isinstance(number, int):
        return number
    return 0


def surroundings() -> Surroundings:
    """The current strategy and, from its cluster resolver, the worker that this process is."""
    strategy = distribute_lib.get_strategy()
    # The public name: MultiWorkerMirroredStrategy is the class CollectiveAllReduceStrategy.
    names = getattr(type(strategy), "_tf_api_names", ()) or (type(strategy).__name__,)
    name = names[0].rpartition(".")[2] if distribute_lib.has_strategy() else ""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return Surroundings(name, "", ())
    jobs = resolver.cluster_spec().as_dict()
    return Surroundings(
        name,
        f"{resolver.task_type}:{resolver.task_id or 0}",
        tuple(
            f"{job}:{index}"
            for job in sorted(jobs)
            if job in ("chief", "worker")
            for index in range(len(jobs[job]))
        ),
    )


def host_callback(function: Any) -> Any:
    """A stateful op of a v1 graph that calls `function()` each time it runs."""
    return script_ops.numpy_function(lambda: function(), [], [], stateful=True, name=_CALLBACK)


_CALLBACK = "optimizer_tracer"
"""What the ops are called that call Python in the graph of a Session."""


def call_before(function: Any, updates: Iterable[Any]) -> bool:
    """Call `function()` whenever a Session runs any of these ops, once and first.

    It is where the current ops stand, and so are they: in no branch or loop within. False if none
    is there.
    """
    context = ops.get_default_graph()._get_control_flow_context()
    near = [op for op in updates if op._get_control_flow_context() is context]
    if near:
        callback = host_callback(function)
        for op in near:
            op._add_control_input(callback)
    return bool(near)


def watch_runs(graph: Any, watcher: Any) -> None:
    """Call `watcher.ran_by_session(graph)` whenever a Session runs this graph, while both live.

    A Session takes the graph's lock for it (`client/session.py: BaseSession._extend_graph`), also
    where a callable is made of it, but not where that is called. The lock is exchanged once,
    however many watch: a graph may outlive any number of them.
    """
    watchers = _watchers.get(graph)
    if watchers is None:
        watchers = _watchers[graph] = WeakSet()
        graph._session_run_lock = partial(_run_lock, ref(graph), watchers, graph._session_run_lock)
    watchers.add(watcher)


_watchers: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


def _run_lock(graph: ref[Any], watchers: WeakSet[Any], lock: Callable[[], Any]) -> Any:
    for each in list(watchers):
        each.ran_by_session(graph())
    return lock()


def is_called_before(op: Any) -> bool:
    """Whether `call_before` has seen this op."""
    return any(_CALLBACK in each.name for each in op.control_inputs)


def graphs_around(graph: Any) -> list[Any]:
    """The graphs of functions from `graph` outwards; first `graph`, which may be of a Session."""
    graphs = [graph]
    while isinstance(graph := getattr(graph, "outer_graph", None), FuncGraph):
        graphs.append(graph)
    return graphs


def called_graph(graph: Any) -> Any:
    """The graph of the function that is called when `graph` runs: its own, or one around it.

    Branches and loop bodies are graphs of their own, which no call reaches but that of the function
    around them. A graph of a Session runs with all that is in it.
    """
    while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph if ops.executing_eagerly_outside_functions() else graphs_around(graph)[-1]


def call_time_capture(
    graph: Any, name: str, ask: Callable[[], Any], otherwise: Any, is_otherwise: Callable[[], bool]
) -> Any | None:
    """An int64 scalar in `graph` that is what `ask()` gives each time its function is called.

    None for a graph to which nothing can be given. In the call `ask` gives an eager tensor, or one
    of the graph in which the call stands; a SavedModel holds `otherwise`, an eager tensor. It is
    also the answer where `is_otherwise()`, which is asked first: there Python's time counts.
    `FuncGraph.capture_call_time_value` does nearly the same, but it passes the question on to the
    eager caller of the outermost function, and a branch or a loop cannot pass it on. Captures are
    in `core/function/capture/capture_container.py`; `ConcreteFunction.captured_inputs` calls those
    that can be called.
    """
    if not isinstance(graph, FuncGraph) or graph.name.startswith(_BACKWARD):
        return None
    captures = graph._function_captures
    if name in captures.by_ref_internal:
        return captures.by_ref_internal[name]
    spec = trace_type.from_value(
        tf.TensorSpec((), tf.int64), trace_type.InternalTracingContext(True)
    )
    with graph.as_default(), ops.control_dependencies(None):
        inside = spec.placeholder_value(trace_type.InternalPlaceholderContext(graph))

    def values() -> list[Any]:
        if is_otherwise():
            return [otherwise]
        plain_capture(captures, name, otherwise)
        return [otherwise if save_context.in_save_context() else ask()]

    values.output_spec = spec  # type: ignore[attr-defined]
    captures.add_or_replace(
        key=name, external=values, internal=inside, tracetype=spec, is_by_ref=True
    )
    return inside


def plain_capture(captures: Any, name: str, value: Any) -> None:
    """Let what `call_time_capture` added look like `value` that was captured, once it is traced.

    The function asks at each call all the same: it has its own list of what it captured. But a
    SavedModel exports by the list of the graph, and it knows of captured values only.
    """
    if list(captures.by_ref_internal) == [name]:  # else the order would not be that of the inputs
        _, inside, spec = captures.pop(name, is_by_ref=True)
        captures.add_or_replace(key=id(value), external=value, internal=inside, tracetype=spec)


_BACKWARD = "__backward_"
"""How TensorFlow names the gradient of a function, which is called with what it captured when it
was traced (`eager/polymorphic_function/concrete_function.py`)."""


def constant(value: int) -> Any:
    """An eager int64 scalar in the host's memory, also while a graph is traced."""
    with outside_of_graphs(), ops.device("CPU:0"):
        return tf.constant(value, tf.int64)


def with_flags(stamp: Any, flags: int) -> Any:
    """A scalar of the current graph: `stamp` with these bits set as well."""
    return tf.raw_ops.BitwiseOr(x=stamp, y=tf.constant(flags, tf.int64))


def tensor_of(gradient: Any) -> Any | None:
    """The tensor in a graph by which a gradient comes; None if it is there from the start."""
    values = getattr(gradient, "values", gradient)  # of IndexedSlices
    if isinstance(values, tf.Tensor) and not isinstance(values, EagerTensor):
        return values
    return None


_SUMS = "Add", "AddV2", "AddN"
_PASSED_ON = "Identity", "Reshape", "StopGradient", "PreventGradient"


def _is_reordered(tensor: Any) -> bool:
    """Whether a tensor in a graph is a sum or a product, or such a one passed on.

    Grappler computes a sum of sums and a product of products in another order, and so rounds them
    otherwise, if nothing waits for the inner ones and nothing else reads them: `AddOpsRewriteStage`
    and `MinimizeBroadcasts` in `tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc`.
    """
    return tensor.op.type in (*_SUMS, *_PASSED_ON, "Mul") and not tensor.op.control_inputs


def made_of(tensor: Any) -> list[Any]:
    """What sums and products a tensor in a graph is made of, to wait for in its place."""
    every, waiting = dict[int, Any](), [tensor]
    while waiting:
        each = waiting.pop()
        if id(each) not in every:
            every[id(each)] = each
            waiting += each.op.inputs if _is_reordered(each) else ()
    return [each for each in every.values() if not _is_reordered(each)]


def made_again(tensor: Any) -> Any | None:
    """What is 0 where a tensor is 0, made of the same as that; None for a sum in a graph."""
    if isinstance(tensor, EagerTensor) or not _is_reordered(tensor):
        return tensor
    if tensor.op.type in _PASSED_ON:
        return made_again(tensor.op.inputs[0])
    factors = [] if tensor.op.type in _SUMS else [made_again(each) for each in tensor.op.inputs]
    if not factors or not tensor.dtype.is_floating or any(each is None for each in factors):
        return None
    scale, factor = sorted(factors, key=lambda each: each.shape.num_elements() or 0)
    return tf.raw_ops.MulNoNan(x=factor, y=scale)  # of two equal Mul Grappler makes one


def compiles_with_xla() -> bool:
    """Whether XLA will compile the graph that is being built."""
    graph = ops.get_default_graph()
    return not in_eager() and bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def trackable_constant(tensor: Any) -> Any:
    """What makes an eager tensor that a function captures known to a SavedModel."""
    return saved_model_utils.TrackableConstant(tensor, None)


def replica_run(thread: Any = None) -> Any | None:
    """What the threads of one `strategy.run` share, if this thread is one of them."""
    return getattr(thread or threading.current_thread(), "coord", None)


def run_in(frame: FrameType) -> Any | None:
    """What the threads share of the `strategy.run` that starts them in this frame, if it does.

    Under `MirroredStrategy` each replica has a thread of its own. `merge_call` stops them and goes
    on in the thread that called `strategy.run`, which may call it again, for new threads
    (`distribute/mirrored_run.py`, `_call_for_each_replica`, whose local `coord` its threads know).
    """
    if frame.f_code is not mirrored_run._call_for_each_replica.__code__:
        return None
    return frame.f_locals.get("coord")


_NUMBER = re.compile(r"_\d+(?=_|$)")


def updates_since(graph: Any, start: int) -> list[Any]:
    """The stateful operations of `graph` but reads, from the one with the number `start` on."""
    return [
        op
        for op in graph.get_operations()[start:]
        if op._is_stateful and op.type != "ReadVariableOp"
    ]


def function_name(graph: Any) -> str:
    """The name of the function whose body `graph` is, without the numbers TensorFlow adds."""
    if not isinstance(graph, FuncGraph):
        return SESSION_GRAPH
    return "/".join(_NUMBER.sub("", each.name) for each in reversed(graphs_around(graph)))


def signature(graph: Any) -> str:
    """What the function was traced for, as `x: float32[2, 3], training: True`; empty if unknown.

    TensorFlow sets it before it calls the function (`framework/func_graph.py`,
    `func_graph_from_py_func`).
    """
    structured = getattr(graph, "structured_input_signature", None)
    if structured is None:
        return ""
    positional, named = structured
    parts = [shown(each) for each in positional]
    parts += [f"{name}={shown(each)}" for name, each in named.items()]
    return ", ".join(parts)


def shown(value: Any) -> str:
    """An argument, as far as TensorFlow tells graphs apart by it."""
    if isinstance(value, tf.TensorSpec):
        name = f"{value.name}: " if value.name else ""
        return f"{name}{value.dtype.name}{_shape(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(shown(each) for each in value) + ")"
    element = getattr(value, "_element_spec", None)
    if element is not None:  # a dataset or its iterator
        return f"{type(value).__name__.removesuffix('Spec')}{shown(element)}"
    if isinstance(value, tf.TypeSpec):
        dtype = getattr(getattr(value, "dtype", None), "name", "")
        kind = type(value).__name__.removesuffix("Spec")
        return f"{kind} {dtype}{_shape(getattr(value, 'shape', None))}"
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= 40 else text[:39] + "…"
    return type(value).__name__


def _shape(shape: Any) -> str:
    if shape is None or shape.rank is None:
        return "[...]"
    return "[" + ", ".join("?" if size is None else str(size) for size in shape.as_list()) + "]"


def session_graphs_alive() -> list[Any]:
    """Every graph of a Session that is alive and has ops, that of no function.

    To find them takes a walk over all objects.
    """
    graphs = instances([ops.Graph])
    return [each for each in graphs if not isinstance(each, FuncGraph) and each.get_operations()]
