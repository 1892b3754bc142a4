"""Ask the imported frameworks about objects of a program: variables, layers, models.

Frameworks that the program has not imported are never imported here.
"""

import sys

from tracer.backends.models import variables_of as variables_of, weights_of as weights_of
from tracer.model.names import plain_name
from tracer.model.records import Variable


def name_of(variable: object) -> str:
    """The framework's name of `variable`: for Keras 3, the path of the Keras variable.

    Raises `TypeError` if this is not a variable.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(variable, torch.Tensor):
        from tracer.backends.torch import parameters

        return parameters.name_of(variable)
    return plain_name(variable)


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
