"""The truth table: every kind of optimizer in every way of running, counted against an odometer.

`WAYS` are the rows, `KINDS` the columns, and every cell of the product is a test. A cell trains an
odometer optimizer (see `odometers.py`) and writes down beside it what each step must have done.
The odometer must show just that, which proves the expectation without the tracer; then the trace
must say the same, per variable, replica, step and method. A cell that the framework itself cannot
run stands in `REFUSED`; its error must be the same untraced and traced.

The words
    kind      which of the four sorts of optimizer: `legacy`, `keras2`, `keras3`, `v1`.
    `Way`     a way of running. `@way(name, ...)` makes a row of a function of a `Rig`, which is
              one cell at work; a function may have several, which differ in the strategy.
    `Step`    what one step does: the label of each variable that it updates, with a `Reading`,
              which is (dense, sparse). `ALL` is one update of each of the four variables made by
              hand, `SKIPPED` is none, as of a step that loss scaling skips or that only
              accumulates.
    `did`     `rig.did(ALL, ALL)`: two more steps are done, each of which did `ALL`. It adds them to
              the plan and reads the odometer, so that the two can be compared at this point too.
    `ran`     what the plan comes to, for the `check` that all backends share (`support/ran.py`).

To add
    a way of running      Write a function of a `Rig` that trains by `rig.run` or `rig.apply`, and
                          calls `rig.did` after it; decorate it with `@way("its name")`.
    a strategy            Make it in `strategy_of`, then add `@way("its name: function",
                          strategy="its name")` and the like to the functions that should run
                          under it; `test_strategies.py` has it in a session.
    a kind of optimizer   Add an odometer of it to `KINDS`, `DENSE_METHOD` and `ODOMETERS` in
                          `odometers.py` and its name to `conftest.py`; say in `libraries.py` which
                          Keras it belongs to and how it is loss-scaled, and in `methods_of` below
                          which methods an update executes.
    what fails in it      Run the cell with `traced=False`. If the framework cannot do it, add it to
                          `REFUSED`; if it can, the tracer has to.
"""

import functools
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import ran
from support.libraries import is_keras3, keras3, library_of, with_loss_scale
from support.odometers import (
    KINDS,
    ODOMETERS,
    SHAPES,
    PythonCalls,
    Reading,
    gradients,
    loss,
    make_variables,
    odometer_applied_twice,
    raw,
    read,
    reading,
)
from support.saved import assert_saved, block_of

import tracer

pytestmark = pytest.mark.wide

v1 = tf.compat.v1

DENSE, SPARSE, NONE = Reading(1, 0), Reading(0, 1), Reading(0, 0)
Step = dict[str, Reading]
"""What a step does to each variable, by its label; a variable that is left out is not updated."""

ALL: Step = {"table": SPARSE, "kernel": DENSE, "twin": DENSE, "bias": DENSE}
SKIPPED: Step = {}


@functools.cache
def strategy_of(name: str) -> Any:
    """The distribution strategy of that name; one of each serves the whole session."""
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "one device":
        return tf.distribute.OneDeviceStrategy("cpu:1")
    if name == "central storage":
        return tf.distribute.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"])
    if name == "default reduction":
        return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    reduction: Any = tf.distribute.ReductionToOneDevice
    if name == "hierarchical copy":
        name, reduction = "mirrored 2", tf.distribute.HierarchicalCopyAllReduce
    # Two strategies with different devices in a process must not share the collective ops.
    devices = [f"cpu:{index}" for index in range(int(name.removeprefix("mirrored ")))]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction())


@dataclass(frozen=True)
class Way:
    """A way of running: what it does, and on what."""

    run: "Callable[[Rig], None]"
    strategy: str = "default"
    wrapper: str | None = None
    """What is put around the odometer: `loss scale` or `multi`."""
    twice: bool = False
    """Override `apply_gradients` to call the inherited one twice."""
    direct: bool = False
    """Call `apply`, which Keras 3 has, not `apply_gradients`."""
    compiled: bool = False
    """Compile functions by XLA."""
    session: bool = False
    """Build a v1 graph and run it in a session."""
    reference: bool = False
    """Use the reference variables of TensorFlow 1 in it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the odometer."""


WAYS: dict[str, Way] = {}


def way(name: str, **fields: Any) -> Callable[[Any], Any]:
    """Add the function to the table as a way of running."""

    def add(run: Any) -> Any:
        assert name not in WAYS
        WAYS[name] = Way(run, **fields)
        return run

    return add


