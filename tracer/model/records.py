"""The plain records that a trace is made of. No TensorFlow, no state, no queries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import msgspec

from tracer.model.runs import Run

Kind = Literal["dense", "sparse", "none"]
"""What a gradient was: a tensor, a `tf.IndexedSlices`, or `None`."""

Role = Literal["step", "update", "ineffective", "discarded", "apply", "request"]
"""What an entry counts: an execution of `apply_gradients` or `apply` (`step`), of the outermost
apply method on a variable (`update`; `ineffective` if the method assigns nothing to that variable;
`discarded` if its result was computed and thrown away, as JAX does while gradients accumulate), of
an apply method inside another one (`apply`), or a gradient that was passed to the outermost
`apply_gradients` (`request`, which is no execution)."""


Setting = bool | int | float | str
"""A plain attribute of an optimizer."""


class Remark(msgspec.Struct, frozen=True):
    """Evidence for a rule of `tracer.findings`: what was seen of an optimizer, and not counted."""

    code: str
    """The rule that it is for."""
    method: str = ""
    """The method that it is about."""
    detail: str = ""
    """What the rule needs to name, an attribute for example."""
    where: str = ""
    """The line of the program: `train.py:12`; empty if it is not known."""
    variables: tuple[str, ...] = ()
    """The names of the variables that it is about; the optimizer need not have them."""
    count: int = 0
    """How often it was so: `count` times, `of` so many."""
    of: int = 0
    runs: tuple[Run, ...] = ()
    """In which steps, as far as that is known."""


class Decay(msgspec.Struct, frozen=True):
    """What weight decay leaves out, by `exclude_from_weight_decay`."""

    rate: float
    unmatched: tuple[str, ...]
    """The exceptions that match none of its variables, as people read them: `'LayerNorm'`."""
    matched: bool
    """Whether any variable is left out."""
    decayed: tuple[str, ...]
    """The variables that decay."""
    searched: str
    """A name as Keras searches it for a pattern: `dense/kernel:0`."""


class Failure(msgspec.Struct, frozen=True):
    """A call of the outermost step method that an exception ended, while Python was in it."""

    method: str
    error: str
    """The exception, in one line: `ValueError: Unknown variable`."""
    cause: Literal["unknown", "creation", "none", "other"]
    """Why: the optimizer was built for other variables than it was passed; it had to make variables
    where a `tf.function` may not make any more; each gradient was None; something else."""
    variables: tuple[str, ...]
    """The variables that it is about; of `unknown` those that it was not built for."""
    after: int
    """How many steps had run when it came."""
    function: str = ""
    """The function that was being traced; empty in eager mode."""
    last: bool = True
    """Whether no step of the optimizer began after it."""


class Optimizer(msgspec.Struct, frozen=True):
    """A traced optimizer."""

    name: str
    class_name: str
    kind: str
    """`legacy`, `keras2`, `keras3` or `v1`: see `tracer.kinds`."""
    root: int
    """The index of the outermost optimizer around it; its own index if it is the root."""
    settings: dict[str, Setting] = {}
    """Its settings that change the counts: `{"gradient_accumulation_steps": 4, ...}`; and
    `dynamic_scale`, the present loss scale of Keras 3."""
    iterations: int | None = None
    """How far its `iterations` moved since it was wrapped; None if they cannot be read."""
    remarks: tuple[Remark, ...] = ()
    made: str = ""
    """The line of the program that made it, or wrapped it: `train.py:30`; empty if not known."""
    never_passed: tuple[str, ...] = ()
    """Variables of the model that became trainable after its step was traced, and that no optimizer
    got, although training continued: see the freeze monitors."""
    frozen: tuple[str, ...] = ()
    """Variables of the model that were frozen after its step was traced, but that a graph still
    updated later: see the freeze monitors."""
    failures: tuple[Failure, ...] = ()
    """The steps that raised; steps with the same error stand once."""
    turns: tuple[int, int] = (0, 0)
    """Its first and its last turn. An optimizer takes the next turn when it steps after another one
    of the process: see `core.optimizers.take_turn`. Both are 0 if not known."""
    decay: Decay | None = None
    """None if every variable decays."""
    rate: float | None = None
    """Its learning rate at the end of its first step; None for a schedule, or if not known."""
    values: int | None = None
    """A hash of the values of some of its variables when its first step was traced: it tells
    training that continues from training that begins again. None if not known."""
    slots: int | None = None
    """How many slot variables it keeps on each replica; None if not known."""


class Variable(msgspec.Struct, frozen=True):
    """A variable that an optimizer was asked to update."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    argument: bool = False
    """True for an argument of a `tf.function`: the trace cannot know which variable was passed."""
    part_of: str = ""
    """If this is a shard, the name of the sharded variable; else empty."""
    shards: int = 1
    """How many ranks or devices hold and update a shard of it; `shape` is the whole shape."""


