"""The journals by themselves: what they say of the steps is true, also when a ring is full.

The ops that count in a graph are run here one after the other in NumPy, many times as fast as by
TensorFlow, so that a great many ways of running a few blocks can be held against a plain list. A
journal may know less than ran, and then it says how much it lost; what else it says must be so.
"""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tracer.backends.tensorflow import ledger
from tracer.backends.tensorflow.ledger import Journal, Ledger
from tracer.core.log import UNIT, WITHIN

pytestmark = pytest.mark.wide(rest="sweep")


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
    """`tf.raw_ops` in NumPy, as far as the ledger needs them."""

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

    @staticmethod
    def Cast(x: Any, DstT: object) -> Any:
        return tensor(x)

    AddV2 = staticmethod(lambda x, y: tensor(x + y))
    Equal = staticmethod(lambda x, y: x == y)
    FloorMod = staticmethod(lambda x, y: tensor(x % y))
    Mul = staticmethod(lambda x, y: tensor(x * y))
    SelectV2 = staticmethod(lambda condition, t, e: tensor(t if condition else e))


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger run its ops in NumPy."""
    compat = SimpleNamespace(
        constant=tensor,
        make_variable=Variable,
        outside_of_graphs=nullcontext,
        stop_recording=nullcontext,
        value_in=lambda variable, dtype: variable.value.copy(),
    )
    module = SimpleNamespace(
        constant=tensor,
        control_dependencies=lambda ops: nullcontext(),
        device=lambda device: nullcontext(),
        int64=np.int64,
        name_scope=lambda name: nullcontext(),
        uint64=np.uint64,
    )
    monkeypatch.setattr(ledger, "compat", compat)
    monkeypatch.setattr(ledger, "_raw", Ops)
    monkeypatch.setattr(ledger, "tf", module)


class Graph:
    """What keeps a counter's block alive."""


class Machine:
    """A ledger whose blocks are run by hand; `in_numpy`, or in eager mode.

    This is all that knows how a graph uses the ledger.
    """

    def __init__(self, rows: int) -> None:
        self.ledger = Ledger("", 0, rows)
        self.graph = Graph()
        self.counters: dict[str, Any] = {}

    def begin(self) -> tuple[Any, Any]:
        """A step begins; returns its stamp and that of what is part of it."""
        own = self.ledger.begin_step(self.ledger.alone)
        return own, tensor(int(own) | WITHIN)

    def count(self, name: str, stamp: Any) -> None:
        """The block `name` has run."""
        if name not in self.counters:
            self.ledger.count(name, self.graph, stamp)  # which runs it, as there is no graph
            self.counters[name] = self.ledger._blocks[-1].journal
        else:
            self.counters[name].write(stamp)

    def outside(self, name: str) -> None:
        """The block `name` has run in no step."""
        self.count(name, self.ledger.alone)

    def read(self) -> tuple[int, dict[str, "Said"]]:
        """What the ledger says."""
        begun = self.ledger.clock.begun()
        readings = self.ledger.read(begun)
        return begun, {
            str(key): Said(
                reading.total,
                Counter(
                    (step, flags)
                    for flags, runs in reading.runs.items()
                    for step in _expanded(runs)
                ),
                sum(reading.outside.values()),
                reading.lost,
            )
            for key, reading in readings
        }


class Said(NamedTuple):
    """How often a block ran: in all, in each step (with its flags), in none, and where is lost."""

    total: int
    steps: "Counter[tuple[int, int]]"
    outside: int
    lost: int


def _expanded(runs: Iterable[Any]) -> Iterator[int]:
    for run in runs:
        for step in range(run.first, run.last + 1, run.stride):
            yield from itertools.repeat(step, run.times)


class Step(NamedTuple):
    """A step: the block that it is, the parts that run in it, and what runs before it in none.

    A step that `overlaps` ends after the next one.
    """

    block: str
    parts: Sequence[str] = ()
    before: Sequence[str] = ()
    overlaps: bool = False


