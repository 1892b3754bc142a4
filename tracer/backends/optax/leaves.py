"""The leaves of the parameters, which are to optax what variables are to an optimizer of Keras.

They have no identity: a step gets arrays and returns others. So a leaf is known by its path in the
tree, its shape and its dtype.
"""

from contextlib import suppress
from typing import Any

import jax
import numpy as np

from tracer.core import backend
from tracer.model.names import distinct
from tracer.model.records import Variable

ALONE = "parameter"
"""What parameters are called that are one array, which has no path."""
_MAX_STRUCTURES = 1000
"""Of how many structures the paths are kept."""
_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)


class Leaf:
    """A leaf of the parameters."""

    __slots__ = ("__weakref__", "dtype", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype


Pairs = list[tuple[Any, Leaf]]
"""Gradients or updates, each with the leaf that it is for."""


class Leaves(backend.Variables):
    """The leaves of one transformation, each with its index."""

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._leaves: dict[tuple[str, tuple[int, ...], str], Leaf] = {}
        self._paths: dict[Any, list[str]] = {}

    def pairs(self, values: Any, named: Any) -> Pairs | None:
        """Each leaf of `values`, which may be None, with that leaf of the tree `named`.

        None if that has more or fewer. A model of Equinox has functions and numbers besides its
        weights, which have no gradient.
        """
        arrays, structure = _flat(named)
        flat = arrays if values is named else _flat(values)[0]
        if len(flat) != len(arrays):
            return None
        return [
            (value, self._leaf(name, value if array is None else array))
            for value, array, name in zip(flat, arrays, self._names(structure, named), strict=True)
            if value is not None or _is_weight(array)
        ]

    def _names(self, structure: Any, tree: Any) -> list[str]:
        """The path to each leaf of a tree, which has this structure."""
        try:
            names = self._paths.get(structure)
            if names is None:
                if len(self._paths) >= _MAX_STRUCTURES:  # of trees that are never alike
                    self._paths.clear()
                names = self._paths[structure] = names_in(tree)
        except (TypeError, ValueError):  # what it holds besides arrays cannot be compared
            names = names_in(tree)
        return names

    def _leaf(self, name: str, array: Any) -> Leaf:
        key = name, tuple(map(int, getattr(array, "shape", ()))), _dtype_of(array)
        return self._leaves.get(key) or self._leaves.setdefault(key, Leaf(*key))


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

    A model of Equinox holds functions and numbers besides its arrays.
    """
    leaves = _flat(tree)[0]
    if not all(isinstance(each, _ARRAYS) or _is_no_variable(each) for each in leaves):
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


def _dtype_of(array: Any) -> str:
    """The type that JAX gives to a leaf: a number, or an array of NumPy, may have more bits."""
    dtype = getattr(array, "dtype", type(array))
    with suppress(TypeError, ValueError):  # a type of JAX's own, as that of keys
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return str(dtype)


def _flat(tree: Any) -> tuple[list[Any], Any]:
    flat: tuple[list[Any], Any] = jax.tree_util.tree_flatten(tree, is_leaf=_is_none)
    return flat


def _is_none(node: Any) -> bool:
    return node is None
