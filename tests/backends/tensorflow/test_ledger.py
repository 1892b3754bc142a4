"""The in-graph counters against a plain list of what ran.

A journal may know less than ran, and then it says how much it lost; what else it says must be so.
"""

import gc
import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings, strategies as st

from tracer.backends.tensorflow import ledger
from tracer.backends.tensorflow.ledger import Journal, Ledger
from tracer.core.counters import UNIT, WITHIN
from tracer.model.timeline import Run


class Machine:
    """A ledger with three functions: two steps, and a part that runs inside of the next step."""

    def __init__(self, compiled: bool = False, rows: int = ledger.ROWS) -> None:
        self.ledger = Ledger("/cpu:0", 0, rows)
        self.enclosing = threading.local()
        self.steps = [self._function(name, True, compiled) for name in "AB"]
        self.part_of_step = self._function("C", False, compiled)

    def _function(self, name: str, step: bool, compiled: bool) -> Any:
        @tf.function(autograph=False, jit_compile=compiled)
        def function() -> None:
            graph = tf.compat.v1.get_default_graph()
            stamp = self.ledger.enclosing_step(graph, self._ask, lambda: False)
            if step:
                stamp = self.ledger.begin_step(stamp)
            self.ledger.count(name, graph, stamp)

        return function.get_concrete_function()

    def _ask(self) -> Any:
        return getattr(self.enclosing, "stamp", self.ledger.alone)

    def part(self, step: int) -> None:
        """The part runs in the step of that number."""
        self.enclosing.stamp = tf.constant(UNIT * step | WITHIN, tf.int64)
        self.part_of_step()
        del self.enclosing.stamp

    def read(self) -> tuple[int, dict[str, tuple[int, list[int]]]]:
        steps = self.ledger.clock.begun()
        return steps, {
            str(key): (
                reading.total,
                [s for runs in reading.runs.values() for run in runs for s in expand(run)],
            )
            for key, reading in self.ledger.read(steps)
        }


def expand(run: Any) -> list[int]:
    return [s for s in range(run.first, run.last + 1, run.stride) for _ in range(run.times)]


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.long)],
    ids=["graph", "xla"],
)
def compiled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# Each step is one of the two step functions with some parts before it, repeated in a pattern.
patterns = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=5),
        st.integers(1, 6),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(
    max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=patterns, rows=st.sampled_from([5, ledger.ROWS]))
def test_every_step_of_every_block(compiled: bool, script: Any, rows: int) -> None:
    machine = Machine(compiled, rows)
    expected: dict[str, list[int]] = {"A": [], "B": [], "C": []}
    step = 0
    for pattern, repeats, look in script:
        for which, parts in pattern * repeats:
            step += 1
            for _ in range(parts):
                machine.part(step)
                expected["C"].append(step)
            machine.steps[which]()
            expected["AB"[which]].append(step)
        if look:  # reading in between changes nothing
            machine.read()
    steps, found = machine.read()
    assert steps == step
    for name, ran in expected.items():
        total, known = found[name]
        assert total == len(ran)
        assert known == ran if rows == ledger.ROWS else not Counter(known) - Counter(ran)


@pytest.mark.parametrize("number", [10_000, pytest.param(100_000, marks=pytest.mark.sweep)])
def test_regular_steps_in_one_loop_are_one_run(number: int) -> None:
    """More than the journal holds are counted, but when the first ones were is lost."""
    machine = Machine()

    @tf.function(autograph=False)
    def loop(count: Any) -> None:
        def body(index: Any) -> Any:
            machine.steps[0]()
            return index + 1

        tf.while_loop(lambda index: index < count, body, [tf.constant(0)], parallel_iterations=1)

    loop(tf.constant(number))
    (_, reading), *_ = machine.ledger.read(number)
    assert (machine.ledger.clock.begun(), reading.total) == (number, number)
    lost = max(0, number - ledger.ROWS)
    assert reading.runs == {0: [Run(lost + 1, 1, number - lost)]}
    assert reading.lost == lost


def test_a_signal_handler_may_read_and_raise_while_rows_are_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    for _ in range(9):
        machine.steps[0]()
    journal = machine.ledger._blocks[0].journal
    take_out = journal._taken_out

    def signalled(stamp: int) -> None:
        if stamp == 4 * UNIT:
            monkeypatch.undo()
            machine.read()
            raise KeyboardInterrupt
        take_out(stamp)

    monkeypatch.setattr(journal, "_taken_out", signalled)
    with pytest.raises(KeyboardInterrupt):
        machine.read()
    steps, found = machine.read()
    assert (steps, found["A"]) == (9, (9, list(range(1, 10))))


def test_totals_are_exact_when_threads_share_a_function() -> None:
    machine = Machine()

    def run() -> None:
        for index in range(400):
            if index % 3 == 0:
                machine.part(index + 1)
            machine.steps[index % 2]()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps, found = machine.read()
    assert steps == 1600
    assert {name: total for name, (total, _) in found.items()} == {"A": 800, "B": 800, "C": 536}
    assert all(total == len(known) for total, known in found.values())
    assert sorted(found["A"][1] + found["B"][1]) == list(range(1, 1601))


