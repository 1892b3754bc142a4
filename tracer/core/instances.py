"""Finds the living instances of some classes. No TensorFlow."""

import functools
import gc
from collections.abc import Callable, Iterable
from itertools import chain, compress
from typing import Any
from weakref import ref

from tracer.core.patches import Patch


def instances(bases: Iterable[type]) -> list[Any]:
    """All living instances of `bases` and of their subclasses.

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
    # The list of `gc.get_objects` must be gone before another thread runs: it refers to tuples
    # that such a thread is still filling, and `_PyTuple_Resize` requires the only reference.
    # Threads switch only between instructions of Python, so one call of `list` does it all, in some
    # 50 ms. `gc.get_referrers` of the classes would need no such list, but it crashed in a large
    # process with TensorFlow.
    lists: dict[None, list[Any]] = {}
    objects = chain.from_iterable(map(lists.setdefault, (None,), map(gc.get_objects, (None,))))
    same = chain.from_iterable(map(lists.pop, (None,)))
    # The lists contain these iterators, which therefore must not stop in the middle of a list:
    # the None makes `compress` ask both for one more.
    classified = map(classes.__contains__, map(id, map(type, same)))
    return list(compress(chain(objects, (None,)), classified))


_patched: list[Any] = []
"""The patched `__new__` of each class."""


class Living:
    """The living instances of some classes, which report new ones.

    Their `__new__` and `__init__` stay patched, because only a walk over all objects finds the
    instances made without the patches. `__new__` also sees copies, which call no `__init__`.
    """

    def __init__(self, made: Callable[[Any], None]) -> None:
        """`made` is called with each new instance when the `__init__` of its class has run."""
        self._made = made
        self._classes: list[type] = []
        self._unsearched: set[type] = set()
        """The classes whose earlier instances were not searched for yet."""
        self._references: dict[int, ref[Any]] = {}

    def watch(self, cls: type) -> None:
        """Find the instances of `cls` from now on, too."""
        if cls not in self._classes:
            self._classes.append(cls)
            self._see_allocations(cls)
            report_new(cls, self._report)
            self._unsearched.add(cls)

    def all(self) -> list[Any]:
        """The living instances of the classes."""
        if classes := set(self._unsearched):
            for instance in instances(classes):
                self._add(instance)
            self._unsearched -= classes
        alive = [reference() for reference in list(self._references.values())]
        return [instance for instance in alive if instance is not None]

    def _report(self, made: object) -> None:
        self._add(made)
        self._made(made)

    def _add(self, made: object) -> None:
        key, known = id(made), self._references.get(id(made))
        if known is None or known() is not made:
            forget = self._references.pop  # at exit, module globals go first
            self._references[key] = ref(made, lambda _: forget(key, None))

    def _see_allocations(self, base: Any) -> None:
        own = vars(base).get("__new__")

        def __new__(cls: Any, /, *args: Any, **options: Any) -> Any:
            # Not that of the class above `base`: a class beside it in the MRO may have its own.
            make = own or super(base, cls).__new__
            # `object.__new__` takes arguments only if no class of the program calls it.
            alone = make is object.__new__ and cls.__new__ in _patched
            made = make(cls) if alone else make(cls, *args, **options)
            self._add(made)
            return made

        _patched.append(__new__)

        __new__.__wrapped__ = base.__init__  # type: ignore[attr-defined]  # `inspect.signature`
        ours = staticmethod(__new__)
        Patch(base, "__new__", ours, "to see instances that are copied", "exit").put_in()


def report_new(cls: Any, made: Callable[[Any], None]) -> None:
    """Call `made` with each new instance when the `__init__` of `cls` has run, from now on."""
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, /, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made(self)

    Patch(cls, "__init__", __init__, "to see new instances", "exit").put_in()
