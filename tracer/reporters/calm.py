"""What is as it should be, so that a report tells of it without alarm."""

from tracer.findings.catalogue import to_report
from tracer.model.empty import reason
from tracer.model.tally import Tally

FIRST_TRACING = "graphs that never ran are usual: a first tracing only makes the variables"
"""What is said of graphs if `Tally.idle_as_usual`."""


def calm_reason(tally: Tally, *, everywhere: bool = False) -> str:
    """Why steps in which gradients came updated nothing; empty if that is unknown, or a fault.

    If it has to hold `everywhere`, it is also empty if no gradient came in any of them.
    """
    why = reason(tally)
    wrong = any(each.code == "steps-skipped" for each in to_report(tally.trace))
    return "" if wrong or (everywhere and not why.everywhere) else why.text