class Rig:
    """One cell at work: the optimizer, its variables, and what its steps must have done."""

    def __init__(
        self,
        kind: str,
        way: Way,
        *,
        traced: bool,
        late: bool = False,
        in_blocks: bool = False,
        inner: str = "",
    ) -> None:
        self.inner = inner
        """When the optimizer in the loss scale is wrapped: `before` the scale is made, or `after`.
        """
        self.late = late
        """Whether the optimizer is to be wrapped when the odometer was read for the first time."""
        self.in_blocks = in_blocks
        """Whether each reading of the odometer ends a block and begins the next one."""
        self.block = ExitStack()
        self.blocks: list[Callable[[], Any]] = []
        """Returns the trace of each block."""
        self.read_before: dict[str, tuple[Reading, ...]] = {}
        self.kind = kind
        self.way = way
        self.strategy = strategy_of(way.strategy)
        self.keras = library_of(kind)
        self.calls = PythonCalls()
        self.plan: list[Step] = []
        self.points: list[tuple[int, dict[str, tuple[Reading, ...]]]] = []
        self.absent: Counter[str] = Counter()
        """How often each variable was requested without a gradient."""
        self.direct = way.direct
        self.inner_steps: int | None = None
        """How often nested optimizers were applied; None is: in each step that was not skipped."""
        self.variables: dict[str, Any] = {}
        self.idle: dict[str, Any] = {}
        """Variables that the optimizer must not even be asked to update."""
        self.session: Any = None
        if way.session:
            self.graph = tf.Graph()
            with self.graph.as_default():
                self.optimizer = self.make_optimizer()
        else:
            with self.strategy.scope():
                self.optimizer = self.make_optimizer()
                self.variables = make_variables(kind)
        self.traced = traced
        if traced and not inner:
            assert tracer.wrap(self.optimizer) is self.optimizer
        if in_blocks:
            self.begin_block()

    def make_optimizer(self) -> Any:
        make = functools.partial(ODOMETERS[self.kind], calls=self.calls, **self.way.options)
        if self.way.twice:
            return odometer_applied_twice(self.kind, calls=self.calls, **self.way.options)
        if self.way.wrapper == "loss scale":
            scaled = make()
            if self.inner == "before":
                tracer.wrap(scaled)
            around = with_loss_scale(self.kind, scaled)
            if self.inner == "after":
                tracer.wrap(scaled)
            return around
        if self.way.wrapper == "multi":
            first, second = make(name="first"), make(name="second")
            return keras3.optimizers.MultiOptimizer(
                keras3.optimizers.OptimizerMap(first, {".*(table|embeddings)": second})
            )
        return make()

    # Training on hand-made variables.

    def apply(self, *labels: str, factor: Any = 1.0, absent: Sequence[str] = ()) -> Any:
        """Apply gradients to the variables named, or to all; no gradient to those in `absent`."""
        chosen = {label: self.variables[label] for label in labels or self.variables}
        pairs = [
            (None if label in absent else gradient, variable)
            for label, (gradient, variable) in zip(chosen, gradients(chosen, factor), strict=True)
        ]
        if self.direct:
            return self.optimizer.apply(*map(list, zip(*pairs, strict=True)))
        return self.optimizer.apply_gradients(pairs)

    def run(self, *labels: str, **arguments: Any) -> None:
        """The same on every replica, to be traced or called; returns nothing."""
        if self.way.strategy == "default":
            self.apply(*labels, **arguments)
        else:
            self.strategy.run(self.apply, labels, arguments)

    def function(self, function: Any) -> Any:
        """A `tf.function`, as the way has it."""
        return tf.function(function, jit_compile=self.way.compiled or None)

    # The account of it.

    def did(self, *steps: Step) -> None:
        """These steps are done now: the odometer is read."""
        self.plan.extend(steps)
        readings = {label: self.read(variable) for label, variable in self.variables.items()}
        if self.late:
            self.begin(readings)
            return
        for label, before in self.read_before.items():
            readings[label] = tuple(map(Reading.minus, readings[label], before))
        self.points.append((len(self.plan), readings))
        if self.in_blocks:
            self.block.close()
            self.begin_block()

    def do(self, *runs: Callable[[], Any], did: Step = ALL) -> None:
        """Make one step by each of these."""
        for run in runs:
            run()
            self.did(did)

    def begin_block(self) -> None:
        """Begin to record or to assert, in turn."""
        way = ("record", "assertion")[len(self.blocks) % 2]
        self.blocks.append(self.block.enter_context(block_of(way, self.optimizer)))

    def begin(self, readings: dict[str, tuple[Reading, ...]]) -> None:
        """Wrap the optimizer: what was planned, called and read before is not to be counted."""
        self.late, self.traced, self.read_before = False, True, readings
        self.plan.clear()
        self.calls.forget()
        assert tracer.wrap(self.optimizer) is self.optimizer

    def read(self, variable: Any) -> tuple[Reading, ...]:
        if self.session is not None:
            return (reading(self.session.run(variable)),)
        return read(variable)

    def names(self) -> dict[str, str]:
        """What the trace must call each variable, by its label."""
        names = {}
        for label, variable in {**self.variables, **self.idle}.items():
            names[label] = variable.path if is_keras3(variable) else variable.name.split(":")[0]
        return names


# What must hold in every cell.


def check(rig: Rig) -> None:
    """The odometer shows what was planned, and the trace says what the odometer shows."""
    check_odometer(rig)
    if rig.in_blocks:
        rig.block.close()
        check_blocks(rig)
    if rig.traced:
        trace = tracer.trace_of(rig.optimizer)
        ran.check(trace, ran_in(rig))
        check_updates(rig, trace)
        check_methods(rig, trace)
        check_paths(rig, trace)
        for label, variable in {} if rig.read_before else rig.variables.items():
            requests = trace.count("requests", kind="none", variable=variable)
            assert requests == rig.absent[label] * replicas(rig), label


