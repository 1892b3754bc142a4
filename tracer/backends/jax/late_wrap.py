"""Programs that JAX traced before the tracer came: they are made to be traced again.

A program that was traced holds no counter. `jax.jit` keeps it with the function that it wraps, and
forgets it on request (`clear_cache`); the next call traces the function again. What JAX
traced of other functions it keeps as well: the bodies of loops, of branches, of `checkpoint` and of
inner `jit`s, which it would take from there while it traces the function around them again. So each
of them is forgotten (`compat.forget`). That changes nothing but the time it takes: what JAX
compiles has no state.

Which functions use an optimizer is found by what they hold: a method's object, a closure, a global
or a default, as far as some steps of that. A function that was compiled ahead (`lower().compile()`)
cannot be found, and forgets nothing; then the optimizer's own count of its steps may show it.
"""

import gc
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import jax

from tracer.backends.jax import compat
from tracer.core import late_wrap
from tracer.core.late_wrap import KEPT, StaleFunction
from tracer.core.reachable import held_by, reachable
from tracer.kinds import OptimizerKind

_FAR = 5
"""Over how many objects an optimizer is looked for from a function."""

_jitted = type(jax.jit(lambda: None))


_of_recorders: "WeakSet[JaxStaleFunctions]" = WeakSet()
"""Those of all recorders: each knows which functions were traced while its optimizers were."""


class JaxStaleFunctions(late_wrap.StaleFunctions):
    """The functions that were traced with an optimizer before it was wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self._retraced: Counter[StaleFunction] = Counter()
        self._optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._traced: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        _of_recorders.add(self)

    def find_and_watch(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Let the functions that use it be traced again, or say that they run uncounted."""
        self._optimizers[index] = optimizer
        functions = {
            function: programs
            for function, programs in functions_with(optimizer).items()
            if self._traced.get(function) != programs  # else it was traced while the optimizer was
        }
        if retrace:
            forget(functions)
        for outermost in _outermost(functions):
            stale = StaleFunction(index, str(getattr(outermost, "__name__", "program")))
            if retrace:
                self._retraced[stale] += 1
            else:
                self.calls[stale._replace(caller=KEPT)] += 1

    def let_go(self, index: int) -> None:
        """Remember what was traced until now: it goes on counting, if there is more to count."""
        optimizer = self._optimizers.get(index)
        if optimizer is not None:
            self._traced.update(functions_with(optimizer))

    def retraced(self) -> Counter[StaleFunction]:
        """The functions that forgot what was traced."""
        return self._retraced.copy()


def functions_with(optimizer: Any) -> dict[Any, int]:
    """The functions that hold an optimizer and whose graph tracings JAX keeps.

    Each with how many traces there are of it.
    """
    return {
        function: traces
        for function, traces in compat.traced_functions().items()
        if _holds(function, optimizer)
    }


def forget(functions: Mapping[Any, int]) -> None:
    """Let functions be traced again at their next call, and what `jax.jit` made of them."""
    if not functions:
        return
    jitted = [each for each in gc.get_objects() if type(each) is _jitted and each._cache_size()]
    for each in jitted:
        if getattr(each, "__wrapped__", None) in functions:  # what is compiled ahead has none
            each.clear_cache()
    for function in functions:
        compat.forget(function)
        for known in list(_of_recorders):
            known._traced.pop(function, None)


def _outermost(functions: Mapping[Any, int]) -> Iterator[Any]:
    """Those that no other one of them holds, as a program calls them: of a loop, not its body."""
    for function in functions:
        if not any(_holds(other, function) for other in functions if other is not function):
            yield function


def _holds(function: Any, wanted: Any) -> bool:
    """Whether an object is found from a function in some steps, or is that function."""
    return any(each is wanted for each in reachable(function, _follow, _FAR))


def _follow(held: Any) -> Iterator[Any]:
    yield from held_by(held)
    if type(held) is _jitted or isinstance(held, jax.custom_vjp | jax.custom_jvp):
        yield getattr(held, "__wrapped__", None)
    elif isinstance(held, types.MethodType):
        yield getattr(held.__self__, "optimizer", None)
        yield getattr(held.__self__, "_optimizer", None)
    elif _is_of_program(held):
        yield from list(getattr(held, "__dict__", {}).values())


def _is_of_program(held: Any) -> bool:
    """Whether it is an object of the program's own class, as a trainer that it wrote."""
    module = type(held).__module__.partition(".")[0]
    return module not in ("builtins", "jax", "jaxlib", "numpy", "types") and not isinstance(
        held, type | types.ModuleType
    )
