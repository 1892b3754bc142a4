"""When blocks ran: stamps of executions, as they are counted, and as they are read. No framework.

Every execution has a stamp (`tracer.core.stamps`). What Python counts, and what it takes out of
the journals of programs, is put into a `HostLog`, where stamps that rise by one stride are one run:
a million equal steps are one. `reading_of` makes a `Reading` of it: the steps in which a block ran,
numbered as they began. `until` and `since` limit it to some steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tracer.core.stamps import UNIT, flags_of, number_of
from tracer.model.runs import Run, join
from tracer.model.timeline import union


class Reading(NamedTuple):
    """What a counter says of its block."""

    runs: Mapping[int, Sequence[Run]] = {}
    """By the flags of `tracer.core.stamps`: in which steps it ran, numbered as they began."""
    outside: Mapping[int, int] = {}
    """By the same flags: how often it ran in no step."""
    lost: int = 0
    """How often it ran besides, of which the detail is lost."""
    graphs: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        """How often it ran."""
        placed = sum(run.total for runs in self.runs.values() for run in runs)
        return placed + sum(self.outside.values()) + self.lost


def reading_of(stamped: Iterable[Run], total: int, graphs: int, idle: int) -> Reading:
    """The reading of a counter that ran `total` times, as `stamped`, runs of stamps, say.

    >>> reading_of([Run(256, 256, 3), Run(1025, 1, 1, 2)], 6, 1, 0)
    Reading(runs={0: [Run(first=1, stride=1, count=3, times=1)], \
1: [Run(first=4, stride=1, count=1, times=2)]}, outside={}, lost=1, graphs=1, idle=0)
    """
    runs: dict[int, list[Run]] = defaultdict(list)
    outside: dict[int, int] = defaultdict(int)
    for run in stamped:
        total -= run.total
        for piece in _of_one_kind(run):
            if piece.first < UNIT:
                outside[flags_of(piece.first)] += piece.total
            else:
                stride = piece.stride // UNIT if piece.count > 1 else 1
                number = number_of(piece.first)
                runs[flags_of(piece.first)].append(Run(number, stride, piece.count, piece.times))
    joined = {flags: union(each) for flags, each in runs.items()}
    return Reading(joined, dict(outside), total, graphs, idle)


def _of_one_kind(run: Run) -> Iterator[Run]:
    """A run of stamps in parts that have the same flags, and are all in a step or all in none."""
    if run.count > 1 and run.stride % UNIT:  # its flags change from one stamp to the next
        for stamp in range(run.first, run.last + 1, run.stride):
            yield Run(stamp, 1, 1, run.times)
    elif run.count > 1 and run.first < UNIT:
        yield Run(run.first, 1, 1, run.times)
        left = run.count - 1
        yield Run(run.first + run.stride, run.stride if left > 1 else 1, left, run.times)
    else:
        yield run


def until(reading: Reading, begun: int) -> Reading:
    """What of `reading` was in no later step than the step `begun`."""
    if all(run.last <= begun for runs in reading.runs.values() for run in runs):
        return reading
    steps = range(1, begun + 1)
    earlier = {
        flags: [earlier_run for run in runs if (earlier_run := run.only(steps)) is not None]
        for flags, runs in reading.runs.items()
    }
    return reading._replace(runs={flags: runs for flags, runs in earlier.items() if runs})


def since(reading: Reading, before: Reading, begun: int) -> Reading:
    """What of `reading` came after `before`, with the step after the step `begun` numbered 1."""
    if not before.total and not begun:
        return reading
    later = {
        flags: [run for each in runs if (run := _after(each, begun)) is not None]
        for flags, runs in reading.runs.items()
    }
    outside = {
        flags: count - before.outside.get(flags, 0) for flags, count in reading.outside.items()
    }
    return Reading(
        {flags: runs for flags, runs in later.items() if runs},
        {flags: count for flags, count in outside.items() if count},
        max(0, reading.lost - before.lost),
        reading.graphs - before.graphs,
        max(0, reading.idle - before.idle),
    )


def _after(run: Run, steps: int) -> Run | None:
    """The part of `run` after the step `steps`, renumbered."""
    later = run.only(range(steps + 1, run.last + 1))
    return None if later is None else later.moved(-steps)


class HostLog:
    """When a block ran, as runs of stamps."""

    __slots__ = ("lost", "runs", "total")

    def __init__(self) -> None:
        self.total = 0
        self.lost = 0
        """How often it ran besides: see `Reading`."""
        self.runs: list[list[int]] = []  # [first, stride, count, times], open at the end

    def add(self, stamp: int) -> None:
        """The block ran once more."""
        self.total += 1
        if self.runs:
            run = self.runs[-1]
            first, stride, count, times = run
            last = first + (count - 1) * stride
            if stamp == last and count == 1:
                run[3] += 1
                return
            if stamp == last:  # again in the same step, which becomes a run of its own
                run[2] -= 1
                self.runs.append([stamp, 1, 1, times + 1])
                return
            if times == 1 and stamp > last and (count == 1 or stamp == last + stride):
                run[1], run[2] = stamp - last, count + 1
                return
            if len(self.runs) > 1:  # a step that ran it several times may continue a run of such
                tail = join(Run(*run) for run in self.runs[-2:])
                self.runs[-2:] = [[r.first, r.stride, r.count, r.times] for r in tail]
        self.runs.append([stamp, 1, 1, 1])

    def reading(self, graphs: int, idle: int) -> Reading:
        """What was added so far; so many graphs hold the block, of which `idle` never ran."""
        runs = join(Run(*run) for run in self.runs)
        return reading_of(runs, self.total + self.lost, graphs, idle)
