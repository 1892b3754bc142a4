"""What a transformation is made of, as far as it shows: functions that hold functions. No JAX."""

import functools
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

_FAR = 12
"""Over how many objects is looked."""


class Inside(NamedTuple):
    """What is known of what a transformation holds."""

    accumulates: int | None
    """Of how many steps a `MultiSteps` in it takes the gradients, or an `apply_every` the updates,
    if that is a fixed number."""
    limit: int | None
    """How many steps in a row that are not finite `apply_if_finite` leaves out, if all of these
    in it leave out as many."""
    skips: str
    """What in it leaves out steps: `apply_if_finite`, or a `MultiSteps` that was told which."""


def inside(transformation: Any) -> Inside:
    """What a transformation holds."""
    accumulates: set[int] = set()
    limits: set[int] = set()
    skips: set[str] = set()
    for held in _held(transformation):
        if isinstance(held, types.FunctionType):
            named = _cells(held)
            if held.__qualname__.startswith("apply_if_finite."):
                skips.add("apply_if_finite")
                limit = named.get("max_consecutive_errors")
                limits |= {limit} if isinstance(limit, int) else set()
            elif held.__qualname__.startswith("apply_every."):
                accumulates |= {named["k"]} if isinstance(named.get("k"), int) else set()
        elif type(held).__name__ == "MultiSteps":
            own = vars(held)
            every = _cells(own.get("_every_k_schedule")).get("every_k_schedule")
            accumulates |= {every} if isinstance(every, int) else set()
            told = own.get("_should_skip_update_fn")
            if not getattr(told, "__qualname__", "").startswith("MultiSteps."):
                skips.add("MultiSteps")
    return Inside(_only(accumulates), _only(limits), " or ".join(sorted(skips)))


def _only(numbers: set[int]) -> int | None:
    return next(iter(numbers)) if len(numbers) == 1 else None


def _held(transformation: Any) -> Iterator[Any]:
    """All that is found from it in some steps, each once."""
    seen = {id(transformation)}
    layer = [transformation]
    for _ in range(_FAR):
        following = []
        for each in layer:
            yield each
            for held in _held_by(each):
                if id(held) not in seen:
                    seen.add(id(held))
                    following.append(held)
        layer = following


def _held_by(held: Any) -> Iterator[Any]:
    if isinstance(held, types.FunctionType):
        yield from _cells(held).values()
        yield getattr(held, "__wrapped__", None)
    elif isinstance(held, types.MethodType):
        yield held.__self__
    elif isinstance(held, functools.partial):
        yield from (held.func, *held.args, *held.keywords.values())
    elif isinstance(held, list | tuple) and len(held) < 100:
        yield from held
    elif isinstance(held, dict) and len(held) < 100:
        yield from held.values()
    elif type(held).__module__.partition(".")[0] in ("optax", "tracer"):
        yield from getattr(held, "__dict__", {}).values()


class Next(NamedTuple):
    """The transformation of which another one returns the updates, by its `update`."""

    name: str
    """What hands them on: `chain`, `named_chain`, `apply_if_finite` or `MultiSteps`."""
    number: int
    """How many transformations that has."""
    update: Any


def handed_on(update: Any) -> Next | None:
    """Whose updates an `update` of optax returns; None if that is not known."""
    update = _plain(update)
    if isinstance(update, types.MethodType):
        inner = getattr(update.__self__, "_opt", None)
        is_of_optax = type(update.__self__).__module__.startswith("optax.")
        return Next("MultiSteps", 1, inner.update) if inner and is_of_optax else None
    name = str(getattr(update, "__qualname__", "")).partition(".<locals>")[0]
    if not str(getattr(update, "__module__", "")).startswith("optax."):
        return None
    held = _cells(update)
    if name == "chain" and held.get("update_fns"):
        return Next(name, len(held["update_fns"]), held["update_fns"][-1])
    if name == "named_chain" and held.get("transforms"):
        return Next(name, len(held["transforms"]), held["transforms"][-1][1].update)
    if name == "apply_if_finite" and "inner" in held:
        return Next(name, 1, held["inner"].update)
    return None


def _plain(update: Any) -> Any:
    """An `update` without what is around it and returns what it returns."""
    for _ in range(_FAR):
        around = _cells(update).get("tx")
        if hasattr(update, "original"):  # of one that is traced
            update = update.original
        elif isinstance(update, functools.partial):
            update = update.func
        elif not isinstance(update, types.FunctionType | types.MethodType):
            update = getattr(update, "__wrapped__", None)  # by `jax.jit`
        elif update.__qualname__.startswith("with_extra_args_support.") and around is not None:
            update = around.update
        else:
            break
    return update


def _cells(function: Any) -> dict[str, Any]:
    """What the names stand for that a function has from around it."""
    found = {}
    code = getattr(function, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False
    ):
        with suppress(ValueError):  # empty as yet
            found[name] = cell.cell_contents
    return found


def label(transformation: Any) -> str:
    """What a transformation is called: by the functions that made it and what it chains.

    >>> def scale(by):
    ...     def update(updates, state, params=None):
    ...         return updates * by, state
    ...     return update
    >>> label(scale(2))
    'scale'
    """
    update = getattr(transformation, "update", transformation)
    if isinstance(update, types.MethodType):
        return type(update.__self__).__name__
    update = getattr(update, "original", update)  # of one that is traced
    name = str(getattr(update, "__qualname__", type(update).__name__)).partition(".<locals>")[0]
    name = name.rpartition(".")[2]
    named = _cells(update)
    if name == "with_extra_args_support" and "tx" in named:
        return label(named["tx"])
    chained = named.get("update_fns")
    if name == "chain" and isinstance(chained, list | tuple):
        return f"chain({', '.join(map(label, chained))})"
    return name
