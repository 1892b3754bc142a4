"""Paths of calls: each line of these programs that leads to a step has a mark, `# @name`.

A path is shown as the marks of its lines; that of a graph has the function between the line that
traced it and the line in it: `main > [train_function] > step`. How often each ran is arithmetic,
and the sum is what the odometer shows. A line of this file without a mark in a path fails a test.
"""

import gc
import re
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support.odometers import ODOMETERS, PythonCalls, read

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

HERE = Path(__file__)
MARKS = {
    number: match[1]
    for number, line in enumerate(HERE.read_text().splitlines(), start=1)
    if (match := re.search(r"# @(\S+)$", line))
}


class Program:
    """An odometer and one variable, which its steps add 1 to."""

    def __init__(self, kind: str, strategy: Any = None, wrap: bool = True) -> None:
        self.strategy = strategy or tf.distribute.get_strategy()
        with self.strategy.scope():
            self.optimizer = ODOMETERS[kind](calls=PythonCalls())
            self.variable = tf.Variable(tf.zeros(1))
            if kind == "keras3":
                self.optimizer.build([self.variable])
            elif kind != "v1":
                assert self.optimizer.iterations is not None  # it is made now, outside of functions
        self.pairs = [(tf.ones(1), self.variable)]
        self.kind = kind
        if wrap:
            tracer.wrap(self.optimizer)

    def told(self) -> Counter[str]:
        """How often steps ran, by path; the sum is what the odometer shows on each replica."""
        trace = tracer.trace_of(self.optimizer)
        by_path = steps_by_path(trace)
        replicas = self.strategy.num_replicas_in_sync
        assert by_path.total() == read(self.variable)[0].dense * replicas
        return by_path


def steps_by_path(trace: Any) -> Counter[str]:
    """How often steps ran, by path, as it is told here."""
    told: Counter[str] = Counter()
    for block in trace.data.blocks:
        if block.step:
            told[path_of(trace, block.path)] += block.total
    return +told


def path_of(trace: Any, path: int | None) -> str:
    """A path as the marks of its lines, from the first line of this file on."""
    if path is None:
        return "?"
    words = []
    for index in trace.data.paths[path]:
        line = trace.data.lines[index]
        if line.graph:
            words.append(f"[{line.function}]")
        elif not line.file:
            words.append(line.function)
        elif HERE.name in line.file:
            words.append(MARKS.get(line.number, f"line {line.number}"))
        else:
            words.append(f"{line.file}:{line.number}")
    return " > ".join(words)


@pytest.fixture
def program(kind: str) -> Program:
    return Program(kind)


# In eager mode.


def test_two_lines_in_eager_mode(program: Program) -> None:
    """Each has its steps, whichever comes first."""
    step = program.optimizer.apply_gradients
    for number in range(6):
        step(program.pairs)  # @one
        if number % 2:
            step(program.pairs)  # @other
    assert program.told() == {"one": 6, "other": 3}
    trace = tracer.trace_of(program.optimizer)
    calls = Counter[str]()
    for each in trace.data.calls:
        if trace.methods[each.entries[0].method].name == "apply_gradients":
            calls[path_of(trace, each.path)] += each.total
    assert +calls == {"one": 6, "other": 3}


# In graphs.


def test_a_function_that_two_lines_call(program: Program) -> None:
    """A graph does not know who runs it: all its steps have the line that traced it."""

    @tf.function
    def steps(number: Any) -> None:
        for _ in tf.range(number):
            if number > 0:
                program.optimizer.apply_gradients(program.pairs)  # @inside

    for _ in range(4):
        steps(tf.constant(3))  # @one
        steps(tf.constant(2))  # @other
        steps(tf.constant(0))  # @nothing
    steps(tf.constant(5))  # @last
    assert program.told() == {"one > [steps] > inside": 12 + 8 + 5}


def test_branches_have_their_lines(program: Program) -> None:
    """Of a condition each branch, however it is written."""

    @tf.function
    def step(number: Any) -> None:
        if number > 2:
            program.optimizer.apply_gradients(program.pairs)  # @if
        else:
            program.optimizer.apply_gradients(program.pairs)  # @else

    def apply() -> Any:
        program.optimizer.apply_gradients(program.pairs)  # @cond
        return 0

    @tf.function(autograph=False)
    def by_hand(number: Any) -> None:
        tf.cond(number > 3, apply, lambda: 0)

    for number in range(5):
        step(tf.constant(number))  # @step
        by_hand(tf.constant(number))  # @hand
    assert program.told() == {
        "step > [step] > if": 2,
        "step > [step] > else": 3,
        "hand > [by_hand] > cond": 1,
    }


