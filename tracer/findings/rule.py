"""What a rule is. The rules are in the modules beside this one, each with its text; `catalogue`
lists them.

A rule is a function that finds its cases, below `@rule(...)` with what is said of every case:

    @rule("never-updated", severity="warning", title="gradients came, and no update did", ...)
    def never_updated(summary: Summary) -> Iterator[Case]:
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tracer.findings.cases import Case, Severity

Find = Callable[[Any], Iterator[Case]]
"""From the `Summary` of one root optimizer, or from a whole `Trace`."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: how to find its cases, and what to say of them."""

    code: str
    severity: Severity
    """The worst that a case of it has."""
    title: str
    why: str
    advice: str
    explanation: str
    """When it is found and when not, and what other severities a case may have."""
    find: Find
    whole: bool
    """Whether it looks at a whole trace, and not at what one root optimizer did."""


def rule(
    code: str,
    *,
    severity: Severity,
    title: str,
    why: str,
    advice: str,
    explanation: str,
    whole: bool = False,
) -> Callable[[Find], Rule]:
    """Makes a rule of the function below it."""

    def made(find: Find) -> Rule:
        return Rule(
            code=code,
            severity=severity,
            title=title,
            why=why,
            advice=advice,
            explanation=explanation,
            find=find,
            whole=whole,
        )

    return made
