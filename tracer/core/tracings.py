"""Counts graph tracings: their causes, arguments and runs.

A framework reports why a program is traced and for which arguments (`Definition`), and each block
in it with its number of runs (`Part`). A tracing is of the outermost function.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from tracer.model.records import Graph

MAX_NAMES = 3
"""The most changed parts of arguments that are named."""

MAX_ARGUMENTS = 16
"""The most arguments that a signature names: a program of JAX may have thousands."""

_ADDRESS = re.compile(" at 0x[0-9a-f]+")

TotalOf = Callable[[int, int], int]
"""From a replica and the number of a counter to the counter's total."""


Arguments = Mapping[str, str]
"""The text of each part of a function's arguments by which a framework distinguishes programs."""


class Definition(NamedTuple):
    """A framework's data about a tracing that begins."""

    function: str
    arguments: Arguments
    path: int | None
    """The path of the call that caused it."""


class Part(NamedTuple):
    """A block in a program."""

    replica: int
    step: bool
    place: Hashable
    """Equal for the blocks of one function inside the outermost function."""
    ran: Callable[[TotalOf], int]
    """Returns how often the block has run so far."""


class Tracing:
    """One graph tracing of a function, and the steps in it."""

    __slots__ = ("_begun", "failed", "parts")

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
        # A function that makes variables is traced twice even inside another one, as in Keras 3.
        inside: Counter[Hashable] = Counter()
        for part, times in ran:
            if part.step:
                inside[part.place] += times
        idle = sum(not times for times in inside.values()) if any(inside.values()) else 0
        return replace(
            self._begun,
            replica=replica,
            tracings=1 + idle,
            idle=idle + (not most),
            steps=sum(steps) if steps else most,
            failed=int(self.failed and not most),
        )


class Tracings:
    """The graph tracings of one root optimizer, in order; the lock of its counters guards them."""

    def __init__(self) -> None:
        self.all: list[Tracing] = []
        self._of: WeakKeyDictionary[Any, Tracing] = WeakKeyDictionary()
        self._last: dict[str, Arguments] = {}
        """The arguments of the last tracing, by function."""

    def add(
        self,
        program: object,
        part: Part,
        define: Callable[[], Definition],
        after: Callable[[], int],
        failed: bool,
    ) -> None:
        """Record that a `part` was traced into the outermost `program`, perhaps until it `failed`.

        For a new tracing, `define` returns its definition, and `after` the number of steps run
        before.
        """
        tracing = self._of.get(program)
        if tracing is None:
            of = define()
            detail = _changes(self._last.get(of.function, of.arguments), of.arguments)
            self._last[of.function] = of.arguments
            signature = _signature(of.arguments)
            begun = Graph(0, 0, of.function, signature, 1, 1, 0, after(), 0, of.path, detail)
            tracing = self._of[program] = Tracing(begun)
            self.all.append(tracing)
        tracing.parts.append(part)
        tracing.failed |= failed


def _signature(arguments: Arguments) -> str:
    """The last arguments, as those of a model come first, after the number of the others.

    >>> _signature({"x": "float32[2]", "train": "True"})
    'x: float32[2], train: True'
    >>> _signature({f"x{number}": "int32[]" for number in range(1000)})[:27]
    '984 others, x984: int32[], '
    """
    texts = [f"{name}: {_ADDRESS.sub('', text)}" for name, text in arguments.items()]
    others = len(texts) - MAX_ARGUMENTS
    return ", ".join(texts if others <= 0 else [f"{others:,} others", *texts[others:]])


def _changes(old: Arguments, new: Arguments) -> str:
    """The parts that differ between the arguments of two tracings; empty if none do."""
    changes = [
        f"{part}: {old.get(part, 'nothing')} -> {new.get(part, 'nothing')}"
        for part in dict.fromkeys([*old, *new])
        if old.get(part) != new.get(part)
    ]
    more = f"; and {len(changes) - MAX_NAMES} more" if len(changes) > MAX_NAMES else ""
    return "; ".join(changes[:MAX_NAMES]) + more
