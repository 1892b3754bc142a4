"""Every question to a `Trace` against a flat list of single events."""

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice, pairwise, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st
from support import traces
from support.cost import at_most
from support.traces import called

from tracer.errors import UnknownName
from tracer.model.names import plain_name
from tracer.model.records import (
    Block,
    Entry,
    Method,
    Optimizer,
    Replica,
    TraceData,
    Variable,
)
from tracer.model.timeline import Run
from tracer.model.trace import Trace

OPTIMIZERS = (Optimizer("Adam", "Adam", "legacy", 0), Optimizer("SGD", "SGD", "legacy", 1))
VARIABLES = tuple(
    Variable(name, (2,), "float32")
    for name in ("encoder/kernel", "encoder/bias", "head/kernel", "list[0]/kernel", "list0/kernel")
)
METHODS = (
    Method("apply_gradients", "step"),
    Method("_resource_apply_dense", "apply"),
    Method("_resource_apply_sparse", "apply"),
    Method("_resource_apply_sparse_duplicate_indices", "apply"),
)
REPLICAS = (
    Replica("worker:0", 0, "CPU:0"),
    Replica("worker:0", 1, "CPU:1"),
    Replica("worker:1", 0, "CPU:0"),
)
ROLES = {
    "updates": ["update"],
    "executions": ["step", "update", "discarded", "apply"],
    "discarded": ["discarded"],
    "requests": ["request"],
}


# The oracle: single events, made with loops alone.


class Event(NamedTuple):
    """One execution, request or call. `step` is None if it is not known, or if it has none."""

    what: str  # the role, or "call"
    optimizer: str
    method: str
    kind: str | None
    variable: str | None
    replica: int
    worker: str
    step: int | None
    context: str


def steps_of(block: Block) -> list[int | None]:
    """One item for each execution of the block."""
    steps: list[int | None] = []
    for run in block.runs:
        step = run.first
        for _ in range(run.count):
            steps += [step] * run.times
            step += run.stride
    return steps + [None] * (block.total - len(steps))


def expand(data: TraceData) -> Iterator[Event]:
    for block in (*data.blocks, *data.calls):
        for step, entry in product(steps_of(block), block.entries):
            for index in entry.variables or (None,):
                event = Event(
                    entry.role,
                    OPTIMIZERS[entry.optimizer].name,
                    METHODS[entry.method].name,
                    entry.kind,
                    None if index is None else VARIABLES[index].name,
                    REPLICAS[block.replica].id,
                    REPLICAS[block.replica].worker,
                    step,
                    block.context,
                )
                yield from [event] * entry.times


def selected(data: TraceData, what: str, filters: dict[str, object]) -> list[Event]:
    found = []
    for event in expand(data):
        wanted = event.what in ROLES.get(what, ["call"])
        for name, value in filters.items():
            own = getattr(event, name)
            if isinstance(value, range):
                wanted &= own in value
            elif isinstance(value, str) and "*" in value:
                wanted &= own is not None and fnmatchcase(own, value)
            else:
                wanted &= own == value
        if wanted:
            found.append(event)
    return found


def last_step(data: TraceData) -> int:
    steps: Counter[tuple[int, int]] = Counter()
    for block in data.blocks:
        if block.step:
            steps[block.root, block.replica] += block.total
    return max(steps.values(), default=0)


# Data.


@st.composite
def rising_runs(draw: st.DrawFn) -> tuple[Run, ...]:
    runs, after = [], 0
    for _ in range(draw(st.integers(0, 3))):
        first, stride = after + draw(st.integers(1, 4)), draw(st.integers(1, 4))
        run = Run(first, stride, draw(st.integers(1, 5)), draw(st.integers(1, 2)))
        runs.append(run)
        after = run.last
    return tuple(runs)


