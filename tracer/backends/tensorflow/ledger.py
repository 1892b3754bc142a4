"""Count executions in graphs: the journals of one replica, and how Python reads them.

The stateful ops of a graph run whenever the graph runs, so one counter serves all that was traced
into one graph (a *block*), whether it updates 1 variable or 1,000. Each execution writes a row that
says when it ran. Python drains the rows (`Journal.drain`) into a log like those of eager mode: see
`tracer.core.counters`.

*When* is a **stamp**: `UNIT` times the number of the step, plus flags for the block's part in it. A
graph cannot know its enclosing step while it is traced: it may run alone, inside a step, or inside
another function's step. So each call of the function computes it:

    enclosing = the stamp of the step that calls the function, 0 without one of this optimizer
    stamp     = enclosing                    if the block is not a step itself
    stamp     = a new number                 if the block is a step and enclosing is 0

`enclosing` is an argument of the function that TensorFlow computes at each call (see
`compat.call_time_capture`): in eager mode from the Python calls under way, in another function from
the stamp of the step there. A step takes its number once, when its gradients are computed, and
passes it to all blocks inside it, so steps that overlap in time stay apart.

One atomic op takes the numbers of steps from a `DeviceClock`, and also the place of a row:

    place                = the next one of the journal's own clock
    ring[place % rows]   = TAG * place + stamp

No two executions share a place, whichever threads run the graph, and the clock tells how many there
were. Each row contains its place, so a reader of the ring sees whether a row is written yet, and
whether a later row has overwritten it. Then the number of lost rows is known, but not their steps.
A graph may write `ROWS` rows between two readings; `counters` decides when to read.
"""

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.core import locks
from tracer.core.counters import UNIT, Clock, HostLog, Reading, until

ROWS = 16_383
"""How many rows, of one number each, a journal holds between two readings: 128 KiB."""

_BITS = 44
"""The bits of a number for the stamp or other data; the rest hold the row's place."""

_TAG = 2**_BITS // UNIT

_raw = tf.raw_ops

_numbers = itertools.count()  # of ledgers: functions tell their captures apart by a name

_PHILOX = 1
"""The algorithm of the state that `RngReadAndSkip` changes: see `DeviceClock`."""


class DeviceClock(Clock):
    """Numbers from 1 on, which graphs and Python take.

    The variable has `UNIT` times the next number. `RngReadAndSkip` is made to share one generator
    between threads: under the variable's lock, it moves the state by 256 for each number and
    returns the old state, and it compiles under XLA. No other op of TensorFlow does all three
    (`core/kernels/stateful_random_ops.cc`, `compiler/tf2xla/kernels/stateful_random_ops.cc`). It
    moves 128 bits of the state, of which only the first 64 change here, and leaves the third number
    alone: both others stay 0.
    """

    def __init__(self, device: str, begun: int = 0) -> None:
        self.device = device
        self.variable = compat.make_variable([(begun + 1) * UNIT, 0, 0], device)

    def take(self) -> int:
        """Take the number of a step that begins outside every graph."""
        with compat.outside_of_graphs(), tf.device(self.device):
            return int(self.take_in_graph(tf.constant(1, tf.uint64))) // UNIT

    def take_in_graph(self, numbers: tf.Tensor) -> tf.Tensor:
        """Take 0 or 1 `numbers`, a tensor: `UNIT` times the next number, before it moves.

        A GPU takes `alg` and `delta` from the host and has the state in its own memory. `Unpack` of
        int64 would copy the state to the host, and each step would wait, so `Sum` is used there.
        """
        algorithm = tf.constant(_PHILOX)
        state = _raw.RngReadAndSkip(resource=self.variable.handle, alg=algorithm, delta=numbers)
        if _host_of(self.device) != self.device:
            return _raw.Sum(input=state, axis=tf.constant(0))
        return _raw.Unpack(value=state, num=3)[0]

    def begun(self) -> int:
        """How many numbers were taken."""
        return int(compat.value_in(self.variable.handle, tf.int64)[0]) // UNIT - 1


