"""What a rule is. The rules are in the modules beside this one, each with its text; `catalogue`
lists them.

A rule is a function that finds its cases, below `@rule(...)` with what is said of every case:

    @rule("never-updated", severity="warning", title="gradients came, and no update did", ...)
    def never_updated(summary: Summary) -> Iterator[Case]:
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import structs

from tracer.findings.cases import Case, Severity, folded
from tracer.model.measures import tries
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace

Find = Callable[[Any], Iterable[Case]]
"""From the `Summary` of one root optimizer, or from a whole `Trace`."""

Need = Literal["complete", "steps", "placed"]
"""What has to be so of an optimizer, or a rule is silent: the trace is complete; it made a step; of
each update the step is known."""

_HOLDS: Mapping[Need, Callable[[Summary], bool]] = {
    "complete": lambda summary: summary.trace.complete,
    "steps": lambda summary: summary.steps > 0,
    "placed": lambda summary: not summary.unplaced(tries),
}


@dataclass(frozen=True)
class Rule:
    """A rule: how to find its cases, and what to say of them."""

    code: str
    find: Find
    severity: Severity
    """The worst that a case of it has."""
    title: str
    why: str
    advice: str
    explanation: str
    """When it is found and when not, and what other severities a case may have."""
    whole: bool = False
    """Whether it looks at a whole trace, and not at what one root optimizer did."""
    needs: tuple[Need, ...] = ()

    def cases(self, trace: Trace) -> Iterator[Case]:
        """All its cases in a trace; one without advice has that of the rule."""
        if self.whole:
            yield from self.find(trace)
            return
        for summary in summaries_of(trace):
            if all(_HOLDS[need](summary) for need in self.needs):
                own = summary.dialect.advice(self.code)
                for case in folded(summary, self.find(summary)):
                    yield structs.replace(case, advice=case.advice or own)


def rule(code: str, **texts: Any) -> Callable[[Find], Rule]:
    """Makes a rule of the function below it, with the fields of a `Rule`."""
    return lambda find: Rule(code, find, **texts)
