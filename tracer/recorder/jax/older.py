"""Programs that JAX traced before the tracer came: they are made to be traced again.

A program that was traced holds no counter. `jax.jit` keeps it with the function that it wraps, and
forgets it when it is told to (`clear_cache`); the next call traces the function again. That changes
nothing but the time it takes: what `jax.jit` compiles has no state.

Which functions use an optimizer is found by what they hold: a method's object, a closure, a global
or a default, as far as some steps of that. A function that was compiled ahead (`lower().compile()`)
cannot be found, and forgets nothing; then the optimizer's own count of its steps may tell.
"""

import gc
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax

from tracer.kinds import OptimizerKind
from tracer.recorder import host
from tracer.recorder.older import KEPT, Older

_FAR = 5
"""Over how many objects an optimizer is looked for from a function."""

_jitted = type(jax.jit(lambda: None))


class OlderFunctions(host.OlderFunctions):
    """The functions that were traced with an optimizer before it was wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self._anew: Counter[Older] = Counter()
        self._optimizers: dict[int, ref[Any]] = {}
        self._traced: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Let the functions that use it be traced again, or say that they run uncounted."""
        self._optimizers[index] = ref(optimizer)
        for function in functions_with(optimizer):
            if self._traced.get(function) == _programs_of(function):
                continue  # it was traced while the optimizer was
            older = Older(index, _name_of(function))
            if retrace:
                function.clear_cache()
                self._anew[older] += 1
            else:
                self.calls[older._replace(caller=KEPT)] += 1

    def let_go(self, index: int) -> None:
        """Remember what was traced until now: it goes on counting, if there is more to count."""
        known = self._optimizers.get(index)
        optimizer = None if known is None else known()
        if optimizer is not None:
            for function in functions_with(optimizer):
                self._traced[function] = _programs_of(function)

    def traced_anew(self) -> Counter[Older]:
        """The functions that forgot what was traced."""
        return self._anew.copy()


def functions_with(optimizer: Any) -> list[Any]:
    """The jitted functions alive that were traced and that hold an optimizer."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is _jitted and _programs_of(each) and _holds(each, optimizer)
    ]


def _programs_of(function: Any) -> int:
    """How many programs a jitted function has."""
    return int(function._cache_size())


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", "program"))


def _holds(function: Any, wanted: Any) -> bool:
    """Whether an object is found from a function in some steps."""
    seen = {id(function)}
    layer: list[Any] = [function]
    for _ in range(_FAR):
        following = []
        for each in layer:
            for held in _held_by(each):
                if held is wanted:
                    return True
                if id(held) not in seen:
                    seen.add(id(held))
                    following.append(held)
        layer = following
    return False


def _held_by(held: Any) -> Iterator[Any]:
    """What an object works with, if it is a function, a method, an object of one, or a list."""
    if type(held) is _jitted or isinstance(held, types.FunctionType):
        yield getattr(held, "__wrapped__", None)
    if isinstance(held, types.MethodType):
        yield held.__self__
        yield held.__func__
        yield getattr(held.__self__, "optimizer", None)
        yield getattr(held.__self__, "_optimizer", None)
    elif isinstance(held, types.FunctionType):
        yield from _cells(held.__closure__ or ())
        yield from held.__defaults__ or ()
        names = held.__code__.co_names
        yield from (held.__globals__[name] for name in names if name in held.__globals__)
        for constant in held.__code__.co_consts:
            if isinstance(constant, types.CodeType):
                yield from (
                    held.__globals__[name] for name in constant.co_names if name in held.__globals__
                )
    elif isinstance(held, partial):
        yield from (held.func, *held.args, *held.keywords.values())
    elif isinstance(held, list | tuple) and len(held) < 100:
        yield from held
    elif isinstance(held, dict) and len(held) < 100:
        yield from held.values()
    elif _is_of_program(held):
        yield from list(getattr(held, "__dict__", {}).values())


def _cells(cells: Iterable[Any]) -> Iterator[Any]:
    for cell in cells:
        with suppress(ValueError):  # empty as yet
            yield cell.cell_contents


def _is_of_program(held: Any) -> bool:
    """Whether it is an object of the program's own class, as a trainer that it wrote."""
    module = type(held).__module__.partition(".")[0]
    return module not in ("builtins", "jax", "jaxlib", "numpy", "types") and not isinstance(
        held, type | types.ModuleType
    )
