"""The plain records that a trace is made of. No TensorFlow, no state, no queries."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

Kind = Literal["dense", "sparse", "none"]
"""What a gradient was: a tensor, a `tf.IndexedSlices`, or `None`."""

Role = Literal["step", "update", "apply", "request"]
"""What an entry counts: an execution of `apply_gradients` or `apply` (`step`), of the outermost
apply method on a variable (`update`), of an apply method inside another one (`apply`), or a
gradient that was handed to the outermost `apply_gradients` (`request`, which is no execution)."""


Setting = bool | int | float | str
"""A plain attribute of an optimizer."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Steps `first`, `first + stride`, ... (`count` of them), each with `times` executions.

    >>> Run(first=2, stride=4, count=3).last
    10
    """

    first: int
    stride: int
    count: int
    times: int = 1

    @property
    def last(self) -> int:
        """The last step of the run."""
        return self.first + (self.count - 1) * self.stride

    @property
    def total(self) -> int:
        """The executions in the whole run."""
        return self.count * self.times

    def within(self, steps: range) -> int:
        """The executions in those of `steps` (a range with a positive step) that the run covers.

        >>> Run(first=4, stride=4, count=4).within(range(1, 10))
        2
        >>> Run(first=4, stride=4, count=4).within(range(2, 100, 6))
        1
        """
        covered = self.only(steps)
        return covered.total if covered else 0

    def only(self, steps: range) -> "Run | None":
        """The part of the run that is in `steps` (a range with a positive step); None if none is.

        >>> Run(first=4, stride=4, count=40).only(range(2, 100, 6))
        Run(first=8, stride=12, count=8, times=1)
        """
        low, high = max(self.first, steps.start), min(self.last, steps.stop - 1)
        if low > high:
            return None
        gcd = math.gcd(self.stride, steps.step)
        if (steps.start - self.first) % gcd:
            return None
        stride = self.stride // gcd * steps.step  # common steps recur every lcm(strides)
        turns = (steps.start - self.first) // gcd * pow(self.stride // gcd, -1, steps.step // gcd)
        common = self.first + self.stride * (turns % (steps.step // gcd))
        first = common + -((common - low) // stride) * stride
        if first > high:
            return None
        count = (high - first) // stride + 1
        return Run(first, stride if count > 1 else 1, count, self.times)


def fold(steps: Iterable[tuple[int, int]]) -> list[Run]:
    """The fewest runs, greedily, for `(step, times)` pairs in rising order of step.

    >>> fold([(1, 1), (2, 1), (3, 1), (5, 2)])
    [Run(first=1, stride=1, count=3, times=1), Run(first=5, stride=1, count=1, times=2)]
    """
    return join(Run(step, 1, 1, times) for step, times in steps)


def join(runs: Iterable[Run]) -> list[Run]:
    """The same steps in fewer runs: neighbours that continue one arithmetic progression become one.

    Runs out of order are left as they are.

    >>> join([Run(1, 1, 30), Run(31, 1, 2), Run(40, 1, 1), Run(42, 1, 1), Run(44, 1, 1)])
    [Run(first=1, stride=1, count=32, times=1), Run(first=40, stride=2, count=3, times=1)]
    """
    joined: list[Run] = []
    for run in runs:
        previous = joined[-1] if joined else None
        if previous is None or previous.times != run.times or run.first <= previous.last:
            joined.append(run)
            continue
        gap = run.first - previous.last
        stride = gap if previous.count == 1 else previous.stride
        if gap == stride and (run.count == 1 or run.stride == stride):
            joined[-1] = Run(previous.first, stride, previous.count + run.count, run.times)
        elif gap == stride and previous.count > 1:
            # The run's first step still belongs to the progression before it.
            joined[-1] = Run(previous.first, stride, previous.count + 1, run.times)
            left = run.count - 1
            joined.append(
                Run(run.first + run.stride, run.stride if left > 1 else 1, left, run.times)
            )
        else:
            joined.append(run)
    return joined


def segments(weighted: Iterable[tuple[Run, int]], steps: int) -> Iterator[tuple[int, int, int]]:
    """Runs of equal counts over the steps 1 to `steps`, from runs with what each adds to a step."""
    changes = heapq.merge(*(_changes(run, weight) for run, weight in weighted))
    start, count = 1, 0
    for step, group in groupby(changes, key=lambda change: change[0]):
        difference = sum(change for _, change in group)
        if difference and step <= steps:
            if step > start:
                yield start, step - 1, count
            start, count = step, count + difference
    if start <= steps:
        yield start, steps, count


def _changes(run: Run, weight: int) -> Iterator[tuple[int, int]]:
    """The steps at which the count changes because of `run`, with the change, in rising order."""
    if run.stride == 1:
        yield run.first, weight
        yield run.last + 1, -weight
        return
    for step in range(run.first, run.last + 1, run.stride):
        yield step, weight
        yield step + 1, -weight


class Remark(msgspec.Struct, frozen=True):
    """What the class of an optimizer shows before it trains: see `tracer.hooks.inspection`."""

    code: str
    """Which rule of `tracer.findings` it is for."""
    method: str
    """The method that it is about."""
    detail: str = ""
    """What the rule needs to name, an attribute for example."""


class Optimizer(msgspec.Struct, frozen=True):
    """A traced optimizer."""

    name: str
    class_name: str
    kind: str
    """`legacy`, `keras2`, `keras3` or `v1`: see `tracer.kinds`."""
    root: int
    """The index of the outermost optimizer that it is nested in; its own if it is the root."""
    settings: dict[str, Setting] = {}
    """What it was told that changes the counts: `{"gradient_accumulation_steps": 4, ...}`."""
    iterations: int | None = None
    """How far its own count of steps moved since it was wrapped; None if that cannot be read."""
    remarks: tuple[Remark, ...] = ()


class Variable(msgspec.Struct, frozen=True):
    """A variable that an optimizer was asked to update."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    argument: bool = False
    """True for a `tf.function` argument: which variable it stood for, the trace cannot know."""
    part_of: str = ""
    """The name of the sharded variable that it is a shard of; empty for a whole one."""


