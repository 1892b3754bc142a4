"""Finds the living instances of some classes. No TensorFlow."""

import gc
from collections.abc import Iterable
from typing import Any


def instances(bases: Iterable[type]) -> list[Any]:
    """Every living instance of `bases` and of their subclasses.

    An instance refers to its class, so the garbage collector can be asked for the referrers of the
    classes. `gc.get_objects` would do too, but it takes references to tuples that other threads
    are still filling, which breaks those threads (`Objects/tupleobject.c`, `_PyTuple_Resize`).

    >>> class Base: pass
    >>> class Derived(Base): pass
    >>> one = Derived()
    >>> instances([Base]) == [one]
    True
    """
    classes: set[type] = set()
    todo = list(bases)
    while todo:
        cls = todo.pop()
        if cls not in classes:
            classes.add(cls)
            todo += type.__subclasses__(cls)
    return [each for each in gc.get_referrers(*classes) if type(each) in classes]
