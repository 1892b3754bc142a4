"""Finds the objects that a function can reach, and the maker of one. No TensorFlow."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

LARGEST = 100
"""The longest list whose items are searched."""


def reachable(start: object, follow: Callable[[Any], Iterable[Any]], depth: int) -> list[Any]:
    """`start` and all objects that at most `depth` steps of `follow` reach from it, each once.

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
    """Yield `values`, then the items of the lists and dicts in it, and so on: `depth` lists in all.

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


def held_by(value: object) -> Iterator[Any]:
    """The objects that a function, method, partial function, weak reference or container holds.

    For a function, also the attributes that its code names. Properties are not read.
    """
    if isinstance(value, FunctionType):
        names = names_in(value.__code__)
        used = [*closure_of(value).values(), *(value.__defaults__ or ())]
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
    elif isinstance(value, list | tuple) and len(value) <= LARGEST:
        yield from value
    elif isinstance(value, dict) and len(value) <= LARGEST:
        yield from list(value.values())


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code and in the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def closure_of(function: object) -> dict[str, Any]:
    """The values of a function's free variables, by name."""
    found = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def attributes_of(value: object, names: set[str]) -> Iterator[Any]:
    """The instance attributes of an object that have one of these names."""
    own = getattr(type(value), "__dict__", None) and getattr(value, "__dict__", None)
    if isinstance(own, dict) and not inspect.ismodule(value):
        yield from (own[name] for name in names & own.keys())


def maker_of(made: object) -> str:
    """The name of the class or the function that made a schedule. Nothing of it is called.

    >>> def decay(start, steps):
    ...     return lambda step: start / (step + steps)
    >>> maker_of(decay(0.5, 10))
    'decay'
    """
    if isinstance(made, partial):
        return maker_of(made.func)
    if not isinstance(made, FunctionType | MethodType):
        return type(made).__name__
    return made.__qualname__.partition(".<locals>")[0].replace("<lambda>", "a lambda")
