"""The table of troubles: a row for each program, which stands above it.

A program is `train(healthy)`, or `train(healthy, kind)` if it has kinds. It trains as somebody did
who asked in public why it goes wrong, or as a rule is about; or as its healthy twin does. It
returns whether it hurts, by the weights or by what the framework itself keeps, or nothing if it
asserts that.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar


@dataclass(frozen=True)
class Twin:
    """What is said of a program, and nothing of it of its twin."""

    train: Callable[..., Any]
    code: str
    """Of the finding; empty: nothing is said of the program either."""
    says: tuple[str, ...] = ()
    """Parts of the finding's text; `{here}` is the line of the program with that comment."""
    fix: str = ""
    """A part of the advice."""
    variables: tuple[str, ...] | None = None
    """The ends of the names that it has; None: not asked."""
    others: tuple[str, ...] | None = ()
    """The codes of errors and warnings before it; None: any may be there."""
    raises: str = ""
    """What the framework itself says: one of several texts, with `|` between them."""
    effects: bool = False
    packages: tuple[str, ...] = ()
    """What others wrote, which the program imports."""
    screen: str = ""
    """How often `tracer run` runs it: `long` or `sweep`."""
    slow: str = ""
    """Whether the test itself is `long` or `sweep`."""
    kind: str = ""

    @property
    def backend(self) -> str:
        """The module of the program."""
        return self.train.__module__.rpartition(".")[2]

    @property
    def name(self) -> str:
        """As pytest shows it."""
        return f"{self.train.__name__}-{self.kind}" if self.kind else self.train.__name__

    def run(self, healthy: bool) -> Any:
        """Train."""
        return self.train(healthy, *filter(None, (self.kind,)))

    def facts(self) -> Iterator[str]:
        """What is said, with the number of the line that is marked."""
        lines, first = inspect.getsourcelines(self.train)
        here = [first + at for at, line in enumerate(lines) if "# here" in line]
        for fact in self.says:
            yield fact.format(here=f"{self.backend}.py:{here[0]}") if here else fact


TWINS: list[Twin] = []


Program = TypeVar("Program", bound=Callable[..., Any])


def twin(
    code: str, *says: str, kinds: tuple[str, ...] = ("",), **fields: Any
) -> Callable[[Program], Program]:
    """Add the program to the table, once for each kind; those after the first one are long."""

    def add(train: Program) -> Program:
        row = Twin(train, code, says, **fields)
        for number, kind in enumerate(kinds):
            slow: Any = {"slow": "long", "screen": row.screen and "sweep"} if number else {}
            TWINS.append(replace(row, kind=kind, **slow))
        return train

    return add


def rule(train: Program) -> Program:
    """Add the program that the rule of its name is about."""
    code = train.__name__.replace("_", "-")
    return twin(code, others=None, effects=code in OF_EFFECTS)(train)


def fine(train: Program) -> Program:
    """Add a program of which nothing may be said."""
    return twin("")(train)


OF_EFFECTS = {"not-finite", "unchanged"}
"""What is found only with `effects=True`."""
