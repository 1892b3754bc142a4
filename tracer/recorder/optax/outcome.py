"""What comes of the updates of a step: kept, computed and thrown away, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls what it holds in every step and multiplies the updates by 0
but for each k-th (`transforms/_accumulation.py`); `apply_if_finite` calls it in a branch
(`transforms/_conditionality.py`); `apply_every` adds up what it is given, and returns 0 but for
each k-th (`_src/transform.py`). They say in the state what they did, so the op of a step is handed
a number that is made of it. That is true of the updates that are returned as long as nothing comes
behind: then it is not known.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax.numpy as jnp

from tracer.recorder.jax import compat
from tracer.recorder.jax.programs import DISCARDED, KEPT, SKIPPED

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


def of_step(before: Any, after: Any, limit: int | None) -> Outcome:
    """What came of a step, by the states before and after it.

    `limit` is how many steps that are not finite `apply_if_finite` leaves out; None if not known.
    """
    states = list(_states(after))
    if not states:
        return Outcome(None, ())
    told: list[Any] = []
    came = _came(before, after, limit, told)
    missed = [each for each in states if not any(each is one for one in told)]
    return Outcome(came, tuple(dict.fromkeys(_maker(each) for each in missed)))


def in_multi_steps() -> Outcome:
    """What comes of a call that is made now if a `MultiSteps` makes it, which may throw it away."""
    found = list(_steps_of_multi_steps(sys._getframe(1)))
    if not found:
        return Outcome(None, ())
    values = found[0].f_locals
    state, every = values.get("state"), values.get("k_steps")
    mini_step: Any = getattr(state, "mini_step", None)
    if len(found) > 1 or mini_step is None or every is None or compat.is_of_outside(mini_step):
        return Outcome(None, ("MultiSteps around it",))
    return Outcome(jnp.where(mini_step == every - 1, KEPT, DISCARDED), ())


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


def _came(before: Any, after: Any, limit: int | None, told: list[Any]) -> Any:
    """What came of the updates that the transformation with this state returned."""
    name = type(after).__name__
    if name in _AROUND:
        return _came(before.inner_state, after.inner_state, limit, told)
    if type(after) is tuple and after:  # of a chain
        return _came(before[-1], after[-1], limit, told)
    if isinstance(after, Mapping) and after:  # of a chain with names
        last = list(after)[-1]
        return _came(before[last], after[last], limit, told)
    if name == "MultiStepsState":
        told.append(after)
        stepped = after.gradient_step != before.gradient_step
        added = stepped | (after.mini_step != before.mini_step)
        inner = _came(before.inner_opt_state, after.inner_opt_state, limit, told)
        kept = KEPT if inner is None else inner
        return jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))
    if name == "ApplyEvery" and not told:  # else a step without updates may have either cause
        told.append(after)
        return jnp.where(after.count == 0, KEPT, SKIPPED)
    if name == "ApplyIfFiniteState" and limit is not None:
        told.append(after)
        count = after.notfinite_count  # 0 after such a step if it begins anew, as it may one day
        applied = after.last_finite | (count > limit) | (count == 0)
        inner = _came(before.inner_state, after.inner_state, limit, told)
        return jnp.where(applied, KEPT if inner is None else inner, SKIPPED)
    return None


def _states(state: Any) -> Iterator[Any]:
    """The states in a state of what does not always return what it was given to hold."""
    if type(state).__name__ in (*_SAY, *_DO_NOT_SAY) and hasattr(state, "_fields"):
        yield state
    if isinstance(state, tuple | list):
        for each in state:
            yield from _states(each)
    elif isinstance(state, Mapping):
        for each in state.values():
            yield from _states(each)


def _maker(state: Any) -> str:
    """What makes such a state, by the name that people know."""
    return {
        "ApplyEvery": "apply_every",
        "ApplyIfFiniteState": "apply_if_finite",
        "ConditionallyMaskState": "conditionally_mask",
        "MultiStepsState": "MultiSteps",
    }[type(state).__name__]
