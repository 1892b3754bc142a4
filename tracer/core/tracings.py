"""Counts graph tracings: their causes, arguments and runs.

A framework reports why a program is traced and for which arguments (`Definition`), and each block
in it with its number of runs (`Part`). A tracing is of the outermost function.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from tracer.core.call_paths import path_or_none
from tracer.model.records import Graph

MAX_SIGNATURES = 256
"""The most signatures kept apart: a function may be traced again in each step, without end."""

OTHERS = "(others)"
"""The signature that stands for all further ones."""

MAX_NAMES = 3
"""The most changed parts of arguments that are named."""

TotalOf = Callable[[int, int], int]
"""From a replica and the number of a counter to the counter's total."""


Arguments = Mapping[str, str]
"""The text of each part of a function's arguments by which a framework distinguishes programs."""


class Definition(NamedTuple):
    """A framework's data about a tracing that begins."""

    function: str
    signature: str
    arguments: Arguments
    known: Iterable[Arguments]
    """The arguments of earlier tracings of the function."""


class Part(NamedTuple):
    """A block in a program."""

    replica: int
    step: bool
    ran: Callable[[TotalOf], int]
    """Returns how often the block has run so far."""


class Tracing:
    """One graph tracing of a function, and the steps in it."""

    def __init__(self, begun: Graph) -> None:
        """`begun` are its figures before it ran."""
        self._begun = begun
        self.failed = False
        self.parts: list[Part] = []

    def figures(self, total_of: TotalOf) -> Graph:
        """The figures so far; `root`, `replica` and `path` are not indices of a trace yet."""
        replica = min(part.replica for part in self.parts)
        ran = [(part, part.ran(total_of)) for part in self.parts]
        steps = [times for part, times in ran if part.step and part.replica == replica]
        most = max(times for _, times in ran)
        return replace(
            self._begun,
            replica=replica,
            idle=int(not most),
            steps=sum(steps) if steps else most,
            failed=int(self.failed and not most),
        )


class Tracings:
    """The graph tracings of one root optimizer, in order; the lock of its counters guards them."""

    def __init__(self) -> None:
        self.all: list[Tracing] = []
        self._of: WeakKeyDictionary[Any, Tracing] = WeakKeyDictionary()

    def add(
        self,
        program: Any,
        part: Part,
        define: Callable[[], tuple[Definition, int]],
        after: Callable[[], int],
        failed: bool,
    ) -> None:
        """Record that a `part` was traced into the outermost `program`, perhaps until it `failed`.

        For a new tracing, `define` returns its definition and the path of the call that caused it,
        and `after` the number of steps run before.
        """
        tracing = self._of.get(program)
        if tracing is None:
            of, path = define()
            detail, caller = _changed(of), path_or_none(path)
            begun = Graph(
                0, 0, of.function, of.signature, 1, 1, 0, after(), path=caller, detail=detail
            )
            tracing = self._of[program] = Tracing(begun)
            self.all.append(tracing)
        tracing.parts.append(part)
        tracing.failed |= failed


def since(now: Sequence[Graph], before: Sequence[Graph], past: Mapping[int, int]) -> list[Graph]:
    """The figures of all tracings `now`, by function, signature and replica, minus those `before`.

    `past` has the steps of each replica before.
    """
    sums: dict[tuple[str, str, int], Graph] = {}
    for number, graph in enumerate(now):
        if number < len(before):
            steps = graph.steps - before[number].steps
            graph = replace(graph, tracings=0, idle=0, failed=0, steps=steps)
        if graph.tracings or graph.steps:
            key = graph.function, graph.signature, graph.replica
            if key not in sums and len(sums) >= MAX_SIGNATURES:
                key = graph.function, OTHERS, graph.replica
            known, after = sums.get(key), max(0, graph.after - past.get(graph.replica, 0))
            graph = replace(graph, signature=key[1], after=after)
            sums[key] = graph if known is None else _added(known, graph)
    return [*sums.values()]


def _added(one: Graph, other: Graph) -> Graph:
    return replace(
        one,
        tracings=one.tracings + other.tracings,
        idle=one.idle + other.idle,
        steps=one.steps + other.steps,
        after=min(one.after, other.after),
        failed=one.failed + other.failed,
    )


def _changed(definition: Definition) -> str:
    """How the arguments differ from the most similar known ones; empty if they do not."""
    changes = [_changes(known, definition.arguments) for known in definition.known]
    least = min(reversed(changes), key=len, default=[])
    more = f"; and {len(least) - MAX_NAMES} more" if len(least) > MAX_NAMES else ""
    return "; ".join(least[:MAX_NAMES]) + more


def _changes(old: Arguments, new: Arguments) -> list[str]:
    """The parts that differ between the arguments of two tracings, with their texts."""
    return [
        f"{part}: {old.get(part, 'nothing')} -> {new.get(part, 'nothing')}"
        for part in dict.fromkeys([*old, *new])
        if old.get(part) != new.get(part)
    ]
