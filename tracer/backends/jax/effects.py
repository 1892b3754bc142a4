"""What steps of Keras on JAX did to the variables, as numbers that ride on the op of a block.

A step is compared as a whole, as with TensorFlow (`tracer.backends.tensorflow.effects`). JAX writes
to no array, so the old values and the new ones are both known where the step ends. The answers are
bits, 31 to a number, computed in the program and passed to the op that counts the step: see
`programs`. In eager mode a program of its own computes them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tracer.backends.jax import compat
from tracer.backends.jax.arrays import is_gone, values_given, values_returned
from tracer.core.calls import Call
from tracer.core.counters import Source
from tracer.core.effects import Logs, questions, sources_of

_BITS = 31
"""How many of them a number holds: it is an int32 with a sign."""


Compared = dict[int, tuple[Any, Any, Any]]
"""By the index of a variable what it held before a step, what it holds after it, and its gradient.
"""


class JaxEffects(Logs):
    """What was seen in the steps of one root optimizer; see `Logs` for the lock."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with what cannot be compared."""
        super().__init__()
        self._note = note

    def hold(self, call: Any, index: int, variable: Any, gradient: Any) -> None:
        """The step `call` is given the variable with this index: keep what it holds now.

        `stateless_apply` is given the values, too, which are taken when it has ended.
        """
        before = None if call.method == "stateless_apply" else variable.value
        call.before = call.before or {}
        if index in call.before:
            (_, before, _), gradient = call.before[index], None  # that of all of them is not known
        call.before[index] = variable, before, gradient

    def seen(self, call: Call, replica: int) -> Sequence[Source]:
        """Nothing: a step that was given variables is counted by an op."""
        return ()

    def before_and_after(self, call: Any) -> Compared:
        """What the variables of a step held, which ends now, as far as that can be read."""
        held = call.before or {}
        if call.method == "stateless_apply":
            old, new = values_given(call), values_returned(call)
            found = {
                index: (old[id(own)], new[id(own)], gradient)
                for index, (own, _, gradient) in held.items()
                if id(own) in new
            }
        else:
            found = {
                index: (old, own.value, gradient) for index, (own, old, gradient) in held.items()
            }
        known = {index: each for index, each in found.items() if not any(map(is_gone, each[:2]))}
        if len(known) < len(found):
            self._note(
                "effects on a variable whose array the step gave away (donate_argnums) are not "
                "known: it is not compared"
            )
        return known


def bits_of(compared: Compared) -> list[Any]:
    """Numbers with the bits of these variables: see `tracer.core.effects.questions`."""
    if not compared:
        return []
    before, after, gradients = map(list, zip(*compared.values(), strict=True))
    traced = any(isinstance(each, jax.core.Tracer) for each in (*before, *after))
    numbers = _numbers if traced else _numbers_of_arrays
    return list(numbers(before, after, list(map(_readable, gradients))))


def _readable(gradient: Any) -> Any:
    """What can be compared with 0 in the place of a gradient; NaN for what is not known.

    Nothing reads a gradient in a program: what XLA fuses, and so how it rounds what the program
    returns, depends on who reads what is computed on the way. But a constant is known.
    """
    if isinstance(gradient, jax.core.Tracer):
        return np.float32(0 if compat.is_constant_zero(gradient) else np.nan)
    is_array = isinstance(gradient, jax.Array) and not is_gone(gradient)
    return gradient if is_array else np.float32(np.nan)


@lru_cache(maxsize=256)
def sources(variables: tuple[int, ...], members: tuple[tuple[int, ...], ...]) -> tuple[Source, ...]:
    """What is to be logged of a step, by the numbers of each member of a batch (`jax.vmap`).

    A variable is not finite if it is so in one member; anything else is so if it is in all. Most
    steps report the same as the one before, and the program waits: so the answers are remembered.
    """
    bits = [
        [bool(number >> place & 1) for number in numbers for place in range(_BITS)]
        for numbers in members
    ]
    asked = zip(questions(variables), zip(*bits, strict=True), strict=False)
    return tuple(
        sources_of(variables, [(any if s.what == "not_finite" else all)(b) for s, b in asked])
    )


def _numbers(before: Sequence[Any], after: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    # What the program returns is computed once, and that is looked at: what XLA computes again
    # to compare it might be rounded in another way.
    after = jax.lax.optimization_barrier(list(after))
    bits = [_is_same(old, new) for old, new in zip(before, after, strict=True)]
    bits += [_is_not_finite(each) for each in after]
    bits += [jnp.size(each) > 0 and jnp.all(each == 0) for each in gradients]
    return [
        sum(
            jnp.asarray(bit, jnp.int32) << place
            for place, bit in enumerate(bits[first : first + _BITS])
        )
        for first in range(0, len(bits), _BITS)
    ]


_numbers_of_arrays = jax.jit(_numbers)


def _is_same(before: Any, after: Any) -> Any:
    """Whether no bit differs."""
    before, after = jnp.asarray(before), jnp.asarray(after)
    if before.shape != after.shape or before.dtype != after.dtype:
        return jnp.asarray(False)
    if jnp.iscomplexobj(before):
        return _is_same(before.real, after.real) & _is_same(before.imag, after.imag)
    if jnp.issubdtype(before.dtype, jnp.floating) and jnp.finfo(before.dtype).bits >= 8:
        whole = f"uint{8 * before.dtype.itemsize}"  # as bytes it takes three times as long
        before, after = (jax.lax.bitcast_convert_type(e, whole) for e in (before, after))
    return jnp.all(before == after)


def _is_not_finite(after: Any) -> Any:
    """Whether any element is infinite or NaN."""
    after = jnp.asarray(after)
    if not jnp.issubdtype(after.dtype, jnp.inexact):
        return jnp.asarray(False)
    return ~jnp.all(jnp.isfinite(after))
