"""What is as it should be, so that a report tells of it without alarm."""

from typing import NamedTuple

from tracer.findings.rules.steps import steps_skipped
from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary

FIRST_TRACING = "graphs that never ran are usual: a first tracing only makes the variables"
"""What is said of graphs if `Summary.idle_as_usual`."""

_PARTS = (
    "a first tracing that never ran is usual: it only makes the variables; what else never ran is "
    "in a part of a graph that no step reached"
)


class Cause(NamedTuple):
    """Why steps in which gradients came updated nothing."""

    text: str = ""
    """`skipped by the loss scale`; empty if it is not known."""
    usual: bool = False
    """Whether that is as it should be: known, and no fault."""

    @property
    def calm(self) -> str:
        """The text, if it is no fault."""
        return self.text if self.usual else ""


def cause(summary: Summary, *, everywhere: bool = False) -> Cause:
    """Why steps in which gradients came updated nothing.

    If it has to hold `everywhere`, it is not known if no gradient came in any of them.
    """
    why = reason(summary)
    if not why.text or (everywhere and not why.everywhere):
        return Cause()
    if summary.trace.only:  # of a part of a trace no rule can say what is a fault
        return Cause(why.text, True)
    skipped = steps_skipped.find(Summary(summary.trace, summary.root))
    return Cause(why.text, all(case.severity == "info" for case in skipped))


def why_idle(summary: Summary) -> str:
    """Why graphs never ran, if no other than usual ones did not; else empty."""
    if not summary.idle_as_usual:
        return ""
    return _PARTS if summary.idle_parts else FIRST_TRACING
