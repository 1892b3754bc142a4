"""What a trace says, to be compared with weights or arithmetic."""

from typing import Any


def said(trace: Any) -> tuple[int, int, bool]:
    """The steps, the updates, and whether the trace is complete."""
    return trace.steps, trace.updates(), trace.complete
