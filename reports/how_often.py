"""How often is `_resource_apply_dense` called? Layers, optimizers, batches, modes, replicas."""

from dataclasses import dataclass
from typing import Any

import measuring
import msgspec
from measuring import (
    LABELS,
    OPTIMIZERS,
    OUTPUTS,
    Layers,
    dense,
    each_step,
    in_turn,
    table,
)

import tracer

BATCHES = 8
OPTIONS: dict[str, dict[str, bool]] = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "XLA": {"jit_compile": True},
}
"""What `compile` is told for each mode."""


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    model: str
    layers: Layers
    kind: str = "legacy"
    optimizer: str = "Adam"
    mode: str = "graph"
    batch: int = 32
    replicas: int = 1
    built: bool = False
    """Whether the optimizer makes its variables before it trains."""
    brief: bool = False
    """Whether it stands in the short table, too."""

    @property
    def name(self) -> str:
        """All that tells it from the others."""
        return f"{self.model}, {self.kind} {self.optimizer}, {how(self)}".replace("`", "")


class Row(msgspec.Struct, frozen=True):
    """What one apply method did in one case."""

    model: str
    kind: str
    optimizer: str
    mode: str
    batch: int
    replicas: int
    built: bool
    brief: bool
    method: str
    variables: int
    steps: int
    eager_calls: int
    tracing_calls: int
    graphs: int
    graphs_never_run: int
    executions: int


def convolution(to: Any, x: Any) -> Any:
    """Over an image of 4 x 2 pixels."""
    return in_turn(x, to.Reshape((4, 2, 1)), to.Conv2D(2, 2), to.Flatten(), to.Dense(OUTPUTS))


def recurrent(name: str) -> Layers:
    """An LSTM or a GRU over 4 steps of time."""
    return lambda to, x: in_turn(x, to.Reshape((4, 2)), getattr(to, name)(3), to.Dense(OUTPUTS))


def attention(to: Any, x: Any) -> Any:
    """Self-attention, with its projections of query, key, value and output."""
    x = to.Reshape((4, 2))(x)
    x = to.MultiHeadAttention(num_heads=1, key_dim=2)(x, x)
    return in_turn(x, to.Flatten(), to.Dense(OUTPUTS))


def normalised(to: Any, x: Any) -> Any:
    """Batch normalisation between two Dense layers."""
    return in_turn(x, to.Dense(4), to.BatchNormalization(), to.Dense(OUTPUTS))


def frozen(to: Any, x: Any) -> Any:
    """Two Dense layers, the first of which is not trainable."""
    return in_turn(x, to.Dense(4, trainable=False), to.Dense(OUTPUTS))


CASES = (
    Case("1 `Dense`", dense(1), brief=True),
    Case("2 `Dense`", dense(2), optimizer="SGD"),
    Case("2 `Dense`", dense(2), brief=True),
    Case("3 `Dense`", dense(3), optimizer="SGD"),
    Case("3 `Dense`", dense(3), brief=True),
    Case("`Conv2D`, `Dense`", convolution, brief=True),
    Case("`LSTM`, `Dense`", recurrent("LSTM"), brief=True),
    Case("`GRU`, `Dense`", recurrent("GRU")),
    Case("`MultiHeadAttention`, `Dense`", attention),
    Case("`Embedding`, `Dense`", measuring.embedding, brief=True),
    Case("2 `Dense`, `BatchNormalization`", normalised),
    Case("2 `Dense`, the first frozen", frozen, brief=True),
    Case("2 `Dense`", dense(2), batch=1),
    Case("2 `Dense`", dense(2), batch=512, brief=True),
    Case("2 `Dense`", dense(2), mode="eager", brief=True),
    Case("2 `Dense`", dense(2), mode="XLA"),
    Case("2 `Dense`", dense(2), replicas=2, brief=True),
    Case("2 `Dense`", dense(2), replicas=3),
    *(
        Case(model, layers, kind=kind, **options)
        for kind in ("keras2", "keras3")
        for model, layers, options in (
            ("2 `Dense`", dense(2), {"optimizer": "SGD"}),
            ("2 `Dense`", dense(2), {"brief": True}),
            ("2 `Dense`", dense(2), {"built": True}),
            ("`LSTM`, `Dense`", recurrent("LSTM"), {}),
            ("`Embedding`, `Dense`", measuring.embedding, {}),
            ("2 `Dense`", dense(2), {"mode": "eager"}),
            ("2 `Dense`", dense(2), {"mode": "XLA"}),
            ("2 `Dense`", dense(2), {"replicas": 2}),
        )
    ),
)