@st.composite
def trace_data(draw: st.DrawFn) -> TraceData:
    """Traces over the tables above, with step_unknown executions, loops and several optimizers."""
    variables = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
    kinds = st.sampled_from(["dense", "sparse", "none"])
    optimizer, replica, times = st.integers(0, 1), st.integers(0, 2), st.integers(1, 2)
    roles = st.sampled_from(["update", "discarded", "apply", "request"])
    entry = st.builds(Entry, optimizer, st.integers(1, 3), roles, kinds, variables, times)
    entry |= st.builds(
        Entry, optimizer, st.just(0), st.just("step"), st.none(), st.just(()), st.just(1)
    )
    blocks = []
    for _ in range(draw(st.integers(0, 3))):
        runs = draw(rising_runs())
        blocks.append(
            Block(
                root=draw(optimizer),
                replica=draw(replica),
                context="graph",
                function="f",
                step=draw(st.booleans()),
                entries=tuple(draw(st.lists(entry, max_size=3))),
                total=sum(run.total for run in runs) + draw(st.integers(0, 2)),
                runs=runs,
            )
        )
    of_each = st.builds(
        called,
        st.integers(1, 3),
        variables,
        eager=st.integers(0, 3),
        kind=kinds,
        replica=replica,
        optimizer=optimizer,
    )
    calls = draw(st.lists(of_each | st.builds(called, st.just(0), st.just(()), tracing=times)))
    return TraceData(OPTIMIZERS, VARIABLES, METHODS, REPLICAS, tuple(blocks), tuple(calls))


RANGES = st.builds(range, st.integers(1, 30), st.integers(-3, 60), st.integers(1, 6))
FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "kind": st.sampled_from(["dense", "sparse", "none"]),
    "variable": st.sampled_from([*(each.name for each in VARIABLES), "encoder/*", "*"]),
    "replica": st.sampled_from([0, 1]),
    "worker": st.sampled_from(["worker:0", "worker:1", "worker:*"]),
    "optimizer": st.sampled_from(["Adam", "SGD", "*d*"]),
    "method": st.sampled_from([each.name for each in METHODS] + ["_resource_apply_*"]),
    "step": st.integers(1, 50) | RANGES,
}
COMMON = ["kind", "variable", "replica", "worker", "optimizer"]
ALLOWED = {
    "updates": [*COMMON, "step"],
    "requests": [*COMMON, "step"],
    "executions": [*COMMON, "step", "method"],
    "calls": [*COMMON, "method"],
}


