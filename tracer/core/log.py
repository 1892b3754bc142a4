"""Records when blocks ran: stamps of executions, stored as runs. No framework.

Every execution has a stamp, `UNIT * number + flags`. The number is the step under way, or 0 outside
of steps. A block that is itself a step has no flag; a block inside a step has `WITHIN`; a block
called by an apply method has `APPLYING`.

A `HostLog` gets the stamps that Python counts or takes out of the journals of programs, and stores
stamps with a constant stride as one run: a million equal steps are one run. It returns a `Reading`:
the steps in which a block ran, numbered as they began. `until` and `since` limit a reading to some
steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracer.model.timeline import Run, join, union

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