class Method(msgspec.Struct, frozen=True):
    """An intercepted method."""

    name: str
    role: Literal["step", "apply"]


class Replica(msgspec.Struct, frozen=True):
    """A replica of a worker. `worker` is TensorFlow's name (`worker:0`), empty for a local run."""

    worker: str
    id: int
    device: str


class Line(msgspec.Struct, frozen=True):
    """One element of a path of calls: a line of the program, or a call of the framework."""

    function: str
    """The function with the line, as `MyModel.train_step`; `<module>` outside functions. For the
    framework its public name: `Model.fit`, `Strategy.run`, `Adam.minimize`."""
    file: str = ""
    """The file of the program; empty for the framework."""
    number: int = 0
    """The line in that file; 0 for the framework."""
    graph: bool = False
    """True for a `tf.function` where its graph begins: the path before it ran the graph, the path
    after it traced the graph."""


class Entry(msgspec.Struct, frozen=True):
    """What one execution of a block does with one method: `times` times on each variable."""

    optimizer: int
    method: int
    role: Role
    kind: Kind | None
    """The gradient's kind; None for a step method."""
    variables: tuple[int, ...]
    """Indices of variables; empty for a step method, which has none."""
    times: int = 1


class Block(msgspec.Struct, frozen=True):
    """Sites that always execute together on one replica: the body of a graph, or an eager step."""

    root: int
    """The index of the root optimizer; `runs` are in its steps."""
    replica: int
    context: Literal["eager", "graph"]
    function: str
    """The name of the function that was traced to the graph; empty in eager mode."""
    step: bool
    """True if one execution is one step; False for a branch or a loop body inside a step."""
    entries: tuple[Entry, ...]
    total: int
    """How often the block executed; always exact."""
    runs: tuple[Run, ...]
    """The steps of the executions. They add up to `total`, unless some steps are not known."""
    graphs: int = 0
    """How many graph tracings made this block."""
    idle: int = 0
    """How many of those graphs never executed."""
    outside: bool = False
    """True if a direct call of an apply method ran it, outside any step."""
    path: int | None = None
    """The index of the path of calls that led to it; None if not known. If several lines of the
    program run one graph, there is a block for each path."""

    @property
    def step_unknown(self) -> int:
        """The executions whose step is unknown."""
        return self.total - sum(run.total for run in self.runs)


class Graph(msgspec.Struct, frozen=True):
    """All graph tracings of one function with one signature that hold a step or an update."""

    root: int
    replica: int
    """The first replica that it updates."""
    function: str
    signature: str
    """The arguments of the tracing: `x: float32[32, 4], training: True`; empty if not known."""
    tracings: int
    idle: int
    """How many of the tracings never ran."""
    steps: int
    """How many steps ran in it on each replica; if it holds no step, how many updates."""
    after: int
    """How many steps had run when it was first traced."""
    step_calls: int
    """How many calls of `apply_gradients` its code has; the body of a loop counts once."""
    failed: int = 0
    """How many of the idle tracings ended with an error in the optimizer."""
    parted: bool = True
    """Whether one of several calls of `apply_gradients` has other variables than the call before
    it, or the same gradients. If not, each call is a step for all variables."""

    @property
    def calls(self) -> int:
        """How often Python called `apply_gradients` while it was traced."""
        return self.tracings * self.step_calls


