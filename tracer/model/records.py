"""Defines the plain records of a trace. No TensorFlow, no state, no queries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeVar, get_args

import msgspec

from tracer.kinds import OPTAX, TORCH
from tracer.model.evidence import Evidence
from tracer.model.timeline import Run

Kind = Literal["dense", "sparse", "none"]
"""The kind of a gradient: a tensor, a `tf.IndexedSlices`, or `None`."""

Observation = Literal["compared", "unchanged", "not_finite"]
"""An observation of a variable in a step. `compared`: it was examined. `unchanged`: no bit changed.
`not_finite`: it held infinity or NaN after the step."""
OBSERVATIONS: tuple[Observation, ...] = get_args(Observation)

Role = Literal[
    "step",
    "update",
    "discarded",
    "zeroed",
    "apply",
    "request",
    "call",
    "compared",
    "unchanged",
    "not_finite",
]
"""What an entry counts. `step`: an execution of `apply_gradients` or `apply`. `update`: an
execution of the outermost apply method on a variable; `discarded` if its result was thrown away, as
in JAX while gradients accumulate; `zeroed` if `set_to_zero` of optax replaced it by 0. `apply`: an
execution of an apply method inside another one. `request`: a gradient passed to the
outermost `apply_gradients`, which is no execution. `call`: a call by Python. The rest: see
`Observation`."""

Severity = Literal["error", "warning", "info"]

Natural = Annotated[int, msgspec.Meta(ge=0)]
"""A count or an index, which a file is refused for if it is negative."""

Setting = bool | int | float | str
"""A plain attribute of an optimizer."""


NoteKind = Literal["missed", "effects", "fact"]
"""What a note is about. `missed`: something was not counted, or is in doubt, so the trace is
incomplete. `effects`: some effects of steps are unknown, and no other count depends on them.
`fact`: nothing was missed, but it matters for the counts."""


class Note(msgspec.Struct, frozen=True):
    """A sentence about a trace."""

    text: str
    kind: NoteKind = "missed"
    worker: str = ""
    """The worker that the sentence is about, in the trace of several; else empty."""

    def __str__(self) -> str:
        """The sentence, with the worker.

        >>> str(Note("a call was missed", worker="rank:1"))
        'rank:1: a call was missed'
        """
        return f"{self.worker}: {self.text}" if self.worker else self.text


class Optimizer(msgspec.Struct, frozen=True):
    """A traced optimizer."""

    name: str
    class_name: str
    kind: str
    """`legacy`, `keras2`, `keras3`, `v1`, `torch` or `optax`: see `tracer.kinds`."""
    root: Natural
    """The index of the outermost optimizer around it; its own index for a root."""
    settings: dict[str, Setting] = {}
    """The settings that affect the counts: `{"gradient_accumulation_steps": 4, ...}`; and
    `dynamic_scale`, the current loss scale of Keras 3."""
    iterations: int | None = None
    """How far `iterations` moved since the optimizer was wrapped; None if unreadable."""
    evidence: tuple[Evidence, ...] = ()
    made: str = ""
    """The program line that made or wrapped the optimizer: `train.py:30`; empty if unknown."""
    made_as: tuple[int, int] = (0, 0)
    """Its number among the optimizers that the line `made`, and how many the line made: `(1, 2)`.
    Both are 0 if unknown."""


class Variable(msgspec.Struct, frozen=True):
    """A variable that an optimizer was asked to update, or that a model which it trains has."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    argument: bool = False
    """True for an argument of a `tf.function`: the variable passed is unknown."""
    shards: int = 1
    """The number of ranks or devices that hold and update a shard; `shape` is the whole shape."""


class Method(msgspec.Struct, frozen=True):
    """An intercepted method."""

    name: str
    role: Literal["step", "apply"]


class Replica(msgspec.Struct, frozen=True):
    """A replica of a `worker` (`worker:0`, or `rank:0` in PyTorch; empty for a local run)."""

    worker: str
    id: int
    device: str

    @property
    def label(self) -> str:
        """The name of the replica: `replica 1`, `worker:1 replica 0`, `rank 1`."""
        kind, _, number = self.worker.partition(":")
        if kind == "rank":
            return f"rank {number}"
        return f"{self.worker} replica {self.id}".lstrip()


