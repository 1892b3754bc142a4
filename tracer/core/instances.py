"""Finds the living instances of some classes. No TensorFlow."""

import copyreg
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any
from weakref import ref


def instances(bases: Iterable[type], *, young: bool = False) -> list[Any]:
    """Every living instance of `bases` and of their subclasses.

    If `young`, only those that the last full garbage collection has not seen: there are few objects
    of that sort, however many there are in all.

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
        objects = [*gc.get_objects(0), *gc.get_objects(1)] if young else gc.get_objects()
        return [each for each in objects if id(type(each)) in classes]
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
        self.told: list[type] = []
        """The classes."""
        self._references: dict[int, ref[Any]] = {}
        self._new: dict[int, ref[Any]] = {}
        self._complete = False
        self._looked_at: dict[int, ref[type]] = {}

    def tell_of(self, cls: type, *, new: bool = False) -> None:
        """Be told of each instance of `cls` that is made from now on; if `new`, there is none yet.

        Copies, which are made without `__init__`, are looked for the next time. What is unpickled
        tells of itself, wherever it was pickled.
        """
        if cls not in self.told:
            self.told.append(cls)
            cls.__init__ = self._telling(cls.__init__)  # type: ignore[misc]
            cls.__reduce_ex__ = self._being_copied(cls.__reduce_ex__)  # type: ignore[method-assign]
            if not hasattr(cls, "__setstate__"):
                type.__setattr__(cls, "__setstate__", self._being_unpickled())
            self._watch_copying(cls)
            self._complete = self._complete and new

    def all(self) -> list[Any]:
        """The living instances of the classes."""
        if not self._complete:
            self._complete = True
            for each in instances(self.told):
                self._add(each)
        alive = [reference() for reference in list(self._references.values())]
        return [each for each in alive if each is not None]

    def new(self) -> list[Any]:
        """Those of them that this was not asked for before."""
        self.all()
        new = []
        while self._new:
            new.append(self._new.popitem()[1]())
        return [each for each in new if each is not None]

    def _watch_copying(self, made: type) -> None:
        """Be told when one of this class is copied by a method of the class, or of one above it."""
        for cls in made.__mro__:
            known = self._looked_at.get(id(cls))
            if known is not None and known() is cls:
                break
            self._looked_at[id(cls)] = ref(cls)
            for name in ("__copy__", "__deepcopy__"):
                copying = vars(cls).get(name)
                if isinstance(copying, FunctionType):
                    type.__setattr__(cls, name, self._being_copied(copying))

    def _add(self, made: Any) -> None:
        self._watch_copying(type(made))
        key, known = id(made), self._references.get(id(made))
        if known is None or known() is not made:
            tables = self._references, self._new  # at exit the module's names are gone first
            reference = ref(made, lambda _: [table.pop(key, None) for table in tables])
            self._references[key] = self._new[key] = reference

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
        def copying(copied: Any, *args: Any) -> Any:
            try:
                way = original(copied, *args)
            except BaseException:
                self._complete = False
                raise
            made_by = way[0] if isinstance(way, tuple) else way
            if made_by is way or getattr(made_by, "__module__", "") == copyreg.__name__:
                self._complete = False  # it makes the copy by `__new__` alone, or has made it so
            return way

        return copying

    def _being_unpickled(self) -> Callable[[Any, Any], None]:
        def __setstate__(made: Any, state: Any) -> None:
            """What `pickle` does where there is no such method (`pickle.py`, `load_build`)."""
            self._add(made)
            slots: dict[str, Any] = {}
            if isinstance(state, tuple) and len(state) == 2:
                state, slots = state
            if state:
                made.__dict__.update(state)
            for name, value in (slots or {}).items():
                setattr(made, name, value)

        return __setstate__
