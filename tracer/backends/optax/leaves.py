"""The leaves of the parameters: the variables of optax.

Arrays have no identity: a step gets arrays and returns new ones. So a leaf is identified by its
path in the tree, its shape and its dtype.
"""

from contextlib import suppress
from functools import cache
from typing import Any

import jax
import numpy as np

from tracer.core import backend
from tracer.model.names import distinct
from tracer.model.records import Variable

ALONE = "parameter"
"""The name of parameters that are a single array, which has no path."""
_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)


class Leaf:
    __slots__ = ("__weakref__", "dtype", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype


Pairs = list[tuple[jax.Array, Leaf]]
"""Gradients or updates, each with its leaf."""


class Leaves(backend.Variables):
    """The leaves of one transformation, with their indices."""

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._leaves: dict[tuple[str, tuple[int, ...], str], Leaf] = {}
        self._names: dict[object, list[str]] = {}
        """The names of the leaves of each structure: an eager step asks for them three times."""

    def pairs(self, values: object, named: object) -> Pairs | None:
        """Each value in `values`, also None, with the leaf at its place in the tree `named`.

        None if the numbers of leaves differ. An Equinox model also contains functions and numbers,
        which have no gradient.
        """
        arrays, structure = jax.tree.flatten(named, is_leaf=_is_none)
        flat = arrays if values is named else _flat(values)
        if len(flat) != len(arrays):
            return None
        names = self._names_in(named, structure)
        return [
            (value, self._leaf(name, value if array is None else array))
            for value, array, name in zip(flat, arrays, names, strict=True)
            if value is not None or _is_weight(array)
        ]

    def _names_in(self, tree: object, structure: object) -> list[str]:
        """The names of the leaves of a tree with this structure."""
        with suppress(TypeError, ValueError):  # its objects other than arrays cannot be compared
            if structure not in self._names:
                self._names[structure] = names_in(tree)
            return self._names[structure]
        return names_in(tree)

    def _leaf(self, name: str, array: object) -> Leaf:
        key = name, tuple(map(int, getattr(array, "shape", ()))), _dtype_of(array)
        return self._leaves.get(key) or self._leaves.setdefault(key, Leaf(*key))


def _is_weight(leaf: object) -> bool:
    """True for an array that can have a gradient."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.inexact)


def names_in(tree: object) -> list[str]:
    """The unique path to each leaf of a tree: `params/Dense_0/kernel`."""
    return distinct(
        jax.tree_util.keystr(path, simple=True, separator="/") or ALONE
        for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)[0]
    )


def rows_of_arrays(tree: object) -> list[Variable]:
    """The rows of the arrays in a tree; empty if it contains variables or names.

    An Equinox model also contains functions and numbers.
    """
    leaves = _flat(tree)
    if not all(isinstance(each, _ARRAYS) or _is_no_variable(each) for each in leaves):
        return []
    return [
        Variable(name, tuple(map(int, each.shape)), _dtype_of(each))
        for name, each in zip(names_in(tree), leaves, strict=True)
        if isinstance(each, _ARRAYS)
    ]


def _is_no_variable(leaf: object) -> bool:
    """True for None, a number or a function, which an Equinox model may contain."""
    is_function = callable(leaf) and not hasattr(leaf, "variables")
    return leaf is None or isinstance(leaf, int | float | complex) or is_function


def _dtype_of(array: object) -> str:
    """The dtype of a leaf in JAX; a number or a NumPy array may have more bits."""
    dtype: Any = getattr(array, "dtype", type(array))
    if not hasattr(array, "aval"):  # no array of JAX: those have the dtype that JAX made of theirs
        with suppress(TypeError, ValueError):  # a dtype of JAX's own, such as that of keys
            dtype = jax.dtypes.canonicalize_dtype(dtype)
    return _text_of(dtype)


_text_of = cache(str)  # NumPy makes the name of a dtype in Python


def _flat(tree: object) -> list[Any]:
    return list(jax.tree.leaves(tree, is_leaf=_is_none))


def _is_none(node: object) -> bool:
    return node is None
