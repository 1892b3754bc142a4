"""Find the backend of an optimizer; ask all backends that are in use."""

import pkgutil
import sys

from tracer.core.backend import Backend
from tracer.kinds import OptimizerKind

BACKENDS: dict[str, str | Backend] = {
    "keras": "tracer.backends.keras.backend:KerasBackend",
    "jax": "tracer.backends.jax.backend:JaxBackend",
    "optax": "tracer.backends.optax.backend:OptaxBackend",
    "tensorflow": "tracer.backends.tensorflow.backend:TensorFlowBackend",
    "torch": "tracer.backends.torch.backend:TorchBackend",
    "torch_optim": "tracer.backends.torch.backend:TorchOptimBackend",
}
"""Each backend by name, or the path of its class until it is needed. `keras` is what is the same
for Keras on every framework; it imports none, and finds the optimizers.
"""


def name_of(kind: OptimizerKind) -> str:
    """The name of the backend for this kind of optimizer; for Keras 3, the backend of Keras."""
    keras = sys.modules.get("keras") if kind.backend == "keras" else None
    if hasattr(keras, "backend"):
        return str(keras.backend.backend())  # type: ignore[union-attr]
    return "tensorflow" if kind.backend == "keras" else kind.backend


def backend_of(kind: OptimizerKind) -> Backend:
    """The backend for this kind of optimizer; imports its framework."""
    return _backend(name_of(kind))


def _backend(name: str) -> Backend:
    backend = BACKENDS[name]
    if isinstance(backend, str):
        backend = BACKENDS[name] = pkgutil.resolve_name(backend)()
    return backend


FINDERS = {"torch_optim": "torch", "optax": "optax", "keras": ""}
"""The backends that find optimizers, each with the package that must be imported before."""


def finders(*, load: bool = False) -> list[Backend]:
    """The backends that can find optimizers now; `load` those whose package is imported.

    A thread that reads a trace loads none: the program may just be importing the package, and both
    would wait for each other.
    """
    found = []
    for name, home in FINDERS.items():
        imported = load and (not home or home in sys.modules)
        if imported or isinstance(BACKENDS[name], Backend):
            found.append(_backend(name))
    return found


def canonical(variable: object) -> object:
    """The object that identifies a variable, in any backend that is in use."""
    for backend in list(BACKENDS.values()):
        if isinstance(backend, Backend):
            variable = backend.canonical(variable)
    return variable
