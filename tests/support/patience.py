"""Waiting for what another thread does, however busy the machine is."""

import time
from collections.abc import Callable

LONGEST = 60
"""Seconds after which it will not come any more."""


def wait_until(holds: Callable[[], object]) -> None:
    """Return as soon as it holds; fails if it never does."""
    end = time.monotonic() + LONGEST
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
