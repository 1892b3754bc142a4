"""Who calls: the path of each block, for eager steps, and for graphs that many may run.

Who runs a graph is not who traced it. So the path of a block in a graph has parts: from the program
to the call of the outermost function, which may be another one each time that it runs; from each
function to the next one in it; and from the function to the block. All but the first are known
when the function is traced. For the first, each call of a function is looked at, on the thread
that calls it (`Blocks._company`), before it runs. If the caller is not that of the call before, the
number of the next step is noted: from here on it is this one (`spans.Spans`). Nothing is added to
any graph. `Callers.parts` puts both together when a trace is read.

A **region** is what is called as one thing (see `places`); here it is a number, the same for all
graphs of functions of one name. A region may be called in several others: then the outermost one
that ran it is not told by the region alone, and from then on the spans of all of them are noted
together.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracer.backends.tensorflow import compat, functions
from tracer.backends.tensorflow.stacks import Traced, frames_around, traced_in
from tracer.core import backend
from tracer.core.counters import CountedBlock
from tracer.core.older import SESSION_GRAPH
from tracer.core.paths import UNKNOWN
from tracer.core.settle import Reading
from tracer.core.spans import Spans, Stretch, layers, of_caller, without
from tracer.model.records import Line
from tracer.model.runs import Run

Lines = tuple[Line, ...]

_MOST_WAYS = 64
"""How many ways into a function are looked at."""


class Caller(NamedTuple):
    """Who called a function from outside of every function: which one, and by which path."""

    region: int
    path: int


class Inside(NamedTuple):
    """Where a block of a function is."""

    region: int
    path: int
    """In the region."""
    whole: int
    """The path from the call by which it was traced."""


class Callers(backend.Callers):
    """The callers of one root optimizer and of the functions with its blocks; thread-safe."""

    def __init__(self, threads: Set[int]) -> None:
        """`threads` are those that ever called a function; it goes on growing."""
        super().__init__(functions.author_of)
        self._threads = threads
        self._regions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._begins: dict[int, Line] = {}
        self._names: dict[str, int] = {}
        self._at_any_time: set[int] = set()
        """The regions that a dataset runs, whenever it is asked for an element."""
        self._callers_of: dict[int, dict[tuple[int, int], None]] = defaultdict(dict)
        """For each region those it is called in, with the path there."""
        self._traced_by: dict[tuple[int, Hashable], dict[int, None]] = defaultdict(dict)
        """By replica and counter: the whole paths by which what it counts was traced."""
        self._now: dict[tuple[int, int], int | None] = {}
        self._spans: dict[tuple[int, int], Spans[Caller]] = {}
        """By replica and region: who called it."""
        self._seen: dict[int, dict[Caller, None]] = defaultdict(dict)
        """By replica: everyone who ever called."""
        self._together = False
        self.known = 0
        """A number that is another one when it is not the caller of before who calls."""
        self._now_of_all: dict[int, Caller | None] = {}
        self._spans_of_all: dict[int, Spans[Caller]] = {}
        self._lock = threading.RLock()

    @property
    def in_datasets(self) -> bool:  # type: ignore[override]
        """Whether a dataset runs a function, and whenever it is asked for an element."""
        return bool(self._at_any_time)

    # Where a call stands.

    def here(self, frame: FrameType | None, distributed: bool, end: Hashable = None) -> int:
        """The path to a call in eager mode that `frame`, of this thread, makes.

        `end` is what it calls, if it may be this or that.
        """
        if distributed:
            return self.paths.of(frames_around(frame))
        return self.paths.above(frame, end)

    def inside(self, graph: Any, sites: Sequence[int]) -> Inside:
        """Where a block is that is traced by this thread.

        `graph` is that of the region; `sites` were called in the block.
        """
        frames = frames_around(sys._getframe(1))
        traced = traced_in(frames)
        own = next((each.place for each in traced if each.graph is graph), len(frames))
        region = self.region_of(graph)
        part = self.paths.of(frames[:own], outermost=False)
        whole = self._whole(frames, traced)
        with self._lock:
            for site in sites:
                self.traced[site, whole] += 1
        return Inside(region, part, whole)

    def counted_by(self, replica: int, counter: int, whole: int) -> None:
        """A block that was traced by this whole path is counted by a counter of a ledger."""
        with self._lock:
            self._traced_by[replica, counter].setdefault(whole)

    def cause(self) -> tuple[functions.Definition | None, int]:
        """What the outermost function is that this thread traces, and the path of the call."""
        frames = frames_around(sys._getframe(1))
        traced = traced_in(frames)
        lines = self._outer(frames, traced)
        if traced:
            lines += (self._begin(self.region_of(traced[-1].graph)),)
        return functions.definition(frames), self.paths.number(lines)

    def in_session(self, sites: Sequence[int]) -> int:
        """The path to a block that is built into the graph of a Session by this thread."""
        lines = self.paths.of(frames_around(sys._getframe(1)))
        if lines == UNKNOWN:
            return UNKNOWN
        begin = Line(SESSION_GRAPH, graph=True)
        path = self.paths.number([begin, *self.paths.rows[lines]])
        for site in sites:
            self.traced[site, path] += 1
        return path

    def region_of(self, graph: Any) -> int:
        """The number of the region with this graph."""
        region = self._regions.get(graph)
        if region is None:
            name = compat.function_name(graph)
            with self._lock:
                region = self._regions[graph] = self._names.setdefault(name, len(self._names))
                self._begins[region] = Line(name.rpartition("/")[2], graph=True)
        return region

    def _begin(self, region: int) -> Line:
        """The beginning of a region's graph."""
        return self._begins[region]

    def _outer(self, frames: Sequence[FrameType], traced: Sequence[Traced]) -> Lines:
        """The lines to the call that traced the outermost function."""
        return self.lines(self.paths.of(frames[traced[-1].place + 1 :] if traced else frames))

    def _whole(self, frames: Sequence[FrameType], traced: Sequence[Traced]) -> int:
        """The whole path of what is traced, from the call that traced it on."""
        lines = self._outer(frames, traced)
        ends = [-1, *(each.place for each in traced)]
        for each, inner in reversed(list(zip(traced, ends, strict=False))):
            part = self.paths.of(frames[inner + 1 : each.place], outermost=False)
            lines += (self._begin(self.region_of(each.graph)), *self.lines(part))
        return self.paths.number(lines)

    # Who calls a function.

    def called_in(self, region: int) -> None:
        """A function is called while this thread traces another one."""
        frames = frames_around(sys._getframe(1))
        traced = traced_in(frames)
        if not traced:
            return
        around = self.region_of(traced[0].graph)
        path = self.paths.of(frames[: traced[0].place], outermost=False)
        callers = self._callers_of[region]
        if (around, path) not in callers:
            with self._lock:
                callers[around, path] = None
                self._find_shared(region)

    def called(
        self, region: int, replica: int, path: int, thread: int, number: Callable[[], int]
    ) -> int | None:
        """A function is about to run that this thread called in eager mode, by `path`.

        `number` gives that of the next step. Returns what `known` is as long as this is who calls;
        None if that is not known.
        """
        before = self.known
        if self._together:
            if self._now_of_all.get(replica) == (region, path):
                return before
        elif self._now.get((replica, region)) == path:
            return before
        with self._lock:
            caller = Caller(region, path)
            if caller not in self._seen[replica]:
                self._seen[replica][caller] = None
                self._find_shared(region)
            if self._together:  # who calls from now on waits for the lock, and is inside by then
                self._now_of_all[replica] = None
            else:
                self._now[replica, region] = None
            self.known += 1
            others = self._threads - {thread}
            known = not others or not functions.any_is_inside(others)
            if self._together:
                spans = self._spans_of_all.get(replica)
                if spans is None:
                    spans = self._spans_of_all[replica] = Spans(number())
                    for (of, _), earlier in self._spans.items():
                        if of == replica:
                            earlier.change(spans.begin, None)
                self._now_of_all[replica] = caller if known or spans.full else None
            else:
                spans = self._spans.setdefault((replica, region), Spans(1))
                self._now[replica, region] = path if known or spans.full else None
            if not spans.full:
                spans.change(number(), caller if known else None)
            return self.known if known or spans.full else None

    def handed_to_dataset(self, region: int, replica: int, path: int) -> None:
        """A dataset is made by `path` that will run a function."""
        with self._lock:
            self._at_any_time.add(region)
            self._seen[replica].setdefault(Caller(region, path))

    def _find_shared(self, region: int) -> None:
        """Note spans together from now on if a region has several callers."""
        callers = {around for around, _ in self._callers_of[region]}
        alone = any(caller.region == region for seen in self._seen.values() for caller in seen)
        if len(callers) + alone > 1:
            self._together = True

    # Reading.

    def parts(
        self, block: CountedBlock, key: Hashable, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """What of a block's `reading` each path led to: together they are the reading.

        `key` is the block's among the counts; `steps` began so far, of which `past` came before
        those of the reading.
        """
        replica, region, path = block.replica, block.region, block.path
        if region == UNKNOWN:
            yield self.lines(path), reading
            return
        ways = self._ways_to(region)
        seen = [each for each in list(self._seen[replica]) if each.region in ways]
        inner = (self._begin(region), *self.lines(path))
        if not reading.total:
            traced = list(self._traced_by.get((replica, key), ()))
            yield (self.lines(traced[0]) if len(traced) == 1 else inner), reading
            return
        if len(seen) == 1:
            yield self._lines(seen[0], ways[seen[0].region], inner), reading
            return
        if not self._at_any_time.isdisjoint(ways):  # so it may be anybody's turn when it runs
            traced = list(self._traced_by.get((replica, key), ()))
            made = len(traced) == 1 and region in self._at_any_time
            yield (self.lines(traced[0]) if made else inner), reading
            return
        placed: dict[int, list[Run]] = defaultdict(list)
        graphs, idle = reading.graphs, reading.idle
        for caller, stretches in self._spans_on(replica, seen, steps + 1).items():
            mine = {
                flags: found
                for flags, runs in reading.runs.items()
                if (found := layers(of_caller(runs, stretches, past)))
            }
            for depth in range(max(map(len, mine.values()), default=0)):
                at_depth = {flags: found[depth] for flags, found in mine.items() if found[depth:]}
                lines = self._lines(caller, ways[caller.region], inner)
                yield lines, Reading(at_depth, graphs=graphs, idle=idle)
                graphs = idle = 0
            for flags, found in mine.items():
                placed[flags] += [run for layer in found for run in layer]
        left = {flags: without(runs, placed[flags]) for flags, runs in reading.runs.items()}
        rest = reading._replace(
            runs={flags: runs for flags, runs in left.items() if runs}, graphs=graphs, idle=idle
        )
        if rest.total or graphs:
            yield inner, rest

    def _spans_on(
        self, replica: int, callers: Sequence[Caller], end: int
    ) -> dict[Caller, list[Stretch]]:
        """In which steps it was each of these callers."""
        found: dict[Caller, list[Stretch]] = {}
        with self._lock:
            spans = [self._spans.get((replica, each.region)) for each in callers]
            for each in [*dict.fromkeys(spans), self._spans_of_all.get(replica)]:
                if each is not None:
                    for caller, stretches in each.by_caller(end).items():
                        if caller in callers:
                            found.setdefault(caller, []).extend(stretches)
        return found

    def _ways_to(self, region: int) -> dict[int, list[Lines]]:
        """From each region that is called in eager mode the lines to this one, of each way."""
        ways: dict[int, list[Lines]] = {}
        todo: list[tuple[int, Lines, tuple[int, ...]]] = [(region, (), (region,))]
        looked = 0
        while todo and looked < _MOST_WAYS:
            looked += 1
            at, lines, passed = todo.pop()
            ways.setdefault(at, []).append(lines)
            for around, path in list(self._callers_of[at]):
                if around not in passed:
                    before = (self._begin(around), *self.lines(path))
                    todo.append((around, before + lines, (*passed, around)))
        return ways

    def _lines(self, caller: Caller, ways: Sequence[Lines], inner: Lines) -> Lines:
        """The path from a caller to a block: of several ways that which they have in common."""
        common = ways[0]
        for way in ways[1:]:
            same = [a == b for a, b in zip(common, way, strict=False)]
            common = common[: same.index(False) if False in same else len(same)]
        return (*self.lines(caller.path), *common, *inner)