def test_reading_while_a_graph_runs_is_never_torn() -> None:
    machine = Machine()
    stop = threading.Event()

    def train() -> None:
        for step in itertools.count(1, 3):
            if stop.is_set():
                return
            machine.part(step)
            machine.steps[0]()
            machine.steps[0]()
            machine.steps[1]()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(150):
            steps, found = machine.read()
            ended = sum(total for name, (total, _) in found.items() if name != "C")
            assert steps - 1 <= ended <= steps  # the last one may be under way
            for name, remainders, last in (
                ("A", {1, 2}, ended),
                ("B", {0}, ended),
                ("C", {1}, steps),
            ):
                total, known = found[name]
                assert known == [s for s in range(1, last + 1) if s % 3 in remainders]
                assert total == len(known)
    finally:
        stop.set()
        thread.join()


def test_no_step_is_lost_when_many_graphs_share_counters() -> None:
    """Counters that serve again do so in any order, so that nearly each graph ends a run."""
    book = Ledger("/cpu:0", 0, rows=8)
    rng = np.random.default_rng(3)

    def trace_and_run() -> Any:
        @tf.function(autograph=False)
        def function() -> None:
            stamp = book.begin_step(tf.constant(0, tf.int64))
            book.count("same", tf.compat.v1.get_default_graph(), stamp)

        function()
        return function

    alive = [trace_and_run() for _ in range(4)]
    for _ in range(15):
        for place in rng.permutation(4)[: rng.integers(1, 5)]:
            alive[place] = None
        gc.collect()
        alive = [each or trace_and_run() for each in alive]
    steps = book.clock.begun()
    readings = book.read(steps)
    known = [step for _, reading in readings for run in reading.runs[0] for step in expand(run)]
    assert sorted(known) == list(range(1, steps + 1))
    assert len(readings) == 4


# A journal in NumPy, many times as fast: a great many orders of its ops.


class Tensor(np.ndarray[Any, Any]):
    """An array that can be asked for itself, as an eager tensor can."""

    def numpy(self) -> Any:
        """The array."""
        return np.array(self)


class Variable:
    """A variable that is its own handle."""

    def __init__(self, initial: Any, device: str) -> None:
        self.value = np.array(initial, np.int64)

    @property
    def handle(self) -> "Variable":
        """What ops take for it."""
        return self


def tensor(value: Any, dtype: object = None) -> Any:
    return np.asarray(value, np.int64).view(Tensor)


class Ops:
    """`tf.raw_ops` in NumPy, as far as a journal needs them."""

    @staticmethod
    def ResourceGather(resource: Variable, indices: Any, dtype: object) -> Any:
        return tensor(resource.value[indices])

    @staticmethod
    def ResourceScatterUpdate(resource: Variable, indices: Any, updates: Any) -> None:
        resource.value[indices] = updates

    @staticmethod
    def RngReadAndSkip(resource: Variable, alg: Any, delta: Any) -> Any:
        before = tensor(resource.value.copy())
        resource.value[0] += UNIT * int(delta)
        return before

    @staticmethod
    def Unpack(value: Any, num: int) -> list[Any]:
        assert len(value) == num
        return [tensor(each) for each in value]

    FloorMod = staticmethod(lambda x, y: tensor(x % y))


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a journal run its ops in NumPy: the tests above hold the same ops of TensorFlow."""
    compat = SimpleNamespace(
        make_variable=Variable,
        outside_of_graphs=nullcontext,
        value_in=lambda variable, dtype: variable.value.copy(),
    )
    module = SimpleNamespace(
        constant=tensor, device=lambda device: nullcontext(), int64=np.int64, uint64=np.uint64
    )
    monkeypatch.setattr(ledger, "compat", compat)
    monkeypatch.setattr(ledger, "_raw", Ops)
    monkeypatch.setattr(ledger, "tf", module)


def _execution(journal: Journal, stamp: int) -> Iterator[None]:
    """What a thread does to a journal; between any two of its ops another one may go on."""
    place = journal.clock.take_in_graph(1)
    yield
    cell = Ops.FloorMod(place, journal._rows)
    Ops.ResourceScatterUpdate(journal.ring, cell, place * ledger._TAG + stamp)


@pytest.mark.usefixtures("in_numpy")
@pytest.mark.parametrize("rows", [5, 7, 9, 99])
def test_every_order_of_writes_and_readings(rows: int) -> None:
    """Threads write, and one reads; an execution is found once, with its stamp, or said lost.

    No thread stops between its two ops for as long as others write a whole ring.
    """
    chance = random.Random(rows)
    lost = 0
    for _ in range(400):
        found: list[int] = []
        journal = Journal("", rows, found.append)
        todo = [UNIT * number for number in range(1, 31)]
        written: list[int] = []
        under_way: dict[int, int] = {}
        threads: dict[int, Iterator[None]] = {}
        while todo or under_way:
            begun = 30 - len(todo)
            late = [each for each, stamp in under_way.items() if begun - stamp // UNIT >= rows - 1]
            thread = late[0] if late else chance.randrange(5)
            if thread == 4:
                if chance.random() < 0.3:
                    journal.drain()
                    assert Counter(found) <= Counter([*written, *under_way.values()])
                    assert len(written) <= len(found) + journal.lost
                    assert len(found) + journal.lost <= len(written) + len(under_way)
            elif thread not in under_way and todo:
                stamp = todo.pop(0)
                execution = _execution(journal, stamp)
                next(execution)
                under_way[thread] = stamp
                threads[thread] = execution
            elif thread in under_way:
                assert next(threads[thread], "ended") == "ended"
                written.append(under_way.pop(thread))
        journal.drain()
        assert Counter(found) <= Counter(written)
        assert len(found) + journal.lost == 30
        lost += journal.lost
    assert (lost > 0) == (rows < 30)
