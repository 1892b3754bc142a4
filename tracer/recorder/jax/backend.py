"""JAX's answers: see `tracer.recorder.backend.Backend`, which this module is."""

from collections.abc import Callable
from typing import Any

import jax

from tracer.model.names import plain_name
from tracer.model.records import Kind, Variable
from tracer.recorder import host
from tracer.recorder.backend import Surroundings
from tracer.recorder.host import (
    Handing as new_handing,
    counts_in_functions,
    is_restored,
    may_have_run,
    update_replica_id,
)
from tracer.recorder.jax import compat
from tracer.recorder.jax.arrays import array_of, number_in, values_of
from tracer.recorder.jax.blocks import Blocks as new_blocks, distribution, in_eager, locate
from tracer.recorder.jax.older import OlderFunctions as new_older

__all__ = [
    "KIND_BY_TYPE",
    "canonical",
    "counts_in_functions",
    "device_of",
    "function_around",
    "in_eager",
    "is_restored",
    "iterations_of",
    "kind_of_gradient",
    "locate",
    "may_have_run",
    "new_blocks",
    "new_handing",
    "new_older",
    "new_variables",
    "number_in",
    "surroundings",
    "tensor_of",
    "update_replica_id",
    "values_of",
    "versions",
]


KIND_BY_TYPE = True


def kind_of_gradient(gradient: Any) -> Kind:
    """`sparse` for a sparse array (`jax.experimental.sparse`), `none` for None, else `dense`."""
    if gradient is None:
        return "none"
    return "sparse" if hasattr(gradient, "todense") else "dense"


def tensor_of(gradient: Any) -> Any:
    """The gradient itself: an array, or what stands for one while a program is traced.

    None for a number, to which there are no weak references.
    """
    return gradient if isinstance(gradient, jax.Array) else None


def device_of(variable: Any) -> str:
    """Where a variable is: `cpu:0`, or `cpu:0 cpu:1` if it is split or copied."""
    value = array_of(variable)
    if value is None:
        return ""
    devices = sorted(value.devices(), key=lambda device: int(device.id))
    return " ".join(f"{device.platform}:{device.id}" for device in devices)


def function_around(graph: Any) -> str:
    """The name of the function whose program `graph` is, which is a trace of JAX."""
    return compat.function_name(graph)


def surroundings() -> Surroundings:
    """The distribution of Keras, and this process if it is one of several."""
    spread = distribution()
    strategy = ""
    if spread is not None:
        devices = spread.device_mesh.devices.size
        strategy = f"{type(spread).__name__} over {devices} device{'s' if devices > 1 else ''}"
    if jax.process_count() == 1:
        return Surroundings(strategy, "", ())
    processes = tuple(f"process:{number}" for number in range(jax.process_count()))
    return Surroundings(strategy, processes[jax.process_index()], processes)


def canonical(variable: Any) -> Any:
    """The variable itself: one of Keras."""
    return variable


def iterations_of(optimizer: Any) -> int | None:
    """The optimizer's own count of its steps; None if it has none or it cannot be read now."""
    number = number_in(getattr(optimizer, "_iterations", None))
    return None if number is None else int(number)


def versions() -> dict[str, str]:
    """The versions of Python, JAX and Keras."""
    return host.versions_of("jax", "keras")


def new_variables(note: Callable[[str], None]) -> host.Variables:
    """A table of variables."""
    return host.Variables(canonical, _row)


def _row(variable: Any) -> Variable:
    return Variable(plain_name(variable), tuple(map(int, variable.shape)), str(variable.dtype))
