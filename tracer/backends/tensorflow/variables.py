"""Identify variables: names, canonical objects and arguments; list the optimizer's own ones."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.core import backend
from tracer.core.reachable import layers
from tracer.model.names import plain_name
from tracer.model.records import Variable

_KERAS3 = "keras.src.backend.common.variables"
"""The module of the base class of all Keras 3 variables."""

_TRACED_PER_VARIABLE = "_update_step_xla"
"""A tf_keras function that gets the variable and its id, so it is traced for each variable."""


class VariableTable(backend.Variables):
    """The variables of TensorFlow.

    One that a Keras 3 variable holds has its path if an optimizer gets the Keras variable first.
    """

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._root = root
        self._arguments: dict[str, _Argument] = {}

    def index(self, variable: Any, graph: object, named: object = None) -> int:
        """The index of `variable`, or of the argument that it is in `graph`."""
        own, name = canonical(variable), self._argument_name(variable, graph)
        if name is None:
            return super().index(own, graph, variable if _is_keras3(variable) else None)
        self._root.note(
            f"a tf.function updates a variable that it gets as its argument {name!r}: how many "
            "updates there were is known, but not of which variable each was"
        )
        argument = self._arguments.setdefault(name, _Argument(f"argument {name}", own))
        return super().index(argument, graph)

    def _argument_name(self, variable: object, graph: object) -> str | None:
        """The name of the argument by which a function around `graph` got `variable`; else None.

        While a function is traced, its body gets the variable of that one call, but the graph will
        serve every variable of that shape. The handle of such a variable is an input of the graph
        (`core/function/capture/capture_container.py`); the handle of a closure variable is only
        captured.
        """
        handle = handle_of(variable)
        for around in compat.graphs_around(graph) if isinstance(graph, compat.FuncGraph) else ():
            is_input = any(tensor is handle for tensor in around.inputs)
            if is_input and not around.name.startswith(_TRACED_PER_VARIABLE):
                named = (inner.op.name for outer, inner in around.captures if outer is handle)
                return next(named, "of a function")
        return None


class _Argument:
    """Stands for the variables that a function gets as one of its arguments."""

    def __init__(self, name: str, variable: Any) -> None:
        self.name, self.shape, self.dtype = name, variable.shape, variable.dtype


def row_of(variable: Any) -> Variable:
    """The row of a variable."""
    dtype = getattr(variable.dtype, "name", str(variable.dtype)).removesuffix("_ref")
    is_argument = isinstance(variable, _Argument)
    return Variable(plain_name(variable), _shape(variable), dtype, argument=is_argument)


def _is_keras3(variable: object) -> bool:
    return any(base.__module__ == _KERAS3 for base in type(variable).__mro__)


def canonical(variable: Any) -> Any:
    """The object that identifies a variable, from any of its copies or wrappers.

    A replica's copy refers to the whole variable; TensorFlow keeps the reference on the copy or on
    its handle (`distribute/values.py`), or for central storage on the only copy
    (`distribute/ps_values.py`).
    """
    handle = variable.handle if isinstance(variable, compat.ResourceVariable) else None
    for holder, name in (
        (variable, "_distributed_container"),
        (variable, "_aggregating_container"),
        (handle, "_distributed_container"),
    ):
        container = getattr(holder, name, None)
        whole = None if container is None else container()
        if whole is not None:  # its truth value would add an op to the graph
            return whole
    if _is_keras3(variable):
        return canonical(variable._value)
    module = type(variable).__module__
    if module.startswith(("tf_keras.", "keras.")) and hasattr(variable, "_variable"):
        return canonical(variable._variable)  # AutoCastVariable
    return variable


def copies_of(whole: object) -> tuple[Any, ...]:
    """The copies of a variable, one for each replica; only itself without a strategy."""
    copies = getattr(whole, "values", None)  # on other objects, `values` is a method
    return copies if isinstance(copies, tuple) else (whole,)


def _shape(own: object) -> tuple[int | None, ...]:
    """The shape of a variable; empty if its rank is unknown."""
    shape: Any = getattr(own, "shape", ())
    if hasattr(shape, "as_list"):  # a TensorShape; in TensorFlow 1 mode its items are no ints
        shape = shape.as_list() if shape.rank is not None else ()
    return tuple(None if size is None else int(size) for size in shape)


def handle_of(variable: object) -> tf.Tensor:
    """The resource handle of a TensorFlow or Keras variable; None without one."""
    if not isinstance(variable, compat.ResourceVariable):
        variable = getattr(variable, "_value", variable)
    return getattr(variable, "handle", None)


# The optimizer's own variables.


def value_of(variable: object, most: int) -> Any:
    """The value of a variable of 1 to `most` elements; None for others, or if unreadable now."""
    whole = canonical(variable)
    handle = getattr(getattr(whole, "_primary", whole), "handle", None)
    if not isinstance(handle, compat.EagerTensor):
        return None  # no handle, or one in a v1 graph
    size = whole.shape.num_elements()  # None if it may have any shape
    value = compat.value_in(handle, whole.dtype) if size and size <= most else None
    return value if value is not None and value.size == size else None  # not set yet


_NOT_ITS_STATE = ("_hyper", "_learning_rate", "_trainable_variables")
"""Attributes with variables that other code also writes to: schedules, other optimizers."""


def own_handles(optimizer: object) -> list[tf.Tensor]:
    """The handles of variables that usually only the optimizer writes to."""
    own = backend.own_attributes(optimizer)
    shared = _handles_in([own.get(name) for name in _NOT_ITS_STATE])
    others = {id(handle) for handle in shared}
    found = _handles_in([value for name, value in own.items() if name not in _NOT_ITS_STATE])
    return [handle for handle in found if id(handle) not in others]


def _handles_in(values: list[object]) -> Iterator[tf.Tensor]:
    """The handles of the variables in `values`, also in lists and dicts, on each replica."""
    for layer in layers(values, depth=5):
        for value in layer:
            if hasattr(type(value), "dtype"):  # as every variable has
                for item in copies_of(canonical(value)):
                    if isinstance(item, compat.ResourceVariable):
                        yield item.handle
