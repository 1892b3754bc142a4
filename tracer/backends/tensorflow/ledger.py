"""Counts executions in the graph: the counters of one replica, and how they are read.

A graph's stateful ops run whenever the graph runs, so one counter serves all that was traced into
one graph (a *block*). `Ledger.count` adds it: two calls of small functions, the same for 1 and for
1,000 variables. Besides its total a counter keeps when it ran, as arithmetic runs, and it does so
in the graph, without a branch.

*When* is a **stamp**: `UNIT` times the number of the step, plus flags that say how the block was
part of it. A graph does not know what it will be part of when it is traced: the same one may run
alone, inside a step, or inside another function's step. So each function asks when it is called:

    company = the stamp of what calls it     0 if that is no step of this optimizer
    stamp   = company                        if the block is part of a step, or of none
    stamp   = a new number                   if the block is a step and company is 0

`company` is an argument of the function that TensorFlow computes at each call (see
`compat.call_time_capture`): in eager mode from the Python calls under way, in another function
from the stamp of the step that it stands in. A step takes its number once, when its gradients are
there, and hands it to all that runs in it; so two steps that overlap in time stay two.

    clock   = [UNIT * next number, 0, rows]  numbers are taken by one atomic op, see `_take`
    counter = [id, next, stride, total, ended, squares]
    ring    = ROWS rows of counters          the last state of each run that ended

    error   = stamp - next                   0 as long as the block runs every `stride`
    ring[rows % ROWS] = counter              kept only if a run ends here, else overwritten
    counter += [0, 2*error + stride, error, 1, error != 0, stamp**2]
    clock   += [0, 0, error != 0]

With `gap`, the distance to the last stamp, the update is `next = stamp + gap; stride = gap`, so
every run's first stamp is its stride after the run before it ended. `ended` counts the runs that a
counter has ended, and stands in each row: where a row was overwritten, or where several threads in
one function wrote at once, the numbers have a gap, or the arithmetic does not hold. So no link of
the chain can be lost unseen: see `chain`. What a thread adds after others have written can look
just as what a later stamp would have added, so `squares` holds each run against the stamps that
there were. It and the total grow by what no other thread changes, through `AssignAddVariableOp`,
which is atomic, so they are exact whoever runs the graph at the same time.
"""

import functools
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.core.settle import Reading, reading_of, until
from tracer.core.stamps import UNIT, WITHIN
from tracer.model.runs import Run, join

ROWS = 4096
"""How many runs may end between two readings before detail is lost. 192 KiB a replica."""

_ATTEMPTS = 5
"""How often a reading is taken anew while graphs run and detail seems to be lost."""

_raw = tf.raw_ops

_numbers = itertools.count()  # of ledgers: functions tell what they capture apart by a name

_PHILOX = 1
"""The algorithm of which `RngReadAndSkip` moves the state: see `_take`."""


class Row(NamedTuple):
    """A counter's state at the end of a run."""

    next: int
    stride: int
    total: int
    ended: int
    squares: int | None = None
    """The sum of the squares of all stamps, modulo 2**64; None where none is kept."""

    @property
    def last(self) -> int:
        return self.next - self.stride


class Ring:
    """Where runs of counters end, in the graph, and what was taken out of it."""

    def __init__(self, size: int, device: str) -> None:
        self.size = size
        self.variable = counter_variable(np.zeros((size, 6)), device)
        self._drained = 0
        self._rows: dict[int, list[Row]] = defaultdict(list)

    def drain(self, written: int, spare: int = 0) -> None:
        """Take the new rows out: `written` in all so far; the `spare` oldest of a ring are none."""
        if written != self._drained:
            ring = values_of(self.variable)
            for index in range(max(self._drained, written - self.size + spare), written):
                number, *row = (int(value) for value in ring[index % self.size])
                self._rows[number].append(Row(*row))
            self._drained = written

    def runs_of(self, number: int, now: Row) -> list[Run]:
        """The runs of the counter with this number, whose state is `now`."""
        return chain([*(row for row in self._rows[number] if row.ended < now.ended), now])


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


class _Counter:
    """A counter with the graphs that feed it: one at a time, reused when that graph is gone."""

    def __init__(self, number: int, variable: Any) -> None:
        self.number = number
        self.variable = variable
        self.graphs = 0
        self.idle = 0  # of the graphs that are gone
        self.use = Use(number, 0)
        self.lifetime: ref[Any] | None = None


