"""Stamps: the number of a step, with how a block was part of it. No TensorFlow.

A stamp is `UNIT * number + flags`. The number is that of a step under way, or 0 where there is
none. A block that is a step itself has no flag; one that is part of a step has `WITHIN`, and what
is called by an apply method has `APPLYING`.
"""

UNIT = 256
"""By how much `RngReadAndSkip` moves its state for each number: see `tensorflow.ledger`."""

WITHIN = 1
"""It is part of the step of that number, which is not its own."""

APPLYING = 2
"""An apply method calls it, so what it does is no update of its own."""


def flags_of(stamp: int) -> int:
    """How a block was part of a step."""
    return stamp % UNIT
