"""Which backend answers for an optimizer, and what all of them together know."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tracer.kinds import OPTAX, TORCH, OptimizerKind
from tracer.recorder.backend import Backend

if TYPE_CHECKING:
    from tracer.recorder.jax import backend as _jax
    from tracer.recorder.optax import backend as _optax
    from tracer.recorder.tensorflow import backend as _tensorflow
    from tracer.recorder.torch import backend as _torch
    from tracer.recorder.torch_optim import backend as _torch_optim

    _checked: tuple[Backend, ...] = (
        _jax,
        _optax,
        _tensorflow,
        _torch,
        _torch_optim,
    )  # the types are those of `Backend`

_used: dict[str, Backend] = {}
"""By their names those that answered for an optimizer, or a variable, of this process."""

SUPPORTED = ("jax", "optax", "tensorflow", "torch", "torch_optim")
"""The backends whose optimizers can be traced; Keras 3 runs on some of them."""


def name_of(kind: OptimizerKind) -> str:
    """The name of the backend of this kind of optimizer: for Keras 3 that on which Keras runs."""
    keras = sys.modules.get("keras")
    if kind.name == "keras3" and hasattr(keras, "backend"):
        return str(keras.backend.backend())  # type: ignore[union-attr]
    return {TORCH: "torch_optim", OPTAX: "optax"}.get(kind.name, "tensorflow")


def backend_of(kind: OptimizerKind) -> Backend:
    """The backend of this kind of optimizer; importing it imports its framework."""
    return _backend(name_of(kind))


def _backend(name: str) -> Backend:
    known = _used.get(name)
    if known is None:
        module: Any = importlib.import_module(f"tracer.recorder.{name}.backend")
        known = _used[name] = module
    return known


def canonical(variable: object) -> object:
    """The one object that stands for a variable of any backend that is in use."""
    for backend in list(_used.values()):
        variable = backend.canonical(variable)
    return variable
