"""What comes of the updates of a step: kept, computed and thrown away, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls its inner transformation in every step and multiplies the
updates by 0 but for each k-th (`transforms/_accumulation.py`); `apply_if_finite` calls it in a
branch (`transforms/_conditionality.py`); `apply_every` adds up its updates, and returns 0 but for
each k-th (`_src/transform.py`). Their states say what they did, so the op of a step gets a number
that is computed from these.

A state is no proof: another transformation may add to the updates, `apply_if_finite` gives up after
some steps, and 0 times NaN is NaN. So updates that should be none are compared with 0.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tracer.backends.jax import arrays, compat
from tracer.backends.jax.programs import DISCARDED, KEPT, LET_THROUGH, PARTLY, SKIPPED

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
    A scalar: `DISCARDED`, `KEPT`, `SKIPPED`, `PARTLY` or `LET_THROUGH`; None if they are always
    kept. Which transformations decide and do not say what they did is added to `unknown`.
    """
    came = _came(before, after, limit, unknown)
    if came is None:
        return None
    moves, all_move = _any_and_all_nonzero(updates)
    is_kept = (came == KEPT) | (came == LET_THROUGH)
    return jnp.where(is_kept | ~moves, came, jnp.where(all_move, KEPT, PARTLY))


def _came(before: Any, after: Any, limit: int | None, unknown: list[str]) -> Any:
    """What the states say: that of the only one which decides, and of what it holds.

    None if there is none, or if it does not say it.
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
    """What one state says; `kept` is what came of what it holds, if it lets that through."""
    if _name(state) == "ApplyEvery":
        return jnp.where(state.count == 0, KEPT, SKIPPED)
    if _name(state) == "ApplyIfFiniteState":
        gave_up = False if limit is None else state.notfinite_count > limit
        not_finite = jnp.where(gave_up, jnp.where(kept == KEPT, LET_THROUGH, kept), SKIPPED)
        return jnp.where(state.last_finite, kept, not_finite)
    if _name(state) != "MultiStepsState" or any(map(arrays.is_gone, jax.tree.leaves(old))):
        return None  # the step donated it
    stepped = state.gradient_step != old.gradient_step
    added = stepped | (state.mini_step != old.mini_step)
    return jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))


def _deciding(state: Any) -> tuple[list[Any], bool]:
    """The states of what decides whether updates are kept, as far as none is in another one.

    And whether each decides on all leaves: in a `partition` it does not.
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


def count_in(state: Any) -> Any:
    """The count of steps in the state of a transformation as Adam's; None if it has none.

    None, too, where something in it leaves out steps, or keeps them for later.
    """
    if _deciding(state)[0]:
        return None
    counts = (each.count for each in jax.tree.leaves(state, is_leaf=_counts) if _counts(each))
    return next(counts, None)


def _counts(state: Any) -> bool:
    count = getattr(state, "count", None) if type(state).__name__[:7] == "ScaleBy" else None
    return isinstance(count, jax.Array) and count.shape == () and count.dtype.kind == "i"


def is_in_multi_steps() -> bool:
    """Whether a `MultiSteps` makes the call: in most steps it multiplies what it gets by 0."""
    modules = (str(each.f_globals.get("__name__", "")) for each in compat.calls_of("_do_update"))
    return any(module.startswith("optax.") for module in modules)


def _any_and_all_nonzero(updates: Any) -> tuple[Any, Any]:
    """Whether any leaf is not 0, and whether all are not."""
    leaves = [jnp.asarray(each) for each in jax.tree.leaves(updates)]
    leaves = [each for each in leaves if each.size and jnp.issubdtype(each.dtype, jnp.number)]
    traced = any(isinstance(each, jax.core.Tracer) for each in leaves)
    return (_of_leaves if traced else _of_arrays)(leaves)


def _of_leaves(leaves: list[Any]) -> tuple[Any, Any]:
    # What the program adds to the weights shall be computed as if nobody looked at it.
    leaves = jax.lax.optimization_barrier(jax.lax.stop_gradient(leaves))
    nonzero = jnp.array([jnp.any(each != 0) for each in leaves], bool)
    return jnp.any(nonzero), jnp.all(nonzero)


_of_arrays = jax.jit(_of_leaves)
