"""How often does `_resource_apply_dense` run: optimizers, strategies, modes, layers, wrappers."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"

import keras
import msgspec
import numpy as np
import tensorflow as tf
import tf_keras
from make import table

import tracer

PACKAGES = ("tensorflow", "keras", "tf_keras")
BATCHES, OVERFLOW = 8, 2
FEATURES, OUTPUTS, REPLICAS = 8, 2, 2
KERAS = {"legacy": tf_keras, "keras2": tf_keras, "keras3": keras}
"""The Keras whose models an optimizer of each kind trains."""
OPTIMIZERS = {
    "legacy": tf_keras.optimizers.legacy,
    "keras2": tf_keras.optimizers,
    "keras3": keras.optimizers,
    "v1": tf.compat.v1.train,
}
LABELS = {
    "legacy": "legacy",
    "keras2": "Keras 2.11+",
    "keras3": "Keras 3",
    "v1": "TensorFlow 1",
}
MODES: dict[str, dict[str, bool]] = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "XLA": {"jit_compile": True},
    "session": {},
}
"""The arguments of `compile` for each mode. Only a TensorFlow 1 optimizer runs in a session."""
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "clipnorm": ("optimizer", {"clipnorm": 0.1}),
    "use_ema": ("optimizer", {"use_ema": True}),
    "accumulation over 4 steps": ("optimizer", {"gradient_accumulation_steps": 4}),
    "loss scale, batch 3 overflows": ("scaled", {}),
    "steps_per_execution=4": ("compile", {"steps_per_execution": 4}),
}
"""What is added to the optimizer or to `compile`, and its arguments."""

Layers = Callable[[Any], list[Any]]
"""Returns the layers of a model, given the `layers` module of a Keras."""

MODELS: dict[str, Layers] = {
    "1 `Dense`": lambda to: [to.Dense(OUTPUTS)],
    "2 `Dense`": lambda to: [to.Dense(4), to.Dense(OUTPUTS)],
    "3 `Dense`": lambda to: [to.Dense(4), to.Dense(4), to.Dense(OUTPUTS)],
    "`Conv2D`, `Dense`": lambda to: [
        *(to.Reshape((4, 2, 1)), to.Conv2D(2, 2), to.Flatten(), to.Dense(OUTPUTS)),
    ],
    "`LSTM`, `Dense`": lambda to: [to.Reshape((4, 2)), to.LSTM(3), to.Dense(OUTPUTS)],
    "`Embedding`, `Dense`": lambda to: [to.Embedding(5, 3), to.Flatten(), to.Dense(OUTPUTS)],
    "2 `Dense`, `BatchNormalization`": lambda to: [
        *(to.Dense(4), to.BatchNormalization(), to.Dense(OUTPUTS)),
    ],
    "2 `Dense`, the first frozen": lambda to: [to.Dense(4, trainable=False), to.Dense(OUTPUTS)],
}


# The cases.


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    model: str
    kind: str = "legacy"
    optimizer: str = "Adam"
    mode: str = "graph"
    batch: int = 32
    replicas: int = 1
    added: str = ""

    @property
    def name(self) -> str:
        """The description of the case in one line."""
        return f"{self.model}, {self.kind} {self.optimizer}, {how(self)}".replace("`", "")


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one apply method did in one case."""

    case: str
    method: str
    variables: int
    steps: int
    executions: int
    eager_calls: int = 0
    tracing_calls: int = 0
    graphs: int = 0
    never_ran: int = 0
    without_update: int = 0
    """The number of steps without an update."""
    iterations: int | None = None


