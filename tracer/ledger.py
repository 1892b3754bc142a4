"""Counts executions in the graph: the counters of one replica, and how they are read.

A graph's stateful ops run whenever the graph runs, so one counter serves all that was traced into
one graph (a *block*). `Ledger.count` adds it, about 25 scalar ops, the same for 1 and 1,000
variables. Besides its total a counter keeps the steps at which it ran, as arithmetic runs, and it
does so in the graph, without a branch:

    counter = [id, next, stride, total]     next: the step at which it is expected to run again
    clock   = [step, rows]                  step: the number of the step under way, from 1
    ring    = ROWS rows of counters         the last state of each run that ended

    error   = step - next                   0 as long as the block runs every `stride` steps
    ring[rows % ROWS] = counter             kept only if a run ends here, else overwritten
    counter += [0, 2*error + stride, error, 1]
    clock   += [1 if the block is a step, error != 0]

With `gap`, the steps since the last execution, the update is `next = step + gap; stride = gap`, so
every run's first step is its stride after the run before it ended. That makes a chain of which
no link can be lost unseen: see `_chain`. Totals and the step number grow by constants through
`AssignAddVariableOp`, which is atomic, so they are exact whoever runs the graph at the same time;
the other figures can be torn by several threads in one function, and the chain then shows it.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import tensorflow as tf

from tracer import compat
from tracer.model import records
from tracer.model.records import Run
from tracer.snapshot import Reading

ROWS = 4096
"""How many runs may end between two readings before detail is lost. 128 KiB a replica."""

_ATTEMPTS = 5
"""How often a reading is taken anew while graphs run and detail seems to be lost."""

_raw = tf.raw_ops


class _Row(NamedTuple):
    """A counter's state at the end of a run."""

    next: int
    stride: int
    total: int

    @property
    def last(self) -> int:
        return self.next - self.stride


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
        self.outside = False
        self.use = Use(number, 0)
        self.lifetime: ref[Any] | None = None


