"""Find the leaves that a transformation sets to zero: those whose update is of `set_to_zero`.

Read in optax 0.2.8: `chain`, `partition` and `masked` (so also `freeze` and `selective_transform`)
return a leaf that a part does not change as the same object. So a leaf was set to zero if it is an
object that `set_to_zero` returned. No values are read, and no masks or labels are asked for.

To see these objects, `marking` copies the functions of optax whose closures reach `set_to_zero`.
The originals, which the program holds, stay as they are.
"""

import copy
import functools
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import ref

import jax

from tracer.backends.optax.inside import under_way
from tracer.core.interrupts import suppress_faults

_KEEPING = "apply_if_finite", "conditionally_mask", "MultiSteps"
"""The makers whose results are those of the inner transformation, or 0."""


def is_set_to_zero(update: Any) -> bool:
    """True if `set_to_zero` made this update, in the call under way on this thread."""
    made = under_way.zeros.get(id(update))
    return made is not None and made() is update


def marking(update: Any) -> Any:
    """An `update` that does the same, and notes the leaves that it sets to zero."""
    return _copy(update, {})


def _copy(held: Any, known: dict[int, Any]) -> Any:
    """An object with copies of the functions that reach `set_to_zero`; itself if none does."""
    if id(held) not in known:
        known[id(held)] = held  # for a function that references itself
        known[id(held)] = _copy_of(held, known)
    return known[id(held)]


def _copy_of(held: Any, known: dict[int, Any]) -> Any:
    if isinstance(held, tuple | list):
        parts = [_copy(part, known) for part in held]
        if all(new is old for new, old in zip(parts, held, strict=True)):
            return held
        return held._make(parts) if hasattr(held, "_make") else type(held)(parts)
    if type(held) is dict:
        items = {key: _copy(part, known) for key, part in held.items()}
        return items if any(items[key] is not held[key] for key in held) else held
    if type(held).__name__ == "TracedUpdate":  # it notes by itself
        reaches = _copy(held.original, known) is not held.original
        return functools.partial(held) if reaches else held
    if isinstance(held, MethodType) and _is_multi_steps(type(held.__self__)):
        steps: Any = copy.copy(held.__self__)
        inner = _copy(steps._opt, known)
        if inner is steps._opt:
            return held
        steps._opt = inner._replace(update=_inner(inner.update))
        return _keeping(MethodType(held.__func__, steps))
    if not isinstance(held, FunctionType) or str(held.__module__).partition(".")[0] != "optax":
        return held
    maker = held.__qualname__.partition(".")[0]
    if maker == "set_to_zero":
        return _noting(held)
    cells = {
        name: cell.cell_contents
        for name, cell in zip(held.__code__.co_freevars, held.__closure__ or (), strict=True)
    }
    copies = {name: _copy(each, known) for name, each in cells.items()}
    mask = cells.get("mask")
    if maker == "masked" and callable(mask) and jax.tree_util.all_leaves([mask]):
        copies["mask"] = _storing(mask)
    if maker == "inject_hyperparams":
        copies["inner_factory"] = _marking_maker(copies["inner_factory"])
    if all(copies[name] is cells[name] for name in cells):
        return held
    if maker in _KEEPING:
        copies["inner"] = copies["inner"]._replace(update=_inner(copies["inner"].update))
    closure = tuple(map(CellType, copies.values()))
    made = FunctionType(held.__code__, held.__globals__, held.__name__, held.__defaults__, closure)
    made.__kwdefaults__ = held.__kwdefaults__
    functools.update_wrapper(made, held)
    return _keeping(made) if maker in _KEEPING else made


def _marking_maker(maker: Callable[..., Any]) -> Callable[..., Any]:
    """A `maker` whose transformations note the leaves that they set to zero."""

    def make(*args: Any, **kwargs: Any) -> Any:
        made = maker(*args, **kwargs)
        with suppress_faults():
            return made._replace(update=marking(made.update))
        return made

    return make


def _storing(mask: Callable[..., Any]) -> Callable[..., Any]:
    """A `mask` function whose last result is stored while the call is under way."""

    @functools.wraps(mask)
    def storing(*args: Any, **kwargs: Any) -> Any:
        returned = under_way.masks[id(mask)] = mask(*args, **kwargs)
        return returned

    return storing


def _is_multi_steps(cls: type) -> bool:
    """True for optax's own class: a subclass may change its results."""
    return (cls.__module__.partition(".")[0], cls.__name__) == ("optax", "MultiSteps")


def _noting(update: Callable[..., Any]) -> Callable[..., Any]:
    """The `update` of `set_to_zero`, which notes the leaves that it returns."""

    @functools.wraps(update)
    def noting(*args: Any, **kwargs: Any) -> Any:
        made = update(*args, **kwargs)
        _note(jax.tree.leaves(made[0]))
        return made

    return noting


def _note(leaves: list[Any]) -> None:
    under_way.zeros |= {id(leaf): ref(leaf) for leaf in leaves}


def _inner(update: Callable[..., Any]) -> Callable[..., Any]:
    """The `update` inside a transformation that keeps zeros, perhaps in a branch of the program."""

    @functools.wraps(update)
    def inner(*args: Any, **kwargs: Any) -> Any:
        made = update(*args, **kwargs)
        under_way.inner.append(list(map(is_set_to_zero, jax.tree.leaves(made[0]))))
        return made

    return inner


def _keeping(update: Callable[..., Any]) -> Callable[..., Any]:
    """The `update` around it: what each inner call set to zero is 0 in its result, too."""

    @functools.wraps(update)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        outer, under_way.inner = under_way.inner, []
        try:
            made = update(*args, **kwargs)
            calls = under_way.inner
        finally:
            under_way.inner = outer
        leaves = jax.tree.leaves(made[0])
        if calls and all(len(zeros) == len(leaves) for zeros in calls):
            _note([leaf for leaf, *zeros in zip(leaves, *calls, strict=True) if all(zeros)])
        return made

    return keeping