def measure() -> list[Row]:
    """Train every case with a built-in optimizer."""
    rows = []
    for case in CASES:
        with measuring.strategy_of(case.replicas).scope():
            optimizer = getattr(OPTIMIZERS[case.kind], case.optimizer)()
            model = measuring.build(case.kind, case.layers)
            if case.built:
                optimizer.build(model.trainable_variables)
        rows += rows_of(case, fit(case, model, optimizer))
    return rows


def fit(case: Case, model: Any, optimizer: Any) -> tracer.Trace:
    """The trace of training the model of a case."""
    measuring.train(model, optimizer, batch=case.batch, batches=BATCHES, **OPTIONS[case.mode])
    return tracer.trace_of(optimizer)


def rows_of(case: Case, trace: tracer.Trace) -> list[Row]:
    """What the trace of a case says of each apply method."""
    calls = trace.count("calls", by=("method", "context"))
    return [
        Row(
            case.model,
            case.kind,
            case.optimizer,
            case.mode,
            case.batch,
            case.replicas,
            case.built,
            case.brief,
            method,
            len(trace.count("executions", "variable", method=method)),
            trace.steps,
            calls[method, "eager"],
            calls[method, "tracing"],
            *measuring.graphs(trace),
            trace.executions(method),
        )
        for method in measuring.apply_methods(trace)
    ]


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    two = next(row for row in rows if row.model == "2 `Dense`" and row.optimizer == "Adam")
    per_step = each_step(two.executions, two.steps)
    return f"""# How often is `_resource_apply_dense` called?

**Its update runs once for each trainable variable with a dense gradient, in each step, on each
replica.** Not once for each layer: a `Dense` layer has two variables, the kernel and the bias.

**Python calls it only while a graph is traced.** With two `Dense` layers and Adam, {two.steps}
batches of `model.fit` make {two.tracing_calls} calls, all while tracing, and {two.executions}
executions, {per_step} a step. In eager mode each execution is a call.

{big_table(rows)}

{measuring.WHERE}

- *Python calls*: how often the body of the method was called, while a graph was traced or
  eagerly. *Executions*: how often the update that it makes really ran, on all replicas
  together.
- *Graphs*: how many graphs with a step in them were traced on each replica. Where one of two
  never ran, the optimizer had made its variables while the first was traced, and TensorFlow
  then traces again, without that. In the rows with *built first* `optimizer.build` came before
  `model.fit`: there is one graph, and half of the calls.
- The size of the batch changes nothing, nor does the mode. More replicas do: each has its own
  copy of every variable, and updates it.
- It is not the layer that matters but its trainable variables: `LSTM` and `GRU` have three,
  `BatchNormalization` two, `MultiHeadAttention` eight, a frozen layer none.
- The gradient decides between dense and sparse. That of an `Embedding` is a `tf.IndexedSlices`.
  Legacy optimizers apply it by `_resource_apply_sparse`, which
  `_resource_apply_sparse_duplicate_indices` calls (not listed), newer ones by `update_step`,
  like all others.
- Keras 2.11+ and Keras 3 have no `_resource_apply_dense`; what is said of it holds for
  `update_step`.
"""


def big_table(rows: list[Row]) -> str:
    """Every row, with all that was counted."""
    return table(
        {
            "model": [row.model for row in rows],
            "optimizer": [f"{LABELS[row.kind]} {row.optimizer}" for row in rows],
            "trained": [how(row) for row in rows],
            "method": [f"`{row.method}`" for row in rows],
            "variables": [row.variables for row in rows],
            "steps": [row.steps for row in rows],
            "graphs": [built(row) for row in rows],
            "Python calls": [python_calls(row) for row in rows],
            "executions": [row.executions for row in rows],
            "a step": [each_step(row.executions, row.steps) for row in rows],
        }
    )


def short_table(rows: list[Row]) -> str:
    """The rows that most people ask about, for `README.md`."""
    rows = [row for row in rows if row.brief]
    return table(
        {
            "model": [row.model for row in rows],
            "optimizer": [f"{LABELS[row.kind]} {row.optimizer}" for row in rows],
            "trained": [how(row) for row in rows],
            "method": [f"`{row.method}`" for row in rows],
            "Python calls": [python_calls(row) for row in rows],
            "executions": [row.executions for row in rows],
            "a step": [each_step(row.executions, row.steps) for row in rows],
        }
    )


def how(this: Case | Row) -> str:
    """How the model was trained."""
    parts = [this.mode, f"batch {this.batch}"]
    parts += [f"{this.replicas} replicas"] * (this.replicas > 1)
    parts += ["built first"] * this.built
    return ", ".join(parts)


def built(row: Row) -> str:
    """The graphs of a row, and how many were for nothing."""
    return f"{row.graphs}" + f", {row.graphs_never_run} never ran" * bool(row.graphs_never_run)


def python_calls(row: Row) -> str:
    """The calls of a row, with their context."""
    return f"{row.eager_calls} eager" if row.eager_calls else f"{row.tracing_calls} tracing"
