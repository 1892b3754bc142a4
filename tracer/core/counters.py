"""Counts executions: in logs for blocks that Python counts, and by a backend for programs.

Every execution has a stamp, `UNIT * number + flags`. The number is the step under way, or 0 outside
of steps. A block that is itself a step has no flag; a block inside a step has `WITHIN`; a block
called by an apply method has `APPLYING`.

A `HostLog` gets the stamps that Python counts or takes out of the journals of programs, and stores
stamps with a constant stride as one run: a million equal steps are one run. It returns a `Reading`:
the steps in which a block ran, numbered as they began. `until` and `since` limit a reading to some
steps.

Logs and programs use the same numbers of steps. A reader holds the lock of the `Counters`, so every
step that has taken a number is in its log; the backend sorts out what programs do meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tracer.core import locks
from tracer.model.records import OBSERVATIONS, Observation
from tracer.model.timeline import Run, join, union

# Stamps and logs.

UNIT = 256
"""`RngReadAndSkip` advances its state by this for each number: see `tensorflow.ledger`."""
WITHIN = 1
"""The block is part of another block's step."""
APPLYING = 2
"""An apply method calls the block, so its updates are not outermost updates."""


class Reading(NamedTuple):
    """The content of a block's counter."""

    runs: Mapping[int, Sequence[Run]] = {}
    """By the flags of stamps: the steps of the block, numbered as they began."""
    outside: Mapping[int, int] = {}
    """How often the block ran outside of steps, by the same flags."""
    lost: int = 0
    """How many more times the block ran, in steps that are lost."""

    @property
    def total(self) -> int:
        """How often the block ran."""
        placed = sum(run.total for runs in self.runs.values() for run in runs)
        return placed + sum(self.outside.values()) + self.lost


def until(reading: Reading, last: int) -> Reading:
    """The part of `reading` up to the step `last`."""
    if all(run.last <= last for runs in reading.runs.values() for run in runs):
        return reading
    steps = range(1, last + 1)
    earlier = {
        flags: [earlier_run for run in runs if (earlier_run := run.intersect(steps)) is not None]
        for flags, runs in reading.runs.items()
    }
    return reading._replace(runs={flags: runs for flags, runs in earlier.items() if runs})


def since(reading: Reading, before: Reading, past: int) -> Reading:
    """The part of `reading` after `before`, with the step after the step `past` numbered 1."""
    if not before.total and not past:
        return reading
    later = {
        flags: [
            run
            for each in runs
            if (run := each.intersect(range(past + 1, each.last + 1), -past)) is not None
        ]
        for flags, runs in reading.runs.items()
    }
    outside = {
        flags: count - before.outside.get(flags, 0) for flags, count in reading.outside.items()
    }
    return Reading(
        {flags: runs for flags, runs in later.items() if runs},
        {flags: count for flags, count in outside.items() if count},
        max(0, reading.lost - before.lost),
    )


class HostLog:
    """The log of when a block ran, as runs of stamps."""

    __slots__ = ("_outside", "_runs", "lost", "total")

    def __init__(self) -> None:
        self.total = 0
        self.lost = 0
        """How many more times the block ran: see `Reading`."""
        self._outside: dict[int, int] = defaultdict(int)
        self._runs: dict[int, list[list[int]]] = defaultdict(list)
        """By flags: [first stamp, stride, count, times] of each run; the last run may continue."""

    def add(self, stamp: int) -> None:
        """Add one execution.

        A signal handler may raise at any call in here: nothing has changed by then.
        """
        if stamp < UNIT:
            self._outside[stamp] += 1
            self.total += 1
            return
        runs = self._runs[stamp % UNIT]
        if runs:
            run = runs[-1]
            first, stride, count, times = run
            last = first + (count - 1) * stride
            if times == 1 and (stamp == last + stride or (count == 1 and stamp > last)):
                run[1], run[2] = stamp - last, count + 1
                self.total += 1
                return
        kept, tail = len(runs), [[stamp, 1, 1, 1]]
        if runs:
            if stamp == last:  # again in the same step: make the step its own run
                tail = [[first, stride, count - 1, times], [stamp, 1, 1, times + 1]][count == 1 :]
                kept -= 1
            elif kept > 1:  # a step with several executions may continue a run of such
                before = join(Run(*each) for each in runs[-2:])
                tail = [*([r.first, r.stride, r.count, r.times] for r in before), *tail]
                kept -= 2
        runs[kept:] = tail
        self.total += 1

    def reading(self) -> Reading:
        """The log so far.

        >>> log = HostLog()
        >>> for stamp in (256, 512, 768, 1025, 1025, 2):
        ...     log.add(stamp)
        >>> log.reading()
        Reading(runs={0: [Run(first=1, stride=1, count=3, times=1)], \
1: [Run(first=4, stride=1, count=1, times=2)]}, outside={2: 1}, lost=0)
        """
        runs = {
            flags: union(
                join(
                    Run(first // UNIT, stride // UNIT or 1, count, times)
                    for first, stride, count, times in each
                )
            )
            for flags, each in self._runs.items()
        }
        return Reading(runs, dict(self._outside), self.lost)


# What is counted, by replica.


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

    def last_numbers(self) -> dict[int, int]:
        """The number of the last step begun, by replica."""
        return {replica: clock.begun() for replica, clock in list(self.clocks.items())}

    def _read_programs(
        self, last: Mapping[int, int]
    ) -> Mapping[int, Sequence[tuple[CountedBlock, Reading]]]:
        """The blocks of programs by replica, in a fixed order, up to these `last` steps."""
        return {}

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
