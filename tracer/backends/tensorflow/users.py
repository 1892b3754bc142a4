"""Which functions use an optimizer: found among all that are alive.

A function uses it if its graph writes to a variable of the optimizer's own (its iterations, a slot
variable), or if its Python code names the optimizer and one of its methods and its graph writes to
any variable, or, for a v1 optimizer, if its ops have the optimizer's name.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import FunctionType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    bound_to,
    concrete_functions,
    function_classes,
    graphs_being_traced,
    is_concrete,
    newest_function,
    ops_in,
)
from tracer.backends.tensorflow.writes import written_by
from tracer.core.instances import instances
from tracer.core.reachable import held_by, names_in, reachable
from tracer.kinds import kind_of

_DEEP = 6
"""In how many steps an optimizer is looked for from a function's Python code."""


def updates_by(name: str) -> re.Pattern[str]:
    """What the names of the ops by which an optimizer of this name updates have in them.

    A loss scale around it adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    return re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")


def has_updates_by(graph: Any, name: str) -> bool:
    """Whether the graph of a function, or of one that it calls, has such ops."""
    by_name = updates_by(name)
    return any(by_name.search(op.name) for op in ops_in(graph))


_known_functions: tuple[int, list[ReferenceType[Any]]] = (-1, [])


def functions_alive() -> tuple[list[Any], list[Any]]:
    """Every living `ConcreteFunction`, and every `tf.function`.

    To look for them takes a walk over all objects, so they are kept, weakly, as long as TensorFlow
    knows of no new function.
    """
    global _known_functions
    newest = newest_function()
    if newest != _known_functions[0]:
        _known_functions = (newest, [ref(each) for each in instances(function_classes())])
    functions = [each for known in _known_functions[1] if (each := known()) is not None]
    concretes = [each for each in functions if is_concrete(each)]
    return concretes, [each for each in functions if not is_concrete(each)]


class Functions:
    """The functions that are alive at one moment, asked which of them use an optimizer."""

    def __init__(self) -> None:
        self.newest = newest_function()
        """A number that changes when a function is traced."""
        self.being_traced = graphs_being_traced()

    def users_of(
        self, optimizer: Any, handles: Collection[int], methods: Collection[str], scope: str
    ) -> list[Any]:
        """The concrete functions that use `optimizer`, each once.

        `handles` are the ids of those of its own variables, `methods` the names of those by which
        it updates others; a v1 optimizer names its ops under `scope`, empty for the others.
        """
        users = [each for handle in handles for each in self._by_handle.get(handle, ())]
        if scope:
            users += [each for each in self._alive[0] if has_updates_by(each.graph, scope)]
        for named in self._by_optimizer.get(id(optimizer), ()):
            if named.names is None or not named.names.isdisjoint((*methods, "minimize")):
                users += _writing(named.function())
        return list({id(each): each for each in users}.values())

    @property
    def polymorphic(self) -> list[Any]:
        """Every living `tf.function`."""
        return self._alive[1]

    @cached_property
    def session_graphs(self) -> list[Any]:
        """The graphs of Sessions that are alive."""
        return compat.session_graphs_alive()

    @cached_property
    def _alive(self) -> tuple[list[Any], list[Any]]:
        return functions_alive()

    @cached_property
    def _by_handle(self) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = defaultdict(list)
        for function in self._alive[0]:
            for handle in written_by(function.graph).captured:
                found[handle].append(function)
        return found

    @cached_property
    def _by_optimizer(self) -> "dict[int, list[_Named]]":
        """By the id of an optimizer, which functions name it in their Python code."""
        found: dict[int, list[_Named]] = defaultdict(list)
        for function in self._alive[1]:
            writing = _writing(function)
            if writing:
                traced = frozenset(map(id, writing))
                known = _known_names.get(function)
                if known is None or known[0] != traced:
                    known = _known_names[function] = traced, list(_named_by(function))
                for named in known[1]:
                    found[id(named.optimizer())].append(named)
        return found


def _writing(function: Any) -> list[Any]:
    """What a `tf.function` was traced to that writes to a variable."""
    traced = [] if function is None else concrete_functions(function)
    return [each for each in traced if written_by(each.graph).anything]


class _Named(NamedTuple):
    """An optimizer that the Python code of a `tf.function` names."""

    optimizer: ReferenceType[Any]
    function: ReferenceType[Any]
    names: frozenset[str] | None
    """All the names in that code; None if it calls a `tf.function` that is the optimizer's method.
    """


_known_names: WeakKeyDictionary[Any, tuple[frozenset[int], list[_Named]]] = WeakKeyDictionary()
"""By the ids of what a function was traced to: what it named then."""


def _named_by(function: Any) -> Iterator[_Named]:
    found = reachable(function.python_function, _follow, _DEEP)
    codes = [each.__code__ for each in found if isinstance(each, FunctionType)]
    names = frozenset(name for code in codes for name in names_in(code))
    for each in found:
        owner = bound_to(each)
        if owner is not None and kind_of(type(owner)) is not None:
            yield _Named(ref(owner), ref(function), None)
        elif kind_of(type(each)) is not None:
            yield _Named(ref(each), ref(function), names)


def _follow(value: Any) -> Iterator[Any]:
    yield from held_by(value)
    # Of the class it is asked: a variable of a strategy answers any name, by an op.
    if hasattr(type(value), "python_function") and inspect.isroutine(value.python_function):
        yield value.python_function


_at_this_moment: Functions | None = None


@contextmanager
def one_moment() -> Iterator[None]:
    """Several optimizers are wrapped at one moment: the functions are looked at once."""
    global _at_this_moment
    _at_this_moment = Functions()
    try:
        yield
    finally:
        _at_this_moment = None


def look() -> Functions:
    """The functions that are alive now."""
    return _at_this_moment or Functions()
