"""How much work a block does: in calls of Python, which no slow or busy machine changes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Fail if the block makes more calls, those of functions in C among them."""
    made = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert made <= calls, f"{made:,} calls"
