"""Which functions use an optimizer: found among all that are alive.

A function uses it if its graph writes to a variable of the optimizer's own (its iterations, a slot
variable), or if its Python code names the optimizer and one of its methods and its graph writes to
any variable, or, for a v1 optimizer, if its ops have the optimizer's name.
"""

import functools
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    bound_to,
    concrete_functions,
    first_traced,
    function_classes,
    is_concrete,
    newest_function,
    ops_in,
)
from tracer.backends.tensorflow.writes import Write, ops_named, writes_of, written_by
from tracer.core.instances import Living, instances
from tracer.kinds import kind_of


def updates_by(name: str) -> re.Pattern[str]:
    """What the names of the ops by which an optimizer of this name updates have in them.

    A loss scale around it adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    return re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")


_DEEP = 4
"""How far a function's Python code is followed to the optimizer, from function to function."""


_known_functions: tuple[int, list[ReferenceType[Any]]] = (-1, [])
_living = Living()
_listening = False


def listen() -> None:
    """Be told of each function from now on, so that no walk over all objects looks for new ones."""
    global _listening
    if not _listening:
        _listening = True
        for cls in function_classes():
            _living.tell_of(cls)
        compat.listen_to_graphs()


def functions_alive() -> tuple[list[Any], list[Any]]:
    """Every living `ConcreteFunction`, and every `tf.function`.

    To look for them takes a walk over all objects, so they are kept, weakly, as long as TensorFlow
    knows of no new function; unless somebody listens.
    """
    global _known_functions
    if _listening:
        functions = _living.all()
    else:
        known = newest_function()
        if known != _known_functions[0]:
            functions = instances(function_classes())
            _known_functions = (known, [ref(each) for each in functions])
        functions = [each for known in _known_functions[1] if (each := known()) is not None]
    concretes = [each for each in functions if is_concrete(each)]
    return concretes, [each for each in functions if not is_concrete(each)]


def new_functions() -> list[Any]:
    """Every living `ConcreteFunction` that writes and that this was not asked for before.

    To be asked for if somebody listens.
    """
    new = (each for each in _living.new() if is_concrete(each))
    return [each for each in new if written_by(each.graph).anything]


def kept_for_nothing(known: Iterable[ReferenceType[Any]]) -> set[int]:
    """The ids of those of the concrete functions that nobody can call any more.

    Each is held by the `tf.function` alone that was traced to it first, and has forgotten it.
    """
    kept = {id(first_traced(each)) for each in functions_alive()[1]}
    return {id(f()) for f in known if id(f()) in kept and sys.getrefcount(f()) == 2}


_known_writes: WeakKeyDictionary[Any, dict[tuple[frozenset[int], str], list[Write]]]
_known_writes = WeakKeyDictionary()


def writes_in(graph: Any, handles: Collection[int], scope: str) -> list[Write]:
    """What the finished graph of a function writes to: see `being_written`. It is kept."""
    captured = frozenset(id(outer) for outer, _ in graph.captures if id(outer) in handles)
    known = _known_writes.setdefault(graph, {})
    writes = known.get((captured, scope))
    if writes is None:
        writes = known[captured, scope] = being_written(graph, captured, scope)
    return writes


def being_written(graph: Any, handles: Collection[int], scope: str) -> list[Write]:
    """What in a graph writes to `handles`, or updates by the name of a v1 optimizer, `scope`."""
    named = ops_named(graph, updates_by(scope)) if scope else ()
    return [*writes_of(graph, handles), *named]


