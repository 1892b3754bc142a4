"""Ask the imported frameworks about objects of a program: variables, layers, models.

Frameworks that the program has not imported are never imported here.
"""

import sys
from fnmatch import filter as matching
from importlib import import_module

from tracer.backends.models import weights_of as weights_of
from tracer.model.names import plain_name
from tracer.model.records import Variable

_VARIABLES = {
    "tensorflow": ("tensorflow.*", "tracer.backends.tensorflow.variables"),
    "torch": ("torch.Tensor", "tracer.backends.torch.parameters"),
}
"""By framework, the classes of its variables, and the module that knows their names."""


def name_of(variable: object) -> str:
    """The framework's name of `variable`: for Keras 3, the path of the Keras variable.

    Raises `TypeError` if this is not a variable.
    """
    classes = [f"{base.__module__}.{base.__qualname__}" for base in type(variable).__mro__]
    for pattern, module in _VARIABLES.values():
        if matching(classes, pattern):
            return str(import_module(module).name_of(variable))
    return plain_name(variable)


def names_alive() -> set[str]:
    """The names of all variables that the program holds, passed to an optimizer or not."""
    modules = [module for name, (_, module) in _VARIABLES.items() if name in sys.modules]
    return set[str]().union(*(import_module(module).names_alive() for module in modules))


def is_loose_tensor(given: object) -> bool:
    """True for a PyTorch tensor that cannot be a parameter, such as `weight.data`."""
    if "torch" not in sys.modules:
        return False
    from tracer.backends.torch import compat

    return compat.is_loose_tensor(given)


def leaves_of(given: object) -> list[Variable]:
    """The leaves of a tree of JAX arrays, as optax would see them; empty for other objects."""
    if "jax" not in sys.modules:
        return []
    from tracer.backends.optax import leaves

    return leaves.rows_of_arrays(given)
