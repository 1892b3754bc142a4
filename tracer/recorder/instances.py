"""Finds the living instances of some classes. No TensorFlow."""

import copyreg
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref


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


class Living:
    """The living instances of some classes: found once, and told of from then on.

    To be told takes an `__init__` of our own on the classes, for good: whatever is made while
    nobody listens would be missing afterwards, and only a walk over all objects would find it.
    """

    def __init__(
        self,
        heard: Callable[[Any], None] = lambda made: None,
        failed: Callable[[Any], None] = lambda unmade: None,
    ) -> None:
        self._heard = heard
        self._failed = failed
        self._told: list[type] = []
        self._references: dict[int, ref[Any]] = {}
        self._complete = False

    def tell_of(self, cls: type, *, new: bool = False) -> None:
        """Be told of each instance of `cls` that is made from now on; if `new`, there is none yet.

        Copies, which are made without `__init__`, are looked for the next time.
        """
        if cls not in self._told:
            self._told.append(cls)
            cls.__init__ = self._telling(cls.__init__)  # type: ignore[misc]
            cls.__reduce_ex__ = self._being_copied(cls.__reduce_ex__)  # type: ignore[method-assign]
            self._complete = self._complete and new

    def all(self) -> list[Any]:
        """The living instances of the classes."""
        if not self._complete:
            self._complete = True
            for each in instances(self._told):
                self._add(each)
        alive = [reference() for reference in list(self._references.values())]
        return [each for each in alive if each is not None]

    def _add(self, made: Any) -> None:
        key, forget = id(made), self._references.pop  # at exit the module's names are gone first
        self._references[key] = ref(made, lambda _: forget(key, None))

    def _telling(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(made: Any, *args: Any, **options: Any) -> None:
            try:
                original(made, *args, **options)
            except BaseException:
                self._failed(made)
                raise
            self._add(made)
            self._heard(made)

        return __init__

    def _being_copied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __reduce_ex__(copied: Any, protocol: Any) -> Any:
            way = original(copied, protocol)
            if isinstance(way, str) or getattr(way[0], "__module__", "") == copyreg.__name__:
                self._complete = False  # it makes the copy by `__new__` alone
            return way

        return __reduce_ex__