class GraphTracing(msgspec.Struct, frozen=True):
    """One graph tracing, as an event. Only the first are kept; `Graph.tracings` counts all."""

    graph: int
    """The index of its `Graph`."""
    path: int | None
    """The index of the path of the call that caused it; None if not known."""
    cause: Literal["first", "variables", "argument", "value", "function", "forgotten", "unknown"]
    """Why: `first`, the first call; `variables`, the first call made variables; `argument`, another
    shape, type or structure; `value`, another Python value; `function`, a new function object of
    the same code; `forgotten`, the optimizer was wrapped late or the program compiled again."""
    detail: str
    """For `argument` and `value`, what changed: `x: float32[32, 4] -> float32[8, 4]`."""
    after: int
    """How many steps had run before it began."""
    at: float
    """When it began, in seconds since 1970 (UTC)."""
    seconds: float
    """How long it took."""


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
    path: int | None = None
    """The index of the path of calls by which they came; None if that is not known."""


Observation = Literal["compared", "unchanged", "not_finite", "zero_gradient"]
"""What is seen of a variable in a step: that it was looked at, that no bit of its memory changed,
that something in it was infinite or NaN when the step had ended, that its gradient was 0
as far as that is known: a gradient in a program of XLA is not looked at."""
OBSERVATIONS: tuple[Observation, ...] = get_args(Observation)


class Effect(msgspec.Struct, frozen=True):
    """In which steps the same was seen of each of `variables`, where effects were asked for."""

    root: int
    replica: int
    what: Observation
    variables: tuple[int, ...]
    """Indices of variables."""
    total: int
    """In how many steps, of each of the variables."""
    runs: tuple[Run, ...]
    """Those steps; short of the total where their detail was lost."""


class RateRun(msgspec.Struct, frozen=True, array_like=True):
    """Steps in a row in which a rate stayed as it was, or moved one way."""

    first: int
    count: int
    """How many steps; the rate has one value in each."""
    value: float
    """In the first of them."""
    last: float
    """In the last of them."""
    values: int = 1
    """How many values it had in turn, as far as it was read."""

    @property
    def ends(self) -> tuple[float, float]:
        """The values in the first and in the last of the steps, between which all others are."""
        return self.value, self.last

    def intersect(self, steps: range) -> "RateRun | None":
        """The part that is in `steps`, renumbered from step 1; None if none is.

        What moved has to be in them as a whole: its values in between are not known.

        >>> RateRun(1, 10, 0.1, 0.1).intersect(range(4, 6))
        RateRun(first=1, count=2, value=0.1, last=0.1, values=1)
        """
        first, end = max(self.first, steps.start), min(self.first + self.count, steps.stop)
        if first >= end or (self.values > 1 and end - first < self.count):
            return None
        return RateRun(first - steps.start + 1, end - first, self.value, self.last, self.values)


class Rate(msgspec.Struct, frozen=True):
    """The learning rate, or the weight decay, of one group of variables over the steps.

    Of what runs in programs it is read when one is called: each of the first times, then now and
    then. A change between two readings is a run of all steps between them.
    """

    root: int
    what: Literal["rate", "decay"]
    group: int
    """The number of the group, from 0 on; optimizers without groups have one."""
    variables: tuple[int, ...]
    """Indices of those variables of the group that were asked for; of a decay, those that decay."""
    runs: tuple[RateRun, ...]
    """Its values in the order of the steps; steps in which it is not known are left out."""
    sampled: bool = False
    """Whether it was read now and then, so that it may have had more values."""
    schedule: str = ""
    """What sets it in the program, where no value is known: `CosineDecay(decay_steps=100)`."""


TERMINATED = -15
"""The status of a process that SIGTERM ended, as `subprocess` has it."""


