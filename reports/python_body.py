"""How many times does a custom optimizer's Python body run, and when?"""

from typing import Any

import measuring
import msgspec
import tensorflow as tf
from custom import CUSTOM, Ticks
from measuring import LABELS, table

import tracer

STEPS = 6
MODES = ("eager", "graph", "retraced", "session")


class Row(msgspec.Struct, frozen=True):
    """What the Python body of one optimizer did, and its update."""

    kind: str
    mode: str
    method: str
    variables: int
    steps: int
    bodies: list[int]
    """How often the body ran in each step, by a counter in the method itself."""
    calls: int
    """How often the tracer saw Python call it."""
    graphs: int
    executions: int


def measure() -> list[Row]:
    """Every kind in every mode; sessions are of TensorFlow 1 only."""
    return [
        row(kind, mode) for kind in CUSTOM for mode in MODES if mode != "session" or kind == "v1"
    ]


def row(kind: str, mode: str) -> Row:
    """Train two variables for some steps."""
    bodies = Ticks()
    optimizer = tracer.wrap(CUSTOM[kind](bodies))
    run = in_session if mode == "session" else in_steps
    per_step = run(optimizer, mode, bodies)
    trace = tracer.trace_of(optimizer)
    (method,) = measuring.apply_methods(trace)
    return Row(
        kind,
        mode,
        method,
        len(trace.variables),
        trace.steps,
        per_step,
        trace.calls(method),
        measuring.graphs(trace)[0],
        trace.executions(method),
    )


def in_steps(optimizer: Any, mode: str, bodies: Ticks) -> list[int]:
    """Six steps of a training loop; to be retraced, every other one comes with a new length."""
    variables = [tf.Variable([1.0, 2.0], name=name) for name in ("first", "second")]

    def step(inputs: Any) -> None:
        scale = tf.reduce_mean(inputs)
        optimizer.apply_gradients([(scale * tf.ones(2), variable) for variable in variables])

    if mode != "eager":
        step = tf.function(step)
    per_step = []
    for number in range(STEPS):
        step(tf.ones(1 + number // 2 if mode == "retraced" else 1))
        per_step.append(bodies.read())
    return per_step


def in_session(optimizer: Any, mode: str, bodies: Ticks) -> list[int]:
    """Six runs of a train op; what ran while it was made counts to the first."""
    del mode
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable([1.0, 2.0], name=name) for name in ("first", "second")]
        pairs = [(tf.ones(2), variable) for variable in variables]
        train = optimizer.apply_gradients(pairs)
        session.run(tf.compat.v1.global_variables_initializer())
        per_step = []
        for _ in range(STEPS):
            session.run(train)
            per_step.append(bodies.read())
    return per_step


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    eager, graph = (find(rows, "legacy", mode) for mode in ("eager", "graph"))
    return f"""# How many times does a custom optimizer's Python body run, and when?

**In a `tf.function`, `model.fit` or a session: only while a graph is built, once for each
variable.** The body of a legacy optimizer with two variables ran {sum(graph.bodies)} times in
{graph.steps} steps, always in the first; its update ran {graph.executions} times. In eager mode
the body ran each time, {sum(eager.bodies)} times.

So a Python counter, a `print` or an assignment to `self` in an apply method does not happen
once a step. What is to happen in each step must be done by TensorFlow, to a `tf.Variable`.

{big_table(rows)}

Two variables, {STEPS} steps.

{measuring.WHERE}

- *Body ran* was counted by a plain Python counter in the method, *calls seen* by the tracer.
- *graph*: one `tf.function`, always called with the same shapes. The legacy optimizer makes its
  count of steps in the first tracing, so TensorFlow traces once more; the others make nothing
  there.
- *retraced*: the same, with a new length every other step. A new shape is a new graph, for
  which the body runs again.
- *session*: one train op, made once and run {STEPS} times.
"""


def find(rows: list[Row], kind: str, mode: str) -> Row:
    """The row of that kind and mode."""
    return next(row for row in rows if (row.kind, row.mode) == (kind, mode))


def big_table(rows: list[Row]) -> str:
    """Every row."""
    return table(
        {
            "optimizer": [LABELS[row.kind] for row in rows],
            "mode": [row.mode for row in rows],
            "method": [f"`{row.method}`" for row in rows],
            "body ran": [sum(row.bodies) for row in rows],
            "in each step": [" ".join(map(str, row.bodies)) for row in rows],
            "calls seen": [row.calls for row in rows],
            "graphs": [row.graphs for row in rows],
            "executions": [row.executions for row in rows],
        }
    )