class Ledger:
    """The counters of one replica of one root optimizer, all on one device."""

    def __init__(self, device: str, steps: int, rows: int = 0) -> None:
        self.device = device
        self._name = f"optimizer_tracer_{next(_numbers)}"
        self.alone = compat.constant(0)
        """The company of what is called outside of every step."""
        self._companies: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
        self.asks = True
        """Whether each function with a counter asks for its company."""
        self._clock = counter_variable([(steps + 1) * UNIT, 0, 0], device)
        self._ring = Ring(rows or ROWS, device)
        self._counters: list[_Counter] = []
        self._keys: list[Hashable] = []
        self._idle: dict[Hashable, list[_Counter]] = defaultdict(list)
        self._dropped: deque[_Counter] = deque()
        self._lock = threading.RLock()  # a signal handler may read while its thread reads

    def company(self, graph: Any, ask: Callable[[], Any]) -> Any:
        """The stamp of what calls the function with this graph, a scalar in `graph`.

        `ask` gives it at each call of the function: an eager tensor, or one of the graph in which
        it is called. Where nobody can be asked it is 0.
        """
        known = self._companies.get(graph)
        if known is None:
            known = compat.call_time_capture(graph, self._name, ask, self.alone)
            if known is None:
                self.asks = False
                with graph.as_default():
                    return tf.constant(0, tf.int64)
            self._companies[graph] = ref(known)
            return known
        return known()

    def begin_step(self, company: Any, after: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Add to the current graph the beginning of a step, which waits for the tensors `after`.

        Returns the step's stamp and that of what is part of it.
        """
        where = compat.device(self.device)
        with where, compat.stop_recording(), compat.control_dependencies(after):
            own, inside = _begin_function()(self._clock.handle, company)
        return own, inside

    def count(self, key: Hashable, lifetime: Any, stamp: Any, after: Sequence[Any] = ()) -> Use:
        """Add the counter of the block `key` to the current graph; it runs after the ops `after`.

        When `lifetime`, the outermost graph around it, is gone, the counter serves the next block
        with an equal key: graph tracing again and again does not grow the ledger, and should the
        old graph still run somewhere, what it counts is the same.
        """
        with self._lock:
            counter = self._take_counter(key)
            counter.graphs += 1
            counter.lifetime = ref(lifetime, lambda _: self._dropped.append(counter))
        with compat.device(self.device), compat.stop_recording():
            handles = counter.variable.handle, self._clock.handle, self._ring.variable.handle
            with compat.control_dependencies(after):
                _advance_function(self._ring.size)(*handles, stamp)
        return counter.use

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

        The graph writes the ring, then the counter, then the clock; reading goes the other way, so
        that each run that had ended is found. A step takes its number before all of that, and is
        left out if it did so while this read.
        """
        with self._lock, compat.outside_of_graphs():
            before = -1
            for _ in range(_ATTEMPTS):
                begun = int(values_of(self._clock)[0]) // UNIT - 1
                states = [values_of(counter.variable) for counter in self._counters]
                self._drain()
                readings = [
                    until(self._reading(c, s), begun)
                    for c, s in zip(self._counters, states, strict=True)
                ]
                # A graph that runs meanwhile may have been caught between two of its writes.
                if begun == before or not any(reading.lost for reading in readings):
                    break
                before = begun
            return begun, list(zip(self._keys, readings, strict=True))

    def handles(self) -> list[Any]:
        """The handles that each graph with a counter captures."""
        return [self._clock.handle]

    def children(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        for graph in list(self._companies):
            compat.plain_capture(graph._function_captures, self._name, self.alone)
        children = {"clock": self._clock, "ring": self._ring.variable}
        children |= {f"counter_{c.number}": c.variable for c in self._counters}
        return children | {"alone": compat.trackable_constant(self.alone)}

    def _take_counter(self, key: Hashable) -> _Counter:
        if self._dropped:
            with compat.outside_of_graphs():
                self._release()
        if self._idle[key]:
            return self._idle[key].pop()
        number = len(self._counters)
        counter = _Counter(number, counter_variable([number, 0, 0, 0, 0, 0], self.device))
        self._counters.append(counter)
        self._keys.append(key)
        return counter

    def _release(self) -> None:
        """Make the counters whose graphs are gone ready to serve others."""
        self._drain()  # a counter that serves many graphs ends a run with nearly each
        while self._dropped:
            counter = self._dropped.popleft()
            total = int(values_of(counter.variable)[3])
            counter.idle += counter.use.ran(total) == 0
            counter.use.released = total
            counter.use = Use(counter.number, total)
            counter.lifetime = None
            self._idle[self._keys[counter.number]].append(counter)

    def _drain(self) -> None:
        self._ring.drain(int(values_of(self._clock)[2]))

    def _reading(self, counter: _Counter, state: Any) -> Reading:
        _, *row = (int(value) for value in state)
        now = Row(*row)
        if not now.total:
            idle = counter.idle + (counter.lifetime is not None)
            return Reading(graphs=counter.graphs, idle=idle)
        idle = counter.idle + (counter.lifetime is not None and not counter.use.ran(now.total))
        runs = self._ring.runs_of(counter.number, now)
        return reading_of(runs, now.total, counter.graphs, idle)


def _take(clock: Any, numbers: Any) -> Any:
    """Take so many numbers of steps, 0 or 1; returns the clock as it was before.

    `RngReadAndSkip` is made to share one generator between threads: it moves the state by 256 for
    each number and gives the state before, both under the variable's lock, and it compiles under
    XLA. No other op of TensorFlow does all three (`core/kernels/stateful_random_ops.cc`,
    `compiler/tf2xla/kernels/stateful_random_ops.cc`). 128 bits of the state are moved, which here
    never leave the first 64, and the third number is not touched.
    """
    return _raw.RngReadAndSkip(resource=clock, alg=tf.constant(_PHILOX), delta=numbers)


def _begin(clock: Any, company: Any) -> tuple[Any, Any]:
    """The stamp of a step, that of its company or a new one, and that of what is part of it."""
    alone = _raw.Equal(x=company, y=tf.constant(0, tf.int64))
    new, _, _ = _raw.Unpack(value=_take(clock, _raw.Cast(x=alone, DstT=tf.uint64)), num=3)
    stamp = _raw.SelectV2(condition=alone, t=new, e=company)
    return stamp, _raw.BitwiseOr(x=stamp, y=tf.constant(WITHIN, tf.int64))


def _advance(size: int, counter: Any, clock: Any, ring: Any, stamp: Any) -> None:
    """Count one execution, in the graph, with a ring of `size` rows: see the top of this file.

    The order of the writes (ring, counter, clock) lets a reader on another thread, who reads in
    the opposite order, find every run that ended.
    """
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    state = _raw.ReadVariableOp(resource=counter, dtype=tf.int64)
    with compat.control_dependencies([state]):
        time = _raw.ReadVariableOp(resource=clock, dtype=tf.int64)
    _, expected, stride, _, _, _ = _raw.Unpack(value=state, num=6)
    _, _, rows = _raw.Unpack(value=time, num=3)
    error = _raw.Sub(x=stamp, y=expected)
    gap = _raw.AddV2(x=error, y=stride)
    ended = _raw.Cast(x=_raw.NotEqual(x=error, y=zero), DstT=tf.int64)
    row = _raw.FloorMod(x=rows, y=tf.constant(size, tf.int64))
    with compat.control_dependencies([state, time]):
        write = _raw.ResourceScatterUpdate(resource=ring, indices=row, updates=state)
    with compat.control_dependencies([write] if write is not None else []):
        further, square = _raw.AddV2(x=gap, y=error), _raw.Mul(x=stamp, y=stamp)
        forward = _raw.Pack(values=[zero, further, error, one, ended, square])
        write = _raw.AssignAddVariableOp(resource=counter, value=forward)
    with compat.control_dependencies([write] if write is not None else []):
        _raw.AssignAddVariableOp(resource=clock, value=_raw.Pack(values=[zero, zero, ended]))


_HANDLE, _STAMP = tf.TensorSpec((), tf.resource), tf.TensorSpec((), tf.int64)


@functools.cache
def _begin_function() -> Any:
    return traced_once(_begin, [_HANDLE, _STAMP])


@functools.cache
def _advance_function(size: int) -> Any:
    return traced_once(functools.partial(_advance, size), [_HANDLE, _HANDLE, _HANDLE, _STAMP])


def traced_once(body: Callable[..., Any], signature: Sequence[Any]) -> Any:
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
        if row.squares is not None:
            sound &= (row.squares - squares - _squares(row, count)) % 2**64 == 0
            squares = row.squares
        if count and sound and (row.stride >= 0 or count == 1):
            runs.append((row.last, row.stride, count))
        last, total, ended = row.last, row.total, row.ended + 1
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
