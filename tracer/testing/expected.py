"""What is expected of a run: one model for the assertions, the pytest plugin and `tracer check`.

An `Expected` says what is counted and where, which counts are `Wanted`, and in which `Words` a hint
may name what else could be asked. `tracer.testing.failure` says why a trace is not as expected.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tracer.kinds import KINDS
from tracer.model.names import with_namesakes
from tracer.model.records import Kind
from tracer.model.selection import Filters, Selection
from tracer.model.summary import Summary
from tracer.model.trace import Trace, What

__tracebackhide__ = True  # of wrong arguments pytest shows where they were given

UPDATED: frozenset[Kind | None] = frozenset({"dense", "sparse"})
"""The kinds of gradient that an update can be by."""


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


class Words(NamedTuple):
    """What the hints of a failure call things: in Python or in an expression."""

    scope: str
    """What ran: a block of code or a whole run."""
    per_step: str
    """How a count in each step is asked for; `{number}` is the count."""
    on_each_replica: bool
    """Whether such a count is of each replica, not of all together."""
    calls: str
    """Who counts Python calls, as a sentence goes on."""


IN_PYTHON = Words("the block", "per_step=True", False, ", and so does tracer.assert_calls")
IN_EXPRESSION = Words("the run", "{number}/step", True, "; tracer check counts what ran")


@dataclass(frozen=True)
class Expected:
    """What is expected of the updates, executions, calls, steps or effects that the filters leave.

    Each count in `wanted` must hold: of the whole run or `per_step`, of all replicas together or
    `per_replica`.
    """

    what: Literal["updates", "executions", "calls", "steps", "unchanged", "not_finite"]
    wanted: tuple[Wanted, ...]
    method: str | None = None
    variable: object = None
    context: Literal["eager", "tracing"] | None = None
    per_step: bool = False
    per_replica: bool = False
    words: Words = IN_PYTHON

    @property
    def where(self) -> str:
        """` in each step on each replica`, as far as it is expected there."""
        in_each = " in each step" if self.per_step else ""
        return f"{in_each} on each replica" if self.per_replica else in_each

    def selection(self, trace: Trace) -> Selection:
        """The entries that are meant; none of them for a method that was never called.

        A name means all variables of that name, as of two models.

        Raises `tracer.UnknownName` for a variable that the trace does not hold.
        """
        what: What = "updates" if self.what == "updates" else "executions"
        selection = trace.selection(what, Filters(variable=self.variable))
        if isinstance(self.variable, str) and selection.variables is not None:
            meant = with_namesakes(selection.variables, trace.variables)
            selection = replace(selection, variables=meant)
        if self.method is None:
            return selection
        methods = (i for i, method in enumerate(trace.methods) if method.name == self.method)
        return replace(selection, methods=frozenset(methods))


def concerned(summaries: Iterable[Summary], selection: Selection) -> list[Summary]:
    """The optimizers that an expectation is about: all, or those that have its variables."""
    summaries = list(summaries)
    if selection.variables is None:
        return summaries
    return [t for t in summaries if not selection.variables.isdisjoint(t.variables)] or summaries


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
    names: dict[str, None] = {}
    for kind in KINDS:
        names |= dict.fromkeys(kind.step_methods)
        names |= dict.fromkeys(method.name for method in kind.apply_methods)
    return tuple(names)
