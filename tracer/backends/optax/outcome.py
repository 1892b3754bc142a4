"""Find the outcome of a step's updates: kept, computed and discarded, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls its inner transformation in every step and multiplies all
but each k-th of its updates by 0 (`transforms/_accumulation.py`); `apply_if_finite` calls its own
in a branch (`transforms/_conditionality.py`); `apply_every` sums its updates, and returns 0 except
in each k-th step (`_src/transform.py`). Their states show what they did, so the op of a step gets
an outcome computed from the states.

States are not enough: another transformation may add to the updates, `apply_if_finite` gives up
after some steps, and 0 times NaN is NaN. So discarded updates are also compared with 0.

`chain`, `partition` and `masked` (so also `freeze` and `selective_transform`)
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
import jax.numpy as jnp

from tracer.backends.jax import compat, values
from tracer.backends.jax.programs import DISCARDED, KEPT, PARTLY, SKIPPED
from tracer.backends.optax.inside import under_way
from tracer.core.interrupts import suppress_faults

_MAKERS = {
    "ApplyEvery": "apply_every",
    "ApplyIfFiniteState": "apply_if_finite",
    "ConditionallyMaskState": "conditionally_mask",
    "MultiStepsState": "MultiSteps",
}
"""The states of transformations that discard updates, with the makers' names."""
_INNER = {"ApplyIfFiniteState": "inner_state", "MultiStepsState": "inner_opt_state"}
"""The field with the state of the inner transformation."""


def of_step(before: Any, after: Any, updates: Any, limit: int | None, unknown: list[str]) -> Any:
    """The outcome of a step's `updates`, from the states before and after it.

    It is a scalar: `DISCARDED`, `KEPT`, `SKIPPED` or `PARTLY`; None if updates are always kept.
    `limit` is how many steps in a row `apply_if_finite` skips; None if unknown. The
    names of transformations that may discard updates without showing it are added to `unknown`.
    """
    came = _came(before, after, limit, unknown)
    if came is None:
        return None
    moves, all_move = _any_and_all_nonzero(updates)
    return jnp.where((came == KEPT) | ~moves, came, jnp.where(all_move, KEPT, PARTLY))


def _came(before: Any, after: Any, limit: int | None, unknown: list[str]) -> Any:
    """The outcome by the only state that decides, and its inner states.

    None if no state decides, or if the outcome is unknown.
    """
    states, of_all_leaves = _deciding(after)
    if not states:
        return None
    old_states, _ = _deciding(before)
    if len(states) == len(old_states) == 1 and of_all_leaves:
        (state,), (old,) = states, old_states
        inner = _INNER.get(_name(state), "")
        kept = _came(getattr(old, inner, ()), getattr(state, inner, ()), limit, unknown)
        came = _of_state(old, state, KEPT if kept is None else kept, limit)
        if came is not None:
            return came
    unknown += [_MAKERS[_name(each)] for each in states]
    return None


def _of_state(old: Any, state: Any, kept: Any, limit: int | None) -> Any:
    """The outcome by one state; `kept` is the outcome of its inner states if it keeps updates."""
    if _name(state) == "ApplyEvery":
        return jnp.where(state.count == 0, KEPT, SKIPPED)
    if _name(state) == "ApplyIfFiniteState":
        gave_up = False if limit is None else state.notfinite_count > limit
        return jnp.where(state.last_finite | gave_up, kept, SKIPPED)
    if _name(state) != "MultiStepsState" or any(map(values.is_gone, jax.tree.leaves(old))):
        return None  # the step donated the old state
    stepped = state.gradient_step != old.gradient_step
    added = stepped | (state.mini_step != old.mini_step)
    return jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))


def _deciding(state: Any) -> tuple[list[Any], bool]:
    """The outermost states that decide whether updates are kept.

    Also returns whether each decides for all leaves, unlike in a `partition`.
    """
    if not any(map(_decides, jax.tree.leaves(state, is_leaf=_decides))):
        return [], True
    found = jax.tree_util.tree_flatten_with_path(state, is_leaf=_decides)[0]
    found = [(jax.tree_util.keystr(path), each) for path, each in found if _decides(each)]
    return [each for _, each in found], not any(".inner_states" in path for path, _ in found)


def _decides(state: Any) -> bool:
    return _name(state) in _MAKERS


def _name(state: Any) -> str:
    return type(state).__name__


def counts_in(before: Any, after: Any) -> tuple[Any, Any] | None:
    """The step count in the states before and after a step, such as Adam's; None without one."""
    counts = _count_in(before), _count_in(after)
    return None if any(each is None or values.is_gone(each) for each in counts) else counts


def _count_in(state: Any) -> Any:
    found = map(_count_of, jax.tree.leaves(state, is_leaf=lambda s: _count_of(s) is not None))
    return next((each for each in found if each is not None), None)


def _count_of(state: Any) -> Any:
    name = _name(state)
    field = {"MultiStepsState": "gradient_step"}.get(name, "count")
    count = getattr(state, field, None) if name.startswith(("ScaleBy", "MultiS", "Inject")) else ()
    is_count = isinstance(count, jax.Array) and count.shape == () and count.dtype.kind == "i"
    return count if is_count else None


