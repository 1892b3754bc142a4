"""What is reported of graph tracings: how many there were, why, and how much of them ran."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from tracer.model.records import Graph

MOST = 256
"""How many signatures are told apart: a function may be traced anew in each step, without end."""

OTHERS = "(others)"
"""The signature of those that are not told apart any more."""

TotalOf = Callable[[int, int], int]
"""From a replica and the number of one of its counters to the counter's total."""

Cause = Literal["first", "variables", "argument", "value", "function", "forgotten", "unknown"]


class Key(NamedTuple):
    """What is the same of graph tracings that are reported as one."""

    function: str
    signature: str
    replica: int
    """The first of the replicas that it updates."""


@dataclasses.dataclass
class Figures:
    """What is reported of such graph tracings: the fields of `records.Graph`."""

    tracings: int = 0
    idle: int = 0
    steps: int = 0
    after: int = 0
    step_calls: int = 0
    failed: int = 0
    parted: bool = False

    def record(self, root: int, key: Key, replicas: dict[int, int]) -> Graph:
        """The record of a trace in which `replicas` has the indices of the replicas."""
        figures = dataclasses.asdict(self)
        return Graph(root, replicas[key.replica], key.function, key.signature, **figures)


class Tracing:
    """One graph tracing of a function, and the steps in it."""

    def __init__(self, function: str, signature: str, after: int) -> None:
        self.function = function
        self.signature = signature
        self.after = after
        self.failed = False
        self.parted = False
        """Whether one step was traced in parts, each with some of its variables."""
        self.step_calls = 0

    def sum_up(
        self, figures_of: dict[Key, Figures], replica: int, idle: bool, steps: int, inside: int = 0
    ) -> None:
        """Add it to the figures of those like it.

        It is `idle` if nothing in it ran, and ran as many `steps`; `inside` it are as many more
        tracings that never ran.
        """
        key = Key(self.function, self.signature, replica)
        if key not in figures_of and len(figures_of) >= MOST:
            key = key._replace(signature=OTHERS)
        figures = figures_of.setdefault(key, Figures(after=self.after))
        figures.tracings += 1 + inside
        figures.idle += inside + idle
        figures.failed += idle and self.failed
        figures.steps += steps
        figures.step_calls = max(figures.step_calls, self.step_calls)
        figures.parted |= self.parted
        figures.after = min(figures.after, self.after)


class Timing(Protocol):
    """How long a graph tracing takes."""

    @property
    def seconds(self) -> float:
        """So far, or in all once it is over."""


@dataclasses.dataclass
class Event:
    """One graph tracing, as an event: see `records.GraphTracing`."""

    function: str
    signature: str
    replica: int
    """The first of the replicas that it updates."""
    path: int
    """The number of the path of the call that caused it."""
    cause: Cause
    detail: str
    after: int
    at: float
    timing: Timing | None

    @property
    def seconds(self) -> float:
        """How long it took; 0 until that is known."""
        return 0.0 if self.timing is None else self.timing.seconds
