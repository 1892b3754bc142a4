"""What is as it should be, so that a report tells of it without alarm."""

from tracer.findings.catalogue import to_report
from tracer.model.empty import reason
from tracer.model.tally import Tally

FIRST_TRACING = (
    "one that never ran is usual: the first tracing of a function only makes its variables"
)
"""What is said of graphs if `Tally.idle_as_usual`."""


def calm_reason(tally: Tally) -> str:
    """Why steps in which gradients came updated nothing; empty if that is unknown, or a fault."""
    wrong = any(each.code == "steps-skipped" for each in to_report(tally.trace))
    return "" if wrong else reason(tally).text