def check_odometer(rig: Rig) -> None:
    """The plan is true: at each point the odometer shows its sum, on each replica."""
    assert rig.points and rig.points[-1][0] == len(rig.plan), "the way did not read the odometer"
    for steps, readings in rig.points:
        for label, shown in readings.items():
            planned = planned_sum(rig.plan[:steps], label)
            assert set(shown) == {planned}, f"{label} after {steps} steps: {shown}, not {planned}"
            assert len(shown) == replicas(rig)
    for label, variable in rig.idle.items():
        assert set(rig.read(variable)) == {NONE}, label


def check_blocks(rig: Rig) -> None:
    """Each block has what the odometer did in it, also where no graph was traced, and is saved."""
    shown_before = dict.fromkeys(rig.variables, (NONE,) * replicas(rig))
    for (_, readings), block in zip(rig.points, rig.blocks, strict=False):
        trace = block()
        assert trace.complete, trace.notes
        for label, shown in readings.items():
            did = sum(map(sum, shown)) - sum(map(sum, shown_before[label]))
            counted = zero_if_unknown(trace.updates, variable=rig.variables[label])
            assert counted == did, label
        assert_saved(trace)
        shown_before = readings


def ran_in(rig: Rig) -> ran.Ran:
    """What ran in all: each step on each replica, and the step methods."""
    steps, copies = len(rig.plan), replicas(rig)
    done = sum(map(bool, rig.plan)) if rig.inner_steps is None else rig.inner_steps
    inner = done if rig.way.wrapper else 0
    executions = {"apply_gradients": steps + inner}
    if rig.kind == "keras3":
        # Nested optimizers, and an override that calls twice, meet again in `apply`.
        executions = {"apply_gradients": steps, "apply": steps * (1 + rig.way.twice) + inner}
    if rig.direct:
        del executions["apply_gradients"]
    return ran.Ran(
        rig.optimizer,
        [sum(map(sum, done.values())) for done in rig.plan],
        {rig.names()[each]: copies * sum(planned_sum(rig.plan, each)) for each in rig.variables},
        copies,
        executions={method: copies * number for method, number in executions.items()},
    )


def check_updates(rig: Rig, trace: Any) -> None:
    """Updates per variable, step, replica and kind are what the plan says."""
    names = rig.names()
    expected: Counter[tuple[Any, ...]] = Counter()
    for step, done in enumerate(rig.plan, start=1):
        for label, (dense, sparse) in done.items():
            for replica in range(replicas(rig)):
                expected[names[label], step, replica, "dense"] += dense
                expected[names[label], step, replica, "sparse"] += sparse
    counted = trace.count("updates", by=("variable", "step", "replica", "kind"))
    assert +Counter(counted) == +expected
    frozen = {index for each in trace.data.not_updated for index in each.variables}
    known = {each.name for index, each in enumerate(trace.variables) if index not in frozen}
    assert known == {names[label] for label in rig.variables}
    assert [trace.updates(variable=variable) for variable in rig.idle.values()] == [0] * len(frozen)


def check_methods(rig: Rig, trace: Any) -> None:
    """The apply methods ran as the odometer says, and were called as the odometer counted."""
    for label, variable in rig.variables.items():
        executed: Counter[str] = Counter()
        for kind, updates in planned_sum(rig.plan, label)._asdict().items():
            executed.update(dict.fromkeys(methods_of(rig, kind), updates * replicas(rig)))
        for method, executions in executed.items():
            counted = zero_if_unknown(trace.executions, method=method, variable=variable)
            assert counted == executions, (label, method)
    counts, calls = rig.calls.counts(), trace.count("calls", by=("method", "context"))
    for method, context in itertools.product({name for name, _ in counts}, ("eager", "tracing")):
        assert calls[method, context] == counts.get((method, context), 0), (method, context)


def check_paths(rig: Rig, trace: Any) -> None:
    """Each path is a line of the program, or two with the graph between them."""
    assert all(each.path is not None for each in trace.data.calls if each.total)
    if rig.way not in WAYS.values():  # it is called by the test itself
        return
    for path in {block.path for block in trace.data.blocks} - {None}:
        lines = [trace.data.lines[index] for index in trace.data.paths[path]]
        graphs = [line.graph for line in lines]
        assert graphs in ([False], [False, True], [False, True, False], [True, False])
        assert rig.way.session or not lines[0].graph
        assert all(line.file.endswith("test_truth_table.py") for line in lines if not line.graph)
    assert None not in {block.path for block in trace.data.blocks if block.total}


def methods_of(rig: Rig, kind: str) -> tuple[str, ...]:
    """The intercepted methods that each update of the kind executes."""
    if rig.kind in ("keras2", "keras3"):
        return ("update_step",)
    resource = "" if rig.kind == "v1" and rig.way.reference else "_resource"
    if kind == "dense":
        return (f"{resource}_apply_dense",)
    return (f"{resource}_apply_sparse", f"{resource}_apply_sparse_duplicate_indices")


