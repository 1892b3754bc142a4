"""Counts executions in the graph: the counters of one replica, and how they are read.

A graph's stateful ops run whenever the graph runs, so one counter serves all that was traced into
one graph (a *block*). `Ledger.count` adds it: two calls of small functions, the same for 1 and for
1,000 variables. Besides its total a counter keeps when it ran, as arithmetic runs, and it does so
in the graph, without a branch.

*When* is a **stamp**: `UNIT` times the number of the step, plus flags that say how the block was
part of it. A graph does not know what it will be part of when it is traced: the same one may run
alone, inside a step, or inside another function's step. So each function asks when it is called:

    enclosing = the stamp of the step that calls it, 0 if that is none of this optimizer
    stamp     = enclosing                    if the block is part of a step, or of none
    stamp     = a new number                 if the block is a step and enclosing is 0

`enclosing` is an argument of the function that TensorFlow computes at each call (see
`compat.call_time_capture`): in eager mode from the Python calls under way, in another function
from the stamp of the step that it stands in. A step takes its number once, when its gradients are
there, and hands it to all that runs in it; so two steps that overlap in time stay two.

    clock = [UNIT * next number, 0, 0]       numbers are taken by one atomic op, see `_take`
    state = [last, stride, total, ended, squares]
    ring  = rows of states                   the state at the end of each run

    gap   = stamp - last                     the stride, as long as the block runs regularly
    error = gap - stride
    ring[ended % rows] = state               kept only if a run ends here, else overwritten
    state += [gap, error, 1, error != 0, stamp**2]

So every run's first stamp is its stride after the last one of the run before it. `ended` counts the
runs that a counter has ended, and stands in each row: where a row was overwritten, or where several
threads in one function wrote at once, the numbers have a gap, or the arithmetic does not hold. So
no link of the chain can be lost unseen: see `chain`. What a thread adds after others have written
can look just as what a later stamp would have added, so `squares` holds each run against the stamps
that there were. It and the total grow by what no other thread changes, through
`AssignAddVariableOp`, which is atomic, so they are exact whoever runs the graph at the same time.

The bits that a step sets (see `effects`) are counted likewise, many by one call: a state and a ring
for each bit, in one variable each, of which those whose bit is 0 stay as they are.
"""

import functools
import itertools
import operator
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.core.log import Reading, reading_of, until
from tracer.core.stamps import UNIT, WITHIN
from tracer.model.runs import Run, join

ROWS = 4096
"""How many runs of a block may end between two readings before detail is lost. 160 KiB a block."""

_ATTEMPTS = 5
"""How often a reading is repeated while graphs run and detail seems to be lost."""

_raw = tf.raw_ops

_numbers = itertools.count()  # of ledgers: functions tell what they capture apart by a name

_PHILOX = 1
"""The algorithm of which `RngReadAndSkip` moves the state: see `_take`."""


class Row(NamedTuple):
    """The state of a counter at the end of a run, or now."""

    last: int
    stride: int
    total: int
    ended: int
    squares: int
    """The sum of the squares of all stamps, modulo 2**64."""


class RunCounters:
    """Counters in the graph that run together, each with a ring in which its runs end."""

    def __init__(self, device: str, rows: int, bits: int = 0) -> None:
        """A counter for each of the `bits` of a step; without them one, of a block."""
        shape = (bits,) if bits else ()
        self._device = device
        self._rows = rows
        self._states = counter_variable(np.zeros((*shape, len(Row._fields))), device)
        self._ring = counter_variable(np.zeros((rows * (bits or 1), len(Row._fields))), device)
        self._ended: list[list[Row]] = [[] for _ in range(bits or 1)]
        self._drained = [0] * (bits or 1)

    def advance(self, stamp: Any, bits: Sequence[Any] = (), after: Sequence[Any] = ()) -> None:
        """Add to the current graph, after the ops `after`, that it runs, or those whose bit is 1.

        `stamp` is a scalar of the graph, and so is each bit.
        """
        on = compat.device(self._device)
        with on, compat.stop_recording(), compat.control_dependencies(after):
            masks = [_raw.Pack(values=bits)] if bits else []
            function = _advance_function(self._rows, bool(bits))
            function(self._states.handle, self._ring.handle, stamp, *masks)

    def states(self) -> list[Row]:
        """What each counter holds now."""
        rows = values_of(self._states).reshape(-1, len(Row._fields))
        return [Row(*row) for row in rows.tolist()]

    def runs(self, states: Sequence[Row]) -> list[list[Run]]:
        """The runs of each counter up to the state that it had just now."""
        self.drain(states)
        return [chain([*ended, state]) for ended, state in zip(self._ended, states, strict=True)]

    def variables(self) -> list[Any]:
        """What a graph with these counters captures."""
        return [self._states, self._ring]

    def drain(self, states: Sequence[Row]) -> None:
        """Take the new rows out of the rings; the next one to be written is none."""
        if all(map(operator.eq, self._drained, (state.ended for state in states))):
            return
        rings = values_of(self._ring).reshape(len(states), self._rows, -1)
        for place, state in enumerate(states):
            oldest = max(self._drained[place], state.ended - self._rows + 1)
            for number in range(oldest, state.ended):
                row = Row(*rings[place, number % self._rows].tolist())
                if row.ended == number:
                    self._ended[place].append(row)
            self._drained[place] = state.ended