def test_frames_are_not_held(program: Program) -> None:
    """They would hold what the program works with until the garbage collector comes."""

    class Batch:
        pass

    @tf.function
    def step() -> None:
        program.optimizer.apply_gradients(program.pairs)

    def one() -> None:
        held.append(weakref.ref(batch := Batch()))
        step()
        del batch

    def other() -> None:
        held.append(weakref.ref(batch := Batch()))
        step()
        assert batch

    def both() -> None:
        for _ in range(2):
            one()
            other()

    held: list[Any] = []
    both()
    gc.collect()
    gc.disable()
    try:
        held.clear()
        thread = threading.Thread(target=both)
        thread.start()
        thread.join()
        both()
        assert [each() for each in held] == [None] * 8
    finally:
        gc.enable()


def test_a_session() -> None:
    """Who built the graph is known; who runs it is not, so the path begins with the graph."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        optimizer = tracer.wrap(ODOMETERS["v1"](calls=PythonCalls()))
        variable = tf.compat.v1.get_variable("v", initializer=np.zeros(1, "f"), use_resource=True)
        train = optimizer.minimize(variable * 1.0)  # @built
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
    told = steps_by_path(tracer.trace_of(optimizer))
    assert told == {"[v1 graph] > built": 3}


# Under strategies, and in threads.


def test_replicas(kind: str) -> None:
    """Their threads are joined to the line that started them, eager and while tracing."""
    program = Program(kind, strategy_of("mirrored 2"))
    strategy = program.strategy

    def replica_step() -> None:
        program.optimizer.apply_gradients(program.pairs)  # @replica

    @tf.function
    def steps(number: Any) -> None:
        for _ in tf.range(number):
            strategy.run(replica_step)

    steps(tf.constant(3))  # @one
    steps(tf.constant(2))  # @other
    strategy.run(replica_step)
    assert program.told() == {"one > [steps] > replica": 6 + 4, "replica": 2}


# Graph tracings.


def tracings(trace: Any) -> list[tuple[str, str, int]]:
    """Of each graph the changed arguments, the path, and how many steps had run."""
    return [(each.detail, path_of(trace, each.path), each.after) for each in trace.graphs]


def test_why_a_function_was_traced(program: Program) -> None:
    """By each call that traced it: which argument changed, from what to what."""

    def make() -> Any:
        @tf.function
        def step(x: Any, training: bool = True, more: Any = None) -> None:
            del x, training, more
            program.optimizer.apply_gradients(program.pairs)

        return step

    step, ones = make(), tf.ones
    step(ones(3))  # @first
    step(ones(3))
    step(ones(4))  # @shape
    step(ones(4, tf.float64))  # @type
    step(ones(4), False)  # @value
    step(ones(4), False, {"a": 1, "b": ones(2)})  # @structure
    step(ones(4), False, {"a": 2, "b": ones(2)})  # @inside
    step(ones(4), False, {"a": 2, "b": ones(2)})
    make()(ones(4))
    trace = tracer.trace_of(program.optimizer)
    more = "Dict[['a', Literal[{}]], ['b', float32[2]]]"
    assert tracings(trace) == [
        ("", "first", 0),
        ("x: float32[3] -> float32[4]", "shape", 2),
        ("x: float32[4] -> float64[4]", "type", 3),
        ("x: float64[4] -> float32[4]; training: True -> False", "value", 4),
        ("more: None -> " + more.format(1), "structure", 5),
        (f"more: {more.format(1)} -> {more.format(2)}", "inside", 6),
    ]
    assert [(each.function, each.tracings) for each in trace.graphs] == [
        ("step", 1 + (number == 1)) for number in range(6)
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_cells_of_a_notebook(program: Program) -> None:
    """The cell that traced the function has its steps."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        shell.push({"program": program, "tf": tf})
        define = "@tf.function\ndef step():\n    program.optimizer.apply_gradients(program.pairs)"
        for cell in (define, "step()", "step()", "pass\nfor _ in range(3): step()"):
            shell.run_cell(cell, store_history=True).raise_error()
        told = program.told()
    finally:
        shell.reset()
        type(shell).clear_instance()
    paths = Counter({path: number for path, number in told.items()})
    inside = "[step] > cell 1:3"
    assert paths == {f"cell 2:1 > {inside}": 1 + 1 + 3}
