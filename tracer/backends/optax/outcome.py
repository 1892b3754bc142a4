"""What comes of the updates of a step: kept, computed and thrown away, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls what it holds in every step and multiplies the updates by 0
but for each k-th (`transforms/_accumulation.py`); `apply_if_finite` calls it in a branch
(`transforms/_conditionality.py`); `apply_every` adds up what it is given, and returns 0 but for
each k-th (`_src/transform.py`). They say in the state what they did, so the op of a step is handed
a number that is made of it. That is true of the updates that are returned as long as nothing comes
behind: then it is not known.

A state is no proof, for a transformation of the program's own may return such a state and add to
the updates, and 0 times NaN is NaN. So updates that should be none are compared with 0.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tracer.backends.jax import arrays, compat
from tracer.backends.jax.programs import DISCARDED, KEPT, PARTLY, SKIPPED
from tracer.backends.optax.inside import Next, handed_on

_SAY = ("ApplyEvery", "ApplyIfFiniteState", "MultiStepsState")
_DO_NOT_SAY = ("ConditionallyMaskState",)
_AROUND = ("InjectHyperparamsState", "InjectStatefulHyperparamsState")
"""States of what returns the updates of what it holds."""


class Outcome(NamedTuple):
    """What is known of it."""

    came: Any
    """A scalar: `DISCARDED`, `KEPT` or `SKIPPED`; None if the updates are always kept."""
    unknown: tuple[str, ...]
    """The transformations of which it is not known what came of what they hold."""


def of_step(update: Any, before: Any, after: Any, limit: int | None) -> Outcome:
    """What came of a step that `update` made, by the states before and after it.

    `limit` is how many steps that are not finite `apply_if_finite` leaves out; None if not known.
    """
    states = list(_states(after))
    if not states:
        return Outcome(None, ())
    told: list[Any] = []
    gone = any(map(arrays.is_gone, jax.tree.leaves(before)))  # the step was given its buffers
    came = None if gone else _came(update, before, after, limit, told)
    missed = [each for each in states if not any(each is one for one in told)]
    return Outcome(came, tuple(dict.fromkeys(_maker(each) for each in missed)))


def count_in(state: Any) -> Any:
    """The count of steps in the state of a transformation as Adam's; None if it has none.

    None, too, where something in it leaves out steps, or keeps them for later.
    """
    if next(_states(state), None) is not None:
        return None
    for each in jax.tree.leaves(state, is_leaf=_counts):
        if _counts(each):
            return each.count
    return None


def _counts(state: Any) -> bool:
    count = getattr(state, "count", None) if type(state).__name__.startswith("ScaleBy") else None
    return isinstance(count, jax.Array) and count.shape == () and count.dtype.kind == "i"


def unless_moved(came: Any, updates: Any) -> Any:
    """`came`, but `KEPT` or `PARTLY` if these updates are to be none and are not 0."""
    moves = _about(_nonzero, updates)
    return jnp.where((came == KEPT) | ~moves.any, came, jnp.where(moves.all, KEPT, PARTLY))


class _About(NamedTuple):
    """Whether something is so of any leaf, and of all leaves."""

    any: Any
    all: Any


def _about(condition: Any, updates: Any) -> _About:
    leaves = [
        each
        for each in map(jnp.asarray, jax.tree.leaves(updates))
        if jnp.issubdtype(each.dtype, jnp.number)
    ]
    traced = any(isinstance(each, jax.core.Tracer) for each in leaves)
    return (_of_leaves if traced else _of_arrays)(condition, leaves)


def _of_leaves(condition: Any, leaves: list[Any]) -> _About:
    # What the program adds to the weights shall be computed as if nobody looked at it.
    leaves = jax.lax.optimization_barrier(jax.lax.stop_gradient(leaves))
    of_each = [condition(each) for each in leaves]
    return _About(jnp.any(jnp.array(of_each, bool)), jnp.all(jnp.array(of_each, bool)))


_of_arrays = jax.jit(_of_leaves, static_argnums=0)


def _nonzero(update: Any) -> Any:
    return jnp.any(update != 0)


def in_multi_steps(updates: Any) -> Outcome:
    """What comes of a call that is made now if a `MultiSteps` makes it, which may throw it away.

    It returns these `updates`, which `MultiSteps` multiplies by 0.
    """
    found = list(_steps_of_multi_steps(sys._getframe(1)))
    if not found:
        return Outcome(None, ())
    values = found[0].f_locals
    state, every = values.get("state"), values.get("k_steps")
    mini_step: Any = getattr(state, "mini_step", None)
    if len(found) > 1 or mini_step is None or every is None or compat.is_of_outside(mini_step):
        return Outcome(None, ("MultiSteps around it",))
    discarded = jnp.where(_about(_is_not_finite, updates).any, PARTLY, DISCARDED)
    return Outcome(jnp.where(mini_step == every - 1, KEPT, discarded), ())


def _is_not_finite(update: Any) -> Any:
    return ~jnp.all(jnp.isfinite(update))


def together(outcomes: Sequence[Any]) -> Any:
    """What came of updates that are kept only if each of these says so."""
    came, *others = outcomes
    for each in others:
        came = jnp.where(came == KEPT, each, came)
    return came


def steps_around() -> int | None:
    """How many steps a `MultiSteps` that makes this call accumulates, if it is a fixed number."""
    for frame in _steps_of_multi_steps(sys._getframe(1)):
        every = frame.f_locals.get("k_steps")
        return every if isinstance(every, int) else None
    return None


def _steps_of_multi_steps(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of Python around in which a `MultiSteps` calls what it holds."""
    while frame is not None:
        if frame.f_code.co_name == "_do_update" and str(
            frame.f_globals.get("__name__", "")
        ).startswith("optax."):
            yield frame
        frame = frame.f_back


