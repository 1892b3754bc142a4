"""The ledger's arithmetic by itself: what it says of the steps is true, also when its ring is full.

The ops that count in a graph are run here one after the other in NumPy, many times as fast as by
TensorFlow, so that a great many ways of running a few blocks can be held against a plain list.
A ledger may know less than ran, and then its runs are short of the total; what it says must be so.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tracer.recorder.tensorflow import ledger
from tracer.recorder.tensorflow.ledger import Ledger

pytestmark = pytest.mark.wide


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
    def ReadVariableOp(resource: Variable, dtype: object) -> Any:
        return tensor(resource.value.copy())

    @staticmethod
    def AssignAddVariableOp(resource: Variable, value: Any) -> Any:
        resource.value = resource.value + value

    @staticmethod
    def ResourceScatterUpdate(resource: Variable, indices: Any, updates: Any) -> Any:
        resource.value[indices] = updates

    @staticmethod
    def Unpack(value: Any, num: int) -> list[Any]:
        assert len(value) == num
        return [tensor(each) for each in value]

    @staticmethod
    def Pack(values: Sequence[Any]) -> Any:
        return tensor(np.stack([np.asarray(value) for value in values]))

    @staticmethod
    def Cast(x: Any, DstT: object) -> Any:
        return tensor(np.asarray(x, np.int64))

    @staticmethod
    def RngReadAndSkip(resource: Variable, alg: Any, delta: Any) -> Any:
        before = tensor(resource.value.copy())
        resource.value[0] += 256 * int(delta)
        return before

    BitwiseOr = staticmethod(lambda x, y: tensor(x | y))

    AddV2 = staticmethod(lambda x, y: tensor(x + y))
    Sub = staticmethod(lambda x, y: tensor(x - y))
    Mul = staticmethod(lambda x, y: tensor(x * y))
    FloorMod = staticmethod(lambda x, y: tensor(x % y))
    NotEqual = staticmethod(lambda x, y: np.not_equal(x, y))
    Equal = staticmethod(lambda x, y: np.equal(x, y))
    SelectV2 = staticmethod(lambda condition, t, e: tensor(np.where(condition, t, e)))


class Graph:
    """What keeps a counter's block alive."""


