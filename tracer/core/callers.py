"""Who calls: by which path each block was led to, also where many may run one graph. No framework.

Who runs a graph is not who traced it. So the path of a block in a graph has parts: from the program
to the call of the outermost function, which may be another one each time that it runs; from each
function to the next one in it; and from the function to the block. All but the first are known
when the function is traced. For the first, each call of a function is looked at, on the thread
that calls it, before it runs. If the caller is not that of the call before, the number of the next
step is noted: from here on it is this one (`spans.Spans`). Nothing is added to any graph.
`FunctionCallers.parts` puts both together when a trace is read.

A **region** is what is called as one thing, a function; here it is a name, the same for all
graphs of functions of that name. A region may be called in several others: then the outermost one
that ran it is not told by the region alone, and from then on there is one list of spans for all.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tracer.core.call_paths import UNKNOWN, Paths
from tracer.core.counters import CountedBlock
from tracer.core.log import Reading
from tracer.core.spans import Spans, Stretch, layers, of_caller, without
from tracer.model.records import Line

Lines = tuple[Line, ...]

_MOST_WAYS = 64
"""How many ways into a function are looked at."""


class Caller(NamedTuple):
    """Who called a function from outside of every function: which one, and by which path."""

    region: str
    path: int


def begin_of(region: str) -> Line:
    """The beginning of a region's graph."""
    return Line(region.rpartition("/")[2], graph=True)


class Callers:
    """Who calls, where only Python does: the paths of calls of one root optimizer."""

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
        """What of a block's `reading` each path led to: together they are the reading.

        So many `steps` began so far, of which `past` came before those of the reading.
        """
        yield self.lines(block.path), reading


class FunctionCallers(Callers):
    """The callers of one root optimizer and of the functions with its blocks; thread-safe."""

    def __init__(self, author_of: Any, is_alone: Callable[[], bool]) -> None:
        """`is_alone` says whether no other thread is in a function now."""
        super().__init__(author_of)
        self.changes = 0
        """Moves whenever another caller calls."""
        self._is_alone = is_alone
        self._at_any_time: set[str] = set()
        """The regions that a dataset runs, whenever it is asked for an element."""
        self._callers_of: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """For each region those it is called in, with the path there."""
        self._seen: dict[int, dict[Caller, None]] = defaultdict(dict)
        """By replica: everyone who ever called."""
        self._now: dict[tuple[int, str | None], Caller | None] = {}
        self._spans: dict[tuple[int, str | None], Spans[Caller]] = defaultdict(Spans)
        """By replica and region: who called it; without a region: who called any."""
        self._together = False
        self._lock = threading.RLock()

    def called_inside(self, region: str, around: str, path: int) -> None:
        """A function is called while the one `around` is traced, by a `path` in there."""
        if (around, path) not in self._callers_of[region]:
            with self._lock:
                self._callers_of[region][around, path] = None
                self._find_shared(region)

    def called(self, region: str, replica: int, path: int, number: Callable[[], int]) -> bool:
        """A function is about to run that this thread called in eager mode, by `path`.

        `number` gives that of the next step. Returns whether the same call need not be looked at
        until `changes` moves.
        """
        caller = Caller(region, path)
        key = replica, None if self._together else region
        if self._now.get(key) == caller:
            return True
        with self._lock:
            self.changes += 1
            if caller not in self._seen[replica]:
                self._seen[replica][caller] = None
                self._find_shared(region)
                key = replica, None if self._together else region
            self._now[key] = None  # who calls from now on waits for the lock, and is inside by then
            now = caller if self._is_alone() else None
            new, spans = key not in self._spans, self._spans[key]
            if spans.full:
                now = caller
            else:
                step = number()
                for (of, _), each in self._spans.items() if new and self._together else ():
                    if of == replica:
                        each.change(step, None)
                spans.change(step, now)
            self._now[key] = now
            return now is not None

    def passed_to_dataset(self, region: str, replica: int, path: int) -> None:
        """A dataset is made by `path` that will run a function."""
        with self._lock:
            self._at_any_time.add(region)
            self._seen[replica].setdefault(Caller(region, path))

    def _find_shared(self, region: str) -> None:
        """Note spans together from now on if a region has several callers."""
        callers = {around for around, _ in self._callers_of[region]}
        callers |= {each.region for seen in self._seen.values() for each in seen} & {region}
        self._together |= len(callers) > 1

    # Reading.

    def parts(
        self, block: CountedBlock, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[Lines, Reading]]:
        """What of a block's `reading` each path led to: see `Callers.parts`."""
        replica, region, path = block.replica, block.region, block.path
        if not region:
            yield self.lines(path), reading
            return
        ways = self._ways_to(region)
        seen = [each for each in list(self._seen[replica]) if each.region in ways]
        inner = (begin_of(region), *self.lines(path))
        at_any_time = len(seen) > 1 and not self._at_any_time.isdisjoint(ways)
        if at_any_time or not reading.total:  # it may be anybody's turn when it runs
            known = not reading.total or region in self._at_any_time
            yield (known and self.lines(block.whole)) or inner, reading
            return
        if len(seen) == 1:
            yield self._lines(seen[0], ways[seen[0].region], inner), reading
            return
        graphs, idle = reading.graphs, reading.idle
        left = {flags: list(runs) for flags, runs in reading.runs.items()}
        for caller, stretches in self._spans_on(replica, seen, steps + 1).items():
            lines = self._lines(caller, ways[caller.region], inner)
            found = {
                flags: layers(of_caller(runs, stretches, past))
                for flags, runs in reading.runs.items()
            }
            for depth in range(max(map(len, found.values()), default=0)):
                runs = {flags: each[depth] for flags, each in found.items() if each[depth:]}
                yield lines, Reading(runs, graphs=graphs, idle=idle)
                graphs = idle = 0
            for flags, each in found.items():
                left[flags] = without(left[flags], [run for layer in each for run in layer])
        runs = {flags: each for flags, each in left.items() if each}
        rest = reading._replace(runs=runs, graphs=graphs, idle=idle)
        if rest.total or graphs:
            yield inner, rest

    def _spans_on(
        self, replica: int, callers: Sequence[Caller], end: int
    ) -> dict[Caller, list[Stretch]]:
        """In which steps it was each of these callers."""
        found: dict[Caller, list[Stretch]] = defaultdict(list)
        with self._lock:
            for (of, _), spans in self._spans.items():
                for caller, stretches in spans.by_caller(end).items() if of == replica else ():
                    if caller in callers:
                        found[caller] += stretches
        return found

    def _ways_to(self, region: str) -> dict[str, list[Lines]]:
        """From each region that is called in eager mode the lines to this one, of each way."""
        ways: dict[str, list[Lines]] = defaultdict(list)
        todo: list[tuple[str, Lines, tuple[str, ...]]] = [(region, (), (region,))]
        for _ in range(_MOST_WAYS):
            if not todo:
                break
            at, lines, passed = todo.pop()
            ways[at].append(lines)
            todo += [
                (around, (begin_of(around), *self.lines(path), *lines), (*passed, around))
                for around, path in list(self._callers_of[at])
                if around not in passed
            ]
        return ways

    def _lines(self, caller: Caller, ways: Sequence[Lines], inner: Lines) -> Lines:
        """The path from a caller to a block: of several ways that which they have in common."""
        common = (lines[0] for lines in takewhile(_are_equal, zip(*ways, strict=False)))
        return (*self.lines(caller.path), *common, *inner)


def _are_equal(lines: Sequence[Line]) -> bool:
    return len(set(lines)) == 1
