"""What counting needs of JAX: see `tracer.core.backend.Backend`."""

from typing import Any

import jax

from tracer.backends.jax import blocks, values
from tracer.backends.jax.late_wrap import JaxStaleFunctions
from tracer.backends.keras.backend import KerasBackend
from tracer.backends.models import ModelMonitor
from tracer.core import backend, late_wrap
from tracer.core.collectors import Collector
from tracer.model.records import Kind


class ArrayBackend(backend.Backend):
    """Any optimizer whose variables are arrays of JAX."""

    packages: tuple[str, ...] = ("jax", "keras")
    new_blocks: type[backend.Blocks] = blocks.JaxBlocks
    new_stale: type[late_wrap.StaleFunctions] = JaxStaleFunctions
    collectors: tuple[type[Collector], ...] = (ModelMonitor,)
    looks_with_trace = True
    locate = staticmethod(blocks.locate)
    eager_replica = staticmethod(blocks.eager_replica)
    value_of = staticmethod(values.value_of)

    def kind_of_gradient(self, gradient: Any) -> Kind:
        """`sparse` for a sparse array (`jax.experimental.sparse`), `none` for None, or `dense`."""
        if gradient is None:
            return "none"
        return "sparse" if hasattr(gradient, "todense") else "dense"

    def surroundings(self) -> backend.Surroundings:
        """The distribution of Keras, and the number of this process among several."""
        spread = blocks.distribution()
        strategy = ""
        if spread is not None:
            devices = spread.device_mesh.devices.size
            strategy = f"{type(spread).__name__} over {devices} device{'s' if devices > 1 else ''}"
        if jax.process_count() == 1:
            return backend.Surroundings(strategy, "", ())
        processes = tuple(f"process:{number}" for number in range(jax.process_count()))
        return backend.Surroundings(strategy, processes[jax.process_index()], processes)


class JaxBackend(ArrayBackend, KerasBackend):
    """Keras on JAX."""
