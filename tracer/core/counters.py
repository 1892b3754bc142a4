"""Counts executions: in logs for blocks that Python counts, and by a backend for programs.

Both use the same numbers of steps. A reader holds the lock, so every step that has taken a number
is in its log; the backend sorts out what programs do meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tracer.core import locks
from tracer.core.log import HostLog, Reading, since, until
from tracer.model.records import OBSERVATIONS, Observation


class CountedBlock(NamedTuple):
    """Identifies a block; equal blocks do the same at each execution."""

    replica: int
    function: str
    """The function of the block's graph; empty in eager mode."""
    step: bool
    """Whether the block is a step when it does not run inside another step."""
    sites: tuple[int, ...]
    path: int | None = None
    """The number of the path to the block; in a graph, the path of its tracing."""


class Source(NamedTuple):
    """The subject of one log of effects; never changes."""

    variables: tuple[int, ...]
    what: Observation


class Counted(NamedTuple):
    """The counts of one replica, with steps numbered as they began."""

    steps: int
    """The number of steps begun."""
    blocks: dict[Any, tuple[CountedBlock, Reading]]
    """By a key that never changes for a block."""
    under_way: Collection[int] = ()
    """The steps under way, as far as Python knows."""
    calm: bool = True
    """Whether nothing runs now: then an error ended each step that has not ended."""
    effects: Mapping[Source, Reading] | None = None
    """The steps of each observation; None if effects are off."""

    @property
    def past(self) -> int:
        """The last step before all steps under way."""
        return min(self.under_way, default=self.steps + 1) - 1

    def since(self, before: "Counted") -> "Counted":
        """The counts after `before`, with the step after its `past` numbered 1."""
        past, nothing, seen = before.past, (None, Reading()), before.effects or {}
        return self._replace(
            steps=self.steps - past,
            blocks={
                key: (block, since(reading, before.blocks.get(key, nothing)[1], past))
                for key, (block, reading) in self.blocks.items()
            },
            under_way={number - past for number in self.under_way if number > past},
            effects=None
            if self.effects is None
            else {
                source: new
                for source, reading in self.effects.items()
                if (new := since(reading, seen.get(source, Reading()), past)).total
            },
        )


Counts = dict[int, Counted]


class EffectLogs:
    """The observations that Python made in steps; callers hold the lock of the counters."""

    def __init__(self) -> None:
        self._logs: dict[int, dict[Source, HostLog]] = defaultdict(lambda: defaultdict(HostLog))

    def log(self, replica: int, found: Iterable[Source], stamp: int) -> None:
        """Log the observations of one step."""
        logs = self._logs[replica]
        for source in found:
            logs[source].add(stamp)

    def read(self, replica: int, last: int) -> dict[Source, Reading]:
        """The observations on a replica in the steps up to `last`."""
        logs = self._logs[replica]
        return {source: until(log.reading(), last) for source, log in logs.items()}


def sources_of(variables: Sequence[int], bits: Iterable[bool]) -> list[Source]:
    """Return the observations of a step in which these variables were compared.

    `bits` has the answers to `questions`, in the same order.
    """
    found = zip(questions(tuple(variables)), bits, strict=False)
    return [Source(tuple(variables), "compared"), *(source for source, bit in found if bit)]


@lru_cache(maxsize=256)
def questions(variables: tuple[int, ...]) -> list[Source]:
    """The meaning of each bit of a step."""
    return [Source((each,), what) for what in OBSERVATIONS[1:] for each in variables]


class Clock:
    """Numbers the steps of a replica as they begin, from 1 on; this one is in Python."""

    def __init__(self) -> None:
        self._begun = 0

    def take(self) -> int:
        """Return the number of a step that begins outside of every program; the lock is held."""
        self._begun += 1
        return self._begun

    def begun(self) -> int:
        """The number of the last step that has begun."""
        return self._begun


class Counters:
    """The counters of one root optimizer, by replica; this class has only Python's."""

    in_programs = False
    """Whether programs count anything without Python."""

    def __init__(self) -> None:
        self.lock = locks.new_lock("counters")
        self.logs: dict[CountedBlock, HostLog] = defaultdict(HostLog)
        self.effects: Any = None
        """Compares the variables of each step (a subclass of `EffectLogs`); None until somebody
        wants effects."""
        self.rates: dict[int, tuple[float, float, int, int]] = {}
        """By replica, the first and the last learning rate that programs reported since the last
        baseline, the number of values, and in how many steps."""
        self.clocks: dict[int, Clock] = defaultdict(Clock)
        """By replica; one in a program takes the place of the one in Python."""

    def take_number(self, replica: int) -> int:
        """Return a new number, for a step that begins outside of every program."""
        with self.lock:
            return self.clocks[replica].take()

    def last_numbers(self) -> dict[int, int]:
        """The number of the last step begun, by replica."""
        return {replica: clock.begun() for replica, clock in list(self.clocks.items())}

    def _read_programs(
        self, last: Mapping[int, int]
    ) -> Mapping[int, Sequence[tuple[CountedBlock, Reading]]]:
        """The blocks of programs by replica, in a fixed order, up to these `last` steps."""
        return {}

    def log(self, block: CountedBlock, stamp: int) -> None:
        """Count one execution of a block in Python."""
        with self.lock:
            self.logs[block].add(stamp)

    def moved(self, optimizer: object) -> int | None:
        """How far the steps moved an optimizer's own count of steps; None if they do not report it.

        The count may move in a state that only the program has.
        """
        return None

    def steps(self) -> int:
        """The number of steps begun, on the replica with the most."""
        return max(self.last_numbers().values(), default=0)

    def read(
        self, under_way: Callable[[], Iterable[dict[int, int]]], is_calm: Callable[[], bool]
    ) -> Counts:
        """Return the counts of each replica; the key of a block never changes.

        `under_way` returns the numbers, by replica, of the steps under way, as far as Python knows,
        and `is_calm` whether no program can be running.

        Threads go on stepping meanwhile. So both are asked between the numbers of the last steps
        and the rows: a step up to its last number that is not running by then has written its row.
        """
        counts: Counts = {}
        last = self.last_numbers()
        running, calm = list(under_way()), is_calm()
        programs = self._read_programs(last)  # first: what they wrote goes into the logs read below
        for replica in sorted({block.replica for block in self.logs} | programs.keys()):
            steps, counted = last.get(replica, 0), programs.get(replica, ())
            blocks: dict[Hashable, tuple[CountedBlock, Reading]] = dict(enumerate(counted))
            for block, log in self.logs.items():
                if block.replica == replica:
                    blocks[block] = (block, log.reading())
            mine = {number for step in running if (number := step.get(replica, steps + 1)) <= steps}
            effects = None if self.effects is None else self.effects.read(replica, steps)
            counts[replica] = Counted(steps, blocks, mine, calm, effects)
        return counts
