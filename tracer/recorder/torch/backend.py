"""PyTorch's answers: see `tracer.recorder.backend.Backend`, which this module is."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer.model.names import plain_name
from tracer.model.records import Kind, Variable
from tracer.recorder import host
from tracer.recorder.backend import ENOUGH, SMALL, number_of
from tracer.recorder.host import (
    Handing as new_handing,
    OlderFunctions as new_older,
    counts_in_functions,
    function_around,
    in_eager,
    is_restored,
    may_have_run,
    tensor_of,
    update_replica_id,
)
from tracer.recorder.interrupts import suppress_faults
from tracer.recorder.torch.blocks import Blocks as new_blocks
from tracer.recorder.torch.effects import tensor_of as tensor_of_variable
from tracer.recorder.torch.ranks import locate, surroundings

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


KIND_BY_TYPE = False  # a tensor has a layout


def kind_of_gradient(gradient: Any) -> Kind:
    """`sparse` for a sparse tensor, `none` for None, else `dense`."""
    if gradient is None:
        return "none"
    return "sparse" if getattr(gradient, "is_sparse", False) else "dense"


def device_of(variable: Any) -> str:
    """Where a variable is: `cpu`, `cuda:0`."""
    return str(getattr(tensor_of_variable(variable), "device", ""))


def canonical(variable: Any) -> Any:
    """The parameter, also of a Keras variable: PyTorch's optimizers train the same ones."""
    tensor = tensor_of_variable(variable)
    return tensor if isinstance(tensor, torch.Tensor) else variable


def values_of(variables: Sequence[Any]) -> int | None:
    """A number made of the values of the first small variables; None if they cannot be read."""
    with suppress_faults():
        small = [each for each in map(tensor_of_variable, variables) if 0 < each.numel() <= SMALL]
        return number_of([each.detach().cpu().numpy() for each in small[:ENOUGH]])
    return None


def number_in(variable: Any) -> float | None:
    """What a variable of one element holds; None if there is none, or it cannot be read now."""
    tensor = tensor_of_variable(variable)
    if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
        return None
    return float(tensor.detach().item())


def iterations_of(optimizer: Any) -> int | None:
    """The optimizer's own count of its steps; None if it has none or it cannot be read now."""
    number = number_in(getattr(optimizer, "_iterations", None))
    return None if number is None else int(number)


def versions() -> dict[str, str]:
    """The versions of Python, PyTorch and Keras."""
    return host.versions_of("torch", "keras")


def new_variables(note: Callable[[str], None]) -> host.Variables:
    """A table of variables."""
    return host.Variables(lambda variable: variable, _row)


def _row(variable: Any) -> Variable:
    dtype = str(variable.dtype).removeprefix("torch.")
    return Variable(plain_name(variable), tuple(map(int, variable.shape)), dtype)
