"""Compare variables before and after a step, in its graph or in eager mode: see `effects`.

There are two questions for each variable: is it *unchanged* to the bit, and does it hold a number
that is *not finite*? A healthy step answers no to both.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tracer.backends.tensorflow import compat

_raw = tf.raw_ops

_UNSIGNED = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}
"""By size in bytes. A GPU compares signed 32-bit integers on the host, and unsigned ones on the
device (the kernels registered in `cwise_op_not_equal_to_1.cc`).
"""

_FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_WHOLE = (
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
)


_WORD = 40
"""How many bits one number of a journal holds: see `ledger`."""


class Held(NamedTuple):
    """The value of a variable when a step began."""

    variable: int
    """Its index."""
    replica: int
    own: Any
    """The variable itself, on this replica."""
    value: Any


def comparable(own: Any) -> bool:
    """True if the bits of this variable can be compared.

    False if its shape may change: Grappler infers the shape of the first read from what the graph
    writes to the variable later (TensorFlow 2.21, `tf.shape` of such a read).
    """
    return own.dtype in (*_FLOATING, *_WHOLE) and bool(own.shape.is_fully_defined())


def read(own: Any) -> Any:
    """The value of the variable `own` now, in eager mode or in the current graph.

    While the value is held, ops that write to the variable use other memory
    (`kernels/training_op_helpers.h`, `PrepareToUpdateVariable` and `EnsureSparseVariableAccess`).
    """
    with compat.device(str(own.device or "")), compat.stop_recording():
        return _raw.ReadVariableOp(resource=own.handle, dtype=tf.as_dtype(own.dtype).base_dtype)


def questions(held: Sequence[Held]) -> list[Any]:
    """The answers of a step that ends now, in the order of `tracer.core.effects.questions`.

    They are scalars, in the current graph or in eager mode.
    """
    unchanged, not_finite = [], []
    for each in held:
        now = read(each.own)
        with compat.device(str(each.own.device or "")), compat.stop_recording():
            unchanged.append(_raw.LogicalNot(x=_differ(each.value, now)))
            not_finite.append(_infinite(now))
    return [*unchanged, *not_finite]


def row(stamp: Any, bits: Sequence[Any]) -> Any:
    """A row of a journal in the current graph: the step's stamp, then words of bits."""
    padding = -len(bits) % _WORD if bits else _WORD  # there may be nothing to compare
    bits = [*bits, *[tf.constant(False)] * padding]
    with compat.stop_recording():
        numbers = _raw.Cast(x=_raw.Pack(values=bits), DstT=tf.int64)
        ones = _raw.Reshape(tensor=numbers, shape=tf.constant([-1, _WORD]))
        values = _raw.Mul(x=ones, y=tf.constant([1 << place for place in range(_WORD)], tf.int64))
        words = _raw.Sum(input=values, axis=tf.constant(1))
        first = _raw.Reshape(tensor=stamp, shape=tf.constant([1]))
        return _raw.ConcatV2(values=[first, words], axis=tf.constant(0))


def bits_of(words: Sequence[int]) -> list[bool]:
    """The bits of the words of a row."""
    return [bool(word >> place & 1) for word in words for place in range(_WORD)]


def _differ(before: Any, after: Any) -> Any:
    """True if any bit differs, compared as integers: NaN differs from itself, 0.0 equals -0.0."""
    kind = _UNSIGNED[before.dtype.size]
    before, after = (_raw.Bitcast(input=each, type=kind) for each in (before, after))
    return _any(_raw.NotEqual(x=before, y=after))


def _infinite(value: Any) -> Any:
    """True if any element is infinite or NaN."""
    if value.dtype not in _FLOATING:
        return tf.constant(False)
    return _any(_raw.LogicalNot(x=_raw.IsFinite(x=value)))


def _any(bits: Any) -> Any:
    axes = tf.constant(list(range(bits.shape.rank)), tf.int32)
    return _raw.Any(input=bits, axis=axes, keep_dims=False)
