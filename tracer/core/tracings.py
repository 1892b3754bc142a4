"""Counts graph tracings: their causes, arguments and runs.

A framework reports why a program is traced and for which arguments (`Definition`), and each block
in it with its number of runs (`Part`). A tracing is of the outermost function. A tracing that can
run no more is only added to sums.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
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


class Key(NamedTuple):
    """Identifies the graph tracings that are reported together."""

    function: str
    signature: str
    replica: int
    """The first of the replicas that it updates."""


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
    place: Hashable
    """Equal for the blocks of one function inside the outermost function."""
    ran: Callable[[TotalOf], int]
    """Returns how often the block has run so far."""
    is_gone: Callable[[], bool]
    """Returns whether the block can run no more, and another one uses its counter."""


class Tracing:
    """One graph tracing of a function, and the steps in it."""

    def __init__(self, definition: Definition, path: int, after: int) -> None:
        """`path` led to the call that caused the tracing, after `after` steps."""
        self._of = definition.function, definition.signature
        self._path, self._after = path, after
        self._detail = _changed(definition)
        self.failed = False
        self.parts: list[Part] = []

    @property
    def replica(self) -> int:
        """The first of the replicas that it updates."""
        return min(part.replica for part in self.parts)

    def figures(self, total_of: TotalOf) -> Graph:
        """The figures; `root`, `replica` and `path` are not indices of a trace yet."""
        replica = self.replica
        ran = [(part, part.ran(total_of)) for part in self.parts]
        steps = [times for part, times in ran if part.step and part.replica == replica]
        idle = not any(times for _, times in ran)
        inside = _idle_inside(ran)
        return Graph(
            root=0,
            replica=replica,
            function=self._of[0],
            signature=self._of[1],
            tracings=1 + inside,
            idle=inside + idle,
            steps=sum(steps) if steps else max(times for _, times in ran),
            after=self._after,
            failed=int(idle and self.failed),
            path=path_or_none(self._path),
            detail=self._detail,
        )


def _added(one: Graph, other: Graph) -> Graph:
    return replace(
        one,
        tracings=one.tracings + other.tracings,
        idle=one.idle + other.idle,
        steps=one.steps + other.steps,
        after=min(one.after, other.after),
        failed=one.failed + other.failed,
    )


def since(now: Graph, before: Graph | None, past: int) -> Graph:
    """The figures `now` minus the figures `before`, which were taken after `past` steps.

    No figure is negative: a graph counts as idle until it runs, and a function inside another that
    ran counts as a tracing of its own only while it has not run.
    """
    figures = replace(now, after=max(0, now.after - past))
    if before is None:
        return figures
    tracings = max(0, now.tracings - before.tracings)
    idle = min(tracings, max(0, now.idle - before.idle))
    return replace(
        figures,
        tracings=tracings,
        idle=idle,
        steps=max(0, now.steps - before.steps),
        failed=min(idle, max(0, now.failed - before.failed)),
    )


def _idle_inside(ran: Iterable[tuple[Part, int]]) -> int:
    """How many functions with a step, inside the outermost one, never ran, if others did.

    A function that makes variables is traced twice even inside another function, such as Keras 3's
    `one_step_on_data`, while the outer function is traced once.
    """
    runs_of: Counter[Hashable] = Counter()
    for part, times in ran:
        if part.step:
            runs_of[part.place] += times
    idle = sum(not times for times in runs_of.values())
    return idle if idle < len(runs_of) else 0


class Tracings:
    """The graph tracings of one root optimizer; callers of `add` hold the lock of its counters."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, Tracing] = WeakKeyDictionary()
        self._open: list[Tracing] = []
        self._sums: dict[Key, Graph] = {}

    def add(
        self,
        program: Any,
        part: Part,
        define: Callable[[], tuple[Definition, int]],
        after: Callable[[], int],
    ) -> Tracing:
        """Record that a `part` was traced into the outermost `program`; returns the tracing.

        For a new tracing, `define` returns its definition and the path of the call that caused it,
        and `after` the number of steps run before.
        """
        tracing = self._of.get(program)
        if tracing is None:
            self._add_up()
            definition, path = define()
            tracing = self._of[program] = Tracing(definition, path, after())
            self._open.append(tracing)
        tracing.parts.append(part)
        return tracing

    def figures(self, total_of: TotalOf) -> dict[Key, Graph]:
        """The current figures by key, in the order of first tracings."""
        self._add_up()
        figures_of = dict(self._sums)
        for tracing in self._open:
            _add(figures_of, tracing.figures(total_of))
        return figures_of

    def _add_up(self) -> None:
        """Replace the tracings that can no longer run by their figures."""
        still = []
        for tracing in self._open:
            if all(part.is_gone() for part in tracing.parts):
                _add(self._sums, tracing.figures(lambda replica, number: 0))
            else:
                still.append(tracing)
        self._open = still


def _add(figures_of: dict[Key, Graph], figures: Graph) -> None:
    key = Key(figures.function, figures.signature, figures.replica)
    if key not in figures_of and len(figures_of) >= MAX_SIGNATURES:
        key = key._replace(signature=OTHERS)
        figures = replace(figures, signature=OTHERS)
    known = figures_of.get(key)
    figures_of[key] = figures if known is None else _added(known, figures)


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