def counter_variable(initial: Any, device: str) -> Any:
    """A variable with these numbers."""
    return compat.make_variable(np.asarray(initial, np.int64), device)


def values_of(variable: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What such a variable holds now."""
    return np.asarray(_raw.ReadVariableOp(resource=variable.handle, dtype=tf.int64).numpy())


class Use:
    """What one graph adds to a counter: from `taken` on, until it is gone and `released` it."""

    __slots__ = ("number", "released", "taken")

    def __init__(self, number: int, taken: int) -> None:
        self.number = number
        self.taken = taken
        self.released: int | None = None

    def ran(self, total: int) -> int:
        """How often the graph ran, if the counter's total is `total` now."""
        return (total if self.released is None else self.released) - self.taken


class _Block:
    """A counter with the graphs that feed it: one at a time, reused when that graph is gone."""

    def __init__(self, key: Hashable, number: int, counter: RunCounters) -> None:
        self.key = key
        self.counter = counter
        self.graphs = 0
        self.idle = 0  # of the graphs that are gone
        self.use = Use(number, 0)
        self.lifetime: ref[Any] | None = None


class Ledger:
    """The counters of one replica of one root optimizer, all on one device."""

    def __init__(self, device: str, steps: int, rows: int = 0) -> None:
        self.device = device
        self._rows = rows or ROWS
        self._name = f"optimizer_tracer_{next(_numbers)}"
        self.alone = compat.constant(0)
        """The stamp of what is called outside of every step."""
        self._captured: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
        self._clock = counter_variable([(steps + 1) * UNIT, 0, 0], device)
        self._blocks: list[_Block] = []
        self._idle: dict[Hashable, list[_Block]] = defaultdict(list)
        self._dropped: deque[_Block] = deque()
        self._lock = threading.RLock()  # a signal handler may read while its thread reads

    def enclosing_step(
        self, graph: Any, ask: Callable[[], Any], is_alone: Callable[[], bool]
    ) -> Any:
        """The stamp of the step that calls the function with this graph, a scalar in `graph`.

        `ask` gives it at each call of the function: an eager tensor, or one of the graph in which
        it is called. It is `alone`, and not asked for, where `is_alone` says so. Where nobody can
        be asked it is 0.
        """
        known = self._captured.get(graph)
        if known is None:
            known = compat.call_time_capture(graph, self._name, ask, self.alone, is_alone)
            if known is None:
                with graph.as_default():
                    return tf.constant(0, tf.int64)
            self._captured[graph] = ref(known)
            return known
        return known()

    def begin_step(self, enclosing: Any, after: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Add to the current graph the beginning of a step, which waits for the tensors `after`.

        Returns the step's stamp and that of what is part of it.
        """
        where = compat.device(self.device)
        with where, compat.stop_recording(), compat.control_dependencies(after):
            own, inside = _begin_function()(self._clock.handle, enclosing)
        return own, inside

    def count(self, key: Hashable, lifetime: Any, stamp: Any, after: Sequence[Any] = ()) -> Use:
        """Add the counter of the block `key` to the current graph; it runs after the ops `after`.

        When `lifetime`, the outermost graph around it, is gone, the counter serves the next block
        with an equal key: graph tracing again and again does not grow the ledger, and should the
        old graph still run somewhere, what it counts is the same.
        """
        with self._lock:
            block = self._take_block(key)
            block.graphs += 1
            block.lifetime = ref(lifetime, lambda _: self._dropped.append(block))
        block.counter.advance(stamp, after=after)
        return block.use

    def take_number(self) -> int:
        """The number of a step that begins outside of every graph."""
        with compat.outside_of_graphs(), compat.device(self.device):
            clock = _take(self._clock.handle, tf.constant(1, tf.uint64))
            return int(clock[0]) // UNIT

    def next_number(self) -> int:
        """The number of the step that begins next."""
        with compat.outside_of_graphs():
            return int(values_of(self._clock)[0]) // UNIT

    def read(self) -> tuple[int, list[tuple[Any, Reading]]]:
        """How many steps began so far, and what each counter says of them.

        The graph takes a step's number, and at its end writes a ring, then the state; reading goes
        the other way, so that each run that had ended is found. What began meanwhile is left out.
        """
        with self._lock, compat.outside_of_graphs():
            before = -1
            for _ in range(_ATTEMPTS):
                begun = int(values_of(self._clock)[0]) // UNIT - 1
                readings = [until(self._reading(block), begun) for block in self._blocks]
                # A graph that runs meanwhile may have been caught between two of its writes.
                if begun == before or not any(reading.lost for reading in readings):
                    break
                before = begun
            return begun, [(b.key, r) for b, r in zip(self._blocks, readings, strict=True)]

    def sign(self) -> Any:
        """What is another one once anything was counted, or a graph got a counter."""
        with self._lock:
            variables = [self._clock, *(each.counter.variables()[0] for each in self._blocks)]
            counted = [compat.value_in(each.handle, tf.int64).tobytes() for each in variables]
            return counted, [block.graphs for block in self._blocks]

    def handles(self) -> list[Any]:
        """The handles of which each graph with a counter captures one."""
        variables = itertools.chain(*(block.counter.variables() for block in self._blocks))
        return [each.handle for each in variables]

    def children(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        for graph in list(self._captured):
            compat.plain_capture(graph._function_captures, self._name, self.alone)
        children = {"clock": self._clock, "alone": compat.trackable_constant(self.alone)}
        for number, block in enumerate(self._blocks):
            children |= named(block.counter, number)
        return children

    def _take_block(self, key: Hashable) -> _Block:
        if self._dropped:
            with compat.outside_of_graphs():
                self._release()
        if self._idle[key]:
            return self._idle[key].pop()
        block = _Block(key, len(self._blocks), RunCounters(self.device, self._rows))
        self._blocks.append(block)
        return block

    def _release(self) -> None:
        """Make the counters whose graphs are gone ready to serve others."""
        while self._dropped:
            block = self._dropped.popleft()
            state = block.counter.states()
            block.counter.drain(state)  # a counter that serves many graphs ends a run with each
            total = state[0].total
            block.idle += block.use.ran(total) == 0
            block.use.released = total
            block.use = Use(block.use.number, total)
            block.lifetime = None
            self._idle[block.key].append(block)

    @staticmethod
    def _reading(block: _Block) -> Reading:
        (now,) = states = block.counter.states()
        idle = block.idle + (block.lifetime is not None and not block.use.ran(now.total))
        return reading_of(block.counter.runs(states)[0], now.total, block.graphs, idle)


def named(counters: RunCounters, number: int) -> dict[str, Any]:
    """The variables of counters with this number, by name."""
    states, ring = counters.variables()
    return {f"counter_{number}": states, f"ring_{number}": ring}


def _take(clock: Any, numbers: Any) -> Any:
    """Take so many numbers of steps, 0 or 1; returns the clock as it was before.

    `RngReadAndSkip` is made to share one generator between threads: it moves the state by 256 for
    each number and gives the state before, both under the variable's lock, and it compiles under
    XLA. No other op of TensorFlow does all three (`core/kernels/stateful_random_ops.cc`,
    `compiler/tf2xla/kernels/stateful_random_ops.cc`). 128 bits of the state are moved, which here
    never leave the first 64, and the third number is not touched.
    """
    return _raw.RngReadAndSkip(resource=clock, alg=tf.constant(_PHILOX), delta=numbers)


def _begin(clock: Any, enclosing: Any) -> tuple[Any, Any]:
    """The stamp of a step, a new one if there is no enclosing step, and that of what is in it."""
    alone = _raw.Equal(x=enclosing, y=tf.constant(0, tf.int64))
    new, _, _ = _raw.Unpack(value=_take(clock, _raw.Cast(x=alone, DstT=tf.uint64)), num=3)
    stamp = _raw.SelectV2(condition=alone, t=new, e=enclosing)
    return stamp, _raw.BitwiseOr(x=stamp, y=tf.constant(WITHIN, tf.int64))


def _advance(rows: int, states: Any, ring: Any, stamp: Any, bits: Any = None) -> None:
    """Count one execution, in the graph, with rings of this size: see the top of this file.

    The order of the writes (ring, then state) lets a reader on another thread, who reads in the
    opposite order, find every run that ended.
    """
    # Without this it may be read long before the stamp is there, and another run come in between.
    with compat.control_dependencies([stamp]):
        state = _raw.ReadVariableOp(resource=states, dtype=tf.int64)
    last, stride, _, ended, _ = _raw.Unpack(value=state, num=len(Row._fields), axis=-1)
    one, zero = tf.constant(1, tf.int64), tf.constant(0, tf.int64)
    row = _raw.FloorMod(x=ended, y=tf.constant(rows, tf.int64))
    if bits is not None:
        one = _raw.Cast(x=bits, DstT=tf.int64)
        stamp = _raw.Mul(x=one, y=stamp)
        size = tf.constant(rows, tf.int64)
        limit = _raw.Mul(x=_raw.Size(input=bits, out_type=tf.int64), y=size)
        row = _raw.AddV2(x=row, y=_raw.Range(start=zero, limit=limit, delta=size))
    gap = _raw.Sub(x=stamp, y=last)
    error = _raw.Sub(x=gap, y=stride)
    ends = _raw.Cast(x=_raw.NotEqual(x=error, y=zero), DstT=tf.int64)
    columns = [gap, error, one, ends, _raw.Mul(x=stamp, y=stamp)]
    forward = _raw.Pack(values=columns, axis=-1)
    if bits is not None:
        forward = _raw.Mul(x=forward, y=_raw.ExpandDims(input=one, axis=tf.constant(1)))
    with compat.control_dependencies([state]):
        write = _raw.ResourceScatterUpdate(resource=ring, indices=row, updates=state)
    with compat.control_dependencies([write] if write is not None else []):
        _raw.AssignAddVariableOp(resource=states, value=forward)


_HANDLE, _STAMP = tf.TensorSpec((), tf.resource), tf.TensorSpec((), tf.int64)


@functools.cache
def _begin_function() -> Any:
    return _traced_once(_begin, [_HANDLE, _STAMP])


@functools.cache
def _advance_function(rows: int, masked: bool) -> Any:
    bits = [tf.TensorSpec([None], tf.bool)] if masked else []
    return _traced_once(functools.partial(_advance, rows), [_HANDLE, _HANDLE, _STAMP, *bits])


def _traced_once(body: Callable[..., Any], signature: Sequence[Any]) -> Any:
    """A function that all graphs call; it captures nothing."""

    def optimizer_tracer(*arguments: Any) -> Any:
        return body(*arguments)

    with compat.outside_of_graphs(), compat.device(None):
        function = tf.function(optimizer_tracer, input_signature=signature, autograph=False)
        return function.get_concrete_function()


def chain(rows: list[Row]) -> list[Run]:
    """The runs that end in `rows`; they are short of the total if detail was lost.

    A link of the chain is `last - count * stride == the last stamp before`. Where it does not hold,
    where the number of a row is missing, or where the squares are those of other stamps, rows were
    overwritten or torn, and the executions since the last good row have no step. The first row is
    written when a block runs in a step for the first time. If it had run before, in no step, the
    arithmetic of the second row does not hold without the first; so without it, where it holds,
    there was nothing in it.
    """
    runs: list[tuple[int, int, int]] = []
    last = total = ended = squares = 0
    for row in rows:
        count = row.total - total
        if count < 0 or row.ended < ended:  # torn: an older state after a newer one
            continue
        following = row.ended == ended or (row.ended == 1 and not ended)
        sound = following and row.last - count * row.stride == last
        sound &= (row.squares - squares - _squares(row, count)) % 2**64 == 0
        if count and sound and (row.stride >= 0 or count == 1):
            runs.append((row.last, row.stride, count))
        last, total, ended, squares = row.last, row.total, row.ended + 1, row.squares
    return _distinct(runs)


def _squares(row: Row, count: int) -> int:
    """The sum of the squares of the last `count` stamps of the run that ends in `row`."""
    below = count * (count - 1)  # twice the sum of the numbers below `count`
    of_squares = below * (2 * count - 1) // 6
    return row.last * (count * row.last - row.stride * below) + row.stride**2 * of_squares


def _distinct(runs: list[tuple[int, int, int]]) -> list[Run]:
    """Runs of distinct stamps from `(last, stride, count)`: a stride of 0 is the same one again."""
    distinct: list[Run] = []
    for last, stride, count in runs:
        if stride:
            distinct.append(Run(last - (count - 1) * stride, stride if count > 1 else 1, count))
        elif distinct and distinct[-1].last == last:
            before = distinct.pop()
            if before.count > 1:
                distinct.append(Run(before.first, before.stride, before.count - 1, before.times))
            distinct.append(Run(last, 1, 1, before.times + count))
        else:
            distinct.append(Run(last, 1, 1, count))
    return join(distinct)
