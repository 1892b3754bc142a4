"""Find the living functions that use an optimizer.

A function uses it if its graph writes to a variable of the optimizer itself (its iterations, a slot
variable), or if its Python code names the optimizer and one of its methods and its graph writes to
any variable, or, for a v1 optimizer, if its ops have the optimizer's name.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import FunctionType
from typing import Any

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import (
    bound_to,
    concrete_functions,
    functions_alive,
    graphs_being_traced,
    newest_function,
    ops_in,
)
from tracer.backends.tensorflow.writes import written_by
from tracer.core.reachable import held_by, names_in, reachable
from tracer.kinds import kind_of

_MAX_STEPS = 6
"""How many references to follow from a function's Python code to an optimizer."""


def updates_by(name: str) -> re.Pattern[str]:
    """A pattern in the names of the ops by which an optimizer of this name updates.

    A loss scale around it adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    return re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")


def has_updates_by(graph: Any, name: str) -> bool:
    """True if the graph of a function, or of one that it calls, has such ops."""
    by_name = updates_by(name)
    return any(by_name.search(op.name) for op in ops_in(graph))


class Functions:
    """The functions alive at one moment, with the optimizers that they use."""

    def __init__(self) -> None:
        self.newest = newest_function()
        """A number that changes when a function is traced."""
        self.being_traced = graphs_being_traced()

    def users_of(
        self, optimizer: Any, handles: Collection[int], methods: Collection[str], scope: str
    ) -> list[Any]:
        """The concrete functions that use `optimizer`, each once.

        `handles` are the ids of the handles of its own variables, `methods` the names of the
        methods by which it updates; a v1 optimizer names its ops under `scope`, empty for the
        others.
        """
        users = [each for handle in handles for each in self._by_handle.get(handle, ())]
        if scope:
            users += [each for each in self._alive[0] if has_updates_by(each.graph, scope)]
        for names, writing in self._by_optimizer.get(id(optimizer), ()):
            if names is None or not names.isdisjoint((*methods, "minimize")):
                users += writing
        return list({id(each): each for each in users}.values())

    @property
    def polymorphic(self) -> list[Any]:
        """Every living `tf.function`."""
        return self._alive[1]

    @cached_property
    def session_graphs(self) -> list[Any]:
        """The living graphs of Sessions."""
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
    def _by_optimizer(self) -> dict[int, list[tuple[set[str] | None, list[Any]]]]:
        """By the id of an optimizer, for each function whose Python code uses it: the names in that
        code, and the concrete functions that write to a variable.

        None instead of names if the code calls a `tf.function` that is a method of the optimizer.
        """
        found: dict[int, list[tuple[set[str] | None, list[Any]]]] = defaultdict(list)
        for function in self._alive[1]:
            traced = concrete_functions(function)
            writing = [each for each in traced if written_by(each.graph).anything]
            held = reachable(function.python_function, _follow, _MAX_STEPS) if writing else []
            codes = [each.__code__ for each in held if isinstance(each, FunctionType)]
            names = {name for code in codes for name in names_in(code)}
            for each in held:
                owner = bound_to(each)
                if owner is not None and kind_of(type(owner)) is not None:
                    found[id(owner)].append((None, writing))
                elif kind_of(type(each)) is not None:
                    found[id(each)].append((names, writing))
        return found


def _follow(value: Any) -> Iterator[Any]:
    yield from held_by(value)
    # Look at the class: a variable of a strategy answers any name by adding an op.
    if hasattr(type(value), "python_function") and inspect.isroutine(value.python_function):
        yield value.python_function


_Search = Callable[[Functions], None]
_waiting: "ContextVar[list[_Search] | None]" = ContextVar("_waiting", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """Share one look at all functions between the optimizers that this thread wraps together.

    It comes last: until then other threads may trace functions with these optimizers.
    """
    searches: list[_Search] = []
    token = _waiting.set(searches)
    try:
        yield
    finally:
        _waiting.reset(token)
    functions = Functions()
    for search in searches:
        search(functions)


def look(search: _Search) -> None:
    """Call `search` with the functions that are alive, now or at the end of `one_moment`."""
    waiting = _waiting.get()
    if waiting is None:
        search(Functions())
    else:
        waiting.append(search)