def _came(update: Any, before: Any, after: Any, limit: int | None, told: list[Any]) -> Any:
    """What came of the updates that the transformation with this state returned.

    `update` is its own; None if that is not known, and then a tuple is taken for that of a chain.
    """
    name, following = type(after).__name__, handed_on(update)
    inner = None if following is None else following.update
    if name in _AROUND:
        return _came(None, before.inner_state, after.inner_state, limit, told)
    if type(after) is tuple and after and _is_of("chain", following, update, after):
        return _came(inner, before[-1], after[-1], limit, told)
    if isinstance(after, OrderedDict) and _is_of("named_chain", following, update, after):
        last = list(after)[-1]
        return _came(inner, before[last], after[last], limit, told)
    if name == "MultiStepsState":
        told.append(after)
        stepped = after.gradient_step != before.gradient_step
        added = stepped | (after.mini_step != before.mini_step)
        kept = _came(inner, before.inner_opt_state, after.inner_opt_state, limit, told)
        kept = KEPT if kept is None else kept
        return jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))
    if name == "ApplyEvery" and not told:  # else a step without updates may have either cause
        told.append(after)
        return jnp.where(after.count == 0, KEPT, SKIPPED)
    if name == "ApplyIfFiniteState" and limit is not None:
        told.append(after)
        count = after.notfinite_count  # 0 after such a step if it begins anew, as it may one day
        applied = after.last_finite | (count > limit) | (count == 0)
        kept = _came(inner, before.inner_state, after.inner_state, limit, told)
        return jnp.where(applied, KEPT if kept is None else kept, SKIPPED)
    return None


def _is_of(maker: str, following: Next | None, update: Any, state: Any) -> bool:
    """Whether a state that has one of each in it is that of a chain, of which the last returns."""
    if update is None:
        return True
    return following is not None and (following.name, following.number) == (maker, len(state))


def _states(state: Any) -> Iterator[Any]:
    """The states in a state of what does not always return what it was given to hold."""
    for each in jax.tree.leaves(state, is_leaf=_says):
        if _says(each):
            yield each
            yield from _states(tuple(each))


def _says(state: Any) -> bool:
    return type(state).__name__ in (*_SAY, *_DO_NOT_SAY) and hasattr(state, "_fields")


def _maker(state: Any) -> str:
    """What makes such a state, by the name that people know."""
    return {
        "ApplyEvery": "apply_every",
        "ApplyIfFiniteState": "apply_if_finite",
        "ConditionallyMaskState": "conditionally_mask",
        "MultiStepsState": "MultiSteps",
    }[type(state).__name__]
