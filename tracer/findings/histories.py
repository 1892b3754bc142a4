"""What happened to each variable in the steps, and which variables share all of it.

A trace of a thousand variables has few different histories, and none is walked through step by
step: steps stay the arithmetic runs that were recorded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tracer.model.records import Kind, Role
from tracer.model.runs import Run
from tracer.model.summary import Summary
from tracer.model.timeline import Stretch, folded

GIVEN: tuple[Kind, Kind] = ("dense", "sparse")
"""The kinds of a gradient that is not `None`."""


class Share(NamedTuple):
    """What one block, or several that do the same, did to the variable in its runs."""

    replica: int
    role: Role
    kind: Kind | None
    times: int
    """In one execution of the block."""
    total: int
    """Executions of the block."""
    runs: int
    """The index of the block's runs in the list of all different ones."""


class Step(NamedTuple):
    """What the variable saw in one step."""

    updates: int
    gradients: int
    """Requests with a gradient."""
    missing: int
    """Requests with `None`."""


class Span(NamedTuple):
    """Equal steps: `length` of them from `first` on, and again each `period` steps, `turns`
    times in all.
    """

    first: int
    length: int
    period: int
    turns: int
    step: Step

    @property
    def steps(self) -> int:
        """How many steps they are."""
        return self.length * self.turns

    @property
    def last(self) -> int:
        """The last step."""
        return self.first + (self.turns - 1) * self.period + self.length - 1


Runs = tuple[Run, ...]


class History:
    """What happened to some variables, the same to each of them."""

    def __init__(
        self,
        summary: Summary,
        variables: Sequence[int],
        shares: Sequence[Share],
        runs: Sequence[Runs],
    ) -> None:
        self.variables = tuple(variables)
        self._tally = summary
        self._shares = shares
        self._on: dict[int, list[Share]] = {}  # by replica
        for share in shares:
            self._on.setdefault(share.replica, []).append(share)
        self._runs = runs
        self._spans: dict[int, list[Span]] = {}

    def count(self, role: Role, *kinds: Kind, replica: int | None = None) -> int:
        """How many updates or requests of these kinds, or with any gradient, there were."""
        return sum(
            share.times * share.total
            for share in (self._shares if replica is None else self._on.get(replica, ()))
            if share.role == role and share.kind in (kinds or GIVEN)
        )

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas on which anything was asked of them, or done."""
        return tuple(sorted(self._on))

    @property
    def placed(self) -> bool:
        """Whether it is known of everything in which step it was."""
        return all(
            share.total == sum(run.total for run in self._runs[share.runs])
            for share in self._shares
        )

    def spans(self, replica: int) -> list[Span]:
        """All steps of a replica, equal ones together; those of a cycle are listed in turn."""
        if replica not in self._spans:
            weighted = [
                (run, self._weights(share))
                for share in self._on.get(replica, ())
                for run in self._runs[share.runs]
            ]
            steps = folded(weighted, self._tally.steps_on[replica], len(Step._fields))
            self._spans[replica] = [each for stretch in steps for each in _spans(stretch)]
        return self._spans[replica]

    def difference(self, one: int, other: int) -> tuple[int, Step, Step] | None:
        """The first step, of those that both replicas ran, in which the updates differ."""
        weighted = []
        for share in self._shares:
            if share.role == "update" and share.replica in (one, other):
                times = (share.times, 0) if share.replica == one else (0, share.times)
                weighted += [(run, times) for run in self._runs[share.runs]]
        steps = min(self._tally.steps_on[each] for each in (one, other))
        for stretch in folded(weighted, steps, 2):
            first = stretch.first
            for length, (mine, its) in stretch.cycle:
                if mine != its:
                    return first, Step(mine, 0, 0), Step(its, 0, 0)
                first += length
        return None

    @staticmethod
    def _weights(share: Share) -> Step:
        if share.role == "update":
            return Step(share.times, 0, 0)
        if share.role == "vain":
            return Step(0, 0, 0)
        return Step(0, 0, share.times) if share.kind == "none" else Step(0, share.times, 0)


def _spans(stretch: Stretch) -> Iterator[Span]:
    first = stretch.first
    for length, values in stretch.cycle:
        yield Span(first, length, stretch.period, stretch.turns, Step(*values))
        first += length


class Summary(Summary):
    """The counts of one root optimizer, and what happened to its variables."""

    @cached_property
    def histories(self) -> list[History]:
        """The different histories, in the order of their first variable.

        Left out is the argument of a `tf.function`, which stands for several variables.
        """
        return _histories(self)


def _histories(summary: Summary) -> list[History]:
    runs: dict[Runs, int] = {}
    together: dict[tuple[tuple[Share, int], ...], list[int]] = {}
    for group in summary.groups:
        shares: Counter[Share] = Counter()
        for _, block, entry in group.entries:
            if entry.role in ("update", "vain", "request"):
                index = runs.setdefault(block.runs, len(runs))
                shares[
                    Share(block.replica, entry.role, entry.kind, entry.times, block.total, index)
                ] += 1
        plain = [each for each in group.variables if not summary.trace.variables[each].argument]
        if shares and plain:
            together.setdefault(tuple(sorted(shares.items(), key=_order)), []).extend(plain)
    tables = list(runs)
    histories = [
        History(
            summary,
            sorted(variables),
            [share for share, times in shares for _ in range(times)],
            tables,
        )
        for shares, variables in together.items()
    ]
    return sorted(histories, key=lambda each: each.variables)


def _order(item: tuple[Share, int]) -> tuple[object, ...]:
    share, times = item
    return (
        share.replica,
        share.role,
        share.kind or "",
        share.runs,
        share.total,
        share.times,
        times,
    )
