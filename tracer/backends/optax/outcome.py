"""What comes of the updates of a step: kept, computed and thrown away, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls its inner transformation in every step and multiplies the
updates by 0 but for each k-th (`transforms/_accumulation.py`); `apply_if_finite` calls it in a
branch (`transforms/_conditionality.py`); `apply_every` adds up its updates, and returns 0 but for
each k-th (`_src/transform.py`). Their states say what they did, so the op of a step gets a number
that is computed from these.

A state is no proof: another transformation may add to the updates, `apply_if_finite` gives up after
some steps, and 0 times NaN is NaN. So updates that should be none are compared with 0.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

from tracer.backends.jax import arrays, compat
from tracer.backends.jax.programs import DISCARDED, KEPT, PARTLY, SKIPPED

_MAKERS = {
    "ApplyEvery": "apply_every",
    "ApplyIfFiniteState": "apply_if_finite",
    "ConditionallyMaskState": "conditionally_mask",
    "MultiStepsState": "MultiSteps",
}
"""The states of what decides whether updates are kept, with the name of what makes each."""
_INNER = {"ApplyIfFiniteState": "inner_state", "MultiStepsState": "inner_opt_state"}
"""Where a state has those of what the transformation calls."""


def of_step(before: Any, after: Any, updates: Any, limit: int | None, unknown: list[str]) -> Any:
    """What came of the `updates` of a step, by the states before and after it.

    `limit` is how many steps in a row `apply_if_finite` leaves out; None if that is not known.
    A scalar: `DISCARDED`, `KEPT`, `SKIPPED` or `PARTLY`; None if they are always kept. Which
    transformations decide and do not say what they did is added to `unknown`.
    """
    came = _came(before, after, limit, unknown)
    if came is None:
        return None
    moves, all_move = _any_and_all(_nonzero, updates)
    return jnp.where((came == KEPT) | ~moves, came, jnp.where(all_move, KEPT, PARTLY))


def _came(before: Any, after: Any, limit: int | None, unknown: list[str]) -> Any:
    """What states say; of several beside each other the last one is that of what returns."""
    states, old_states = _deciding(after), _deciding(before)
    if not states:
        return None
    state, of_some_leaves = states[-1]
    old: Any = old_states[-1][0] if len(old_states) == len(states) else None
    gone = old is None or any(map(arrays.is_gone, jax.tree.leaves(old)))  # the step donated it
    inner, old_inner = (getattr(each, _INNER.get(_name(state), ""), ()) for each in (state, old))
    inside: list[str] = []
    kept = _came(old_inner, inner, limit, inside)
    kept = KEPT if kept is None else kept
    came = None
    if _name(state) == "MultiStepsState" and not gone:
        stepped = state.gradient_step != old.gradient_step
        added = stepped | (state.mini_step != old.mini_step)
        came = jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))
    elif _name(state) == "ApplyEvery":
        came = jnp.where(state.count == 0, KEPT, SKIPPED)
    elif _name(state) == "ApplyIfFiniteState":
        gave_up = False if limit is None else state.notfinite_count > limit
        came = jnp.where(state.last_finite | gave_up, kept, SKIPPED)
    if of_some_leaves:
        came = None
    silent = states if came is None else states[:-1]
    unknown += [*(_MAKERS[_name(each)] for each, _ in silent), *inside]
    return came


def _deciding(state: Any) -> list[tuple[Any, bool]]:
    """The states of what decides whether updates are kept, as far as none is in another one.

    With whether it decides on some leaves only, as in a `partition`.
    """
    if not any(map(_decides, jax.tree.leaves(state, is_leaf=_decides))):
        return []
    found = jax.tree_util.tree_flatten_with_path(state, is_leaf=_decides)[0]
    keys = [(each, jax.tree_util.keystr(path)) for path, each in found if _decides(each)]
    return [(each, ".inner_states" in key) for each, key in keys]


def _decides(state: Any) -> bool:
    return _name(state) in _MAKERS


def _name(state: Any) -> str:
    return type(state).__name__


def count_in(state: Any) -> Any:
    """The count of steps in the state of a transformation as Adam's; None if it has none.

    None, too, where something in it leaves out steps, or keeps them for later.
    """
    if _deciding(state):
        return None
    for each in jax.tree.leaves(state, is_leaf=_counts):
        if _counts(each):
            return each.count
    return None


def _counts(state: Any) -> bool:
    count = getattr(state, "count", None) if type(state).__name__.startswith("ScaleBy") else None
    return isinstance(count, jax.Array) and count.shape == () and count.dtype.kind == "i"


def in_multi_steps(updates: Any, unknown: list[str]) -> tuple[Any, Any]:
    """What comes of these `updates` if a `MultiSteps` makes the call: it multiplies them by 0.

    With the number of steps that it accumulates. None if there is no `MultiSteps` around.
    """
    found = list(_steps_of_multi_steps(sys._getframe(1)))
    if not found:
        return None, None
    values = found[0].f_locals
    every, mini_step = values.get("k_steps"), getattr(values.get("state"), "mini_step", None)
    if len(found) > 1 or mini_step is None or every is None or compat.is_of_outside(mini_step):
        unknown.append("MultiSteps around it")
        return None, None
    discarded = jnp.where(_any_and_all(_is_not_finite, updates)[0], PARTLY, DISCARDED)
    return jnp.where(mini_step == every - 1, KEPT, discarded), every


def both(own: Any, around: Any) -> Any:
    """What came of updates by a step's own states, and by what is around it; one may be None."""
    if own is None or around is None:
        return around if own is None else own
    return jnp.where(own == KEPT, around, own)


def _steps_of_multi_steps(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of Python around in which a `MultiSteps` calls what it holds."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "_do_update" and module.startswith("optax."):
            yield frame
        frame = frame.f_back


def _any_and_all(condition: Any, updates: Any) -> tuple[Any, Any]:
    """Whether something is so of any leaf, and of all leaves."""
    leaves = [jnp.asarray(each) for each in jax.tree.leaves(updates)]
    leaves = [each for each in leaves if each.size and jnp.issubdtype(each.dtype, jnp.number)]
    traced = any(isinstance(each, jax.core.Tracer) for each in leaves)
    return (_of_leaves if traced else _of_arrays)(condition, leaves)


def _of_leaves(condition: Any, leaves: list[Any]) -> tuple[Any, Any]:
    # What the program adds to the weights shall be computed as if nobody looked at it.
    leaves = jax.lax.optimization_barrier(jax.lax.stop_gradient(leaves))
    of_each = jnp.array([condition(each) for each in leaves], bool)
    return jnp.any(of_each), jnp.all(of_each)


_of_arrays = jax.jit(_of_leaves, static_argnums=0)


def _nonzero(update: Any) -> Any:
    return jnp.any(update != 0)


def _is_not_finite(update: Any) -> Any:
    return ~jnp.all(jnp.isfinite(update))
