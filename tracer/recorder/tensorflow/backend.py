"""TensorFlow's answers: see `tracer.recorder.backend.Backend`, which this module is."""

from collections.abc import Callable, Mapping
from typing import Any

from tracer.model.records import Kind
from tracer.recorder.backend import Iterations
from tracer.recorder.tensorflow import compat
from tracer.recorder.tensorflow.blocks import Blocks as new_blocks
from tracer.recorder.tensorflow.handing import Handing
from tracer.recorder.tensorflow.older_functions import OlderFunctions as new_older
from tracer.recorder.tensorflow.own_variables import (
    is_restored,
    iterations_of,
    number_in,
    values_of,
)
from tracer.recorder.tensorflow.places import locate
from tracer.recorder.tensorflow.variables import (
    VariableTable as new_variables,
    canonical,
    device_of,
)

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

counts_in_functions = compat.eager_outside_functions
in_eager = compat.in_eager
surroundings = compat.surroundings
tensor_of = compat.tensor_of
update_replica_id = compat.update_replica_id
versions = compat.versions


def new_handing(
    variables: new_variables, iterations: Callable[[], Mapping[int, Iterations]]
) -> Handing:
    """What compares models with what is handed over."""
    return Handing(variables, iterations)


KIND_BY_TYPE = True


def kind_of_gradient(gradient: Any) -> Kind:
    """`sparse` for `tf.IndexedSlices`, `none` for None, else `dense`."""
    if type(gradient) is compat.EagerTensor:
        return "dense"  # the others are slow to find out
    if gradient is None:
        return "none"
    return "sparse" if isinstance(gradient, compat.IndexedSlices) else "dense"


def function_around(graph: Any) -> str:
    """The name of the outermost function whose graph `graph` is in."""
    return compat.function_name(compat.graphs_around(graph)[-1])


def may_have_run(error: BaseException) -> bool:
    """Whether an error may have ended a function after a part of its work had been done."""
    return isinstance(error, compat.OpError)