_TWO, _EMBEDDING = "2 `Dense`", "`Embedding`, `Dense`"
CASES = (
    *(Case(model) for model in MODELS),
    Case(_TWO, mode="eager"),
    Case(_TWO, mode="XLA"),
    Case(_TWO, replicas=2),
    *(
        Case(model, kind=kind, **options)
        for kind in ("keras2", "keras3")
        for model, options in (
            (_TWO, {}),
            (_EMBEDDING, {}),
            (_TWO, {"mode": "eager"}),
            (_TWO, {"replicas": 2}),
        )
    ),
    *(Case(_TWO, kind="v1", optimizer="AdamOptimizer", mode=mode) for mode in ("eager", "graph")),
    Case("2 variables", kind="v1", optimizer="AdamOptimizer", mode="session"),
    *(
        Case(_EMBEDDING, kind=kind, optimizer="SGD", added=added)
        for added in ADDED
        for kind in KERAS
        if not (kind == "legacy" and added == "use_ema")
        and not (kind != "keras3" and added.startswith("accumulation"))
    ),
)


def how(case: Case) -> str:
    """How the model was trained."""
    parts = [case.mode, f"batch {case.batch}"]
    parts += [f"{case.replicas} replicas"] if case.replicas > 1 else []
    return ", ".join([*parts, case.added] if case.added else parts)


# Measuring.


def measure() -> list[Row]:
    """Train every case with a built-in optimizer."""
    return [row for case in CASES for row in rows_of(case, *train(case))]


@cache
def strategy_of(replicas: int) -> Any:
    """The default strategy for one replica, else a mirrored one over several CPU devices."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    if len(tf.config.list_logical_devices("CPU")) < REPLICAS:
        raise RuntimeError("call prepare() before TensorFlow is used")
    # Two strategies with different devices in a process must not share the collective ops.
    return tf.distribute.MirroredStrategy(
        [f"cpu:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def prepare() -> None:
    """Make the logical CPU devices for the replicas; call it before TensorFlow is used."""
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, devices)


def optimizer_of(case: Case) -> Any:
    """The built-in optimizer of a case."""
    where, arguments = ADDED.get(case.added, ("", {}))
    options = dict(arguments) if where == "optimizer" else {}
    optimizer = getattr(OPTIMIZERS[case.kind], case.optimizer)(0.01, **options)
    if where == "scaled":
        library = keras.optimizers if case.kind == "keras3" else tf_keras.mixed_precision
        optimizer = library.LossScaleOptimizer(optimizer)
    return optimizer


def build(case: Case) -> Any:
    """The model of a case; an optimizer of TensorFlow 1 trains one of Keras 2."""
    library = KERAS.get(case.kind, tf_keras)
    inputs = outputs = library.Input((FEATURES,))
    for layer in MODELS[case.model](library.layers):
        outputs = layer(outputs)
    return library.Model(inputs, outputs)


def train(case: Case, optimizer: Any = None, model: Any = None) -> tuple[tracer.Trace, Any]:
    """Train for one epoch; return the trace and the optimizer."""
    if case.mode == "session":
        return in_session(case)
    with strategy_of(case.replicas).scope():
        optimizer = optimizer_of(case) if optimizer is None else optimizer
        model = build(case) if model is None else model
    rng = np.random.default_rng(0)
    number = case.batch * BATCHES
    inputs = rng.integers(0, 5, (number, FEATURES)).astype("float32")
    targets = rng.random((number, OUTPUTS), "float32")
    if "overflows" in case.added:
        targets[OVERFLOW * case.batch] = np.inf
    tracer.wrap(optimizer)
    if case.kind == "v1":
        loop(case, model, optimizer, inputs, targets)
    else:
        where, arguments = ADDED.get(case.added, ("", {}))
        options = MODES[case.mode] | (arguments if where == "compile" else {})
        model.compile(optimizer, "mse", **options)
        model.fit(inputs, targets, batch_size=case.batch, shuffle=False, verbose=0)
    return tracer.trace_of(optimizer), optimizer


def loop(case: Case, model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
    """The program's own loop, for an optimizer that Keras refuses."""

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    step = step if case.mode == "eager" else tf.function(step)
    for x, y in zip(np.split(inputs, BATCHES), np.split(targets, BATCHES), strict=True):
        step(tf.constant(x), tf.constant(y))