class Functions:
    """The functions that are alive at one moment, asked which of them use an optimizer."""

    def __init__(self, only: Collection[Any] | None = None) -> None:
        """Of the functions that were traced, `only` these are asked for, if they are given."""
        self.concretes, self.polymorphics = functions_alive()
        if only is not None:
            self.concretes = list(only)
        self._reached: dict[int, _Reached] = {}
        self._asked_for = {id(each) for each in self.concretes}
        self._graphs_of = [(each, concrete_functions(each)) for each in self.polymorphics]
        self._by_handle: dict[int, list[Any]] = {}
        for function in self.concretes:
            for handle in written_by(function.graph).captured:
                self._by_handle.setdefault(handle, []).append(function)

    def users_of(
        self, optimizer: Any, variables: Collection[Any], methods: Collection[str], scope: str
    ) -> Iterator[Any]:
        """The concrete functions that use `optimizer`, each once."""
        users = [each for handle in variables for each in self._by_handle.get(id(handle), ())]
        if scope:
            by_name = updates_by(scope)
            for function in self.concretes:
                if any(by_name.search(op.name) for op in ops_in(function.graph)):
                    users.append(function)
        seen: set[int] = set()
        for function in users:
            if id(function) not in seen:
                seen.add(id(function))
                yield function
        names = frozenset({*methods, "minimize"})
        for polymorphic, graphs in self._graphs_of:
            writing = [
                function
                for function in graphs
                if id(function) in self._asked_for
                and id(function) not in seen
                and written_by(function.graph).anything
            ]
            if writing and self._reach(polymorphic).uses(optimizer, names):
                seen.update(map(id, writing))
                yield from writing

    def polymorphics_of(self, concretes: Collection[int]) -> Iterator[Any]:
        """The `tf.function`s with one of these concrete functions, given by their `id`."""
        for polymorphic, graphs in self._graphs_of:
            if any(id(function) in concretes for function in graphs):
                yield polymorphic

    def _reach(self, polymorphic: Any) -> "_Reached":
        reached = self._reached.get(id(polymorphic))
        if reached is None:
            reached = self._reached[id(polymorphic)] = _reached_from(polymorphic.python_function)
        return reached


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
    return _at_this_moment or Functions()


class _Reached(NamedTuple):
    """What the code of a function reaches."""

    objects: frozenset[int]
    """The ids of the objects that it names, and functions that it calls."""
    bound: frozenset[int]
    """The ids of those of which it calls a method that is a `tf.function`."""
    names: frozenset[str]
    """The names in its code, and in that of the functions that it calls."""

    def uses(self, optimizer: Any, methods: Collection[str]) -> bool:
        """Whether it names the optimizer, and one of the methods by which it updates."""
        by_name = id(optimizer) in self.objects and not self.names.isdisjoint(methods)
        return by_name or id(optimizer) in self.bound


def _reached_from(function: Any) -> _Reached:
    todo: list[tuple[Any, int]] = [(function, 0)]
    seen: dict[int, Any] = {}  # with the objects, so that no other one gets the id meanwhile
    bound, every_name = set(), set[str]()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        owner = bound_to(value)
        if owner is not None:
            bound.add(id(owner))
        elif isinstance(value, functools.partial):
            todo += [(held, depth) for held in (value.func, *value.args, *value.keywords.values())]
        elif inspect.ismethod(value):
            todo += [(value.__self__, depth), (value.__func__, depth)]
        elif isinstance(value, ref):
            todo.append((value(), depth))
        elif isinstance(value, list | tuple) and len(value) <= 100:
            todo += [(held, depth) for held in value]
        elif isinstance(value, FunctionType) and depth < _DEEP:
            names = _code_names(value.__code__)
            every_name |= names
            used = [*_cells(value), *_globals(value, names), *(value.__defaults__ or ())]
            used.append(getattr(value, "__wrapped__", None))
            for user in used:
                todo.append((user, depth + 1))
                todo += [(held, depth + 1) for held in _attributes(user, names)]
        elif kind_of(type(value)) is None:  # an optimizer is where the way ends
            # Of the class it is asked: a variable of a strategy answers any name, by an op.
            has = depth < _DEEP and hasattr(type(value), "python_function")
            if has and inspect.isroutine(value.python_function):
                todo.append((value.python_function, depth + 1))
    return _Reached(frozenset(seen), frozenset(bound), frozenset(every_name))


def _code_names(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code and the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _code_names(constant)
    return names


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not filled yet
            continue


def _globals(function: FunctionType, names: Collection[str]) -> Iterator[Any]:
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _attributes(value: Any, names: Collection[str]) -> Iterator[Any]:
    """What hangs on an object under one of these names; no property of a foreign class is run."""
    own = getattr(type(value), "__dict__", None) and getattr(value, "__dict__", None)
    if isinstance(own, dict) and not inspect.ismodule(value):
        yield from (own[name] for name in names & own.keys())
