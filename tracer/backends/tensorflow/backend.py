"""What counting needs of TensorFlow: see `tracer.core.backend.Backend`."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tracer.backends.keras.backend import KerasBackend
from tracer.backends.keras.importlib_bootstrap import traced_classes
from tracer.backends.models import ModelMonitor
from tracer.backends.tensorflow import compat, places, variables
from tracer.backends.tensorflow.blocks import GraphBlocks
from tracer.backends.tensorflow.late_wrap import StaleFunctions
from tracer.core.backend import Surroundings
from tracer.core.calls import Step
from tracer.core.registry import bindings
from tracer.kinds import OptimizerKind
from tracer.model.records import Kind

_EXPORTED = (
    "the optimizer was exported in a SavedModel, with the counters of its functions: what the "
    "exported functions run is not counted"
)


class TensorFlowBackend(KerasBackend):
    """TensorFlow, with every version of Keras on it."""

    packages = ("tensorflow", "keras", "tf_keras")
    new_variables = variables.VariableTable
    new_blocks = GraphBlocks
    collectors = (ModelMonitor,)
    raised_to_stop = ("_RequestedStop",)  # by `distribute/mirrored_run.py`, on replicas' threads
    new_stale = StaleFunctions
    locate = staticmethod(places.locate)
    canonical = staticmethod(variables.canonical)
    row = staticmethod(variables.row_of)
    value_of = staticmethod(variables.value_of)

    def eager_replica(self, replica: int) -> int | None:
        """The replica that an apply method called in eager mode updates now; None while tracing.

        `replica` is the replica of the step.
        """
        if not compat.in_eager():
            return None
        number = compat.update_replica_id()
        return replica if number is None else number

    def requested(self, step: Step, gradient: object) -> None:
        """Keep the first gradient of a step in a graph: its tensor, if it is in the graph."""
        values = getattr(gradient, "values", gradient)  # of IndexedSlices
        is_in_graph = isinstance(values, tf.Tensor) and not isinstance(values, compat.EagerTensor)
        if step.extra.gradient is None and is_in_graph:
            step.extra.gradient = values

    def device_of(self, variable: object) -> str:
        """The device of the copy of `variable` that the current replica updates."""
        own = getattr(variables.handle_of(variable), "device", "")
        return str(own or getattr(variable, "device", "") or "")

    def surroundings(self) -> Surroundings:
        """The current strategy and, from its cluster resolver, the worker of this process."""
        strategy = tf.distribute.get_strategy()
        # The class of MultiWorkerMirroredStrategy has another name than what the program calls it.
        names = getattr(type(strategy), "_tf_api_names", ()) or (type(strategy).__name__,)
        name = names[0].rpartition(".")[2] if tf.distribute.has_strategy() else ""
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

    def is_restored(self, optimizer: Any) -> bool:
        """True if a checkpoint has set the iterations, including when they are created after it."""
        return getattr(variables.canonical(optimizer._iterations), "_update_uid", -1) >= 0

    def value_at(self, schedule: Any, step: int) -> float:
        """The value of a schedule of Keras, also while a graph is built."""
        with compat.outside_of_graphs():
            return super().value_at(schedule, step)

    def members(
        self, base: type, kind: OptimizerKind, methods: Mapping[str, Any]
    ) -> Mapping[str, Callable[..., object]]:
        """A method that exports the counters of the functions of a SavedModel with them."""

        def children(self: object, save_type: str = "checkpoint", **kwargs: object) -> object:
            above: Any = super(traced_classes[id(base)], self)
            saved = above._trackable_children(save_type, **kwargs)
            binding = bindings.get(id(self))
            if save_type != "savedmodel" or binding is None:
                return saved
            counters: Any = binding.recorder.blocks.counters
            with counters.lock:
                captured = [c for ledger in counters.ledgers.values() for c in ledger.children()]
            if captured:
                binding.recorder.note(_EXPORTED, "fact")
            return dict(saved) | {f"_optimizer_tracer_{n}": c for n, c in enumerate(captured)}

        return {"_trackable_children": children}

    def kind_of_gradient(self, gradient: object) -> Kind:
        """`sparse` for `tf.IndexedSlices`, `none` for None, else `dense`."""
        if type(gradient) is compat.EagerTensor:
            return "dense"  # the checks below are slower
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        return "sparse" if is_sparse else super().kind_of_gradient(gradient)