class Method(msgspec.Struct, frozen=True):
    """An intercepted method."""

    name: str
    role: Literal["step", "apply"]


class Replica(msgspec.Struct, frozen=True):
    """A replica of a worker. `worker` is TensorFlow's name (`worker:0`), empty for a local run."""

    worker: str
    id: int
    device: str


class Entry(msgspec.Struct, frozen=True):
    """What one execution of a block does: `times` times each of `variables`, by one method."""

    optimizer: int
    method: int
    role: Role
    kind: Kind | None
    """The gradient's kind; None for a step method."""
    variables: tuple[int, ...]
    """Indices of variables; empty for a step method, which has none."""
    times: int = 1


class Block(msgspec.Struct, frozen=True):
    """What executes as a whole on one replica: one graph's body, or an eager step."""

    root: int
    """The root optimizer's index, whose steps the runs count."""
    replica: int
    context: Literal["eager", "graph"]
    function: str
    """The name of the function whose graph it is; empty in eager mode."""
    step: bool
    """True if one execution is one step; False for a branch or a loop body inside a step."""
    entries: tuple[Entry, ...]
    total: int
    """How often the block executed. Exact, whatever the runs know."""
    runs: tuple[Run, ...]
    """In which steps. Together they are `total`, unless the detail was lost."""
    graphs: int = 0
    """How many graph tracings gave this block."""
    idle: int = 0
    """How many of those graphs never executed."""
    outside: bool = False
    """True if it ran outside any step, by a direct call of an apply method."""

    @property
    def unplaced(self) -> int:
        """The executions of which the step is not known."""
        return self.total - sum(run.total for run in self.runs)


class Graph(msgspec.Struct, frozen=True):
    """The graph tracings of one function with one signature, with a step or an update in them."""

    root: int
    replica: int
    """The first of the replicas that it updates."""
    function: str
    signature: str
    """What the function was traced for, as `x: float32[32, 4], training: True`; empty if that is
    not known."""
    tracings: int
    idle: int
    """How many of the tracings never ran."""
    steps: int
    """How many steps ran in it, on each replica; or updates, if it holds no step."""
    after: int
    """How many steps had run when it was first traced."""
    step_calls: int
    """How often its code calls `apply_gradients`; a loop's body counts once."""


class Calls(msgspec.Struct, frozen=True):
    """Python calls of one method on each of `variables`: `eager` and `tracing` of them on each."""

    optimizer: int
    method: int
    kind: Kind | None
    replica: int
    variables: tuple[int, ...]
    """Indices of variables; empty for a step method, whose counts then stand once."""
    eager: int
    tracing: int


class Program(msgspec.Struct, frozen=True):
    """A process that ran under `tracer run`, and how it ended."""

    command: str
    """As it was typed after `tracer run`: `train.py --epochs 3`."""
    started: float
    """When, in seconds since 1970 (UTC)."""
    seconds: float
    """How long it had run when this was written."""
    worker: str = ""
    """TensorFlow's name of the worker that it was; empty for a local run."""
    status: int | None = None
    """With which status it ended; None while it runs, and where that cannot be known."""
    error: str = ""
    """The exception that ended it: `RuntimeError: no data`; empty if none did."""


class TraceData(msgspec.Struct, frozen=True):
    """Everything that a trace knows, as it is saved."""

    optimizers: tuple[Optimizer, ...]
    variables: tuple[Variable, ...]
    methods: tuple[Method, ...]
    replicas: tuple[Replica, ...]
    blocks: tuple[Block, ...]
    calls: tuple[Calls, ...]
    graphs: tuple[Graph, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    """Versions and the strategy, for people: `{"tensorflow": "2.21.0", ...}`."""
    finished: bool = True
    """False if the run went on when this was written: it is all that is left of one that was
    killed."""
    only: str = ""
    """What an excerpt is limited to, a sentence for people; empty for a whole trace."""
    first_step: int = 1
    """The number that the step 1 of an excerpt has in the run."""
    programs: tuple[Program, ...] = ()
    """The processes that ran under `tracer run`; none where a program asked for its own trace."""


def contribution(entry: Entry, variables: Sequence[int] | frozenset[int] | None) -> int:
    """What one execution of its block adds for `entry`, of `variables` only, or of all if None."""
    if variables is None:
        return entry.times * max(1, len(entry.variables))
    return entry.times * sum(index in variables for index in entry.variables)
