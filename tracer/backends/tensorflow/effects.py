"""Record the effects of steps on variables, if this was requested.

An outer step is compared as a whole: each variable of the outermost step method is read when the
step begins and again when it ends. So weight decay, constraints and averages outside the apply
methods count too. There are two questions for each variable: is it *unchanged* to the bit, and does
it hold a number that is *not finite*? The answers are bits. A step in a graph writes them to a
journal (`ledger.Journal`), which is drained into the same logs as the bits of steps in eager mode.

The first value is held until the step ends, so ops that write to the variable in place must copy
it: this costs memory, but never changes the result.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.ledger import Journal, Ledger
from tracer.backends.tensorflow.variables import canonical, copies_of
from tracer.core.calls import Step
from tracer.core.counters import UNIT, EffectLogs, Source, sources_of

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
    own: tf.Variable
    """The variable itself, on this replica."""
    value: tf.Tensor


def value_of(own: tf.Variable) -> tf.Tensor:
    """The value of the variable `own` now, in eager mode or in the current graph.

    While the value is held, ops that write to the variable use other memory
    (`kernels/training_op_helpers.h`, `PrepareToUpdateVariable` and `EnsureSparseVariableAccess`).
    """
    with tf.device(str(own.device or "")), compat.stop_recording():
        return _raw.ReadVariableOp(resource=own.handle, dtype=tf.as_dtype(own.dtype).base_dtype)


def answers(held: Sequence[Held]) -> list[tf.Tensor]:
    """The answers of a step that ends now, in the order of `tracer.core.effects.questions`.

    They are scalars, in the current graph or in eager mode. Values are compared as integers: NaN
    differs from itself, and 0.0 equals -0.0.
    """
    unchanged, not_finite = [], []
    for each in held:
        now = value_of(each.own)
        kind, is_float = _UNSIGNED[now.dtype.size], now.dtype in _FLOATING
        with tf.device(str(each.own.device or "")), compat.stop_recording():
            before, after = (_raw.Bitcast(input=value, type=kind) for value in (each.value, now))
            differ = _any(_raw.NotEqual(x=before, y=after))
            unchanged.append(_raw.LogicalNot(x=differ))
            odd = _any(_raw.LogicalNot(x=_raw.IsFinite(x=now))) if is_float else tf.constant(False)
            not_finite.append(odd)
    return [*unchanged, *not_finite]


def _any(bits: tf.Tensor) -> tf.Tensor:
    axes = tf.constant(list(range(bits.shape.rank)), tf.int32)
    return _raw.Any(input=bits, axis=axes, keep_dims=False)


def row_of(stamp: tf.Tensor, bits: Sequence[tf.Tensor]) -> tf.Tensor:
    """A row of a journal in the current graph: the step's stamp, then words of bits."""
    padding = -len(bits) % _WORD if bits else _WORD  # there may be nothing to compare
    with compat.stop_recording():
        all_bits = _raw.Pack(values=[*bits, *[tf.constant(False)] * padding])
        numbers = _raw.Reshape(
            tensor=_raw.Cast(x=all_bits, DstT=tf.int64), shape=tf.constant([-1, _WORD])
        )
        powers = tf.constant([1 << place for place in range(_WORD)], tf.int64)
        words = _raw.Sum(input=_raw.Mul(x=numbers, y=powers), axis=tf.constant(1))
        first = _raw.Reshape(tensor=stamp, shape=tf.constant([1]))
        return _raw.ConcatV2(values=[first, words], axis=tf.constant(0))


class Effects(EffectLogs):
    """The effects of one root optimizer's steps on each replica; thread-safe."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with a text about each variable that cannot be compared."""
        super().__init__()
        self._note = note
        self._journals: dict[tuple[int, tuple[int, ...]], Journal] = {}
        """By replica and variables of a step: several graphs may share one."""

    def hold(self, call: Step, index: int, variable: object) -> None:
        """Read a variable before the step `call` changes it."""
        if not tf.compat.v1.executing_eagerly_outside_functions():
            self._note(
                "effects are unknown in the graph of a Session: its variables are not compared"
            )
            return
        graph = call.place.graph
        if call.before is None:
            call.before = {}
        for replica, own in _copies(variable, call):
            # Grappler infers the shape of the first read from what the graph writes to a variable
            # later, if this shape may change (TensorFlow 2.21, `tf.shape` of such a read).
            known = isinstance(own, compat.ResourceVariable) and own.shape.is_fully_defined()
            if not known or own.dtype not in (*_FLOATING, *_WHOLE):
                self._note(
                    "effects are unknown for a variable of the type "
                    f"{getattr(own.dtype, 'name', own.dtype)} and the shape {own.shape} "
                    f"({type(own).__name__}): it is not compared"
                )
            elif id(own.handle) not in call.before:
                with compat.outside_of_graphs() if graph is None else graph.as_default():
                    call.before[id(own.handle)] = Held(index, replica, own, value_of(own))

    # A step has ended and its block is counted; on the thread that made the call.

    def count(
        self,
        call: Step,
        replica: int,
        ledger: Ledger,
        stamp: tf.Tensor,
        work: Sequence[tf.Operation],
    ) -> None:
        """Add the comparison of a step to the current graph, after its updates, the ops `work`."""
        held, variables = _of_replica(call, replica)
        with tf.control_dependencies(work):
            row = row_of(stamp, answers(held))
        key = replica, variables
        if key not in self._journals:
            taken_out = partial(self._taken_out, *key)
            self._journals[key] = ledger.auxiliary(taken_out, int(row.shape[0]))
        self._journals[key].write(row, work)

    def _taken_out(self, replica: int, variables: tuple[int, ...], row: list[int]) -> None:
        """Log a drained row; an inner step is compared by its outer step."""
        stamp, *words = row
        if not stamp % UNIT:
            self.log(replica, _sources(variables, tuple(words)), stamp)

    def seen(self, call: Step, replica: int) -> list[Source]:
        """What to log of a step in eager mode."""
        held, variables = _of_replica(call, replica)
        return sources_of(variables, map(bool, answers(held)))


@lru_cache(maxsize=256)
def _sources(variables: tuple[int, ...], words: tuple[int, ...]) -> list[Source]:
    """What to log of a step with these words of bits; cached, because most steps are alike."""
    bits = (bool(word >> place & 1) for word in words for place in range(_WORD))
    return sources_of(variables, bits)


def _of_replica(call: Step, replica: int) -> tuple[list[Held], tuple[int, ...]]:
    """What a step read on a replica, and its variables: sorted, so that steps share journals."""
    of_replica = (each for each in (call.before or {}).values() if each.replica == replica)
    held = sorted(of_replica, key=lambda each: each.variable)
    return held, tuple(each.variable for each in held)


def _copies(variable: object, call: Step) -> Iterator[tuple[int, tf.Variable]]:
    """The copies of a variable that a step reads, with their replicas."""
    copies, replicas = copies_of(canonical(variable)), range(call.replica, call.replica + 1)
    if call.distributed and compat.replica_id() is None:  # a step of all replicas
        replicas = range(len(copies))
    for replica in replicas:
        own = copies[replica] if len(copies) > 1 else copies[0]
        yield replica, getattr(own, "_v", own)
