"""Read the values of variables of Keras on JAX, and compare them before and after a step.

A value is an array, which may be donated or missing.

An outer step is compared as a whole, as on TensorFlow (`tracer.backends.tensorflow.effects`). JAX
arrays are immutable, so the old and the new values are both available where the step ends. The
program computes the answers and passes them to the op that counts the step: see `programs`. In
eager mode, a separate program computes them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tracer.core.calls import Step
from tracer.core.counters import EffectLogs, Source, questions, sources_of


def value_of(variable: object, most: int) -> np.ndarray[Any, Any] | None:
    """The value of a variable of 1 to `most` elements; None for others, or if unreadable now.

    While `fit` trains, Keras keeps no value in a variable.
    """
    value = array_of(variable)
    if value is None or not 0 < value.size <= most:
        return None
    with suppress(RuntimeError):  # other processes have parts, or it was donated meanwhile
        return np.asarray(value)
    return None


def array_of(variable: Any) -> jax.Array | None:
    """The array of a Keras variable, or an array itself; None if it cannot be read now."""
    is_array = isinstance(variable, jax.Array)  # arrays have a `_value`, too
    value = variable if is_array else getattr(variable, "_value", variable)
    return value if _is_concrete(value) and not value.is_deleted() else None


def value_before(step: Any, variable: object) -> jax.Array | None:
    """The value of a variable when a step method begins; None if there is none, as of a schedule.

    `stateless_apply` gets the values as arguments.
    """
    if step.method == "stateless_apply":
        return _values_given(step).get(id(variable))
    return getattr(variable, "value", None)


def value_after(step: Any, variable: Any) -> jax.Array | None:
    """The value of a variable when a step method has ended; None if it is unknown."""
    if step.method == "stateless_apply":
        return _by_variable(step, step.result).get(id(variable))
    return variable.value


def _values_given(step: Any) -> dict[int, jax.Array]:
    """The value that the call `step` of `stateless_apply` gets for each variable, by its `id`."""
    names = "optimizer_variables", "grads", "trainable_variables"
    given = {**step.kwargs, **dict(zip(names, step.args, strict=False))}
    return _by_variable(step, (given.get(names[2]), given.get(names[0])))


def _by_variable(step: Any, state: object) -> dict[int, jax.Array]:
    """The values in a pair of weights and the optimizer's variables; empty if it is none."""
    optimizer = step.original.__self__
    variables = *optimizer._trainable_variables, *optimizer.variables
    with suppress(TypeError, ValueError):  # Keras will refuse such a state, or the step raised
        weights, of_optimizer = state if isinstance(state, tuple | list) else ()
        return dict(zip(map(id, variables), (*weights, *of_optimizer), strict=True))
    return {}


def is_gone(array: Any) -> bool:
    """True for an array that was donated (`donate_argnums`), and so cannot be read."""
    return _is_concrete(array) and bool(array.is_deleted())


def _is_concrete(value: object) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


# Effects: how a step changed them.


Compared = dict[int, tuple[jax.Array, jax.Array]]
"""By the index of a variable: its value before a step and its value after it."""


class JaxEffects(EffectLogs):
    """The effects of the steps of one root optimizer; see `EffectLogs` for the lock."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with a text about each variable that cannot be compared."""
        super().__init__()
        self._note = note

    def hold(self, call: Any, index: int, variable: Any) -> None:
        """Keep the value of a variable that the step `call` gets.

        The values that `stateless_apply` gets are read from its arguments when it has ended.
        """
        before = None if call.method == "stateless_apply" else variable.value
        call.before = call.before or {}
        call.before.setdefault(index, (variable, before))

    def seen(self, call: Step, replica: int) -> Sequence[Source]:
        """Nothing: the op that counts a step also reports its effects."""
        return ()

    def before_and_after(self, call: Any) -> Compared:
        """The values of a step's variables before it and now, as it ends, as far as readable."""
        held = call.before or {}
        if call.method == "stateless_apply":
            old, new = _values_given(call), _by_variable(call, call.result)
            found = {
                index: (old[id(own)], new[id(own)])
                for index, (own, _) in held.items()
                if id(own) in new
            }
        else:
            found = {index: (old, own.value) for index, (own, old) in held.items()}
        known = {index: each for index, each in found.items() if not any(map(is_gone, each))}
        if len(known) < len(found):
            self._note(
                "effects are unknown for a variable whose old array was donated "
                "(donate_argnums): it is not compared"
            )
        return known


@partial(jax.jit, inline=True)
def answers_about(values: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """The answers about variables with these values before and after a step.

    For their order see `tracer.core.counters.questions`.
    """
    before, after = map(list, zip(*values, strict=True))
    # Read the results behind a barrier: XLA could compute a result again for the comparison, and
    # round it differently.
    after = jax.lax.optimization_barrier(after)
    same = [_is_same(old, new) for old, new in zip(before, after, strict=True)]
    return jnp.array([*same, *map(_is_not_finite, after)], jnp.int32)


def bits_of_rate(rate: object) -> jax.Array:
    """A learning rate as an int32, with the bits of a float32."""
    return jax.lax.bitcast_convert_type(jnp.asarray(rate, jnp.float32), jnp.int32)


NO_RATE = int(np.array(np.nan, np.float32).view(np.int32))
"""The bits that stand for an unknown rate."""


@lru_cache(maxsize=256)
def sources(variables: tuple[int, ...], members: tuple[tuple[int, ...], ...]) -> tuple[Source, ...]:
    """What to log of a step, from the answers for each member of a batch (`jax.vmap`).

    A variable is not finite if it is so for any member; other answers must hold for all members.
    The result is cached, because most steps are alike and the program waits for this.
    """
    asked = zip(questions(variables), zip(*members, strict=True), strict=True)
    return tuple(
        sources_of(variables, [(any if s.what == "not_finite" else all)(b) for s, b in asked])
    )


def _is_same(before: jax.Array, after: jax.Array) -> jax.Array | bool:
    """True if all elements are equal, or NaN in both."""
    before, after = jnp.asarray(before), jnp.asarray(after)
    if before.dtype != after.dtype:
        return False
    return jnp.array_equal(before, after, equal_nan=True)


def _is_not_finite(after: jax.Array) -> jax.Array:
    """True if any element is infinite or NaN."""
    return jnp.issubdtype(after.dtype, jnp.inexact) and ~jnp.all(jnp.isfinite(after))
