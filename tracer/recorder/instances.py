"""Finds the living instances of some classes. No TensorFlow."""

import gc
import sys
import time
from collections.abc import Iterable
from typing import Any


def instances(bases: Iterable[type]) -> list[Any]:
    """Every living instance of `bases` and of their subclasses.

    The list of `gc.get_objects` must be gone before another thread runs: it refers to tuples that
    such a thread is still filling, which it then cannot do (`_PyTuple_Resize` wants the only
    reference). So no thread is switched to meanwhile, some 50 ms. `gc.get_referrers` of the classes
    would need no such list, but it crashed in a large process with TensorFlow.

    >>> class Base: pass
    >>> class Derived(Base): pass
    >>> one = Derived()
    >>> instances([Base]) == [one]
    True
    """
    classes: dict[int, type] = {}  # by id: any class may have a metaclass that forbids to hash it
    todo = list(bases)
    while todo:
        cls = todo.pop()
        if id(cls) not in classes:
            classes[id(cls)] = cls
            todo += type.__subclasses__(cls)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        time.sleep(0)  # lets threads run that asked for it with the old interval
        return [each for each in gc.get_objects() if id(type(each)) in classes]
    finally:
        sys.setswitchinterval(interval)