class Journal:
    """Rows of numbers, one for each execution, which graphs write and Python drains."""

    def __init__(
        self, device: str, rows: int, taken_out: Callable[..., None], width: int = 0
    ) -> None:
        """Pass each row to `taken_out`: a number, or a list of `width` numbers."""
        self._device = device
        self._rows = rows | 1  # odd: the clock moves by `UNIT`, and must reach each cell
        self._taken_out = taken_out
        self.clock = DeviceClock(device)
        shape = (self._rows, width) if width else (self._rows,)
        self.ring = compat.make_variable(np.zeros(shape, np.int64), device)
        self.lost = 0
        """How many rows were overwritten before they were drained."""
        self._drained = 0
        self._awaited: list[int] = []
        """Places that were taken, but whose rows were not written yet."""
        self._found: deque[object] = deque()
        """Rows that are being drained."""
        self._busy = False

    def write(self, row: tf.Tensor, after: Sequence[object] = ()) -> None:
        """Add ops to the current graph that write a row after the ops `after`."""
        with _added(self._device):
            with tf.device(_host_of(self._device)):
                one = tf.constant(1, tf.uint64)
            with tf.control_dependencies(after):
                place = self.clock.take_in_graph(one)
            cell = _raw.FloorMod(x=place, y=tf.constant(self._rows, tf.int64))
            tag = _raw.Mul(x=place, y=tf.constant(_TAG, tf.int64))
            _raw.ResourceScatterUpdate(
                resource=self.ring.handle, indices=cell, updates=_raw.AddV2(x=tag, y=row)
            )

    def fullness(self) -> float:
        """The fraction of the rows that are not drained yet."""
        return (self.clock.begun() - self._drained) / self._rows

    def drain(self) -> None:
        """Take the new rows out of the ring.

        A signal handler may run at any point here: if it reads, it finds the rows drained so far,
        and if it raises, the next reading continues.
        """
        if self._busy:
            return
        self._busy = True
        try:
            self._find()
            while self._found:
                self._taken_out(self._found[0])
                del self._found[0]
        finally:
            self._busy = False

    def _find(self) -> None:
        """Find the new rows in the ring."""
        written = self.clock.begun()
        if written == self._drained and not self._awaited:
            return
        kept = written - self._rows
        awaited = [place for place in self._awaited if place > kept]
        places = np.array([*awaited, *range(max(self._drained, kept) + 1, written + 1)], np.uint64)
        rows = self._rows_at(places)
        tags = (rows >> _BITS).reshape(len(places), -1)
        there = (tags == places[:, None] % 2 ** (64 - _BITS)).all(axis=1)
        lost = self.lost + written - self._drained + len(self._awaited) - len(places)
        found = deque([*self._found, *(rows[there] % 2**_BITS).tolist()])
        late = places[~there].tolist()
        self.lost, self._drained, self._awaited, self._found = lost, written, late, found

    def _rows_at(self, places: Any) -> Any:
        with compat.outside_of_graphs(), tf.device(self._device):
            cells = tf.constant((places * UNIT % self._rows).astype(np.int64))
            rows = _raw.ResourceGather(resource=self.ring.handle, indices=cells, dtype=tf.int64)
        return np.asarray(rows.numpy()).view(np.uint64)


@dataclass(slots=True)
class Use:
    """The use of a counter by one graph: from `taken` until `released`, when the graph is gone."""

    number: int
    taken: int
    released: int | None = None

    def ran(self, total: int) -> int:
        """How often the graph ran, given the counter's current total."""
        return (total if self.released is None else self.released) - self.taken


class _BlockCounter:
    """A journal and the graph that writes to it; reused for another graph when that one is gone."""

    def __init__(self, key: Hashable, number: int, device: str, rows: int) -> None:
        self.key = key
        self.log = HostLog()
        self.journal = Journal(device, rows, self.log.add)
        self.use = Use(number, 0)
        self.lifetime: ref[tf.Graph] | None = None

    def reuse(self) -> None:
        """Begin to count for another graph: the one before is gone."""
        self.journal.drain()
        self.use.released = self.journal.clock.begun()
        self.use = Use(self.use.number, self.use.released)

    def reading(self) -> Reading:
        """The steps in which it ran."""
        self.journal.drain()
        self.log.lost = self.journal.lost
        return self.log.reading()


