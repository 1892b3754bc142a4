"""Who calls: the path that led to each block, even where several call one graph. No framework.

Who runs a graph is not who traced it. So the path of a block in a graph has parts: from the program
to the call of the outermost function, which may be another one each time that it runs; from each
function to the next one in it; and from the function to the block. All but the first are known
when the function is traced. For the first, each call of a function is looked at, on the thread
that calls it, before it runs. If the caller is not that of the call before, the number of the next
step is noted: from here on it is this one (`spans.Spans`). Nothing is added to any graph.
`FunctionCallers.parts` puts both together when a trace is read.

A **region** is what is called as one thing, a function; here it is a name, the same for all
graphs of functions of that name. A function may be called in several others, so each region has
spans of its own: a call changes those of the function that is called and of all that run in it.
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
"""How many ways into a function are looked at."""


class Caller(NamedTuple):
    """A call of a function from outside of all functions: which function, and by which path."""

    region: str
    path: int


def begin_of(region: str) -> Line:
    """The beginning of a region's graph."""
    return Line(region.rpartition("/")[2], graph=True)


class Callers:
    """The paths of calls of one root optimizer, where only Python calls."""

    def __init__(self, author_of: Any = lambda code, line: None) -> None:
        """`author_of` says which code of an author generated code was made of."""
        self.paths = Paths(author_of)
        self.traced: Counter[tuple[int, int]] = Counter()
        """How often each site was called while tracing, by the path of the call."""

    def lines(self, path: int) -> Lines:
        """The lines of a path; none if it is not known."""
        return () if path == UNKNOWN else self.paths.rows[path]

    def parts(
        self, block: CountedBlock, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """The parts of a block's `reading` by the path that led to them.

        `steps` began so far, and the first `past` of them came before those of the reading.
        """
        yield self.lines(block.path), reading


class FunctionCallers(Callers):
    """The callers of one root optimizer and of the functions with its blocks; thread-safe."""

    def __init__(self, author_of: Any, is_alone: Callable[[], bool]) -> None:
        """`is_alone` says whether no other thread is in a function now."""
        super().__init__(author_of)
        self.changes = 0
        """Moves whenever another caller calls, or a function turns out to call another one."""
        self._is_alone = is_alone
        self._callers_of: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """For each region those it is called in, with the path there."""
        self._regions_in: dict[str, frozenset[str]] = {}
        """For each region that calls others: itself, and all that run when it does."""
        self._spans: dict[tuple[int, str], Spans[Caller]] = defaultdict(Spans)
        """By replica and region: who called it, or a function that calls it."""
        self._lock = threading.RLock()

    def called_inside(self, region: str, around: str, path: int) -> None:
        """A function is called by a `path` inside the function `around`, which is being traced."""
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
        """A function is about to run, which this thread called in eager mode by `path`.

        `number` gives that of the next step. Returns whether the same call need not be looked at
        until `changes` moves.
        """
        caller, all_spans = Caller(region, path), self._spans_in(region, replica)
        if all(spans.now == caller for spans in all_spans):
            return True
        with self._lock:
            self.changes += 1
            for spans in all_spans:
                spans.callers[caller] = None
                spans.now = None  # who calls from now on waits for the lock, and is inside by then
            now, step = caller if self._is_alone() else None, number()
            for spans in all_spans:
                spans.change(step, now)
        return now is not None

    def passed_to_dataset(
        self, region: str, replica: int, path: int, number: Callable[[], int]
    ) -> None:
        """The `path` makes a dataset, which will run a function at any time.

        From the next step on, which has this `number`, nobody can say who calls it.
        """
        with self._lock:
            for spans in self._spans_in(region, replica):
                spans.callers[Caller(region, path)] = None
                spans.give_up(number())

    def _spans_in(self, region: str, replica: int) -> list[Spans[Caller]]:
        """The spans of a region and of those that run when it does."""
        return [self._spans[replica, each] for each in self._regions_in.get(region, (region,))]

    # Reading.

    def parts(
        self, block: CountedBlock, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """What of a block's `reading` each path led to: see `Callers.parts`."""
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
            yield self.lines(block.whole) or inner, reading  # at least who traced it is known
        elif len(callers) == 1:
            yield paths[callers[0]], reading
        else:
            yield from _divided(reading, stretches, past, paths)

    def _common_lines(self, outer: str, region: str) -> Iterator[Line]:
        """The lines from one region to a region inside it, as far as all ways share them."""
        together = zip(*islice(self._ways(outer, region, ()), _MAX_WAYS), strict=False)
        return (lines[0] for lines in takewhile(lambda lines: len({*lines}) == 1, together))

    def _ways(self, outer: str, region: str, passed: tuple[str, ...]) -> Iterator[Lines]:
        """The lines from one region to a region inside it, for each way."""
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
    """A reading divided among callers, with the path of each.

    What is known of no step is nobody's. The graphs are counted once, with the first part.
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
