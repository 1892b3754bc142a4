"""What counting needs of TensorFlow: see `tracer.core.backend.Backend`."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tracer.backends.keras.backend import KerasBackend
from tracer.backends.models import ModelMonitor
from tracer.backends.tensorflow import compat, functions, places, variables
from tracer.backends.tensorflow.blocks import GraphBlocks
from tracer.backends.tensorflow.late_wrap import StaleFunctions
from tracer.core.registry import bindings, traced_classes
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
    eager_replica = staticmethod(places.eager_replica)
    requested = staticmethod(places.requested)
    device_of = staticmethod(variables.device_of)
    surroundings = staticmethod(compat.surroundings)
    canonical = staticmethod(variables.canonical)
    row = staticmethod(variables.row_of)
    value_of = staticmethod(variables.value_of)
    iterations_of = staticmethod(variables.iterations_of)
    is_restored = staticmethod(variables.is_restored)
    writes_to = staticmethod(functions.writes_to)

    def value_at(self, schedule: Any, step: int) -> float:
        """The value of a schedule of Keras, also while a graph is built."""
        with compat.outside_of_graphs():
            return super().value_at(schedule, step)

    def members(
        self, base: type, kind: OptimizerKind, methods: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """A method that exports the counters of the functions of a SavedModel with them."""

        def children(self: Any, save_type: str = "checkpoint", **kwargs: Any) -> Any:
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
            return {**saved, "_optimizer_tracer": compat.as_trackable(captured)}

        return {"_trackable_children": children}

    def kind_of_gradient(self, gradient: Any) -> Kind:
        """`sparse` for `tf.IndexedSlices`, `none` for None, else `dense`."""
        if gradient is None:
            return "none"
        return "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"

    def function_around(self, graph: Any) -> str:
        """The name of the outermost function that contains `graph`."""
        return compat.function_name(compat.graphs_around(graph)[-1])