class Machine:
    """A ledger whose blocks are run by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
        compat = SimpleNamespace(
            make_variable=Variable,
            constant=tensor,
            outside_of_graphs=nullcontext,
            stop_recording=nullcontext,
            device=lambda device: nullcontext(),
            control_dependencies=lambda ops: nullcontext(),
        )
        types = SimpleNamespace(constant=tensor, int64=np.int64, uint64=np.uint64)
        monkeypatch.setattr(ledger, "compat", compat)
        monkeypatch.setattr(ledger, "_raw", Ops)
        monkeypatch.setattr(ledger, "tf", types)
        monkeypatch.setattr(ledger, "_begin_function", lambda: ledger._begin)
        monkeypatch.setattr(ledger, "_advance_function", lambda n: partial(ledger._advance, n))
        self.ledger = Ledger("", 0, rows)
        self.graph = Graph()
        self.counters: dict[str, Any] = {}
        self.inside: Any = None

    def begin(self) -> Any:
        """A step begins; returns its stamp."""
        stamp, self.inside = self.ledger.begin_step(tensor(0))
        return stamp

    def execute(self, name: str, stamp: Any = None) -> None:
        """Run the block `name` once, as its graph does; a part of the step without a stamp."""
        stamp = self.inside if stamp is None else stamp
        if name not in self.counters:
            self.ledger.count(name, self.graph, stamp)  # adds it, which runs it here
            self.counters[name] = self.ledger._counters[-1].variable
        else:
            book = self.ledger
            ledger._advance(book._size, self.counters[name], book._clock, book._ring, stamp)

    def read(self) -> tuple[int, dict[str, "Said"]]:
        """What the ledger says."""
        steps, readings = self.ledger.read()
        return steps, {
            str(key): Said(reading.total, Counter(_expanded(reading))) for key, reading in readings
        }


class Said(NamedTuple):
    """How often a block ran, and how often in which step."""

    total: int
    steps: "Counter[int]"


def _expanded(reading: Any) -> Iterator[int]:
    for run in itertools.chain.from_iterable(reading.runs.values()):
        for step in range(run.first, run.last + 1, run.stride):
            yield from itertools.repeat(step, run.times)


Program = Sequence[tuple[str, Sequence[str]]]
"""The steps: of each the block that it is, and the parts that run in it before it ends."""


def what_is_wrong(machine: Machine, program: Program, look_at: Sequence[int] = ()) -> str:
    """Run the steps; returns what the ledger says that is not so, or nothing.

    The ledger is read after the steps `look_at` too.
    """
    ran: dict[str, Counter[int]] = {}
    for step, (block, parts) in enumerate(program, 1):
        stamp = machine.begin()
        for part in parts:
            machine.execute(part)
            ran.setdefault(part, Counter())[step] += 1
        machine.execute(block, stamp)
        ran.setdefault(block, Counter())[step] += 1
        if step in look_at or step == len(program):
            steps, said = machine.read()
            if steps != step:
                return f"{steps} steps of {step}"
            for name, truth in ran.items():
                if said[name].total != truth.total():
                    return f"{name} in all: {said[name].total} of {truth.total()}"
                if wrong := said[name].steps - truth:
                    return f"{name} was said to run in {dict(wrong)}, but ran in {dict(truth)}"
    return ""


def assert_never_wrong(
    monkeypatch: pytest.MonkeyPatch, rows: int, programs: Iterable[Program]
) -> None:
    """Hold all programs, and show how many are wrong, and the shortest of them."""
    wrong: list[tuple[int, str, Program]] = []
    count = 0
    for program in programs:
        count += 1
        text = what_is_wrong(Machine(monkeypatch, rows), program)
        if text:
            wrong.append((len(program), text, program))
    assert count
    if wrong:
        _, text, program = min(wrong, key=lambda each: each[0])
        pytest.fail(f"{len(wrong)} of {count} programs with {rows} rows: {text}; {program}")


def test_a_ledger_of_numpy_counts_as_one_of_tensorflow() -> None:
    """The ops above do what TensorFlow's do."""
    import tensorflow as tf

    program = [(name, ["c"] * (step % 3)) for step, name in enumerate("aabababbba" * 3)]
    with pytest.MonkeyPatch.context() as patch:
        by_numpy = Machine(patch, 8)
        for block, parts in program:
            stamp = by_numpy.begin()
            for part in parts:
                by_numpy.execute(part)
            by_numpy.execute(block, stamp)
        expected = by_numpy.read()
    book = Ledger("/cpu:0", 0, 8)

    @tf.function(autograph=False)
    def begin() -> Any:
        return book.begin_step(tf.constant(0, tf.int64))

    def counting(name: str) -> Any:
        @tf.function(autograph=False)
        def function(stamp: Any) -> None:
            book.count(name, tf.compat.v1.get_default_graph(), stamp)

        return function

    functions: dict[str, Any] = {}
    for block, parts in program:
        stamp, inside = begin()
        for name in [*parts, block]:
            function = functions.setdefault(name, counting(name))
            function(stamp if name == block else inside)
    steps, readings = book.read()
    found = {str(key): Said(r.total, Counter(_expanded(r))) for key, r in readings}
    assert (steps, found) == expected


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_every_order_of_two_blocks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Each step is one of two blocks."""
    orders = itertools.product("ab", repeat=10)
    assert_never_wrong(monkeypatch, rows, ([(block, ()) for block in order] for order in orders))


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_every_order_of_three_blocks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Each step is one of three blocks."""
    orders = itertools.product("abc", repeat=6)
    assert_never_wrong(monkeypatch, rows, ([(block, ()) for block in order] for order in orders))


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_every_part_of_each_step(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Each step has a part that runs never, once or twice in it, as the branch of a cond may."""
    times = itertools.product(range(3), repeat=6)
    assert_never_wrong(monkeypatch, rows, ([("a", "b" * n) for n in each] for each in times))


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 8])
def test_programs_that_repeat(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Each step is one of two blocks by a pattern that comes again and again, as in a loop."""

    def programs() -> Iterator[Program]:
        for length in range(2, 8):
            for pattern in itertools.product("ab", repeat=length):
                for steps in range(2 * rows, 2 * rows + 8, 3):
                    yield [(block, ()) for block in itertools.islice(_again(pattern), steps)]

    assert_never_wrong(monkeypatch, rows, programs())


def _again(pattern: Sequence[str]) -> Iterator[str]:
    return itertools.cycle(pattern)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 8])
def test_random_programs(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Up to eight blocks, steps and parts of steps, read now and then or only at the end."""
    chance = random.Random(rows)
    for _ in range(250):
        blocks = chance.randint(1, 4)
        parts = chance.randint(0, 8 - blocks)
        pattern = [
            (
                f"step {chance.randrange(blocks)}",
                [f"part {chance.randrange(parts)}" for _ in range(chance.choice((0, 0, 1, 2)))]
                if parts
                else [],
            )
            for _ in range(chance.randint(1, 9))
        ]
        steps = chance.randint(1, 40)
        program = list(itertools.islice(itertools.cycle(pattern), steps))
        looks = chance.sample(range(1, steps + 1), chance.choice((0, 0, min(2, steps))))
        text = what_is_wrong(Machine(monkeypatch, rows), program, looks)
        assert not text, f"{rows} rows, read after {looks}: {text}; {program}"


def test_nothing_is_lost_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is read before its ring is full, the ledger knows the steps of all."""
    chance = random.Random(1)
    for _ in range(200):
        machine = Machine(monkeypatch, 8)
        ran: dict[str, Counter[int]] = {}
        for step in range(1, 31):
            name = chance.choice("abc")
            stamp = machine.begin()
            if chance.random() < 0.5:
                machine.execute("part")
                ran.setdefault("part", Counter())[step] += 1
            machine.execute(name, stamp)
            ran.setdefault(name, Counter())[step] += 1
            if step % 4 == 0:  # of two rows each at most
                machine.read()
        _, said = machine.read()
        assert {name: each.steps for name, each in said.items()} == ran
