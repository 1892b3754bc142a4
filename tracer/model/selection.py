"""`Selection`: which of a trace's entries and calls count, whoever asks. No TensorFlow.

`select_entries` makes one of filters by name. The questions of a `Trace`, excerpts and what is
expected of a run count by it. A filter that is not given lets everything through.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tracer.errors import UnknownName, is_mistake, unknown_name
from tracer.model.names import Objects, named, variables_meant
from tracer.model.records import Block, Calls, Entry, Kind, Role, TraceData, contribution
from tracer.model.runs import Run

__tracebackhide__ = is_mistake

KINDS: tuple[Kind, ...] = ("dense", "sparse", "none")
UPDATES: frozenset[Role] = frozenset({"update"})
EXECUTIONS: frozenset[Role] = frozenset({"step", "update", "vain", "discarded", "apply"})
DISCARDED: frozenset[Role] = frozenset({"discarded"})
REQUESTS: frozenset[Role] = frozenset({"request"})


class Filters(NamedTuple):
    """What a question to a trace is limited to: see `tracer.CallTrace`. None is no limit."""

    kind: Kind | None = None
    variable: object = None
    step: int | range | None = None
    replica: int | None = None
    worker: str | None = None
    optimizer: str | None = None
    method: str | None = None


ALL = Filters()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The entries that count: sets of indices, and None where everything does."""

    roles: frozenset[Role] | None = None
    kinds: frozenset[Kind | None] | None = None
    methods: frozenset[int] | None = None
    variables: frozenset[int] | None = None
    replicas: frozenset[int] | None = None
    optimizers: frozenset[int] | None = None
    steps: range | None = None

    def holds(self, entry: Entry) -> bool:
        """Whether an entry counts, for those of its variables that do."""
        return (self.roles is None or entry.role in self.roles) and self._holds(entry)

    def holds_calls(self, calls: Calls) -> bool:
        """Whether calls count, for those of their variables that do; they have no role, no step."""
        return (self.replicas is None or calls.replica in self.replicas) and self._holds(calls)

    def _holds(self, entry: Entry | Calls) -> bool:
        return (
            (self.kinds is None or entry.kind in self.kinds)
            and (self.methods is None or entry.method in self.methods)
            and (self.optimizers is None or entry.optimizer in self.optimizers)
        )

    def count(self, block: Block) -> int:
        """What one execution of `block` counts, whatever step it is in."""
        if self.replicas is not None and block.replica not in self.replicas:
            return 0
        return sum(
            contribution(entry, self.variables) for entry in block.entries if self.holds(entry)
        )

    __call__ = count

    def runs(self, block: Block) -> Iterable[Run]:
        """The runs of `block`, as far as they are in the steps that count."""
        if self.steps is None:
            return block.runs
        return [within for run in block.runs if (within := run.only(self.steps)) is not None]

    def executions(self, block: Block) -> int:
        """How often `block` was executed in the steps that count."""
        return block.total if self.steps is None else sum(run.total for run in self.runs(block))


def select_entries(
    data: TraceData, objects: Objects, roles: frozenset[Role] | None, filters: Filters
) -> Selection:
    """What the filters leave of a trace with these records and objects.

    Raises `tracer.UnknownName` with the near names for what the trace does not hold.
    """
    kind, variable, step, replica, worker, optimizer, method = filters
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    methods = optimizers = replicas = variables = None
    if method is not None:
        methods = named("method", method, [method.name for method in data.methods])
    if optimizer is not None:
        names = [optimizer.name for optimizer in data.optimizers]
        optimizers = named("optimizer", optimizer, names)
    if worker is not None:
        replicas = named("worker", worker, [replica.worker for replica in data.replicas])
    if replica is not None:
        ids = [replica.id for replica in data.replicas]
        if replica not in ids:
            raise unknown_name("replica", replica, sorted(set(ids)))
        with_id = frozenset(index for index, id in enumerate(ids) if id == replica)
        replicas = with_id if replicas is None else replicas & with_id
    if variable is not None:
        variables = variables_meant(variable, data.variables, objects)
    return Selection(
        roles=roles,
        kinds=None if kind is None else frozenset({kind}),
        methods=methods,
        variables=variables,
        replicas=replicas,
        optimizers=optimizers,
        steps=_steps(step),
    )


def _steps(step: int | range | None) -> range | None:
    """The steps as a range that rises.

    Raises `tracer.UnknownName` for those before step 1: who counts from 0 would get wrong counts.
    """
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int | range):
        raise TypeError(f"step must be an int or a range, not {step!r}")
    steps = range(step, step + 1) if isinstance(step, int) else step
    rising = steps if steps.step > 0 else steps[::-1]
    if rising and rising[0] < 1:
        raise UnknownName(f"no step {rising[0]}: steps are numbered from 1")
    return rising