class Truth:
    """A plain list of what ran."""

    def __init__(self) -> None:
        self.steps: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
        self.outside: Counter[str] = Counter()

    def wrong(self, said: dict[str, Said]) -> str:
        """What is said that is not so, or nothing."""
        for name in {*self.steps, *self.outside}:
            ran, outside = self.steps[name], self.outside[name]
            total = ran.total() + outside
            found = said[name]
            if found.total != total:
                return f"{name} in all: {found.total} of {total}"
            if more := found.steps - ran:
                return f"{name} was said to run in {dict(more)}, but ran in {dict(ran)}"
            if found.outside > outside:
                return f"{name} was said to run {found.outside} times in no step, of {outside}"
            if found.steps.total() + found.outside + found.lost != total:
                return f"{name}: {found} is not {total}"
        return ""


def run(machine: Machine, program: Sequence[Step], look_at: Sequence[int] = ()) -> str:
    """Run the steps; returns what the ledger says that is not so, or nothing.

    The ledger is read after the steps `look_at` too.
    """
    truth = Truth()
    ends: list[tuple[str, int, Any]] = []
    for number, step in enumerate(program, 1):
        for part in step.before:
            machine.outside(part)
            truth.outside[part] += 1
        own, inside = machine.begin()
        for part in step.parts:
            machine.count(part, inside)
            truth.steps[part][number, WITHIN] += 1
        ends.insert(0, (step.block, number, own))  # it ends before those that it overlaps
        last = number == len(program)
        if not step.overlaps or last:
            for block, of, stamp in ends:
                machine.count(block, stamp)
                truth.steps[block][of, 0] += 1
            ends = []
        if last or (number in look_at and not ends):
            begun, said = machine.read()
            if begun != number:
                return f"{begun} steps of {number}"
            if text := truth.wrong(said):
                return text
    return ""


def test_a_ledger_of_numpy_counts_as_one_of_tensorflow(request: pytest.FixtureRequest) -> None:
    """The ops above do what TensorFlow's do."""
    program = [
        Step(name, ["c"] * (step % 3), ["d"] * (step % 2), step % 5 == 0)
        for step, name in enumerate("aabababbba" * 3)
    ]
    by_tensorflow = Machine(9)
    assert not run(by_tensorflow, program)
    expected = by_tensorflow.read()
    assert isinstance(by_tensorflow.counters["a"].variables()[0].handle, tf.Tensor)
    request.getfixturevalue("in_numpy")
    by_numpy = Machine(9)
    assert not run(by_numpy, program)
    assert isinstance(by_numpy.counters["a"].variables()[0], Variable)
    assert by_numpy.read() == expected


@pytest.mark.usefixtures("in_numpy")
@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_random_programs(rows: int) -> None:
    """Up to eight blocks, steps and parts of steps, read now and then or only at the end."""
    chance = random.Random(rows)
    for _ in range(250):
        names = [f"block {number}" for number in range(chance.randint(1, 8))]
        overlap = chance.choice((0, 0, 0.3))

        def some(names: Sequence[str] = names) -> Sequence[str]:
            return chance.sample(names, min(len(names), chance.choice((0, 0, 1, 2))))

        pattern = [
            Step(chance.choice(names), some(), some(), chance.random() < overlap)
            for _ in range(chance.randint(1, 9))
        ]
        steps = chance.randint(1, 40)
        program = list(itertools.islice(itertools.cycle(pattern), steps))
        looks = chance.sample(range(1, steps + 1), chance.choice((0, 0, min(2, steps))))
        text = run(Machine(rows), program, looks)
        assert not text, f"{rows} rows, read after {looks}: {text}; {program}"


def _execution(journal: Journal, stamp: int) -> Iterator[None]:
    """What a thread does to a journal; between any two of its ops another one may go on."""
    place = journal._clock.take_in_graph(1)
    yield
    cell = Ops.FloorMod(place, journal._rows)
    Ops.ResourceScatterUpdate(journal._ring, cell, place * ledger._TAG + stamp)


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
