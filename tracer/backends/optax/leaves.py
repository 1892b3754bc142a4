"""The leaves of the parameters, which are to optax what variables are to an optimizer of Keras.

They have no identity: a step is given arrays and gives others. So a leaf is known by its path in
the tree, its shape and its dtype.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from tracer.core import backend
from tracer.model.names import distinct
from tracer.model.records import Variable

ALONE = "parameter"
"""What parameters are called that are one array, which has no path."""
_STRUCTURES = 1000
"""Of how many structures the paths are kept."""


class Leaf:
    """A leaf of the parameters."""

    __slots__ = ("__weakref__", "dtype", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype


class Leaves(backend.Variables):
    """The leaves that were met, each with its index."""

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._all: list[Leaf] = []
        self._of_leaf: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._names: dict[Any, list[str]] = {}

    def index(self, variable: Leaf, graph: Any) -> int:
        """The index of a leaf."""
        return self._of_leaf[variable.name, variable.shape, variable.dtype]

    def handed(self, gradients: Any, params: Any) -> Iterator[tuple[Any, Leaf]]:
        """Each gradient, which may be None, with the leaf that it is of.

        The path is that in the parameters, if they are given and are as many. A model of Equinox
        has functions and numbers beside its weights, which have no gradient.
        """
        given, tree = _flat(gradients)
        named, known = given, tree
        if params is not None:
            flat, of_params = _flat(params)
            if len(flat) == len(given):
                named, known = flat, of_params
        names = self._names_of(known, gradients if known is tree else params)
        for gradient, array, name in zip(given, named, names, strict=True):
            if gradient is not None or _is_weight(array):
                yield gradient, self._leaf(name, gradient if array is None else array)

    def _names_of(self, structure: Any, whole: Any) -> list[str]:
        """The path to each leaf of a tree, which has this structure."""
        try:
            names = self._names.get(structure)
            if names is None:
                if len(self._names) >= _STRUCTURES:  # of trees that are never alike
                    self._names.clear()
                names = self._names[structure] = names_in(whole)
        except (TypeError, ValueError):  # what it holds beside arrays cannot be compared
            names = names_in(whole)
        return names

    def _leaf(self, name: str, array: Any) -> Leaf:
        shape = tuple(map(int, getattr(array, "shape", ())))
        key = name, shape, _dtype_of(array)
        index = self._of_leaf.get(key)
        if index is None:
            with self._lock:
                index = self._of_leaf.get(key)
                if index is None:
                    index = len(self._all)
                    self._all.append(Leaf(*key))
                    self._plain.append(Variable(*key))
                    self.objects.append(None)
                    self._of_leaf[key] = index
        return self._all[index]


def _is_weight(leaf: Any) -> bool:
    """Whether a leaf of the parameters is an array that could have a gradient."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.inexact)


def names_in(tree: Any) -> list[str]:
    """The path to each leaf of a tree: `params/Dense_0/kernel`; no two alike."""
    return distinct(
        jax.tree_util.keystr(path, simple=True, separator="/") or ALONE
        for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)[0]
    )


def rows_of_arrays(tree: Any) -> list[Variable]:
    """Each array in a tree; none if it holds variables or names, which mean themselves.

    A model of Equinox holds functions and numbers beside its arrays.
    """
    leaves = _flat(tree)[0]
    if not any(isinstance(each, _ARRAYS) for each in leaves):
        return []
    if any(not (isinstance(each, _ARRAYS) or _is_no_variable(each)) for each in leaves):
        return []
    return [
        Variable(name, tuple(map(int, each.shape)), _dtype_of(each))
        for name, each in zip(names_in(tree), leaves, strict=True)
        if isinstance(each, _ARRAYS)
    ]


def _is_no_variable(leaf: Any) -> bool:
    """Whether it is nothing, a number or a function, as a model of Equinox holds them."""
    is_function = callable(leaf) and not hasattr(leaf, "variables")
    return leaf is None or isinstance(leaf, int | float | complex) or is_function


_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)


def number_of(tree: Any) -> int:
    """How many leaves a tree has."""
    return len(_flat(tree)[0])


def _dtype_of(array: Any) -> str:
    """The type that JAX gives to a leaf: a number, or an array of NumPy, may have more bits."""
    dtype = getattr(array, "dtype", type(array))
    with suppress(TypeError, ValueError):  # a type of JAX's own, as that of keys
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return str(dtype)


def tracers_in(tree: Any) -> list[Any]:
    """What JAX is tracing in a tree."""
    return [each for each in jax.tree_util.tree_leaves(tree) if isinstance(each, jax.core.Tracer)]


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=_is_none)
    return leaves, structure


def _is_none(node: Any) -> bool:
    return node is None
