"""Implements `Counts`: how often, by what and in which steps the blocks of a trace ran.

Traces, reports, assertions and checks count with it. No TensorFlow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from tracer.model.measures import Measure, Selection
from tracer.model.records import Block, Entry, contribution
from tracer.model.runs import Run
from tracer.model.timeline import Kind, Timeline, Values, added, step_kinds, weighed

_second = itemgetter(1)


class StepKinds:
    """The kinds of step on each replica, and on all replicas together.

    Blocks with the same runs count as one block, since replicas do the same in each step.
    """

    def __init__(self, blocks: Sequence[Block], steps_on: Mapping[int, int]) -> None:
        self.steps_on = steps_on
        self._blocks = blocks
        self._kinds: dict[object, tuple[list[Kind], Timeline]] = {}
        self._timelines: dict[object, Timeline] = {}

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        """The number of each block's runs, by their id: to hash the runs of a block takes long."""
        numbers: dict[tuple[Run, ...], int] = {}
        return {
            id(block.runs): numbers.setdefault(block.runs, len(numbers)) for block in self._blocks
        }

    @cached_property
    def _on(self) -> Mapping[int | None, Mapping[int, tuple[Run, ...]]]:
        """The runs on each replica, and on all, by number."""
        runs: dict[int | None, dict[int, tuple[Run, ...]]] = {None: {}}
        for block in self._blocks:
            for replica in (None, block.replica):
                runs.setdefault(replica, {})[self._numbers[id(block.runs)]] = block.runs
        return runs

    def timeline(
        self, weighted: Iterable[tuple[Block, Values]], replica: int | None, size: int
    ) -> Timeline:
        """The counts of each step on a replica or on all, from those of one execution of blocks."""
        key = self._key(replica)
        weights = self._weights(weighted)
        known = key, size, frozenset(weights.items())
        if known not in self._timelines:
            counts = weighed(self._kinds[key][0], weights, size)
            self._timelines[known] = self._kinds[key][1].map(lambda kind: counts[kind[0]])
        return self._timelines[known]

    def _key(self, replica: int | None) -> object:
        runs = self._on.get(replica, {})
        on = self.steps_on if replica is None else (replica,)
        steps = max((self.steps_on[each] for each in on), default=0)
        key = steps, frozenset(runs)
        if key not in self._kinds:
            self._kinds[key] = step_kinds(runs, steps)
        return key

    def _weights(self, weighted: Iterable[tuple[Block, Values]]) -> dict[int, Values]:
        weights: dict[int, Values] = {}
        for block, values in weighted:
            number = self._numbers[id(block.runs)]
            weights[number] = added(weights[number], values) if number in weights else values
        return weights


class Counts:
    """What some blocks count, by measures: in all, by any key, and in each step."""

    def __init__(self, counted: Iterable[Block], kinds: StepKinds) -> None:
        self._kinds = kinds
        self._on: dict[int | None, list[Block]] = {None: list(counted)}
        for block in self._on[None]:
            self._on.setdefault(block.replica, []).append(block)

    def total(self, measure: Measure, replica: int | None = None) -> int:
        """The count over the whole trace, or on one replica."""
        return sum(block.total * measure(block) for block in self._on.get(replica, ()))

    def by(self, keys: Sequence[str], select: Selection) -> Counter[tuple[Any, ...]]:
        """The count for each combination of keys.

        A key is `variable`, `step`, or a field of the counted blocks or entries; objects are given
        by their indices. Entries in graphs that never ran count 0. By step, executions in unknown
        steps do not count.
        """
        counts: Counter[tuple[Any, ...]] = Counter()
        for block in self._on[None]:
            steps: list[tuple[int | None, int]] = [(None, block.total)]
            if "step" in keys:
                steps = [(at, run.times) for run in block.runs for at in run.steps]
            entries = block.entries if select.holds_replica(block.replica) else ()
            for entry in filter(select.holds, entries):
                variables: list[tuple[int | None, int]]
                variables = [(None, contribution(entry, select.variables))]
                if "variable" in keys and entry.variables:
                    variables = [(index, entry.times) for index in select.kept(entry.variables)]
                fields = {
                    key: getattr(entry if key in Entry.__struct_fields__ else block, key)
                    for key in keys
                    if key not in ("variable", "step")
                }
                for fields["variable"], times in filter(_second, variables):
                    for fields["step"], number in steps:
                        counts[tuple(fields[key] for key in keys)] += times * number
        return counts

    def within(self, steps: range) -> "Counts":
        """The counts in some steps, as far as their executions are known."""
        blocks = []
        for block in self._on[None]:
            runs = tuple(part for run in block.runs if (part := run.intersect(steps)) is not None)
            blocks.append(replace(block, runs=runs, total=sum(run.total for run in runs)))
        return Counts(blocks, StepKinds(blocks, self._kinds.steps_on))

    def step_unknown(self, measure: Measure) -> int:
        """The part of the total that ran in unknown steps."""
        return sum(number * measure(block) for block, number in self._step_unknown)

    @cached_property
    def _step_unknown(self) -> list[tuple[Block, int]]:
        short = ((block, block.step_unknown) for block in self._on[None] if not block.outside)
        return [(block, number) for block, number in short if number]

    def timeline(self, *measures: Measure, replica: int | None = None) -> Timeline:
        """The counts of each step by each of `measures`, from step 1 on."""
        return self._kinds.timeline(self._weighted(measures, replica), replica, len(measures))

    def spread(self, *measures: Measure, replica: int | None = None) -> Counter[Values]:
        """The number of steps with each combination of counts by `measures`."""
        return self.timeline(*measures, replica=replica).spread

    def _weighted(
        self, measures: Sequence[Measure], replica: int | None
    ) -> Iterator[tuple[Block, Values]]:
        for block in self._on.get(replica, ()):
            counts = tuple(measure(block) for measure in measures)
            if any(counts):
                yield block, counts
