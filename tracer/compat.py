"""Every import of TensorFlow's own modules, in one place. Importing it imports TensorFlow.

The facts that it rests on are named with the file of TensorFlow 2.21 where they can be read.
"""

import platform
import re
import sys
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import context as eager_context, record
from tensorflow.python.framework import func_graph, indexed_slices, ops
from tensorflow.python.ops import resource_variable_ops, script_ops
from tensorflow.python.trackable.autotrackable import AutoTrackable

from tracer.instances import instances

__all__ = [
    "AutoTrackable",
    "EagerTensor",
    "FuncGraph",
    "IndexedSlices",
    "ResourceVariable",
    "TensorFlowVariable",
    "control_dependencies",
    "current_graph",
    "device",
    "eager_outside_functions",
    "function_name",
    "graphs_around",
    "graphs_updated_by",
    "has_strategy",
    "host_callback",
    "in_eager",
    "init_scope",
    "make_variable",
    "replica_id",
    "signature",
    "stop_recording",
    "surroundings",
    "unique_number",
    "update_replica_id",
    "updates_since",
    "versions",
]

EagerTensor = ops.EagerTensor
FuncGraph = func_graph.FuncGraph
ResourceVariable = resource_variable_ops.BaseResourceVariable
TensorFlowVariable = tf.Variable
IndexedSlices = indexed_slices.IndexedSlices
control_dependencies = ops.control_dependencies
current_graph = ops.get_default_graph
device = ops.device
eager_outside_functions = ops.executing_eagerly_outside_functions
init_scope = ops.init_scope
stop_recording = record.stop_recording
unique_number = ops.uid


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
    with ops.init_scope(), ops.device(where):
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


class Surroundings(NamedTuple):
    """Where an optimizer runs, as its strategy says."""

    strategy: str
    worker: str
    """This process, as TensorFlow names it: `worker:0`; empty if it is no cluster."""
    cluster: tuple[str, ...]
    """All the processes that train."""


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
    return script_ops.numpy_function(lambda: function(), [], [], stateful=True)


def graphs_around(graph: Any) -> list[Any]:
    """The graphs of functions from `graph` outwards; first `graph`, which may be of a Session."""
    graphs = [graph]
    while isinstance(graph := getattr(graph, "outer_graph", None), FuncGraph):
        graphs.append(graph)
    return graphs


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
        return "v1 graph"
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
    parts = [_spec(each) for each in positional]
    parts += [f"{name}={_spec(each)}" for name, each in named.items()]
    return ", ".join(parts)


def _spec(value: Any) -> str:
    """An argument, as far as TensorFlow tells graphs apart by it."""
    if isinstance(value, tf.TensorSpec):
        name = f"{value.name}: " if value.name else ""
        return f"{name}{value.dtype.name}{_shape(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_spec(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_spec(each) for each in value) + ")"
    element = getattr(value, "_element_spec", None)
    if element is not None:  # a dataset or its iterator
        return f"{type(value).__name__.removesuffix('Spec')}{_spec(element)}"
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


def graphs_updated_by(name: str) -> list[Any]:
    """The graphs that hold updates by an untraced v1 optimizer of this name.

    `apply_gradients` puts them under `name/update_...` (`training/optimizer.py`). A graph with a
    counter of the tracer's is left out.
    """
    update = re.compile(rf"(^|/){re.escape(name)}(_\d+)?/update")
    found = []
    for graph in graphs_alive():
        operations = graph.get_operations()
        if any(update.search(op.name) for op in operations) and not any(
            op.type in ("ResourceScatterUpdate", "PyFunc") for op in operations
        ):
            found.append(graph)
    return found


def graphs_alive() -> list[Any]:
    """Every graph that is alive."""
    return instances([ops.Graph])


def versions() -> dict[str, str]:
    """The versions of Python, TensorFlow and each Keras that the program imported."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "tf_keras"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found
