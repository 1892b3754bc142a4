"""What is expected of a run: a count, its limits, and the variables and the method that count.

The assertions make expectations of their arguments, and `read` of a text such as `dense=4/step`,
for `tracer check`. An expectation knows no objects of a program: only names, and rows of a trace.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tracer.errors import Mistake
from tracer.kinds import KINDS
from tracer.model.records import Kind
from tracer.model.words import first_of, span

Quantity = Literal["updates", "executions", "calls", "steps", "unchanged", "not_finite"]
"""The quantities that can be expected of a run."""

METHODS: dict[str, set[str]] = {}
"""The methods that `tracer` counts, each with its roles, for all kinds of optimizer."""
for _kind in KINDS:
    for _name in _kind.step_methods:
        METHODS.setdefault(_name, set()).add("step")
    for _method in _kind.apply_methods:
        METHODS.setdefault(_method.name, set()).add("apply")


@dataclass(frozen=True)
class Expectation:
    """An expected count: of a whole run or, with `per_step`, of each step on each replica.

    Raises `TypeError` or `ValueError` for limits that no count can have.
    """

    what: Quantity
    low: int | None
    high: int | None
    """Inclusive limits; equal if the count is exact, None if there is none."""
    kind: Kind | None = None
    method: str | None = None
    names: tuple[str, ...] = ()
    """Names and globs of the variables that count; empty for all."""
    rows: frozenset[int] | None = None
    """The indices of these variables in the trace, if known."""
    per_step: bool = False
    text: str = ""
    """The expression of `tracer check`; empty for an assertion."""

    def __post_init__(self) -> None:
        for number in (self.low, self.high):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{self.noun}: a count is an int, not {number!r}")
        low = self.low or 0
        if low < 0 or (self.high is not None and self.high < low):
            raise ValueError(f"{self.noun}: no count is {self.limits}")

    @property
    def noun(self) -> str:
        """`dense updates of encoder/*`, `executions of update_step on dense/kernel`."""
        kind = f"{self.kind} " if self.kind else ""
        method = f" of {self.method}" if self.method else ""
        of = f" {'on' if self.method else 'of'} {first_of(self.names, 3)}" if self.names else ""
        return f"{kind}{self.what.replace('_', ' ')}{method}{of}"

    @property
    def limits(self) -> str:
        """`at least 4 in each step`."""
        if self.low is None:
            text = f"at most {self.high:,}"
        elif self.high is None:
            text = f"at least {self.low:,}"
        else:
            text = span((self.low, self.high))
        return f"{text} in each step" if self.per_step else text

    def holds(self, count: int) -> bool:
        """True if `count` is within the limits."""
        return (self.low or 0) <= count and (self.high is None or count <= self.high)


# Expectations as text.

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>[\d.][\w.,+-]*?)\s*(?P<step>/\s*steps?)?\s*"
)
_LIMITS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "=": lambda number: (number, number),
    "==": lambda number: (number, number),
    "<=": lambda number: (None, number),
    ">=": lambda number: (number, None),
    "<": lambda number: (None, number - 1),
    ">": lambda number: (number + 1, None),
}
COUNTS: dict[str, tuple[Quantity, Kind | None]] = {
    "updates": ("updates", None),
    "dense": ("updates", "dense"),
    "sparse": ("updates", "sparse"),
    "steps": ("steps", None),
    "calls": ("calls", None),
    "unchanged": ("unchanged", None),
    "not_finite": ("not_finite", None),
}
"""The counts that a text can name, besides methods."""
HELP = 'write it as "dense=4/step", "sparse=0", "updates[encoder/*]=0", "steps>=100" or "calls<=8"'


class BadExpectation(Mistake):
    """Raised for an expectation that cannot be read; says how to write one."""


def read(text: str) -> Expectation:
    """The expectation that `text` describes.

    Raises `BadExpectation` if it describes none.

    >>> read("dense[encoder/*]>=4/step").noun, read("dense[encoder/*]>=4/step").limits
    ('dense updates of encoder/*', 'at least 4 in each step')
    """
    parsed = _PATTERN.fullmatch(text)
    if parsed is None:
        raise BadExpectation(f"{text!r} is no expectation: {HELP}")
    name, variable, per_step = parsed["what"], parsed["variable"], parsed["step"] is not None
    what, kind = COUNTS.get(name, ("executions", None))
    if per_step and what in ("steps", "calls"):
        raise BadExpectation(f"{text!r}: {what} takes no /step")
    if variable is not None and what == "steps":
        raise BadExpectation(f"{text!r}: steps are not counted by variable")
    number = re.sub(r"[,_]", "", parsed["number"])
    if not number.isdecimal():
        raise BadExpectation(f"{text!r}: a count is a whole number, not {number}")
    low, high = _LIMITS[parsed["relation"]](int(number))
    method = None if name in COUNTS else name
    names = () if variable is None else (variable,)
    try:
        return Expectation(what, low, high, kind, method, names, None, per_step, text.strip())
    except ValueError as error:
        raise BadExpectation(f"{text!r}: {error}") from None
