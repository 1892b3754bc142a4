"""What is expected of a run: one model for the assertions, the pytest plugin and `tracer check`.

An `Expected` says what is counted and where, and which counts are `Wanted`. A `Claim` is that of a
trace. `tracer.testing.failure` says why a trace is not as expected.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tracer.kinds import KINDS
from tracer.model.records import OBSERVATIONS, Kind, contribution
from tracer.model.selection import ROLES, Selection, counted
from tracer.model.summary import Pattern, Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.testing.targets import Target, indices_of

__tracebackhide__ = True  # of wrong arguments pytest shows where they were given

Counted = Literal["updates", "executions", "calls", "steps", "changes", "unchanged", "not_finite"]
"""What can be expected of a run."""


class Wanted(NamedTuple):
    """A count that is expected; `low` and `high` are equal if it must be exact."""

    what: str
    low: int | None
    high: int | None
    kinds: frozenset[Kind | None] | None = None
    """The kinds of gradient that count; None for all, and for what has no gradient."""

    def holds(self, count: int) -> bool:
        """Whether `count` is within the limits, which are allowed themselves."""
        return (self.low is None or count >= self.low) and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high:,}"
        if self.low == self.high:
            return f"{self.low:,}"
        return f"at least {self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Expected:
    """What is expected of the updates, executions, calls, steps or effects that the filters leave.

    Each count in `wanted` must hold: of the whole run or `per_step`, of all replicas together or
    `per_replica`, of all variables together or of each of `targets`. Changes are steps in which a
    variable did not stay as it was.
    """

    what: Counted
    wanted: tuple[Wanted, ...]
    method: str | None = None
    variable: object = None
    indices: frozenset[int] | None = None
    """The variables that are meant, if that is known."""
    context: Literal["eager", "tracing"] | None = None
    per_step: bool = False
    per_replica: bool = False
    targets: tuple[Target, ...] | None = None
    text: str = ""
    """The expression that says so, or empty: hints name what else the program could ask."""

    @property
    def where(self) -> str:
        """` in each step on each replica`, as far as it is expected there."""
        of_each = f" of each of {some(len(self.targets), 'variable')}" if self.targets else ""
        return f"{of_each}{' in each step' * self.per_step}{' on each replica' * self.per_replica}"

    def is_right(self, counts: Iterable[int]) -> bool:
        """Whether a step has these counts as it should; none is right of itself in a sum."""
        return self.per_step and all(map(Wanted.holds, self.wanted, counts))

    def selection(self, trace: Trace) -> Selection:
        """The entries that are meant; none of them for a method that was never called.

        Raises `tracer.UnknownName` for a variable that the trace does not hold.
        """
        is_kind = self.what in ("updates", *OBSERVATIONS)
        meant = self.indices if self.variable is None else indices_of(trace, self.variable)
        selection = Selection(roles=ROLES[self.what if is_kind else "executions"], variables=meant)
        if self.method is None:
            return selection
        methods = (i for i, method in enumerate(trace.methods) if method.name == self.method)
        return replace(selection, methods=frozenset(methods))


@dataclass(frozen=True)
class Claim:
    """An expectation of a trace, with what in the trace it is about."""

    trace: Trace
    expected: Expected
    selection: Selection
    """The entries that are meant."""
    summaries: Sequence[Summary]
    """The optimizers that it is about."""
    failed: Sequence[Wanted] = ()
    """The counts that are not as wanted, as far as they are known."""

    @property
    def of_steps(self) -> bool:
        """Whether it is about a step method."""
        methods = self.selection.methods or ()
        return any(self.trace.methods[index].role == "step" for index in methods)

    @property
    def of_work(self) -> bool:
        """Whether it is about updates or other executions."""
        return self.expected.what in ("updates", "executions")

    @property
    def patterns_of(self) -> dict[int, list[Pattern]]:
        """What each variable got; several patterns if several optimizers had it."""
        found: dict[int, list[Pattern]] = {}
        for pattern in (each for summary in self.summaries for each in summary.patterns):
            for variable in pattern.variables:
                found.setdefault(variable, []).append(pattern)
        return found

    def replicas(self, summary: Summary) -> Sequence[int | None]:
        """The replicas to judge, each on its own; None for all of them together."""
        return summary.replicas if self.expected.per_replica else (None,)

    def total(self, wanted: Wanted, replica: int | None = None) -> int:
        """What is counted in all, on all replicas or on one."""
        measure = replace(self.selection, kinds=wanted.kinds)
        return sum(each.total(measure, replica) for each in self.summaries)

    def counted(self, wanted: Wanted, replica: int | None = None) -> int:
        """What there is of what is expected, in all."""
        if self.expected.what == "steps":
            return self.trace.steps
        if self.expected.what == "calls":
            only = self.expected.context
            return sum(n for (_, context), n in self.calls().items() if only in (None, context))
        return self.total(wanted, replica)

    def calls(self) -> Counter[tuple[str, str]]:
        """How often Python called what: the variables of one method or all methods, by context."""
        trace, meant = self.trace, replace(self.selection, roles=ROLES["calls"])
        calls = Counter[tuple[str, str]]()
        for block in counted(trace.data):
            for entry in filter(meant.holds, block.entries):
                names = [trace.methods[entry.method].name] * contribution(entry, meant.variables)
                if self.expected.method is not None and entry.variables:
                    names = [trace.variables[index].name for index in meant.kept(entry.variables)]
                for name in names:
                    calls[name, block.context] += block.total
        return +calls


def claim_of(trace: Trace, expected: Expected) -> Claim:
    """What is claimed of a trace, of all its optimizers or of those that have the variables.

    Raises `tracer.UnknownName` for a variable that the trace does not hold.
    """
    selection, summaries = expected.selection(trace), summaries_of(trace)
    if selection.variables is not None:
        having = [s for s in summaries if not selection.variables.isdisjoint(s.variables)]
        summaries = having or summaries
    return Claim(trace, expected, selection, summaries)


def require_sense(wanted: Iterable[Wanted], needed: str) -> tuple[Wanted, ...]:
    """Those that ask for anything.

    Raises `TypeError`, with the text `needed` if none does, and `ValueError` for impossible counts.
    """
    given = tuple(expected for expected in wanted if (expected.low, expected.high) != (None, None))
    if not given:
        raise TypeError(needed)
    for expected in given:
        for number in (expected.low, expected.high):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{expected.what}: a count is an int, not {number!r}")
        low, high = expected.low or 0, expected.high
        if low < 0 or (high is not None and high < low):
            raise ValueError(f"{expected.what}: no count is {expected}")
    return given


@functools.cache
def known_methods() -> tuple[str, ...]:
    """The methods that `tracer` counts, of optimizers of any kind."""
    names = (
        name
        for kind in KINDS
        for name in (*kind.step_methods, *(each.name for each in kind.apply_methods))
    )
    return tuple(dict.fromkeys(names))
