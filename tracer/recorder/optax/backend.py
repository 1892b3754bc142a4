"""The answers for optax: see `tracer.recorder.backend.Backend`, which this module is."""

from collections.abc import Callable
from typing import Any

from tracer.recorder import host
from tracer.recorder.frames import CallsUnderWay, Frame, FrameRole, start_frame
from tracer.recorder.host import (
    Handing as new_handing,
    counts_in_functions,
    is_restored,
    may_have_run,
    update_replica_id,
)
from tracer.recorder.jax.backend import (
    KIND_BY_TYPE,
    canonical,
    function_around,
    in_eager,
    kind_of_gradient,
    number_in,
    surroundings,
    tensor_of,
    values_of,
)
from tracer.recorder.jax.blocks import current_place, is_distributed
from tracer.recorder.optax.blocks import Blocks as new_blocks, OlderFunctions as new_older
from tracer.recorder.optax.leaves import Leaf, Leaves

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


def locate(
    frame: Frame, role: FrameRole, stack: list[Frame], calls_under_way: CallsUnderWay
) -> None:
    """Write into a new frame where its call is made; it is part of none.

    A transformation that calls itself is none that optax can make.
    """
    start_frame(frame, role, current_place(), 0, None, distributed=is_distributed())


def device_of(variable: Leaf) -> str:
    """Unknown: a leaf is wherever the program puts it."""
    return ""


def iterations_of(optimizer: Any) -> None:
    """None: what counts steps is in the state, which the program hands over."""


def versions() -> dict[str, str]:
    """The versions of Python, JAX, optax and of what trains with it."""
    return host.versions_of("jax", "optax", "flax", "equinox")


def new_variables(note: Callable[[str], None]) -> Leaves:
    """A table of leaves."""
    return Leaves()
