"""Which backend answers for an optimizer, and what all of them together know."""

import pkgutil
import sys

from tracer.core.backend import Backend
from tracer.kinds import OptimizerKind

BACKENDS: dict[str, str | Backend] = {
    "jax": "tracer.backends.jax.backend:JaxBackend",
    "optax": "tracer.backends.optax.backend:OptaxBackend",
    "tensorflow": "tracer.backends.tensorflow.backend:TensorFlowBackend",
    "torch": "tracer.backends.torch.backend:TorchBackend",
    "torch_optim": "tracer.backends.torch.backend:TorchOptimBackend",
}
"""By name each backend, or where its class is until an optimizer needs it; Keras 3 runs on some."""


def name_of(kind: OptimizerKind) -> str:
    """The name of the backend of this kind of optimizer: for Keras 3 that on which Keras runs."""
    keras = sys.modules.get("keras") if kind.backend == "keras" else None
    if hasattr(keras, "backend"):
        return str(keras.backend.backend())  # type: ignore[union-attr]
    return "tensorflow" if kind.backend == "keras" else kind.backend


def backend_of(kind: OptimizerKind) -> Backend:
    """The backend of this kind of optimizer; importing it imports its framework."""
    name = name_of(kind)
    backend = BACKENDS[name]
    if isinstance(backend, str):
        backend = BACKENDS[name] = pkgutil.resolve_name(backend)()
    return backend


def canonical(variable: object) -> object:
    """The one object that stands for a variable of any backend that is in use."""
    for backend in list(BACKENDS.values()):
        if isinstance(backend, Backend):
            variable = backend.canonical(variable)
    return variable
