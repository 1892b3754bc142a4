"""Counts in which steps something held of a variable: the counters of the ledger, many at once.

A step compares what each variable that it was handed holds at its end with what it held when the
step began (see `effects`). That gives a bit for each question and variable. A *mark* is a bit that
is set, and it is counted like the execution of a block: with a total, and with its steps as
arithmetic runs of stamps (see `ledger`, whose columns and arithmetic these are). All the bits that
one step sets are advanced together, without a branch:

    counters = [id, next, stride, total, ended, squares] of each bit, in one variable
    ring     = rows of counters                 the last state of each run that ended
    rows     = how many rows were written

    error     = (stamp - next) * bit            0 where the mark comes every `stride`, or not at all
    ended     = error != 0
    ring[...] = counters                        those that ended, in their order; the others meet in
                                                the row after them, which is written anew next time
    counters += bit * [0, 2*error + stride, error, 1, ended, stamp**2]
    rows     += sum(ended)

The ring is not that of the ledger: what is irregular here must not cost the detail of the counts.
The questions are asked such that a healthy step sets no bit (*unchanged*, *not finite*), so that
the ring stays empty; one more bit, which each step sets, says when it was looked at all.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.ledger import Ring, Row, counter_variable, traced_once, values_of
from tracer.core.settle import Reading, reading_of, until
from tracer.model.runs import Run

ROWS = 4096
"""How many runs may end between two readings before detail is lost; more if there are more bits."""

_ROOM = 4
"""How often all bits of a step may end a run between two readings, at least."""

_raw = tf.raw_ops

_UNSIGNED = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}
"""By size in bytes; a GPU compares 32 bits with a sign on the host (`cwise_op_not_equal_to_1.cc`,
as its registered kernels say), and those without on the device."""

_FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_COMPLEX = (tf.complex64, tf.complex128)
_WHOLE = (
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
)


class Held(NamedTuple):
    """What a variable held when a step began."""

    variable: int
    """Its index."""
    replica: int
    handle: Any
    dtype: Any
    device: str
    value: Any


def comparable(own: Any) -> bool:
    """Whether it is known how the bits of this variable are compared.

    Not those of one whose shape may change: Grappler takes the shape of what is written to it later
    in the graph for that of what was read before (TensorFlow 2.21, `tf.shape` of such a read).
    """
    known = own.dtype in (*_FLOATING, *_COMPLEX, *_WHOLE, tf.bool)
    return known and bool(own.shape.is_fully_defined())


def hold(variable: int, replica: int, own: Any) -> Held:
    """Read the variable `own` now, in eager mode or in the current graph.

    While the value is held, whatever writes to the variable takes other memory (`kernels/
    training_op_helpers.h`, `PrepareToUpdateVariable` and `EnsureSparseVariableAccess`).
    """
    dtype, device = tf.as_dtype(own.dtype).base_dtype, str(own.device or "")
    value = _read(own.handle, dtype, device)
    return Held(variable, replica, own.handle, dtype, device, value)


def questions(held: Sequence[Held]) -> list[Any]:
    """The bits of a step that ends now: for each variable *unchanged*, then for each *not finite*.

    Scalars in the current graph, or in eager mode.
    """
    unchanged, not_finite = [], []
    for each in held:
        now = _read(each.handle, each.dtype, each.device)
        with compat.device(each.device), compat.stop_recording():
            unchanged.append(_raw.LogicalNot(x=_differ(each.value, now)))
            not_finite.append(_infinite(now))
    return [*unchanged, *not_finite]


def _read(handle: Any, dtype: Any, device: str) -> Any:
    with compat.device(device), compat.stop_recording():
        return _raw.ReadVariableOp(resource=handle, dtype=dtype)


def _differ(before: Any, after: Any) -> Any:
    """Whether any bit differs: NaN is not equal to itself, and 0.0 is to -0.0."""
    if before.dtype in _COMPLEX:
        real = _differ(_part(before, _raw.Real), _part(after, _raw.Real))
        imaginary = _differ(_part(before, _raw.Imag), _part(after, _raw.Imag))
        return _raw.LogicalOr(x=real, y=imaginary)
    if before.dtype != tf.bool:
        kind = _UNSIGNED[before.dtype.size]
        before, after = (_raw.Bitcast(input=each, type=kind) for each in (before, after))
    return _any(_raw.NotEqual(x=before, y=after))


def _part(value: Any, of: Any) -> Any:
    return of(input=value, Tout=tf.float32 if value.dtype == tf.complex64 else tf.float64)


def _infinite(value: Any) -> Any:
    """Whether any element is infinite or NaN."""
    if value.dtype in _COMPLEX:
        parts = [_infinite(_part(value, of)) for of in (_raw.Real, _raw.Imag)]
        return _raw.LogicalOr(x=parts[0], y=parts[1])
    if value.dtype not in _FLOATING:
        return tf.constant(False)
    return _any(_raw.LogicalNot(x=_raw.IsFinite(x=value)))


def _any(bits: Any) -> Any:
    axes = tf.constant(list(range(bits.shape.rank)), tf.int32)
    return _raw.Any(input=bits, axis=axes, keep_dims=False)


class _Ring(Ring):
    """Where the runs end that have ended, with the count of its rows."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__(size, device)
        self.rows = counter_variable([0], device)


class _Counters:
    """The counters of all bits of steps that are handed the same variables."""

    def __init__(self, variables: tuple[int, ...], first: int, ring: _Ring, device: str) -> None:
        self.variables = variables
        self.first = first
        self.ring = ring
        initial = np.zeros((bits_of(variables), 6))
        initial[:, 0] = range(first, first + len(initial))
        self.states = counter_variable(initial, device)