def rate_in(state: Any) -> Any:
    """The bits of the only learning rate of `inject_hyperparams` in a state."""
    held = jax.tree.leaves(state, is_leaf=_has_hyperparams)
    rates = [each.hyperparams.get("learning_rate") for each in held if _has_hyperparams(each)]
    if len(rates) != 1 or getattr(rates[0], "shape", None) != ():
        return None
    return values.bits_of_rate(rates[0])


def _has_hyperparams(state: Any) -> bool:
    return isinstance(getattr(state, "hyperparams", None), dict)


def is_in_multi_steps() -> bool:
    """True if `MultiSteps` makes this call, and so discards the updates of most steps."""
    modules = (str(each.f_globals.get("__name__", "")) for each in compat.calls_of("_do_update"))
    return any(module.startswith("optax.") for module in modules)


def _any_and_all_nonzero(updates: Any) -> tuple[Any, Any]:
    """Whether any leaf is not 0 anywhere, and whether this is so for all leaves."""
    leaves = [jnp.asarray(each) for each in jax.tree.leaves(updates)]
    leaves = [each for each in leaves if each.size and jnp.issubdtype(each.dtype, jnp.number)]
    traced = any(isinstance(each, jax.core.Tracer) for each in leaves)
    return (_of_leaves if traced else _of_arrays)(leaves)


def _of_leaves(leaves: list[Any]) -> tuple[Any, Any]:
    # Other readers must not change how the program computes the updates.
    leaves = jax.lax.optimization_barrier(jax.lax.stop_gradient(leaves))
    nonzero = jnp.array([jnp.any(each != 0) for each in leaves], bool)
    return jnp.any(nonzero), jnp.all(nonzero)


_of_arrays = jax.jit(_of_leaves)


# Leaves that `set_to_zero` set to zero.

_KEEPING = "apply_if_finite", "conditionally_mask", "MultiSteps"
"""The makers whose results are those of the inner transformation, or 0."""


def is_set_to_zero(update: Any) -> bool:
    """True if `set_to_zero` made this update, in the call under way on this thread."""
    made = under_way.zeros.get(id(update))
    return made is not None and made() is update


def marking(update: Any) -> Any:
    """An `update` that does the same, and notes the leaves that it sets to zero."""
    with suppress_faults():
        return _copy(update, {})
    return update


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
        steps._opt = inner._replace(update=_and_then(inner.update, _of_inner))
        return _keeping(MethodType(held.__func__, steps))
    if not isinstance(held, FunctionType) or str(held.__module__).partition(".")[0] != "optax":
        return held
    maker = held.__qualname__.partition(".")[0]
    if maker == "set_to_zero":
        return _and_then(held, _noted)
    cells = {
        name: cell.cell_contents
        for name, cell in zip(held.__code__.co_freevars, held.__closure__ or (), strict=True)
    }
    copies = {name: _copy(each, known) for name, each in cells.items()}
    mask = cells.get("mask")
    if maker == "masked" and callable(mask) and jax.tree_util.all_leaves([mask]):
        copies["mask"] = _and_then(mask, functools.partial(_stored, mask))
    if maker == "inject_hyperparams":
        copies["inner_factory"] = _and_then(copies["inner_factory"], _marked)
    if all(copies[name] is cells[name] for name in cells):
        return held
    if maker in _KEEPING:
        copies["inner"] = copies["inner"]._replace(
            update=_and_then(copies["inner"].update, _of_inner)
        )
    closure = tuple(map(CellType, copies.values()))
    made = FunctionType(held.__code__, held.__globals__, held.__name__, held.__defaults__, closure)
    made.__kwdefaults__ = held.__kwdefaults__
    functools.update_wrapper(made, held)
    return _keeping(made) if maker in _KEEPING else made


def _and_then(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function that returns what `change` makes of its result."""

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(function(*args, **kwargs))

    return changed


def _marked(made: Any) -> Any:
    """A transformation that notes the leaves that it sets to zero."""
    return made._replace(update=marking(made.update))


def _stored(mask: Any, returned: Any) -> Any:
    """What a `mask` function returned, stored while the call is under way."""
    under_way.masks[id(mask)] = returned
    return returned


def _is_multi_steps(cls: type) -> bool:
    """True for optax's own class: a subclass may change its results."""
    return (cls.__module__.partition(".")[0], cls.__name__) == ("optax", "MultiSteps")


def _noted(made: Any) -> Any:
    """What `set_to_zero` returned, with its leaves noted."""
    _note(jax.tree.leaves(made[0]))
    return made


def _note(leaves: list[Any]) -> None:
    under_way.zeros |= {id(leaf): ref(leaf) for leaf in leaves}


def _of_inner(made: Any) -> Any:
    """What was made inside a transformation that keeps zeros, perhaps in a branch."""
    under_way.inner.append(list(map(is_set_to_zero, jax.tree.leaves(made[0]))))
    return made


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
