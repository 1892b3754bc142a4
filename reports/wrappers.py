"""What accumulation, loss scaling, clipping, EMA and `steps_per_execution` do to the counts."""

from dataclasses import dataclass, field
from typing import Any

import keras
import measuring
import msgspec
import tf_keras
from measuring import LABELS, OPTIMIZERS, table

BATCHES, OVERFLOWS = 8, 2
SCALED = {
    "legacy": tf_keras.mixed_precision.LossScaleOptimizer,
    "keras2": tf_keras.mixed_precision.LossScaleOptimizer,
    "keras3": keras.optimizers.LossScaleOptimizer,
}
"""The loss-scaling optimizer around one of each kind."""


@dataclass(frozen=True)
class Case:
    """What is added to an optimizer."""

    added: str
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the optimizer."""
    kinds: tuple[str, ...] = ("legacy", "keras2", "keras3")
    """Those that have it."""
    scaled: bool = False
    overflows: int | None = None
    compiled: dict[str, Any] = field(default_factory=dict)
    """Arguments of `compile`."""


class Row(msgspec.Struct, frozen=True):
    """What was counted in one case."""

    kind: str
    added: str
    steps: int
    steps_without_update: list[int]
    dense: int
    sparse: int
    calls: int
    iterations: int


CASES = (
    Case("nothing"),
    Case("`clipvalue`", {"clipvalue": 0.1}),
    Case("`clipnorm`", {"clipnorm": 0.1}),
    Case("`global_clipnorm`", {"global_clipnorm": 0.1}),
    Case("`use_ema`", {"use_ema": True}, kinds=("keras2", "keras3")),
    Case("`gradient_accumulation_steps=4`", {"gradient_accumulation_steps": 4}, kinds=("keras3",)),
    Case("loss scaling", scaled=True),
    Case("loss scaling, batch 3 overflows", scaled=True, overflows=OVERFLOWS),
    Case("`steps_per_execution=4`", compiled={"steps_per_execution": 4}),
)


def measure() -> list[Row]:
    """Every case, with every kind that has it."""
    return [row(kind, case) for case in CASES for kind in case.kinds]


def row(kind: str, case: Case) -> Row:
    """Train an embedding and a Dense layer."""
    optimizer = OPTIMIZERS[kind].SGD(0.01, **case.options)
    if case.scaled:
        optimizer = SCALED[kind](optimizer)
    trace = measuring.fit(
        kind,
        optimizer,
        measuring.embedding,
        batches=BATCHES,
        overflows=case.overflows,
        **case.compiled,
    )
    idle = [
        step
        for first, last, number in trace.per_step("updates")
        for step in range(first, last + 1)
        if number == 0
    ]
    return Row(
        kind,
        case.added,
        trace.steps,
        idle,
        trace.updates("dense"),
        trace.updates("sparse"),
        measuring.calls(trace),
        int(optimizer.iterations),
    )


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    return f"""# What do wrappers do to the counts?

**Clipping, EMA and `steps_per_execution` leave the number of updates as it is. Gradient
accumulation and loss scaling leave steps without any update.** Two things turn a sparse
gradient into a dense one, which then updates every row of an embedding: `global_clipnorm` and
accumulation in Keras 3.

{big_table(rows)}

`SGD` on an `Embedding`, one sparse gradient a step, and a `Dense` layer, two dense ones;
{BATCHES} batches of `model.fit` in a graph.

{measuring.WHERE}

- A *step* is an execution of `apply_gradients`. *Python calls* are those of the apply methods.
- Accumulation over 4 steps updates in each fourth. `iterations` of Keras 3 counts only these.
- Loss scaling skips a step whose gradients are not finite, here the third. Legacy and Keras
  2.11+ count it in `iterations` all the same, Keras 3 does not.
- EMA adds averages beside the update; no apply method is called for them.
- `steps_per_execution` puts the step in a loop. It runs as often as before. Legacy and Keras
  2.11+ trace the body of the loop twice, once just to try it: twice as many Python calls.
- The updates of Keras 3 are called half as often where `SGD` has no variable to make while the
  first graph is traced: see [how often](how_often.md), *built first*.
"""


def big_table(rows: list[Row]) -> str:
    """Every row."""
    return table(
        {
            "added": [row.added for row in rows],
            "optimizer": [LABELS[row.kind] for row in rows],
            "steps": [row.steps for row in rows],
            "without an update": [idle(row) for row in rows],
            "dense updates": [row.dense for row in rows],
            "sparse updates": [row.sparse for row in rows],
            "Python calls": [row.calls for row in rows],
            "`iterations`": [row.iterations for row in rows],
        }
    )


def idle(row: Row) -> str:
    """The steps without an update."""
    return ", ".join(map(str, row.steps_without_update)) or "none"
