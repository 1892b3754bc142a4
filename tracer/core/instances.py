"""Finds the living instances of some classes. No TensorFlow."""

import functools
import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref


def instances(bases: Iterable[type], *, young: bool = False) -> list[Any]:
    """All living instances of `bases` and of their subclasses.

    If `young`, only the objects that the last full garbage collection has not seen: these are few,
    however many objects there are in all.

    The list of `gc.get_objects` must be gone before another thread runs: it refers to tuples that
    such a thread is still filling, and `_PyTuple_Resize` requires the only reference. So threads do
    not switch meanwhile, for some 50 ms. `gc.get_referrers` of the classes would need no such list,
    but it crashed in a large process with TensorFlow.

    >>> class Base: pass
    >>> class Derived(Base): pass
    >>> one = Derived()
    >>> instances([Base]) == [one]
    True
    """
    classes: dict[int, type] = {}  # by id: a metaclass may make its classes unhashable
    todo = list(bases)
    while todo:
        cls = todo.pop()
        if id(cls) not in classes:
            classes[id(cls)] = cls
            todo += type.__subclasses__(cls)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        time.sleep(0)  # lets waiting threads run first, at the old interval
        # Not a list display: the unfinished list would be one of the objects and contain itself.
        objects = gc.get_objects(0) + gc.get_objects(1) if young else gc.get_objects()
        return [each for each in objects if id(type(each)) in classes]
    finally:
        sys.setswitchinterval(interval)


class Living:
    """The living instances of some classes, whose patched `__init__` reports new ones.

    The `__init__` stays patched, because only a walk over all objects finds instances made without
    it. A walk finds earlier instances, and copies, which call no `__init__`.
    """

    _next_walk = 0.0
    """When the next walk may begin, by `time.monotonic`."""

    def __init__(self, made: Callable[[Any], None]) -> None:
        """`made` is called with each new instance."""
        self._made = made
        self._classes: list[type] = []
        self._references: dict[int, ref[Any]] = {}

    def watch(self, cls: type) -> None:
        """Find the instances of `cls` from now on, too."""
        if cls not in self._classes:
            self._classes.append(cls)
            cls.__init__ = self._reporting(cls.__init__)  # type: ignore[misc]
            self.walk_again()

    @classmethod
    def walk_again(cls) -> None:
        """Note that an instance may have been made without its `__init__`."""
        cls._next_walk = 0.0

    def all(self) -> list[Any]:
        """The living instances of the classes.

        Older instances made without `__init__` may be missing: only a walk over all objects finds
        them, and walks take at most a hundredth of the time.
        """
        begin = time.monotonic()
        young = begin < self._next_walk
        for each in instances(self._classes, young=young):
            self._add(each)
        if not young:
            end = time.monotonic()
            Living._next_walk = end + 100 * (end - begin)
        alive = [reference() for reference in list(self._references.values())]
        return [each for each in alive if each is not None]

    def _add(self, made: Any) -> None:
        key, known = id(made), self._references.get(id(made))
        if known is None or known() is not made:
            forget = self._references.pop  # at exit, module globals go first
            self._references[key] = ref(made, lambda _: forget(key, None))

    def _reporting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(made: Any, *args: Any, **options: Any) -> None:
            original(made, *args, **options)
            self._add(made)
            self._made(made)

        return __init__