class Ledger:
    """The journals of one replica of one root optimizer, all on one device."""

    def __init__(self, device: str, steps: int, rows: int = 0) -> None:
        self.device = device
        self._rows = rows or ROWS
        self._name = f"optimizer_tracer_{next(_numbers)}"
        self.alone = compat.constant(0)
        """The stamp of a block outside every step."""
        self.graphs: WeakKeyDictionary[tf.Graph, ref[tf.Tensor]] = WeakKeyDictionary()
        """The graphs of functions with counters, and the stamp of the caller in each."""
        self.clock = DeviceClock(device, steps)
        """Numbers the steps; `steps` have begun before."""
        self._blocks: list[_BlockCounter] = []
        self._auxiliary: list[Journal] = []
        self._idle: dict[Hashable, list[_BlockCounter]] = defaultdict(list)
        self._lock = locks.new_lock("ledger")

    def enclosing_step(
        self, graph: tf.Graph, ask: Callable[[], tf.Tensor], is_alone: Callable[[], bool]
    ) -> tf.Tensor:
        """The stamp of the step that calls the function with this graph, a scalar in `graph`.

        Each call of the function calls `ask` for it, unless `is_alone()` says that it is `alone`.
        `ask` returns an eager tensor, or one of the graph that contains the call. In a graph that
        cannot ask, the stamp is 0.
        """
        known = self.graphs.get(graph)
        if known is None:
            known = compat.call_time_capture(graph, self._name, ask, self.alone, is_alone)
            if known is None:
                with graph.as_default():
                    return tf.constant(0, tf.int64)
            self.graphs[graph] = ref(known)
            return known
        return known()

    def begin_step(self, enclosing: tf.Tensor, after: Sequence[object] = ()) -> tf.Tensor:
        """Add the start of a step to the current graph, after the tensors `after`; returns a stamp.

        It is new if there is no enclosing step.
        """
        with _added(self.device):
            with tf.device(_host_of(self.device)):
                alone = _raw.Equal(x=enclosing, y=tf.constant(0, tf.int64))
                numbers = _raw.Cast(x=alone, DstT=tf.uint64)
            with tf.control_dependencies(after):
                new = self.clock.take_in_graph(numbers)
            return _raw.SelectV2(condition=alone, t=new, e=enclosing)

    def count(
        self, key: Hashable, lifetime: tf.Graph, stamp: tf.Tensor, after: Sequence[object] = ()
    ) -> Use:
        """Add the counter of the block `key` to the current graph; it runs after the ops `after`.

        When `lifetime`, the outermost graph around it, is gone, the next block with an equal key
        reuses the counter. So repeated graph tracing does not grow the ledger, and if the old graph
        still runs somewhere, its executions count for an equal block.
        """
        with self._lock:
            block = self._take_block(key)
            block.lifetime = ref(lifetime, lambda _: self._idle[key].append(block))
        block.journal.write(stamp, after)
        return block.use

    def auxiliary(self, taken_out: Callable[[list[int]], None], width: int) -> Journal:
        """A journal of other data, whose rows are written before those of their blocks."""
        with self._lock:
            journal = Journal(self.device, self._rows // width, taken_out, width)
            self._auxiliary.append(journal)
            return journal

    def read(self, last: int) -> list[tuple[Any, Reading]]:
        """The reading of each counter, up to the step `last`, which has begun.

        A graph takes a step's number, writes auxiliary rows and then the block's row. Reading in
        the reverse order finds all rows of steps that had ended; later steps are omitted.
        """
        with self._lock:
            readings = [(each.key, until(each.reading(), last)) for each in self._blocks]
            for journal in self._auxiliary:
                journal.drain()
            return readings

    def look(self, limit: float) -> None:
        """Drain the journals that are fuller than `limit`."""
        with self._lock:
            for journal in self._journals():
                if journal.fullness() > limit:
                    journal.drain()

    def children(self) -> list[object]:
        """What an exported function captures."""
        for graph in list(self.graphs):
            compat.plain_capture(graph._function_captures, self._name, self.alone)
        journals = self._journals()
        captured = [each for journal in journals for each in (journal.clock.variable, journal.ring)]
        return [self.clock.variable, compat.TrackableConstant(self.alone, None), *captured]

    def _journals(self) -> list[Journal]:
        return [*(block.journal for block in self._blocks), *self._auxiliary]

    def _take_block(self, key: Hashable) -> _BlockCounter:
        if self._idle[key]:
            block = self._idle[key].pop()
            block.reuse()
            return block
        block = _BlockCounter(key, len(self._blocks), self.device, self._rows)
        self._blocks.append(block)
        return block


@contextmanager
def _added(device: str) -> Iterator[None]:
    """Add ops to a user's graph without changing the names or gradients of the user's ops."""
    with tf.device(device), compat.stop_recording(), tf.name_scope("optimizer_tracer"):
        yield


def _host_of(device: str) -> str:
    """The CPU device of the host of `device`."""
    return re.sub(r"GPU:\d+$", "CPU:0", device, flags=re.IGNORECASE)
