"""Finds the objects that a function can reach, and the call that made one. No TensorFlow."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from numbers import Integral, Real
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

_LARGEST = 100
"""The longest list whose items are searched."""
_SHORT = 5
"""The longest list that is shown."""
_LEFT_OUT = ("", "0", "False", "[]")


def reachable(start: Any, follow: Callable[[Any], Iterable[Any]], depth: int) -> list[Any]:
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


def held_by(value: Any) -> Iterator[Any]:
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
    elif isinstance(value, list | tuple) and len(value) <= _LARGEST:
        yield from value
    elif isinstance(value, dict) and len(value) <= _LARGEST:
        yield from list(value.values())


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code and in the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def closure_of(function: Any) -> dict[str, Any]:
    """The values of a function's free variables, by name."""
    found = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def attributes_of(value: Any, names: set[str]) -> Iterator[Any]:
    """The instance attributes of an object that have one of these names."""
    own = getattr(type(value), "__dict__", None) and getattr(value, "__dict__", None)
    if isinstance(own, dict) and not inspect.ismodule(value):
        yield from (own[name] for name in names & own.keys())


def as_call(made: Any, depth: int = 3) -> str:
    """The call that may have made a function or an object, with its numeric arguments.

    Arguments that are 0 or not numeric are left out. Nothing is called, and no property is read.
    Functions among the arguments are shown in the same way, nested at most `depth` deep.

    >>> def decay(start, steps):
    ...     return lambda step: start / (step + steps)
    >>> as_call(decay(0.5, 10))
    'decay(start=0.5, steps=10)'
    """
    if isinstance(made, partial | MethodType):
        return as_call(made.func if isinstance(made, partial) else made.__func__, depth)
    if isinstance(made, FunctionType):
        name, own = made.__qualname__.partition(".<locals>")[0], closure_of(made)
        name = name.replace("<lambda>", "a lambda")
    else:
        name, own = type(made).__name__, {}
        with suppress(AttributeError):  # no attributes, or a constructor in C
            held, code = object.__getattribute__(made, "__dict__"), type(made).__init__.__code__
            own = {each: held.get(each) for each in code.co_varnames[: code.co_argcount]}
    texts = {key: _argument(each, depth - 1) for key, each in own.items()}
    given = [f"{key}={text}" for key, text in texts.items() if text not in _LEFT_OUT]
    return name + f"({', '.join(given)})" * bool(given)


def _argument(value: Any, depth: int) -> str:
    """The text of a number, a function, or a short list of these; empty for anything else."""
    if isinstance(value, Integral):
        return str(value)
    if isinstance(value, Real):
        return f"{float(value):.6g}"
    if isinstance(value, list | tuple) and len(value) <= _SHORT:
        parts = [_argument(each, depth) for each in value]
        return f"[{', '.join(parts)}]" if all(parts) else ""
    return as_call(value, depth) if isinstance(value, FunctionType) and depth else ""