def replicas(rig: Rig) -> int:
    return int(rig.strategy.num_replicas_in_sync)


def planned_sum(plan: list[Step], label: str) -> Reading:
    return functools.reduce(Reading.plus, (done.get(label, NONE) for done in plan), NONE)


def zero_if_unknown(question: Callable[..., int], **filters: Any) -> int:
    """The answer; 0 if the trace has never heard of what is asked for."""
    try:
        return question(**filters)
    except tracer.UnknownName:
        return 0


# Ways of running, on variables made by hand.


@way("eager")
@way("one device: eager", strategy="one device")
@way("mirrored 2: eager", strategy="mirrored 2")
def eager(rig: Rig) -> None:
    rig.do(*[rig.run] * 3)


@way("function")
@way("one device: function", strategy="one device")
@way("mirrored 2: function", strategy="mirrored 2")
@way("mirrored 3: function", strategy="mirrored 3")
@way("hierarchical copy: function", strategy="hierarchical copy")
@way("default reduction: function", strategy="default reduction")
@way("XLA", compiled=True)
@way("mirrored 2: XLA", strategy="mirrored 2", compiled=True)
def function(rig: Rig) -> None:
    rig.do(*[rig.function(rig.run)] * 4)


@way("apply, not apply_gradients", direct=True)
def direct_apply(rig: Rig) -> None:
    step = tf.function(rig.run)
    rig.do(rig.run, step, step, rig.run)


@way("mirrored 2: distributed dataset", strategy="mirrored 2")
def distributed_dataset(rig: Rig) -> None:
    data = tf.data.Dataset.from_tensor_slices(tf.ones(16)).batch(2)
    batches = iter(rig.strategy.experimental_distribute_dataset(data))

    def replica(batch: Any) -> None:
        rig.apply(factor=tf.reduce_mean(batch))

    @tf.function
    def steps(iterator: Any) -> None:
        for _ in tf.range(4):
            rig.strategy.run(replica, args=(next(iterator),))

    for _ in range(2):
        steps(batches)
        rig.did(*[ALL] * 4)


@way("nested function")
def nested_function(rig: Rig) -> None:
    inner = tf.function(rig.run)

    @tf.function
    def outer() -> None:
        inner()
        inner()

    for _ in range(2):
        outer()
        rig.did(ALL, ALL)
    inner()
    rig.did(ALL)


@way("eager and function in turn")
def mixed(rig: Rig) -> None:
    step = tf.function(rig.run)
    rig.do(rig.run, step, rig.run, rig.run, step, step, rig.run)


@way("gradients in an iterator")
def iterator(rig: Rig) -> None:
    """`zip(grads, variables)`, which can be read only once."""

    def apply() -> None:
        rig.optimizer.apply_gradients(iter(gradients(rig.variables)))

    step = tf.function(apply)
    rig.do(apply, step, step, apply)


@way("retraces")
def retraces(rig: Rig) -> None:
    step = tf.function(lambda batch: rig.run(factor=tf.reduce_sum(batch)))
    for size in (2, 3, 2, 5, 3):
        step(tf.ones([size]))
        rig.did(ALL)


@way("while loop")
@way("mirrored 2: while loop", strategy="mirrored 2")
@way("XLA while loop", compiled=True)
def while_loop(rig: Rig) -> None:
    @rig.function
    def steps(number: Any) -> None:
        for _ in tf.range(number):
            rig.run()

    for number in (3, 0, 4):
        steps(tf.constant(number))
        rig.did(*[ALL] * number)


@way("cond around it")
@way("mirrored 2: cond around strategy.run", strategy="mirrored 2")
def cond_around(rig: Rig) -> None:
    @tf.function
    def step(index: Any) -> None:
        if index % 3 == 0:
            rig.run()

    for index in range(7):
        step(tf.constant(index))
        rig.did(*[ALL] * (index % 3 == 0))


@way("minimize a callable")
def minimize_callable(rig: Rig) -> None:
    variables = list(rig.variables.values())

    def minimize() -> None:
        rig.optimizer.minimize(lambda: loss(variables), var_list=variables)

    rig.do(minimize, tf.function(minimize), minimize)


@way("minimize with a tape")
def minimize_tape(rig: Rig) -> None:
    variables = list(rig.variables.values())

    def minimize() -> None:
        with tf.GradientTape() as tape:
            total = loss(variables)
        rig.optimizer.minimize(total, variables, tape=tape)

    rig.do(minimize, tf.function(minimize), minimize)