def bits_of(variables: Sequence[int]) -> int:
    """How many bits a step that is handed these variables has."""
    return 2 * len(variables) + 1


class Marks:
    """The counters of all marks on one replica of one root optimizer, all on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._counters: dict[tuple[int, ...], _Counters] = {}
        self._rings: dict[int, _Ring] = {}
        self._numbers = 0
        self._lock = threading.RLock()  # a signal handler may read while its thread reads

    def count(
        self, variables: tuple[int, ...], stamp: Any, bits: Sequence[Any], after: Sequence[Any]
    ) -> None:
        """Add to the current graph the count of the `bits` that are set in a step.

        `bits` are those that `questions` gives of these variables; all runs after the ops `after`.
        Steps that are handed the same variables share their counters, whichever graph they are in.
        """
        with self._lock:
            counters = self._counters.get(variables)
            if counters is None:
                counters = self._counters[variables] = self._make(variables)
        with (
            compat.device(self.device),
            compat.stop_recording(),
            compat.control_dependencies(after),
        ):
            marked = _raw.Pack(values=[*bits, tf.constant(True)])
            ring = counters.ring
            handles = counters.states.handle, ring.rows.handle, ring.variable.handle
            _advance_function(ring.size)(*handles, stamp, marked)

    def read(self, begun: int) -> dict[tuple[int, ...], list[Reading]]:
        """What the counters of each set of variables say of the steps up to `begun`."""
        readings = {}
        with self._lock, compat.outside_of_graphs():
            for counters in self._counters.values():
                states = values_of(counters.states)
                # The oldest row of a full ring is where those meet that did not end.
                counters.ring.drain(int(values_of(counters.ring.rows)[0]), spare=1)
                readings[counters.variables] = [
                    until(self._reading(counters, Row(*map(int, row)), int(number)), begun)
                    for number, *row in states
                ]
        return readings

    def children(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        children: dict[str, Any] = {}
        with self._lock:
            for ring in self._rings.values():
                children |= {f"rows_{ring.size}": ring.rows, f"ring_{ring.size}": ring.variable}
            return children | {f"marks_{c.first}": c.states for c in self._counters.values()}

    def _make(self, variables: tuple[int, ...]) -> _Counters:
        bits = bits_of(variables)
        size = ROWS
        while size < _ROOM * bits:
            size *= 2
        if size not in self._rings:
            self._rings[size] = _Ring(size, self.device)
        first = self._numbers
        self._numbers += bits
        return _Counters(variables, first, self._rings[size], self.device)

    @staticmethod
    def _reading(counters: _Counters, now: Row, number: int) -> Reading:
        if not now.total:
            return Reading()
        reading = reading_of(counters.ring.runs_of(number, now), now.total, 0, 0)
        # A step that turned out to be part of another one is compared by that one.
        within = sum(run.total for flags, runs in reading.runs.items() if flags for run in runs)
        own = reading.runs.get(0, ())
        return Reading({0: own} if own else {}, {}, now.total - within - _total(own))


def _total(runs: Sequence[Run]) -> int:
    return sum(run.total for run in runs)


def _advance(size: int, counters: Any, rows: Any, ring: Any, stamp: Any, bits: Any) -> None:
    """Count the bits of one step, in the graph: see the top of this file.

    As in `ledger`, the order of the writes lets a reader on another thread find every run that
    ended: he reads the counters first.
    """
    states = _raw.ReadVariableOp(resource=counters, dtype=tf.int64)
    with compat.control_dependencies([states]):
        written = _raw.ReadVariableOp(resource=rows, dtype=tf.int64)
    _, expected, stride, _, _, _ = _raw.Unpack(value=states, num=6, axis=1)
    marked = _raw.Cast(x=bits, DstT=tf.int64)
    zero = _raw.ZerosLike(x=marked)
    error = _raw.Mul(x=marked, y=_raw.Sub(x=stamp, y=expected))
    gap = _raw.AddV2(x=error, y=_raw.Mul(x=marked, y=stride))
    ended = _raw.NotEqual(x=error, y=zero)
    ends = _raw.Cast(x=ended, DstT=tf.int64)
    number = _raw.Sum(input=ends, axis=tf.constant([0]), keep_dims=True)
    before = _raw.Cumsum(x=ends, axis=tf.constant(0), exclusive=True)
    place = _raw.AddV2(x=written, y=_raw.SelectV2(condition=ended, t=before, e=number))
    row = _raw.FloorMod(x=place, y=tf.constant(size, tf.int64))
    with compat.control_dependencies([states, written]):
        write = _raw.ResourceScatterUpdate(resource=ring, indices=row, updates=states)
    with compat.control_dependencies([write] if write is not None else []):
        squares = _raw.Mul(x=marked, y=_raw.Mul(x=stamp, y=stamp))
        columns = [zero, _raw.AddV2(x=gap, y=error), error, marked, ends, squares]
        write = _raw.AssignAddVariableOp(resource=counters, value=_raw.Pack(values=columns, axis=1))
    with compat.control_dependencies([write] if write is not None else []):
        _raw.AssignAddVariableOp(resource=rows, value=number)


@functools.cache
def _advance_function(size: int) -> Any:
    handle = tf.TensorSpec((), tf.resource)
    signature = [*[handle] * 3, tf.TensorSpec((), tf.int64), tf.TensorSpec([None], tf.bool)]
    return traced_once(functools.partial(_advance, size), signature)
