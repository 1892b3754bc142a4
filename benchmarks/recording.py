"""What it costs to enter and to leave `tracer.record`, as assertions without an optimizer do.

    python benchmarks/recording.py            # about 1 minute
    python benchmarks/recording.py --quick    # only how often all objects are walked over

The blocks are empty. Each optimizer that is alive has made a step in a function before, most of
them before there was any block; in the last row each in a block, so that its graph counts.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import bench
import steps
import tensorflow as tf

import tracer

OBJECTS = 500_000
BLOCKS = 15


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """How many walks the blocks make; and how long they take, with more and more optimizers."""
    objects = [[number] for number in range(OBJECTS)]
    kept = [_used(steps.SGD["keras3"]())]
    rows = [("1, the first block of a process", [_block()])]
    for optimizers in (1, 10, 100, 300):
        kept += [_used(steps.SGD["keras3"]()) for _ in range(optimizers - len(kept))]
        rows.append((f"{optimizers}", [_block() for _ in range(BLOCKS)]))
    with tracer.record():
        for _, _, step in kept:
            step()
    _block()  # looks at the functions that are new
    rows.append((f"{len(kept)}, each used in a block", [_block() for _ in range(BLOCKS)]))
    head = ["optimizers alive", "walks over all objects", "ms of processor time a block"]
    table = [[alive, max(each.walks for each in blocks), _ms(blocks)] for alive, blocks in rows]
    columns = 2 if arguments.quick else 3
    yield bench.table(head[:columns], [row[:columns] for row in table])
    del objects


class Block(NamedTuple):
    """An empty block."""

    walks: int
    """How often it walked over all objects."""
    seconds: float
    """Of processor time: a block waits for nothing."""


def _block() -> Block:
    with mock.patch.object(gc, "get_objects", wraps=gc.get_objects) as walk:
        start = time.thread_time()
        with tracer.record():
            pass
        walks = sum(call.args == (None,) for call in walk.call_args_list)  # of all generations
        return Block(walks, time.thread_time() - start)


def _used(optimizer: Any) -> tuple[Any, Any, Any]:
    """The optimizer after a step, with its variable and its function."""
    variable = tf.Variable([0.0])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(1), variable)])

    step()
    return optimizer, variable, step


def _ms(blocks: list[Block]) -> str:
    taken = [1e3 * block.seconds for block in blocks]
    return bench.spread(taken).text(1) if len(taken) > 1 else f"{taken[0]:.0f}"


if __name__ == "__main__":
    bench.run(__doc__, tables)