class Program(msgspec.Struct, frozen=True):
    """A process that ran under `tracer run`, and how it ended."""

    command: str
    """As it was typed after `tracer run`, without secrets: `train.py --epochs 3`; see
    `tracer.model.redaction`."""
    started: float
    """When, in seconds since 1970 (UTC)."""
    seconds: float
    """How long it had run when this was written."""
    worker: str = ""
    """TensorFlow's name of the worker, or `process:2` for the second process of a run that is not a
    worker; empty for a local run."""
    status: int | None = None
    """Its exit status, or `TERMINATED`; None while it runs, or if not known."""
    error: str = ""
    """The exception that ended it: `RuntimeError: no data`; empty if there was none."""
    run: str = ""
    """The same for all processes of one `tracer run --children`, and for no other; else empty."""
    timed_steps: int = 0
    timed_seconds: float = 0.0
    """How many seconds that many steps took, between two writes of the trace file; 0 if the run was
    too short."""
    finished: bool = True
    """False if it was still running at the last write of its file."""


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
    excerpt: str = ""
    """What an excerpt is limited to, a sentence for people; empty for a whole trace."""
    first_step: int = 1
    """The number that the step 1 of an excerpt has in the run."""
    programs: tuple[Program, ...] = ()
    """The processes that ran under `tracer run`; none where a program asked for its own trace."""
    lines: tuple[Line, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    """Each is indices of `lines`, from the program's outermost line to the intercepted method."""
    graph_tracings: tuple[GraphTracing, ...] = ()
    """In the order in which they began."""
    effects: tuple[Effect, ...] = ()
    """What steps did to the variables; none where it was not asked for."""
    rates: tuple[Rate, ...] = ()
    """The learning rates and decays that are known, as the first process had them."""


INDICES: Mapping[type, Mapping[str, str]] = {
    Optimizer: {"root": "optimizers"},
    Block: {"root": "optimizers", "replica": "replicas", "path": "paths"},
    Entry: {"optimizer": "optimizers", "method": "methods", "variables": "variables"},
    Calls: {
        "optimizer": "optimizers",
        "method": "methods",
        "replica": "replicas",
        "variables": "variables",
        "path": "paths",
    },
    Graph: {"root": "optimizers", "replica": "replicas"},
    GraphTracing: {"graph": "graphs", "path": "paths"},
    Effect: {"root": "optimizers", "replica": "replicas", "variables": "variables"},
    Rate: {"root": "optimizers", "variables": "variables"},
}
"""The fields that are indices, each with its table of a `TraceData`."""

_Record = TypeVar("_Record", bound=msgspec.Struct)


def with_indices(
    records: Iterable[_Record], change: Mapping[str, Callable[[Any], Any]]
) -> Iterator[_Record]:
    """The records with other indices, which `change` gives for the tables that it names.

    It is called with an index, or with all indices of variables. A record is left out where it
    gives None, or leaves no variable.
    """
    for record in records:
        new = {
            field: change[table](index)
            for field, table in INDICES.get(type(record), {}).items()
            if table in change and (index := getattr(record, field)) is not None
        }
        if not any(n is None or n == () != getattr(record, field) for field, n in new.items()):
            if change and isinstance(record, Block):
                new["entries"] = tuple(with_indices(record.entries, change))
            yield msgspec.structs.replace(record, **new) if new else record


def rates_in(rates: Iterable[Rate], steps: range) -> Iterator[Rate]:
    """The rates as far as they are known in those steps, renumbered from step 1."""
    for rate in rates:
        found = (run.intersect(steps) for run in rate.runs)
        runs = tuple(each for each in found if each is not None)
        if runs or rate.schedule:
            yield msgspec.structs.replace(rate, runs=runs)


def contribution(entry: Entry, variables: Sequence[int] | frozenset[int] | None) -> int:
    """What one execution of its block adds for `entry`, of `variables` only, or of all if None."""
    if variables is None:
        return entry.times * max(1, len(entry.variables))
    return entry.times * sum(index in variables for index in entry.variables)