class Ledger:
    """The counters of one replica of one root optimizer, all on one device."""

    def __init__(self, device: str, steps: int) -> None:
        self.device = device
        self._clock = self._variable([steps + 1, 0])
        self._ring = self._variable(np.zeros((ROWS, 4), np.int64))
        self._counters: list[_Counter] = []
        self._keys: list[Hashable] = []
        self._idle: dict[Hashable, list[_Counter]] = defaultdict(list)
        self._dropped: deque[_Counter] = deque()
        self._rows: dict[int, list[_Row]] = defaultdict(list)
        self._drained = 0
        self._lock = threading.RLock()  # a signal handler may read while its thread reads

    def count(
        self,
        key: Hashable,
        lifetime: Any,
        step: bool,
        outside: bool = False,
        after: Sequence[Any] = (),
    ) -> Use:
        """Add the counter of the block `key` to the current graph; it runs after the ops `after`.

        `step` is True if the block is a step, `outside` if it is in none, so that its steps say
        nothing.

        When `lifetime`, the outermost graph around it, is gone, the counter serves the next block
        with an equal key: graph tracing again and again does not grow the ledger, and should the
        old graph still run somewhere, what it counts is the same.
        """
        with self._lock:
            counter = self._take(key)
            counter.outside = outside
            counter.graphs += 1
            counter.lifetime = ref(lifetime, lambda _: self._dropped.append(counter))
        with compat.device(self.device), compat.stop_recording():
            handles = counter.variable.handle, self._clock.handle, self._ring.handle
            _advance(*handles, 1 if step else 0, after)
        return counter.use

    def eager_step(self) -> int:
        """Count a step that ran outside of every graph; returns its number."""
        with compat.init_scope(), compat.device(self.device):
            step = int(self._read(self._clock)[0])
            _raw.AssignAddVariableOp(
                resource=self._clock.handle, value=tf.constant([1, 0], tf.int64)
            )
        return step

    def step_now(self) -> int:
        """The number of the step under way, or of the next one."""
        with compat.init_scope():
            return int(self._read(self._clock)[0])

    def read(self) -> tuple[int, list[tuple[Any, Reading]]]:
        """The number of steps so far, and what each counter says of them."""
        with self._lock, compat.init_scope():
            before = -1
            for _ in range(_ATTEMPTS):
                steps = int(self._read(self._clock)[0]) - 1
                states = [self._read(counter.variable) for counter in self._counters]
                self._drain()
                readings = [
                    self._reading(c, s, steps) for c, s in zip(self._counters, states, strict=True)
                ]
                short = any(
                    reading.total > sum(run.total for run in reading.runs)
                    for counter, reading in zip(self._counters, readings, strict=True)
                    if not counter.outside
                )
                # A graph that runs meanwhile may have been caught between two of its writes.
                if not short or steps == before:
                    break
                before = steps
            return steps, list(zip(self._keys, readings, strict=True))

    def handles(self) -> list[Any]:
        """The handles that each graph with a counter captures."""
        return [self._clock.handle]

    def children(self) -> dict[str, Any]:
        """The variables that an exported function captures, by name."""
        variables = {"clock": self._clock, "ring": self._ring}
        return variables | {f"counter_{c.number}": c.variable for c in self._counters}

    def _variable(self, initial: Any) -> Any:
        return compat.make_variable(np.asarray(initial, np.int64), self.device)

    @staticmethod
    def _read(variable: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        values = _raw.ReadVariableOp(resource=variable.handle, dtype=tf.int64).numpy()
        return np.asarray(values)

    def _take(self, key: Hashable) -> _Counter:
        if self._dropped:
            with compat.init_scope():
                self._release()
        if self._idle[key]:
            return self._idle[key].pop()
        number = len(self._counters)
        counter = _Counter(number, self._variable([number, 0, 0, 0]))
        self._counters.append(counter)
        self._keys.append(key)
        return counter

    def _release(self) -> None:
        """Make the counters whose graphs are gone ready to serve others."""
        self._drain()  # a counter that serves many graphs ends a run with nearly each
        while self._dropped:
            counter = self._dropped.popleft()
            total = int(self._read(counter.variable)[3])
            counter.idle += counter.use.ran(total) == 0
            counter.use.released = total
            counter.use = Use(counter.number, total)
            counter.lifetime = None
            self._idle[self._keys[counter.number]].append(counter)

    def _drain(self) -> None:
        """Take the rows that were written since the last time out of the ring."""
        rows = int(self._read(self._clock)[1])
        if rows == self._drained:
            return
        ring = self._read(self._ring)
        for index in range(max(self._drained, rows - ROWS), rows):
            number, *row = (int(value) for value in ring[index % ROWS])
            self._rows[number].append(_Row(*row))
        self._drained = rows

    def _reading(self, counter: _Counter, state: Any, steps: int) -> Reading:
        _, *row = (int(value) for value in state)
        now = _Row(*row)
        rows = [each for each in self._rows[counter.number] if 0 < each.total < now.total]
        if not now.total:
            return Reading(0, [], counter.graphs, counter.idle + (counter.lifetime is not None))
        runs = [] if counter.outside else _chain([*rows, now])
        total = now.total
        if runs and runs[-1].last > steps:  # of a step that is still under way
            kept = [cut for run in runs if (cut := _cut(run, steps)) is not None]
            total -= sum(run.total for run in runs) - sum(run.total for run in kept)
            runs = kept
        idle = counter.idle + (counter.lifetime is not None and not counter.use.ran(now.total))
        return Reading(total, runs, counter.graphs, idle)


class HostLog:
    """The steps at which a block ran, for blocks that Python counts."""

    __slots__ = ("runs", "total")

    def __init__(self) -> None:
        self.total = 0
        self.runs: list[list[int]] = []  # [first, stride, count, times], open at the end

    def add(self, step: int) -> None:
        self.total += 1
        if self.runs:
            run = self.runs[-1]
            first, stride, count, times = run
            last = first + (count - 1) * stride
            if step == last and count == 1:
                run[3] += 1
                return
            if step == last:  # again in the same step, which becomes a run of its own
                run[2] -= 1
                self.runs.append([step, 1, 1, times + 1])
                return
            if times == 1 and (count == 1 or step == last + stride):
                run[1], run[2] = step - last, count + 1
                return
            if len(self.runs) > 1:  # a step that ran it several times may continue a run of such
                tail = records.join(Run(*run) for run in self.runs[-2:])
                self.runs[-2:] = [[r.first, r.stride, r.count, r.times] for r in tail]
        self.runs.append([step, 1, 1, 1])

    def reading(self, graphs: int) -> Reading:
        idle = graphs if not self.total else 0
        return Reading(self.total, records.join(Run(*run) for run in self.runs), graphs, idle)


def _advance(counter: Any, clock: Any, ring: Any, step: int, after: Sequence[Any]) -> None:
    """Count one execution, in the graph: see the top of this file.

    The order of the writes (ring, counter, clock) lets a reader on another thread, who reads in
    the opposite order, find every run that ended. Only the first op waits for `after`, which may be
    thousands: the others follow it.
    """
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    size, tick = tf.constant(ROWS, tf.int64), tf.constant(step, tf.int64)
    with compat.control_dependencies(after):
        state = _raw.ReadVariableOp(resource=counter, dtype=tf.int64)
    with compat.control_dependencies([state]):
        time = _raw.ReadVariableOp(resource=clock, dtype=tf.int64)
    _, expected, stride, _ = _raw.Unpack(value=state, num=4)
    now, rows = _raw.Unpack(value=time, num=2)
    error = _raw.Sub(x=now, y=expected)
    gap = _raw.AddV2(x=error, y=stride)
    ended = _raw.Cast(x=_raw.NotEqual(x=error, y=zero), DstT=tf.int64)
    row = _raw.FloorMod(x=rows, y=size)
    with compat.control_dependencies([state, time]):
        write = _raw.ResourceScatterUpdate(resource=ring, indices=row, updates=state)
    with compat.control_dependencies([write]):
        forward = _raw.Pack(values=[zero, _raw.AddV2(x=gap, y=error), error, one])
        write = _raw.AssignAddVariableOp(resource=counter, value=forward)
    with compat.control_dependencies([write]):
        _raw.AssignAddVariableOp(resource=clock, value=_raw.Pack(values=[tick, ended]))


def _chain(rows: list[_Row]) -> list[Run]:
    """The runs that end in `rows`; they are short of the total if detail was lost.

    A link of the chain is `last - count * stride == the last step before`. Where it does not hold,
    rows were overwritten or torn, and the executions since the last good row have no step.
    """
    runs: list[tuple[int, int, int]] = []
    last = total = 0
    for row in rows:
        count = row.total - total
        if count < 1:
            continue
        if row.stride >= 0 and row.last - count * row.stride == last:
            runs.append((row.last, row.stride, count))
        last, total = row.last, row.total
    return _distinct(runs)


def _distinct(runs: list[tuple[int, int, int]]) -> list[Run]:
    """Runs of distinct steps from `(last, stride, count)`: a stride of 0 is the same step again."""
    found: list[Run] = []
    for last, stride, count in runs:
        if stride:
            found.append(Run(last - (count - 1) * stride, stride if count > 1 else 1, count))
        elif found and found[-1].last == last:
            before = found.pop()
            if before.count > 1:
                found.append(Run(before.first, before.stride, before.count - 1, before.times))
            found.append(Run(last, 1, 1, before.times + count))
        else:
            found.append(Run(last, 1, 1, count))
    return records.join(found)


def _cut(run: Run, steps: int) -> Run | None:
    """The part of `run` up to the step `steps`."""
    if run.last <= steps:
        return run
    if run.first > steps:
        return None
    count = (steps - run.first) // run.stride + 1
    return Run(run.first, run.stride if count > 1 else 1, count, run.times)
