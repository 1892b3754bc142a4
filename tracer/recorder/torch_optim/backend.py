"""The answers for `torch.optim`: see `tracer.recorder.backend.Backend`, which this module is."""

from collections.abc import Callable
from typing import Any

from tracer.recorder import host
from tracer.recorder.host import (
    Handing as new_handing,
    OlderFunctions as new_older,
    counts_in_functions,
    function_around,
    in_eager,
    is_restored,
    locate,
    may_have_run,
    tensor_of,
    update_replica_id,
)
from tracer.recorder.torch.backend import (
    KIND_BY_TYPE,
    canonical,
    device_of,
    kind_of_gradient,
    number_in,
    values_of,
)
from tracer.recorder.torch.ranks import surroundings
from tracer.recorder.torch_optim.blocks import Blocks as new_blocks
from tracer.recorder.torch_optim.parameters import Parameters

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


def iterations_of(optimizer: Any) -> None:
    """None: it has no count of its steps but for each parameter."""


def versions() -> dict[str, str]:
    """The versions of Python, PyTorch and of what trains with it."""
    return host.versions_of("torch", "lightning", "accelerate", "transformers")


def new_variables(note: Callable[[str], None]) -> Parameters:
    """A table of parameters."""
    return Parameters()
