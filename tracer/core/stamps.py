"""Defines stamps: the number of a step, plus flags for how a block was part of it. No TensorFlow.

A stamp is `UNIT * number + flags`. The number is the step under way, or 0 outside of steps. A block
that is itself a step has no flag; a block inside a step has `WITHIN`; a block called by an apply
method has `APPLYING`.
"""

UNIT = 256
"""`RngReadAndSkip` advances its state by this for each number: see `tensorflow.ledger`."""

WITHIN = 1
"""The block is part of another block's step."""

APPLYING = 2
"""An apply method calls the block, so its updates are not outermost updates."""


def flags_of(stamp: int) -> int:
    """The flags of a stamp: how a block was part of a step."""
    return stamp % UNIT