class Line(msgspec.Struct, frozen=True):
    """An element of a path of calls: a program line or a call of the framework."""

    function: str
    """The function of the line: `MyModel.train_step`, or `<module>` outside functions. For the
    framework, the public name: `Model.fit`, `Strategy.run`, `Adam.minimize`."""
    file: str = ""
    """The program's file; empty for the framework."""
    number: int = 0
    """The line number; 0 for the framework."""
    graph: bool = False
    """True where the graph of a `tf.function` begins: the path is the one that traced the graph."""

    @property
    def label(self) -> str:
        """The text of a line, `train.py:41 main`, or the framework's public name.

        >>> Line("main", "train.py", 41).label, Line("Model.fit").label
        ('train.py:41 main', 'Model.fit')
        >>> Line("<module>", "train.py", 50).label
        'train.py:50'
        """
        if not self.file:
            return self.function
        function = "" if self.function in ("", "<module>") else f" {self.function}"
        return f"{self.file}:{self.number}{function}"


class Entry(msgspec.Struct, frozen=True):
    """What one execution of a block does with one method: `times` executions on each variable."""

    optimizer: Natural
    method: Natural
    """Its index; 0 for an observation."""
    role: Role
    kind: Kind | None
    """The kind of the gradient; None for a step method and for an observation."""
    variables: tuple[Natural, ...]
    """Indices of variables; empty for a step method."""
    times: Natural = 1


class Block(msgspec.Struct, frozen=True):
    """What always executes together on one replica: the body of a graph, or an eager step.

    Python's calls of a method are a block too, and so are the steps with the same observation.
    """

    root: Natural
    """The index of the root optimizer; `runs` have its steps."""
    replica: Natural
    context: Literal["eager", "graph", "tracing"]
    """`tracing`: Python's calls while a graph is traced."""
    function: str
    """The traced function; empty in eager mode."""
    step: bool
    """True if one execution is one step; False for a branch or loop body inside a step."""
    entries: tuple[Entry, ...]
    total: Natural
    """The number of executions; always exact."""
    runs: tuple[Run, ...]
    """The steps of the executions; their sum is `total`, unless some steps are unknown."""
    outside: bool = False
    """True if a direct call of an apply method ran the block outside of steps."""
    path: Natural | None = None
    """The index of the path to the block; None if unknown. If several program lines run one graph,
    each path has a block."""

    @property
    def step_unknown(self) -> int:
        """The executions whose step is unknown."""
        return self.total - sum(run.total for run in self.runs)


class Graph(msgspec.Struct, frozen=True):
    """All graph tracings, with a step or an update, of a function with one signature."""

    root: Natural
    replica: Natural
    """The first replica that the graph updates."""
    function: str
    signature: str
    """The traced arguments: `x: float32[32, 4], training: True`; empty if unknown."""
    tracings: Natural
    """The number of tracings; 0 if the function was traced before the trace began."""
    idle: Natural
    """The number of tracings that never ran."""
    steps: Natural
    """The number of steps run on each replica; without a step in it, the number of updates."""
    after: Natural
    """The number of steps before the first tracing."""
    failed: Natural = 0
    """The number of idle tracings that an error in the optimizer ended."""
    path: Natural | None = None
    """The index of the path to the call that caused the first tracing; None if unknown."""
    detail: str = ""
    """What changed for the first tracing: `x: float32[32, 4] -> float32[8, 4]`. Empty if no
    argument did since the function's tracing before, or there was none."""


class RateRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive steps in which a rate was known."""

    first: int
    count: int
    """The number of steps; each has one value."""
    value: float
    """The value in the first step."""
    last: float
    """The value in the last step."""
    values: int = 1
    """The number of successive values, as far as read."""
    turn: float | None = None
    """The greatest value if it is above `value` and `last`, else the least if it is below both."""


class Rate(msgspec.Struct, frozen=True):
    """The learning rate, or the weight decay, of a group of variables over the steps.

    For programs, it is read when a program is called: each time at first, then now and then. A
    change between two readings is a run over all steps in between.
    """

    root: Natural
    what: Literal["rate", "decay"]
    group: Natural
    """The number of the group, from 0; an optimizer without groups has one."""
    variables: tuple[Natural, ...]
    """Indices of the group's requested variables; for a decay, of the variables that decay."""
    runs: tuple[RateRun, ...]
    """The values in order of steps; steps with unknown values are left out."""
    looks: Natural = 0
    """How often the rate was read; 0 if each step was read."""
    schedule: str = ""
    """What sets the rate in the program, by name: `CosineDecay`."""
    not_finite: str = ""
    """`nan`, `inf` or `-inf` if it was that in the steps of the runs, which then have the value 0;
    the finite values are in another record."""


WhyNot = Literal["frozen", "not passed"]
"""Why an optimizer does not get a variable of a model that it trains. `not passed`: it is
trainable, and no optimizer of the trace gets it."""


class NotUpdated(msgspec.Struct, frozen=True):
    """Variables of models that an optimizer trains, and that it does not get.

    A variable that it gets has entries, which show why it is not updated: its gradients were None,
    for example.
    """

    root: Natural
    variables: tuple[Natural, ...]
    """Indices of variables."""
    why: WhyNot
    since: Natural = 0
    """The step after which this was so; 0 from the first step on."""


class Launch(msgspec.Struct, frozen=True):
    """The process of a trace, and what started it: see `tracer.model.launches`."""

    key: str = ""
    """Equal for the processes that train together."""
    run: str = ""
    """The folder's name of a `tracer run --children`, equal for all its processes; else empty."""
    host: str = ""
    process: int = 0
    process_started: int = 0
    """In ticks since the machine started; 0 if unknown."""
    started: float = 0.0
    """When the process first looked, in seconds since 1970 (UTC)."""
    saved: float = 0.0
    """When `tracer run` wrote the file, in seconds since 1970 (UTC); 0 for a file of `save`."""


class Finding(msgspec.Struct, frozen=True):
    """Something in a trace that looks wrong, or is good to know."""

    code: str
    """The rule's name: `tracer explain CODE`."""
    severity: Severity
    """`error`: training certainly does not do what the program says. `warning`: most probably a
    mistake. `info`: good to know, and often normal."""
    text: str
    """What looks wrong, in one sentence, with the variable, step and replica."""
    why: str
    """Why it matters."""
    advice: str
    """What to do."""
    variables: tuple[str, ...] = ()
    """The names of all variables concerned."""
    step: int | None = None
    """The first step concerned, from 1."""


class Program(msgspec.Struct, frozen=True):
    """A process that ran under `tracer run`, and how it ended."""

    command: str
    """The program, without arguments: `train.py` or `-m pkg.train`."""
    started: float
    """The start, in seconds since 1970 (UTC)."""
    worker: str = ""
    """The name of the worker (`worker:0`, `rank:0`), or `process:2` for the second process of a run
    if it is no worker; empty for a local run."""
    status: int | None = None
    """The exit status; None while running, or if unknown."""
    error: str = ""
    """The exception that ended the process: `RuntimeError: no data`; empty if none."""
    finished: bool = True
    """False if the process was still running at the last write of its file."""


_LIBRARIES = {TORCH: TORCH + ".optim", OPTAX: OPTAX}
"""The library of a kind of optimizer that is not of Keras."""


