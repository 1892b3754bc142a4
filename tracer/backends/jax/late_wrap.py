"""Have JAX trace programs again that it traced before their optimizer was wrapped.

Such a program holds no counter. `jax.jit` keeps it with the function that it wraps, and drops it on
request (`clear_cache`); the next call traces the function again. JAX also caches traces of the
bodies of loops, branches, `checkpoint` and inner `jit`s, and would reuse them while it traces the
outer function. So all of these are dropped (`compat.forget`). This costs time, but changes nothing
else: compiled programs have no state.

Functions that use an optimizer are found by the objects that they reference: the object of a
method, a closure, a global or a default, and what these hold, up to `_FAR` references away. A
function compiled ahead of time (`lower().compile()`) cannot be found and keeps its program; the
optimizer's own iterations may show its steps.
"""

import gc
import types
from collections.abc import Callable, Iterator, Mapping
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import jax
import numpy as np

from tracer.backends.jax import compat
from tracer.core import late_wrap
from tracer.core.late_wrap import Late
from tracer.core.reachable import LARGEST, held_by, reachable

_FAR = 6
"""How many references to follow from a function to an optimizer."""

Function = Callable[..., object]
_jitted = type(jax.jit(lambda: None))
_NOT_FOLLOWED = (dict, list, tuple, types.ModuleType, np.ndarray, jax.Array)
"""Containers, which `held_by` follows, and what holds no optimizer or too many objects."""


_of_recorders: "WeakSet[JaxStaleFunctions]" = WeakSet()
"""One for each recorder, with the functions traced while its optimizers were traced."""


class JaxStaleFunctions(late_wrap.StaleFunctions):
    """The functions that were traced with an optimizer before it was wrapped."""

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__(note)
        self._optimizers: WeakValueDictionary[int, object] = WeakValueDictionary()
        self._traced: WeakKeyDictionary[Function, int] = WeakKeyDictionary()
        _of_recorders.add(self)

    def begin(self, index: int, optimizer: object) -> None:
        """Remember the optimizer, or what functions hold of it, for the end of its tracing."""
        self._optimizers[index] = getattr(optimizer, "sought", optimizer)

    def find(self, late: Late, retrace: bool) -> None:
        """Drop the traces of functions with an optimizer, or note that they run uncounted.

        For optax, these functions hold the original transformation.
        """
        self.begin(late.number, late.optimizer)
        optimizer = self._optimizers[late.number]
        functions = {
            function: programs
            for function, programs in functions_with(optimizer).items()
            if self._traced.get(function) != programs  # else it was traced while the optimizer was
        }
        names = {str(getattr(each, "__name__", "program")): each for each in _outermost(functions)}
        if retrace:
            forget(functions)
            self.retraced(late.name, names)
            return
        for name, function in names.items():
            self.missed(late.name, name, function)

    def let_go(self, index: int) -> None:
        """Store the functions traced so far, which keep counting in a later trace."""
        optimizer = self._optimizers.get(index)
        if optimizer is not None:
            self._traced.update(functions_with(optimizer))


def functions_with(optimizer: object) -> dict[Function, int]:
    """Functions with cached traces that reference an optimizer, each with the number of traces."""
    return {
        function: traces
        for function, traces in compat.traced_functions().items()
        if not _is_of_jax(function) and _holds(function, optimizer)
    }


def _is_of_jax(function: object) -> bool:
    """True for a function of `jax.numpy`, or one that binds a primitive: it holds no optimizer."""
    module = str(getattr(function, "__module__", ""))
    is_plain = not getattr(function, "__closure__", True)
    return module == "jax._src.dispatch" or (is_plain and module.startswith("jax."))


def forget(functions: Mapping[Function, int]) -> None:
    """Drop the traces of functions, and the programs that `jax.jit` made of them."""
    if not functions:
        return
    jitted = [each for each in gc.get_objects() if type(each) is _jitted]
    for each in jitted:
        if getattr(each, "__wrapped__", None) in functions:  # ahead-of-time programs have none
            each.clear_cache()
    for function in functions:
        compat.forget(function)
        for known in list(_of_recorders):
            known._traced.pop(function, None)


def _outermost(functions: Mapping[Function, int]) -> Iterator[Function]:
    """The functions that no other of the functions references, such as a loop, not its body."""
    for function in functions:
        if not any(_holds(other, function) for other in functions if other is not function):
            yield function


def _holds(function: object, wanted: object) -> bool:
    """True if a function is `wanted`, or references it in a few steps."""
    return any(each is wanted for each in reachable(function, _follow, _FAR))


def _follow(held: object) -> Iterator[object]:
    yield from held_by(held)
    if isinstance(held, types.FunctionType):
        yield from (held.__kwdefaults__ or {}).values()
    elif isinstance(held, type):
        yield from (each for each in vars(held).values() if not callable(each))
    elif not isinstance(held, _NOT_FOLLOWED):
        yield from list(getattr(held, "__dict__", {}).values())
        referents = gc.get_referents(held)  # also in slots, a `deque` or a function of JAX
        yield from referents if len(referents) <= LARGEST else ()