Question = tuple[TraceData, str, dict[str, Any]]
"""Data, what to ask for, and filters."""


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Data, what to ask for, and up to three filters."""
    what = draw(st.sampled_from(sorted(ALLOWED)))
    chosen = draw(st.lists(st.sampled_from(ALLOWED[what]), unique=True, max_size=3))
    return draw(trace_data()), what, {name: draw(FILTERS[name]) for name in chosen}


# The questions.


@given(questions(), st.data())
def test_a_split_counts_the_events(question: Question, more: st.DataObject) -> None:
    data, what, filters = question
    keys = ["variable", "replica", "worker", "optimizer", "method", "kind"]
    keys.append("context" if what == "calls" else "step")
    by = more.draw(st.lists(st.sampled_from(keys), unique=True, max_size=3))
    counts = Counter[tuple[object, ...]]()
    for event in selected(data, what, filters):
        if "step" not in by or event.step is not None:
            counts[tuple(getattr(event, key) for key in by)] += 1
    found = Trace(data).count(what, by, **filters)  # type: ignore[call-overload]  # drawn strings
    assert {key: number for key, number in found.items() if number} == counts
    number = len(selected(data, what, filters))
    assert Trace(data).count(what, **filters) == number  # type: ignore[call-overload]  # drawn
    if what != "requests":
        assert getattr(Trace(data), what)(**filters) == number


@given(questions())
def test_per_step_covers_every_step(question: Question) -> None:
    data, what, filters = question
    if what == "calls":
        return
    counts = Counter(event.step for event in selected(data, what, filters))
    found = list(Trace(data).per_step(what, **filters))  # type: ignore[arg-type]  # drawn
    assert [(step, count) for first, last, count in found for step in range(first, last + 1)] == [
        (step, counts[step]) for step in range(1, last_step(data) + 1)
    ]
    assert all(before[2] != after[2] for before, after in pairwise(found))


# By hand.


@pytest.fixture
def trace() -> Trace:
    """64 steps on 2 replicas; the dense updates skip step 33; one of 3 loops is step_unknown."""
    step = (Entry(0, 0, "step", None, ()),)
    updates = (
        Entry(0, 1, "update", "dense", (0, 1)),
        Entry(0, 3, "update", "sparse", (2,)),
        Entry(0, 2, "apply", "sparse", (2,)),
    )
    runs = (Run(1, 1, 32), Run(34, 1, 31))
    blocks = []
    for replica in (0, 1):
        blocks.append(Block(0, replica, "graph", "f", True, step, 64, (Run(1, 1, 64),)))
        blocks.append(Block(0, replica, "graph", "branch", False, updates, 63, runs))
    loop = (Entry(1, 1, "update", "dense", (3,), times=2),)
    blocks.append(Block(0, 0, "graph", "loop", False, loop, 3, (Run(5, 5, 2),)))
    steps = (called(0, (), eager=1, kind=None), called(0, (), tracing=2, kind=None))
    calls = (called(1, (0, 1), tracing=2), *steps)
    return Trace(TraceData(OPTIMIZERS, VARIABLES, METHODS, REPLICAS, tuple(blocks), calls))


def test_steps_are_numbered_from_1(trace: Trace) -> None:
    assert trace.updates(step=range(0)) == 0
    assert trace.count("updates", by="step", step=range(0)) == {}
    for before in (0, -1, range(3), range(5, -1, -1)):
        with pytest.raises(UnknownName, match="steps are numbered from 1"):
            trace.updates(step=before)


def test_a_trace_in_one_line(trace: Trace) -> None:
    assert repr(trace) == "<Trace of 64 steps, 384 updates>"


# The variable itself.


def keras_variable(path: str) -> SimpleNamespace:
    return SimpleNamespace(path=path, name="kernel")


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        (keras_variable("encoder/kernel"), "encoder/kernel"),
        (SimpleNamespace(name="encoder/kernel:0"), "encoder/kernel"),
        (SimpleNamespace(name="encoder/kernel/replica_1:0"), "encoder/kernel"),
        (SimpleNamespace(name="encoder/replica_x/kernel:0"), "encoder/replica_x/kernel"),
    ],
)
def test_the_plain_name_of_a_variable(variable: object, name: str) -> None:
    assert plain_name(variable) == name


def test_a_path_with_brackets_is_no_glob(trace: Trace) -> None:
    assert trace.updates(variable=keras_variable("list[0]/kernel")) == 6
    assert trace.updates(variable="list[0]/kernel") == 6
    assert trace.updates(variable="list[0-9]/kernel") == 0  # the glob: list0/kernel
    with pytest.raises(UnknownName):
        trace.updates(variable=keras_variable("list[0-9]/kernel"))


def test_variables_with_one_name_are_identified_by_the_object_they_are() -> None:
    variables = (Variable("kernel", (1,), "float32"), Variable("kernel#2", (1,), "float32"))
    entries = (
        Entry(0, 1, "update", "dense", (0,), times=2),
        Entry(0, 1, "update", "dense", (1,), times=5),
    )
    block = Block(0, 0, "graph", "f", True, entries, 1, (Run(1, 1, 1),))
    data = TraceData(OPTIMIZERS, variables, METHODS, REPLICAS, (block,), ())
    first, second = keras_variable("kernel"), keras_variable("kernel")
    known = {id(first): 0, id(second): 1}
    live = Trace(data, lambda each: known.get(id(each)))
    assert (live.updates(variable=first), live.updates(variable=second)) == (2, 5)
    assert (live.updates(variable="kernel"), live.updates(variable="kernel#2")) == (2, 5)
    assert live.updates(variable="kernel*") == 7
    with pytest.raises(UnknownName, match="the object alone identifies"):
        Trace(data).updates(variable=first)  # a loaded trace has only names


def test_a_trace_that_knows_its_variables_takes_no_other_of_the_name(trace: Trace) -> None:
    own, other = SimpleNamespace(name="encoder/bias:0"), SimpleNamespace(name="encoder/bias:0")
    live = Trace(trace.data, lambda each: 1 if each is own else None)
    assert live.updates(variable=own) == live.updates(variable="encoder/bias") == 126
    with pytest.raises(UnknownName, match="this object is not the variable 'encoder/bias'"):
        live.updates(variable=other)
    with pytest.raises(UnknownName, match=r"no variable 'encoder/bios': .*encoder/bias"):
        live.updates(variable=SimpleNamespace(name="encoder/bios:0"))
    with pytest.raises(TypeError, match="variable must be a name, a glob or a variable"):
        live.updates(variable=3)


# Names that the trace does not hold.


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"variable": "encoder/kernle"}, "no variable 'encoder/kernle': .*encoder/kernel"),
        ({"method": "_resource_apply_dens"}, "no method .*: .*_resource_apply_dense"),
        ({"optimizer": "Adm"}, "no optimizer 'Adm': the trace holds Adam"),
        ({"worker": "worker:7"}, "no worker 'worker:7': .*worker:0, worker:1|worker:1, worker:0"),
        ({"replica": 5}, "no replica '5': the trace holds 0, 1"),
        ({"kind": "dens"}, "no kind 'dens': the trace holds dense"),
    ],
)
def test_an_unknown_name_lists_the_near_ones(trace: Trace, filters: Any, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        trace.executions(**filters)
    with pytest.raises(UnknownName, match=message):
        list(trace.per_step("executions", **filters))


def test_an_unknown_count_or_key(trace: Trace) -> None:
    with pytest.raises(UnknownName, match="no count 'update': the trace holds updates"):
        trace.count("update", by=["step"])  # type: ignore[call-overload]  # the point
    with pytest.raises(UnknownName, match="no count per step 'calls'"):
        trace.per_step("calls")  # type: ignore[arg-type]  # the point
    with pytest.raises(UnknownName, match="split calls by: 'step'"):
        trace.count("calls", by=["step"])
    with pytest.raises(UnknownName, match="split updates by: 'layer'"):
        trace.count("updates", by=["layer"])  # type: ignore[call-overload]  # the point


def test_an_unknown_filter_or_type_of_step(trace: Trace) -> None:
    with pytest.raises(TypeError, match="updates has no filter 'layer'"):
        trace.count("updates", by=["kind"], layer="encoder")
    with pytest.raises(TypeError, match="calls has no filter 'step'"):
        trace.count("calls", by=["kind"], step=3)
    for step in ("3", 3.0, True):
        with pytest.raises(TypeError, match="step must be an int or a range"):
            trace.updates(step=step)  # type: ignore[arg-type]  # the point


def test_a_class_means_all_of_its_optimizers() -> None:
    trace = traces.two_optimizers()
    assert trace.updates(optimizer="Adam") == trace.updates() == 10 * 2 + 30
    assert trace.updates(optimizer="adam") == 10 * 2


def test_no_names_at_all() -> None:
    with pytest.raises(UnknownName, match="no variable 'a': the trace holds no variable at all"):
        traces.nothing().updates(variable="a")


# Long runs.


@pytest.fixture
def cheap() -> Iterator[None]:
    """A question to a long trace costs nothing that depends on its steps."""
    with at_most(5_000):
        yield


@pytest.mark.usefixtures("cheap")
def test_a_million_steps_answer_at_once() -> None:
    entries = (Entry(0, 0, "step", None, ()), Entry(0, 1, "update", "dense", (0, 1)))
    accumulating = (Entry(0, 1, "update", "dense", (2,)),)
    blocks = (
        Block(0, 0, "graph", "f", True, entries, 10**6, (Run(1, 1, 10**6),)),
        Block(0, 0, "graph", "branch", False, accumulating, 250_000, (Run(4, 4, 250_000),)),
    )
    trace = Trace(TraceData(OPTIMIZERS, VARIABLES, METHODS, REPLICAS, blocks, ()))
    assert trace.updates() == 2_250_000
    assert trace.updates(step=range(2, 10**6 + 1)) == 2 * 999_999 + 250_000
    assert trace.updates(step=10**6) == 3
    assert trace.count("updates", by=["variable"], step=range(1, 500_001)) == {
        ("encoder/kernel",): 500_000,
        ("encoder/bias",): 500_000,
        ("head/kernel",): 125_000,
    }
    assert list(trace.per_step("executions", method="apply_gradients")) == [(1, 10**6, 1)]
    assert list(islice(trace.per_step("updates"), 3)) == [(1, 3, 2), (4, 4, 3), (5, 7, 2)]