class TraceData(msgspec.Struct, frozen=True):
    """All data of a trace, as it is saved."""

    optimizers: tuple[Optimizer, ...]
    variables: tuple[Variable, ...]
    methods: tuple[Method, ...]
    replicas: tuple[Replica, ...]
    blocks: tuple[Block, ...]
    calls: tuple[Block, ...]
    """Python's calls of each method, eagerly and while tracing; they have no steps."""
    graphs: tuple[Graph, ...] = ()
    notes: tuple[Note, ...] = ()
    environment: dict[str, str] = {}
    """Versions and the strategy, for display: `{"tensorflow": "2.21.0", ...}`."""
    finished: bool = True
    """False if the run had not ended when this was written: after a kill, this is the last save."""
    programs: tuple[Program, ...] = ()
    """The processes under `tracer run`; empty if the program made its own trace."""
    lines: tuple[Line, ...] = ()
    paths: tuple[tuple[Natural, ...], ...] = ()
    """Indices of `lines`, from the program's outermost line to the intercepted method."""
    effects: tuple[Block, ...] = ()
    """What steps did to the variables; empty if effects were not requested."""
    rates: tuple[Rate, ...] = ()
    """The known learning rates and decays of the first process."""
    not_updated: tuple[NotUpdated, ...] = ()
    """The variables of the trained models that an optimizer does not get."""
    launch: Launch | None = None
    """The launch; for merged traces, that of the process that began last. None if unknown."""
    processes: tuple[str, ...] = ()
    """The names of the workers of a cluster, also of those that used no optimizer."""
    parts: tuple["TraceData", ...] = ()
    """The traces that were merged to this one; empty for the trace of one process."""

    @property
    def complete(self) -> bool:
        """False if anything was missed, other than effects."""
        return all(note.kind != "missed" for note in self.notes)

    def library(self, optimizers: Sequence[Optimizer] = ()) -> str:
        """The library of these optimizers, or of all: `torch.optim`, `optax` or what Keras runs on.

        For optimizers of several libraries, what Keras runs on; `tensorflow` if that is unknown.
        """
        kinds = {each.kind for each in optimizers or self.optimizers}
        if len(kinds) == 1 and (name := _LIBRARIES.get(next(iter(kinds)))):
            return name
        known = (each for each in ("tensorflow", "jax", "torch") if each in self.environment)
        return next(known, "tensorflow")

    def lines_of(self, path: int | None) -> list[Line]:
        """The lines of a path; empty if it is unknown."""
        return [] if path is None else [self.lines[index] for index in self.paths[path]]

    def origin(self, path: int | None) -> tuple[Line | None, bool]:
        """The program line that called, None if unknown, and True if it traced a graph.

        It is the innermost line of the path or, for steps in a graph, of the part before the graph.
        """
        lines = self.lines_of(path)
        graph = next((n for n, line in enumerate(lines) if line.graph), None)
        called = (line for line in reversed(lines[:graph]) if line.file)
        return next(called, None), graph is not None


INDICES: Mapping[type, Mapping[str, str]] = {
    Optimizer: {"root": "optimizers"},
    Block: {"root": "optimizers", "replica": "replicas", "path": "paths"},
    Entry: {"optimizer": "optimizers", "method": "methods", "variables": "variables"},
    Graph: {"root": "optimizers", "replica": "replicas", "path": "paths"},
    Rate: {"root": "optimizers", "variables": "variables"},
    NotUpdated: {"root": "optimizers", "variables": "variables"},
}
"""The fields that are indices, each with its table of a `TraceData`."""

_Record = TypeVar("_Record", bound=msgspec.Struct)


def with_indices(
    records: Iterable[_Record], change: Mapping[str, Callable[..., object]]
) -> Iterator[_Record]:
    """Yield the records with their indices changed by the functions in `change`, by table.

    A function gets an index, or all indices of variables.
    """
    for record in records:
        new = {
            field: change[table](index)
            for field, table in INDICES.get(type(record), {}).items()
            if table in change and (index := getattr(record, field)) is not None
        }
        if change and isinstance(record, Block):
            new["entries"] = tuple(with_indices(record.entries, change))
        yield msgspec.structs.replace(record, **new) if new else record


def rates_in(rates: Iterable[Rate], steps: range) -> Iterator[Rate]:
    """Yield the rates in `steps`, as far as known, renumbered from step 1.

    A run with several values must be in `steps` as a whole: it is unknown which step had which.
    """
    for rate in rates:
        runs = []
        for run in rate.runs:
            first, end = max(run.first, steps.start), min(run.first + run.count, steps.stop)
            if first < end and (run.values == 1 or end - first == run.count):
                own = msgspec.structs.replace(run, first=first - steps.start + 1, count=end - first)
                runs.append(own)
        if runs or rate.schedule:
            yield msgspec.structs.replace(rate, runs=tuple(runs))
