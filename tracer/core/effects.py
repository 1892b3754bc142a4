"""Turns observations of variables in steps into the effects of a trace. No framework.

Observations are counted like blocks, and settled with them: see `tracer.core.settle`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from tracer.core.counters import Counted, Source
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.log import HostLog, Reading, until
from tracer.core.settle import Ended
from tracer.model.records import OBSERVATIONS, Block, Entry, Observation
from tracer.model.timeline import Run, union


class Logs:
    """The observations that Python made in steps; callers hold the lock of the counters."""

    def __init__(self) -> None:
        self._logs: dict[int, dict[Source, HostLog]] = defaultdict(dict)

    def log(self, replica: int, found: Iterable[Source], stamp: int) -> None:
        """Log the observations of one step."""
        logs = self._logs[replica]
        for source in found:
            log = logs.get(source)
            if log is None:
                log = logs[source] = HostLog()
            log.add(stamp)

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


def effects_of(
    root: int, replicas: Mapping[int, Ended], indices: Mapping[int, int]
) -> Iterator[Block]:
    """Yield the effects of a trace; variables with the same effects share a block."""
    for replica, ended in sorted(replicas.items()):
        seen: dict[tuple[Observation, int], list[Reading]] = defaultdict(list)
        for source, reading in ended.effects:
            for variable in source.variables:
                seen[source.what, variable].append(reading)
        alike: dict[tuple[Observation, int, tuple[Run, ...]], list[int]] = defaultdict(list)
        for (what, variable), readings in seen.items():
            runs = readings[0].runs.get(0, ())
            if len(readings) > 1:
                runs = union(run for each in readings for run in each.runs.get(0, ()))
            total = sum(run.total for run in runs) + sum(each.lost for each in readings)
            alike[what, total, tuple(runs)].append(variable)
        for (what, total, steps), same in alike.items():
            entry = Entry(root, 0, what, None, tuple(sorted(same)))
            yield Block(root, indices[replica], "eager", "", False, (entry,), total, steps)


def not_compared(counted: Counted) -> int:
    """How many ended steps with effects on have none that are known by step."""
    if counted.compared_from is None:
        return 0
    own = [
        reading
        for block, reading in counted.blocks.values()
        if block.step and block.function != SESSION_GRAPH
    ]
    runs = [
        run
        for source, reading in counted.effects.items()
        if source.what == "compared" and source.variables
        for run in reading.runs.get(0, ())
    ]
    asked = range(max(1, counted.compared_from), counted.steps + 1)
    placed = _steps_in((run for each in own for run in each.runs.get(0, ())), asked)
    ended = min(len(asked), placed + sum(each.lost for each in own))
    return max(0, ended - _steps_in(runs, asked))


def _steps_in(runs: Iterable[Run], steps: range) -> int:
    return sum(part.total for run in runs if (part := run.intersect(steps)) is not None)