@way("no gradient")
@way("mirrored 2: no gradient", strategy="mirrored 2")
def no_gradient(rig: Rig) -> None:
    some = {label: done for label, done in ALL.items() if label != "twin"}
    step = tf.function(lambda: rig.run(absent=["twin"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        for run in (lambda: rig.run(absent=["twin"]), step, step):
            run()
            rig.did(some)
            rig.absent["twin"] += 1
    rig.run()
    rig.did(ALL)


ACCUMULATE = {"gradient_accumulation_steps": 3}
ACCUMULATED: Step = dict.fromkeys(SHAPES, DENSE)
"""What the last of three accumulating steps does: the sum of sparse gradients is dense."""


def accumulating(rig: Rig, run: Callable[[], Any]) -> None:
    rig.inner_steps = 0
    for index in range(1, 8):
        run()
        rig.did(SKIPPED if index % 3 else ACCUMULATED)


@way("accumulation, eager", options=ACCUMULATE)
def accumulation_eager(rig: Rig) -> None:
    accumulating(rig, rig.run)


@way("accumulation, function", options=ACCUMULATE)
@way("mirrored 2: accumulation", strategy="mirrored 2", options=ACCUMULATE)
def accumulation(rig: Rig) -> None:
    accumulating(rig, tf.function(rig.run))


@way("jit_compile optimizer", options={"jit_compile": True})
def jit_compile_optimizer(rig: Rig) -> None:
    step = tf.function(rig.run)
    rig.do(rig.run, step, rig.run, step)


FACTORS = (1.0, np.inf, 1.0, np.nan, np.nan, 1.0)


def scaling(rig: Rig, run: Callable[[Any], Any]) -> None:
    for factor in FACTORS:
        run(tf.constant(factor))
        rig.did(ALL if np.isfinite(factor) else SKIPPED)


@way("loss scale, eager", wrapper="loss scale")
@way("mirrored 2: loss scale, eager", wrapper="loss scale", strategy="mirrored 2")
def loss_scale_eager(rig: Rig) -> None:
    scaling(rig, lambda factor: rig.run(factor=factor))


@way("loss scale, function", wrapper="loss scale")
@way("one device: loss scale", wrapper="loss scale", strategy="one device")
@way("mirrored 2: loss scale", wrapper="loss scale", strategy="mirrored 2")
@way("mirrored 3: loss scale", wrapper="loss scale", strategy="mirrored 3")
@way("loss scale, XLA", wrapper="loss scale", compiled=True)
def loss_scale(rig: Rig) -> None:
    scaling(rig, rig.function(lambda factor: rig.run(factor=factor)))


@way("loss scale, all skipped", wrapper="loss scale")
def all_skipped(rig: Rig) -> None:
    step = rig.function(lambda: rig.run(factor=np.inf))
    rig.do(lambda: rig.run(factor=np.inf), step, step, did=SKIPPED)


@way("loss scale, while loop", wrapper="loss scale")
def loss_scale_loop(rig: Rig) -> None:
    @tf.function
    def steps(factors: Any) -> None:
        for factor in factors:
            rig.run(factor=factor)

    for _ in range(2):
        steps(tf.constant(FACTORS))
        rig.did(*[ALL if np.isfinite(factor) else SKIPPED for factor in FACTORS])


@way("several optimizers", wrapper="multi")
@way("mirrored 2: several optimizers", wrapper="multi", strategy="mirrored 2")
def several_optimizers(rig: Rig) -> None:
    step = tf.function(rig.run)
    rig.do(rig.run, step, step)
    rig.inner_steps = 2 * len(rig.plan)


@way("apply_gradients that calls super twice", twice=True)
@way("mirrored 2: apply_gradients that calls super twice", twice=True, strategy="mirrored 2")
def super_twice(rig: Rig) -> None:
    double = {label: done.plus(done) for label, done in ALL.items()}
    step = tf.function(rig.run)
    rig.do(rig.run, step, step, did=double)


# Ways of running in the sessions of TensorFlow 1.


@contextmanager
def graph_of(rig: Rig) -> Iterator[None]:
    """The graph of a session cell, with its variables."""
    with rig.graph.as_default():
        for name, shape in SHAPES.items():
            rig.variables[name] = v1.get_variable(
                name,
                shape,
                initializer=v1.zeros_initializer(),
                use_resource=not rig.way.reference,
            )
        yield


@contextmanager
def session_of(rig: Rig) -> Iterator[Any]:
    """A session with all variables of the current graph initialized."""
    with v1.Session() as rig.session:
        rig.session.run(v1.global_variables_initializer())
        yield rig.session


def run_in_session(build: Callable[[Rig], Any], rig: Rig) -> None:
    """Build a train op in the graph of the cell, and run it four times."""
    with graph_of(rig):
        train = build(rig)
        with session_of(rig) as session:
            for _ in range(4):
                session.run(train)
                rig.did(ALL)


def build_with_global_step(rig: Rig) -> Any:
    count = v1.train.get_or_create_global_step()
    return rig.optimizer.apply_gradients(gradients(rig.variables), global_step=count)


def build_minimize(rig: Rig) -> Any:
    variables = list(rig.variables.values())
    return rig.optimizer.minimize(loss(variables), var_list=variables)


def build_updates(rig: Rig) -> Any:
    """How Keras trained in graph mode, with an optimizer of the legacy kind."""
    variables = list(rig.variables.values())
    return rig.optimizer.get_updates(loss(variables), variables)


for name, build in (
    ("session", Rig.apply),
    ("session, global step", build_with_global_step),
    ("session, minimize", build_minimize),
    ("session, get_updates", build_updates),
):
    way(name, session=True)(functools.partial(run_in_session, build))
way("session, reference variables", session=True, reference=True)(WAYS["session"].run)


@way("session, two train ops", session=True)
def session_two_ops(rig: Rig) -> None:
    """A second train op is built after the first one ran; then they run in turn."""
    some: Step = {"kernel": DENSE}
    with graph_of(rig):
        first = rig.apply()
        with session_of(rig) as session:
            session.run(first)
            rig.did(ALL)
            second = rig.apply("kernel")
            for train, done in [(second, some), (first, ALL), (second, some)]:
                session.run(train)
                rig.did(done)


@way("session, cond", session=True)
def session_cond(rig: Rig) -> None:
    with graph_of(rig):
        wanted = v1.placeholder(tf.bool, [])

        def train() -> Any:
            with tf.control_dependencies([rig.apply()]):
                return tf.constant(1)

        result = tf.cond(wanted, train, lambda: tf.constant(0))
        with session_of(rig) as session:
            for index in range(5):
                assert session.run(result, {wanted: index % 2 == 0}) == (index % 2 == 0)
                rig.did(*[ALL] * (index % 2 == 0))


@way("session, loss scale", session=True, wrapper="loss scale")
def session_loss_scale(rig: Rig) -> None:
    with graph_of(rig):
        factor = v1.placeholder(tf.float32, [])
        train = rig.apply(factor=factor)
        with session_of(rig) as session:
            for value in FACTORS:
                session.run(train, {factor: value})
                rig.did(ALL if np.isfinite(value) else SKIPPED)


@way("monitored session", session=True)
def monitored_session(rig: Rig) -> None:
    """`MonitoredTrainingSession` finalizes the graph and makes hooks and a saver of its own."""
    with graph_of(rig):
        count = v1.train.get_or_create_global_step()
        with tf.control_dependencies([rig.apply()]):
            train = v1.assign_add(count, 1)
        with v1.train.MonitoredTrainingSession() as rig.session:
            for _ in range(4):
                rig.session.run(train)
                rig.did(ALL)


# Ways of running a Keras model.

BATCH = 4


def make_model(rig: Rig, base: Any = None, *, frozen: bool = False, **compiled: Any) -> Any:
    """A model of an embedding and two dense layers with all weights 0, compiled."""
    layers = rig.keras.layers
    with rig.strategy.scope():
        inputs = rig.keras.Input((2,), dtype="int32")
        embedding = layers.Embedding(5, 3, embeddings_initializer="zeros")
        hidden = layers.Dense(2, kernel_initializer="zeros", trainable=not frozen)
        output = layers.Dense(2, kernel_initializer="zeros", use_bias=False)
        outputs = output(hidden(layers.Flatten()(embedding(inputs))))
        model = (base or rig.keras.Model)(inputs, outputs)
        if rig.kind != "keras3" and compiled.get("jit_compile") == "auto":
            del compiled["jit_compile"]  # Keras 3 alone chooses XLA by itself
        compiled.setdefault("jit_compile", False)
        model.compile(optimizer=rig.optimizer, loss="mse", **compiled)
    weights = {"table": embedding.embeddings, "head": output.kernel}
    hidden_weights = {"kernel": hidden.kernel, "bias": hidden.bias}
    rig.variables = weights if frozen else weights | hidden_weights
    rig.idle = hidden_weights if frozen else {}
    return model


MODEL: Step = {"table": SPARSE, "kernel": DENSE, "bias": DENSE, "head": DENSE}


def data(samples: int) -> tuple[Any, Any]:
    """Inputs and targets for `samples` samples."""
    inputs = np.arange(2 * samples, dtype="int32").reshape(samples, 2) % 5
    return inputs, np.ones((samples, 2), "float32")


def fit(
    rig: Rig, model: Any, inputs: Any, targets: Any, steps: Sequence[list[Step]], **fit: Any
) -> None:
    """Run `model.fit` and read the odometer at each end of a batch; `steps` are done by then."""
    ends = iter(steps)

    class ReadOdometer(rig.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rig.did(*next(ends))

    size = BATCH * replicas(rig)
    fit = {"batch_size": size, "shuffle": False, "verbose": 0} | fit
    model.fit(inputs, targets, callbacks=[ReadOdometer()], **fit)
    assert next(ends, None) is None


def fits(
    name: str,
    *strategies: str,
    steps: Sequence[list[Step]] = ([MODEL],) * 3,
    epochs: int = 1,
    last: int | None = None,
    **model: Any,
) -> None:
    """Add `fit` of such a model as a way, and under these strategies.

    The `last` batch of an epoch may have fewer samples.
    """

    def run(rig: Rig) -> None:
        made, size = make_model(rig, **model), BATCH * replicas(rig)
        batches = sum(map(len, steps)) // epochs
        fit(rig, made, *data((batches - 1) * size + (last or size)), steps, epochs=epochs)

    way(name)(run)
    for strategy in strategies:
        way(f"{strategy}: {name}", strategy=strategy)(run)


BY_THREE = [[MODEL] * 3, [MODEL] * 3, [MODEL]] * 2
NOT_HIDDEN: Step = {"table": SPARSE, "head": DENSE}

fits("fit", "one device", "mirrored 2", "mirrored 3", steps=[[MODEL]] * 4)
fits("fit, defaults", jit_compile="auto")  # as most people call it
fits("fit, XLA", "mirrored 2", jit_compile=True)
fits("fit, run_eagerly", run_eagerly=True)
fits("fit, steps_per_execution", "mirrored 2", steps=BY_THREE, epochs=2, steps_per_execution=3)
fits("fit, partial last batch", "mirrored 2", steps=[[MODEL]] * 9, epochs=3, last=2)
fits("fit, frozen layer", steps=[[NOT_HIDDEN]] * 3, frozen=True)


@way("fit, own train_step")
@way("mirrored 2: fit, own train_step", strategy="mirrored 2")
def fit_train_step(rig: Rig) -> None:
    class Model(rig.keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, batch: Any) -> dict[str, Any]:
            inputs, targets = batch
            with tf.GradientTape() as tape:
                total = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
            variables = self.trainable_variables
            grads = tape.gradient(total, [raw(each) for each in variables])
            if rig.kind == "keras3":  # as its guide says
                self.optimizer.apply(grads, variables)
            else:
                self.optimizer.apply_gradients(zip(grads, variables, strict=True))
            return {"loss": total}

    rig.direct = rig.kind == "keras3"
    model = make_model(rig, Model)
    fit(rig, model, *data(3 * BATCH * replicas(rig)), [[MODEL]] * 3)


@way("fit, unused layer")
def fit_unused(rig: Rig) -> None:
    """The loss does not depend on one of the layers, which has no gradient then."""
    model = make_model(rig)
    model.unused = rig.keras.layers.Dense(2, use_bias=False)
    model.unused.build((None, 2))
    kernel = model.unused.kernel
    kernel.assign(tf.zeros((2, 2)))
    # Keras 3 before 3.13 does not train a layer that was put on a finished model.
    trained = any(each is kernel for each in model.trainable_variables)
    (rig.variables if trained else rig.idle)["unused"] = kernel
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        fit(rig, model, *data(3 * BATCH), [[MODEL]] * 3)
    rig.absent["unused"] = 3 * trained


@way("fit, accumulation", options=ACCUMULATE)
def fit_accumulation(rig: Rig) -> None:
    model = make_model(rig)
    rig.inner_steps = 0
    accumulated: Step = dict.fromkeys(MODEL, DENSE)
    fit(rig, model, *data(4 * BATCH), [[SKIPPED], [SKIPPED], [accumulated], [SKIPPED]])


@way("fit, loss scale", wrapper="loss scale")
@way("mirrored 2: fit, loss scale", wrapper="loss scale", strategy="mirrored 2")
def fit_loss_scale(rig: Rig) -> None:
    model = make_model(rig)
    size = BATCH * replicas(rig)
    inputs, targets = data(5 * size)
    targets[size] = np.nan
    targets[4 * size] = np.inf
    fit(rig, model, inputs, targets, [[MODEL], [SKIPPED], [MODEL], [MODEL], [SKIPPED]])


@way("fit, loss scale, steps_per_execution", wrapper="loss scale")
def fit_loss_scale_loop(rig: Rig) -> None:
    model = make_model(rig, steps_per_execution=4)
    inputs, targets = data(8 * BATCH)
    targets[2 * BATCH] = np.nan
    steps = [[MODEL, MODEL, SKIPPED, MODEL], [MODEL] * 4]
    fit(rig, model, inputs, targets, steps)


@way("fit, several optimizers", wrapper="multi")
def fit_several_optimizers(rig: Rig) -> None:
    model = make_model(rig)
    fit(rig, model, *data(3 * BATCH), [[MODEL]] * 3)
    rig.inner_steps = 2 * len(rig.plan)


# What the framework itself refuses.

OLDER = ("legacy", "keras2", "v1")
SESSIONS = [name for name, each in WAYS.items() if each.session]
APART = [
    f"session, {each}" for each in ("reference variables", "global step", "minimize", "get_updates")
]
REFUSED: set[tuple[str, str]] = {
    (name, kind)
    for names, kinds in (
        # Methods and arguments that a kind does not have.
        (["apply, not apply_gradients"], OLDER),
        (["minimize a callable"], ["keras3"]),
        (["minimize with a tape"], ["keras3", "v1"]),
        (["session, minimize"], ["legacy", "keras2", "keras3"]),
        (["session, get_updates"], ["keras2", "keras3", "v1"]),
        (["session, reference variables"], ["keras2", "keras3"]),
        (["session, global step"], ["legacy", "keras2", "keras3"]),
        (["jit_compile optimizer"], ["legacy", "keras3", "v1"]),
        ([name for name, each in WAYS.items() if each.options == ACCUMULATE], OLDER),
        ([name for name, each in WAYS.items() if each.wrapper == "multi"], OLDER),
        # Keras without eager execution: the new optimizers return no op that runs the updates.
        (
            [name for name in SESSIONS if name.removeprefix("session, ") not in APART],
            ["keras2", "keras3"],
        ),
        # Mirrored variables: an update is a synchronization of the replicas.
        (["mirrored 2: accumulation"], ["keras3"]),
        # No variable of another device in a compiled program.
        (["mirrored 2: XLA", "mirrored 2: fit, XLA"], KINDS),
    )
    for name in names
    for kind in kinds
}
"""The cells that cannot run: the error is the framework's own, traced or not."""


def run_cell(name: str, kind: str, *, traced: bool, **modes: Any) -> None:
    """Train in one cell and check it."""
    rig = Rig(kind, WAYS[name], traced=traced, **modes)
    rig.way.run(rig)
    check(rig)


def needs(way: Way) -> list[Any]:
    """What skips a cell in a version of Keras that lacks a part of it."""
    multi = way.wrapper == "multi"
    lacks = multi and not hasattr(getattr(keras3, "optimizers", None), "MultiOptimizer")
    return [pytest.mark.skip(reason="this Keras has no MultiOptimizer")] if lacks else []


def cells(*, refused: bool) -> list[Any]:
    """The cells that the framework runs, or those that it refuses, as test parameters."""
    return [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=needs(way))
        for name, way in WAYS.items()
        for kind in KINDS
        if ((name, kind) in REFUSED) == refused
    ]


@pytest.mark.parametrize(("name", "kind"), cells(refused=False))
def test_counts(name: str, kind: str) -> None:
    """What the trace says is what the odometer shows."""
    run_cell(name, kind, traced=True)


def goes_on(name: str) -> bool:
    """Whether a way calls a function again after its first reading, with all of its variables.

    Other strategies do nothing there that two replicas do not.
    """
    few = WAYS[name].strategy not in ("default", "mirrored 2")
    return not (few or name.endswith("eager") or WAYS[name].session)


QUICK_WHEN_USED_BEFORE = {
    ("nested function", "legacy"),
    ("while loop", "v1"),
    ("XLA", "keras2"),
    ("jit_compile optimizer", "keras2"),
    ("mirrored 2: function", "keras3"),
    ("loss scale, function", "v1"),
    ("fit", "keras3"),
    ("fit, run_eagerly", "legacy"),
}
"""Cells that `pytest` alone runs; `nox -s sweep` runs the others."""


def _tier_of(cell: Sequence[Any]) -> list[Any]:
    return [] if tuple(cell) in QUICK_WHEN_USED_BEFORE else [pytest.mark.sweep]


used_again = pytest.mark.parametrize(
    ("used_before", "kind"),
    [
        pytest.param(*each.values, id=each.id, marks=[*each.marks, *_tier_of(each.values)])
        for each in cells(refused=False)
        if goes_on(str(each.values[0]))
    ],
)


@used_again
def test_counts_of_an_optimizer_that_was_used_before(used_before: str, kind: str) -> None:
    """Functions that were traced before are traced again, and what they run from then on counts.

    The optimizer is wrapped after the first reading of the odometer: between two batches of `fit`,
    between two calls of a function.
    """
    run_cell(used_before, kind, traced=False, late=True)


@used_again
def test_each_block_over_functions_of_earlier_blocks(used_before: str, kind: str) -> None:
    """Blocks of `record` and of an assertion, from one reading of the odometer to the next."""
    run_cell(used_before, kind, traced=False, in_blocks=True)


@pytest.mark.parametrize("wrapped", ["before", "after"])
@pytest.mark.parametrize(
    ("scaled", "kind"),
    [
        pytest.param(*each.values, id=each.id, marks=tier)
        for each in cells(refused=False)
        if WAYS[str(each.values[0])].wrapper == "loss scale"
        for tier in [[] if each.values[0] == "loss scale, function" else [pytest.mark.sweep]]
    ],
)
def test_the_optimizer_in_a_loss_scale_has_its_skipped_steps(
    scaled: str, kind: str, wrapped: str
) -> None:
    """The counts are those of the loss scale, made after `wrap`, as by `compile`, or before."""
    run_cell(scaled, kind, traced=True, inner=wrapped)


def error_of(name: str, kind: str, *, traced: bool) -> tuple[type[BaseException], str]:
    """What a cell raises, without the numbers that TensorFlow gives to functions and ops."""
    with pytest.raises(Exception) as raised:
        run_cell(name, kind, traced=traced)
    *_, last = str(raised.value).rstrip().splitlines()
    return raised.type, re.sub(r"0x[0-9a-f]+|_?[0-9]+", "", last)


@pytest.mark.wide(rest="sweep")
@pytest.mark.parametrize(("refused", "kind"), cells(refused=True))
def test_framework_refuses(refused: str, kind: str) -> None:
    """A cell that is left out fails in the framework, and with the tracer no other way."""
    assert error_of(refused, kind, traced=True) == error_of(refused, kind, traced=False)