def in_session(case: Case) -> tuple[tracer.Trace, Any]:
    """A train op of two variables, run in a session."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        optimizer = tracer.wrap(optimizer_of(case))
        variables = [tf.Variable([1.0, 2.0], name=name) for name in ("kernel", "bias")]
        train_op = optimizer.apply_gradients([(tf.ones(2), variable) for variable in variables])
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(BATCHES):
            session.run(train_op)
    return tracer.trace_of(optimizer), optimizer


def rows_of(case: Case, trace: tracer.Trace, optimizer: Any) -> list[Row]:
    """What the trace says of each apply method."""
    assert trace.complete, trace.notes
    names = {method.name for method in trace.methods if method.role == "apply"}
    suffix = "_duplicate_indices"  # it only calls the sparse method
    calls = trace.count("calls", by=("method", "context"))
    idle = sum(last - first + 1 for first, last, count in trace.per_step("updates") if not count)
    return [
        Row(
            case.name,
            method,
            len(trace.count("executions", "variable", method=method)),
            trace.steps,
            trace.executions(method),
            calls[method, "eager"],
            calls[method, "tracing"],
            sum(graph.tracings for graph in trace.graphs),
            sum(graph.idle for graph in trace.graphs),
            idle,
            None if case.kind == "v1" else int(optimizer.iterations.numpy()),
        )
        for method in sorted(names)
        if not (method.endswith(suffix) and method.removesuffix(suffix) in names)
    ]


# The page.


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    return f"""# How often does `_resource_apply_dense` run?

**Its update runs once for each trainable variable with a dense gradient, in each step, on each
replica.** A `Dense` layer has two variables, the kernel and the bias, so it is twice per layer.

**Python calls the method only while a graph is traced.** In eager mode each update is a call.

**Clipping, EMA and `steps_per_execution` leave the number of updates as it is. Gradient
accumulation and loss scaling leave steps without an update.**

{full_table(rows)}

{BATCHES} batches of `model.fit`, or of the program's own loop for TensorFlow 1. *Legacy* is
`tf_keras.optimizers.legacy`, and `tf.keras.optimizers` up to TensorFlow 2.10. *Keras 2.11+* is
`tf_keras.optimizers`. *Keras 3* is `keras.optimizers`, and `tf.keras.optimizers` since TensorFlow
2.16. *TensorFlow 1* is `tf.compat.v1.train`.

- *Executions*: how often the update ran, on all replicas together. *Per step*: in a step with any.
  *Python calls*: how often the body of the method was called.
- *Graphs*: the graphs with a step that were traced on each replica. The first tracing makes the
  variables of the optimizer, and TensorFlow then traces again.
- The mode changes nothing. Each replica updates its own copies.
- What counts is trainable variables, not layers: `LSTM` has three, `BatchNormalization` two, a
  frozen layer none.
- The gradient decides between dense and sparse. The gradient of an `Embedding` is a
  `tf.IndexedSlices`: legacy optimizers apply it by `_resource_apply_sparse`, newer ones by
  `update_step`, as any gradient.
- Keras 2.11+ and Keras 3 have no `_resource_apply_dense`: `update_step` runs as often.
- Legacy and Keras 2.11+ count a skipped step in `iterations`, Keras 3 does not.
- `steps_per_execution` runs the step in a loop. Legacy and Keras 2.11+ trace the body of the loop
  twice.
"""


def full_table(rows: list[Row]) -> str:
    """A line for each row."""
    cases = {case.name: case for case in CASES}
    lines: list[dict[str, object]] = [
        {
            "model": cases[row.case].model,
            "optimizer": f"{LABELS[cases[row.case].kind]} {cases[row.case].optimizer}",
            "trained": how(cases[row.case]),
            "method": f"`{row.method}`",
            "variables": row.variables,
            "steps without update": row.without_update,
            "`iterations`": "" if row.iterations is None else row.iterations,
            "graphs": f"{row.graphs}, {row.never_ran} never ran" if row.never_ran else row.graphs,
            "Python calls": f"{row.eager_calls} eager"
            if row.eager_calls
            else f"{row.tracing_calls} tracing",
            "executions": row.executions,
            "per step": row.executions // (row.steps - row.without_update),
        }
        for row in rows
    ]
    return table(lines)
