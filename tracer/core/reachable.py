"""The objects that a function can reach. No TensorFlow."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

_LARGEST = 100
"""How many items a list may have whose items are looked at."""


def reachable(start: Any, follow: Callable[[Any], Iterable[Any]], depth: int) -> list[Any]:
    """`start`, and all that at most `depth` steps of `follow` reach from it, each once.

    >>> sorted(reachable(12, lambda number: [number // 2, number // 3], depth=2))
    [1, 2, 3, 4, 6, 12]
    """
    found = {id(start): start}
    layer = [start]
    for _ in range(depth):
        following = {id(each): each for holder in layer for each in follow(holder)}
        layer = [each for key, each in following.items() if key not in found]
        found |= following
    return list(found.values())


_CONTAINERS = (dict, list, tuple)


def layers(values: list[Any], depth: int) -> Iterator[list[Any]]:
    """`values`, then what is in the lists and dicts among them, and so on: `depth` lists in all.

    >>> list(layers([1, {"a": 2, "b": [3]}], depth=3))
    [[1, {'a': 2, 'b': [3]}], [2, [3]], [3]]
    """
    yield values
    for _ in range(depth - 1):
        values = [
            item
            for each in values
            if isinstance(each, _CONTAINERS)
            for item in (list(each.values()) if isinstance(each, dict) else list(each))
        ]
        yield values


def held_by(value: Any) -> Iterator[Any]:
    """What a function, a method, a partial function, a weak reference or a container holds.

    Of what a function uses also the attributes that its code names. No property is read.
    """
    if isinstance(value, FunctionType):
        names = names_in(value.__code__)
        used = [*_cells(value.__closure__ or ()), *(value.__defaults__ or ())]
        used += [value.__globals__[name] for name in names if name in value.__globals__]
        used.append(getattr(value, "__wrapped__", None))
        yield from used
        for each in used:
            yield from attributes_of(each, names)
    elif isinstance(value, MethodType):
        yield value.__self__
        yield value.__func__
        if isinstance(value.__func__, FunctionType):
            yield from attributes_of(value.__self__, names_in(value.__func__.__code__))
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, ref):
        yield value()
    elif isinstance(value, list | tuple) and len(value) <= _LARGEST:
        yield from value
    elif isinstance(value, dict) and len(value) <= _LARGEST:
        yield from list(value.values())


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code and the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def _cells(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        with suppress(ValueError):  # it is not filled yet
            yield cell.cell_contents


def attributes_of(value: Any, names: set[str]) -> Iterator[Any]:
    """The attributes of an object itself with one of these names."""
    own = getattr(type(value), "__dict__", None) and getattr(value, "__dict__", None)
    if isinstance(own, dict) and not inspect.ismodule(value):
        yield from (own[name] for name in names & own.keys())
