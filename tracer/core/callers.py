"""Finds the caller of each block, also where several callers run one graph. No framework.

The caller of a graph is not the code that traced it, so the path of a block in a graph has parts:
from the program to the call of the outermost function, which may differ in each run; from each
function to the next one inside it; and from there to the block. All parts but the first are known
from tracing. For the first, each call of a function is checked on its thread before it runs: if the
caller differs from the caller of the previous call, the number of the next step is noted as the
start of a new span (`spans.Spans`). Nothing is added to any graph. `FunctionCallers.parts` joins
the parts when a trace is read.

A **region** is a function that is called as a whole, identified by its name, which all its graphs
share. A function may be called in several others, so each region has its own spans: a call changes
the spans of the called function and of all functions that run in it.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile, zip_longest
from typing import Any, NamedTuple

from tracer.core.call_paths import UNKNOWN, Paths
from tracer.core.counters import CountedBlock
from tracer.core.log import Reading
from tracer.core.spans import Spans, Stretch, layers, of_caller
from tracer.model.records import Line
from tracer.model.timeline import union

Lines = tuple[Line, ...]

_MAX_WAYS = 64
"""The most ways into a function that are compared."""


class Caller(NamedTuple):
    """A call of a function from Python: the function and the path of the call."""

    region: str
    path: int


def begin_of(region: str) -> Line:
    """The line that marks the beginning of a region's graph."""
    return Line(region.rpartition("/")[2], graph=True)


class Callers:
    """The callers of one root optimizer, for a framework without graphs."""

    def __init__(self, author_of: Any = lambda code, line: None) -> None:
        """`author_of` maps a line of generated code to its author's line."""
        self.paths = Paths(author_of)
        self.traced: Counter[tuple[int, int]] = Counter()
        """The number of calls while tracing, by site and path."""

    def lines(self, path: int) -> Lines:
        """The lines of a path; empty if the path is unknown."""
        return () if path == UNKNOWN else self.paths.rows[path]

    def parts(
        self, block: CountedBlock, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """Divide the `reading` of a block among the paths that led to it.

        `steps` began so far, and the first `past` of them came before the reading.
        """
        yield self.lines(block.path), reading


class FunctionCallers(Callers):
    """The callers of one root optimizer and of the functions with its blocks; thread-safe."""

    def __init__(self, author_of: Any, is_alone: Callable[[], bool]) -> None:
        """`is_alone` returns whether no other thread is in a function now."""
        super().__init__(author_of)
        self.changes = 0
        """Changes when the caller changes, or when a function is found to call another one."""
        self._is_alone = is_alone
        self._callers_of: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """For each region, the regions that call it, with the path there."""
        self._regions_in: dict[str, frozenset[str]] = {}
        """For each region that calls others: itself and all regions that run inside it."""
        self._spans: dict[tuple[int, str], Spans[Caller]] = defaultdict(Spans)
        """By replica and region: the callers of the region, or of a region around it."""
        self._lock = threading.RLock()

    def called_inside(self, region: str, around: str, path: int) -> None:
        """Record that `path`, in the function `around` during its tracing, calls a function."""
        if (around, path) in self._callers_of[region]:
            return
        with self._lock:
            self._callers_of[region][around, path] = None
            inner = self._regions_in.get(region, frozenset({region}))
            known = {around: frozenset({around}), **self._regions_in}
            self._regions_in = {
                each: regions | inner if around in regions else regions
                for each, regions in known.items()
            }
            self.changes += 1

    def called(self, region: str, replica: int, path: int, number: Callable[[], int]) -> bool:
        """Record that this thread is about to run a function, called in eager mode by `path`.

        `number` returns the number of the next step. Returns True if an equal call need not be
        checked again until `changes` changes.
        """
        caller, all_spans = Caller(region, path), self._spans_in(region, replica)
        if all(spans.now == caller for spans in all_spans):
            return True
        with self._lock:
            self.changes += 1
            for spans in all_spans:
                spans.callers[caller] = None
                spans.now = None  # later callers wait for the lock, and have entered by then
            now, step = caller if self._is_alone() else None, number()
            for spans in all_spans:
                spans.change(step, now)
        return now is not None

    def passed_to_dataset(
        self, region: str, replica: int, path: int, number: Callable[[], int]
    ) -> None:
        """Record that `path` makes a dataset, which may run a function at any time.

        From the next step on, which has this `number`, the caller is unknown.
        """
        with self._lock:
            for spans in self._spans_in(region, replica):
                spans.callers[Caller(region, path)] = None
                spans.give_up(number())

    def _spans_in(self, region: str, replica: int) -> list[Spans[Caller]]:
        """The spans of a region and of the regions that run inside it."""
        return [self._spans[replica, each] for each in self._regions_in.get(region, (region,))]

    # Reading.

    def parts(
        self, block: CountedBlock, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """Divide the `reading` of a block among its paths: see `Callers.parts`."""
        if not block.region:
            yield from super().parts(block, reading, steps, past)
            return
        spans, region = self._spans[block.replica, block.region], block.region
        with self._lock:
            callers, stretches = list(spans.callers), spans.by_caller(steps + 1)
        inner = (begin_of(region), *self.lines(block.path))
        paths: dict[Caller | None, Lines] = {None: inner}
        for each in callers:
            paths[each] = (*self.lines(each.path), *self._common_lines(each.region, region), *inner)
        if not reading.total:
            yield self.lines(block.whole) or inner, reading  # known from tracing
        elif len(callers) == 1:
            yield paths[callers[0]], reading
        else:
            yield from _divided(reading, stretches, past, paths)

    def _common_lines(self, outer: str, region: str) -> Iterator[Line]:
        """The lines from one region to a region inside it that all ways share from the start."""
        together = zip(*islice(self._ways(outer, region, ()), _MAX_WAYS), strict=False)
        return (lines[0] for lines in takewhile(lambda lines: len({*lines}) == 1, together))

    def _ways(self, outer: str, region: str, passed: tuple[str, ...]) -> Iterator[Lines]:
        """Yield the lines of each way from one region to a region inside it."""
        if region == outer:
            yield ()
        for around, path in list(self._callers_of[region]):
            if around not in passed:
                for lines in self._ways(outer, around, (*passed, region)):
                    yield *lines, begin_of(around), *self.lines(path)


def _divided(
    reading: Reading,
    stretches: Mapping[Caller | None, Sequence[Stretch]],
    past: int,
    paths: Mapping[Caller | None, Lines],
) -> Iterator[tuple[Lines, Reading]]:
    """Divide a reading among callers, each with its path.

    Executions in an unknown step go to the unknown caller. Graphs count once, in the first part.
    """
    found = {
        caller: {flags: of_caller(runs, own, past) for flags, runs in reading.runs.items()}
        for caller, own in stretches.items()
    }
    rest = {flags: union(runs) for flags, runs in found.pop(None, {}).items() if runs}
    parts: list[tuple[Caller | None, Reading]] = []
    for caller, by_flags in found.items():
        for together in zip_longest(*map(layers, by_flags.values()), fillvalue=()):
            runs = {flags: each for flags, each in zip(by_flags, together, strict=True) if each}
            parts.append((caller, Reading(runs)))
    parts.append((None, reading._replace(runs=rest)))
    graphs, idle = reading.graphs, reading.idle
    for caller, part in parts:
        if part.total:
            yield paths[caller], part._replace(graphs=graphs, idle=idle)
            graphs = idle = 0
