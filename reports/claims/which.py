"""Claims: which method runs."""

from typing import Any

import how_often
import samples
import tensorflow as tf
from claims.judging import ANSWER, BOOK, THREAD, Checks, Subject
from claims.ways import DENSE, apply, fitted, per_step, share, two_layers
from custom import Ticks
from measuring import KERAS, LABELS, OPTIMIZERS, OUTPUTS, embedding, fit, in_turn

import tracer

claim = Subject("Which method runs")


@claim("Convolutional and recurrent layers are updated in another way.", ANSWER)
def other_layers() -> Checks:
    layers = {
        "Conv2D": how_often.convolution,
        "LSTM": how_often.recurrent("LSTM"),
        "GRU": how_often.recurrent("GRU"),
    }
    for name, make in layers.items():
        trace = fitted(make, run_eagerly=True)
        others = {each.name for each in trace.methods if each.role == "apply"} - {DENSE}
        yield f"other apply methods with `{name}`", True, bool(others)


@claim(
    "`_resource_apply_sparse` is for sparse layers such as `Embedding`, "
    "`_resource_apply_dense` for all others.",
    THREAD,
    "The gradient decides, not the layer: a regulariser makes that of an `Embedding` dense, "
    "`tf.gather` makes that of any variable sparse.",
)
def by_layer() -> Checks:
    def regularised(to: Any, x: Any) -> Any:
        table = to.Embedding(5, 3, embeddings_regularizer="l2")
        return in_turn(x, table, to.Flatten(), to.Dense(OUTPUTS))

    table = "embedding*/embeddings"
    yield "dense updates of an `Embedding` in 8 steps", 0, fitted(embedding).updates("dense", table)
    trace = fitted(regularised)
    yield "dense updates of one with an L2 regulariser", 0, trace.updates("dense", table)
    optimizer, variable = tracer.wrap(OPTIMIZERS["legacy"].Adam()), tf.Variable(tf.ones((3, 2)))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.gather(variable, [1, 2, 2]))
    optimizer.apply_gradients([(tape.gradient(value, variable), variable)])
    sparse = tracer.trace_of(optimizer).updates("sparse")
    yield "sparse updates of a plain variable, by `tf.gather`", 0, sparse


@claim(
    "`_resource_apply_sparse` gets each index once; who wants them as they come overrides "
    "`_resource_apply_sparse_duplicate_indices`.",
    THREAD,
)
def indices() -> Checks:
    inner, outer = samples.Sparse(), samples.SparseWithRepeats()
    apply(inner, sparse=True)
    apply(outer, sparse=True)
    yield "indices of the first, for rows 1, 2, 2", 2, inner.indices
    yield "indices of the second", 3, outer.indices


@claim("`model.fit` calls `optimizer.minimize`.", BOOK, "Keras 3 has no `minimize`.")
def minimize() -> Checks:
    for kind in KERAS:
        calls = Ticks()
        base: Any = OPTIMIZERS[kind].SGD

        class Counting(base):  # type: ignore[misc]
            def minimize(self, *args: Any, calls: Ticks = calls, **kwargs: Any) -> Any:
                calls()
                return super().minimize(*args, **kwargs)

        fit(kind, Counting(), two_layers, run_eagerly=True)
        yield f"calls in 8 eager steps, {LABELS[kind]}", 8, calls.read()


@claim("`minimize` computes the gradients and calls `apply_gradients`.", BOOK)
def minimize_applies() -> Checks:
    for kind in ("legacy", "keras2"):
        optimizer, variable = tracer.wrap(OPTIMIZERS[kind].SGD()), tf.Variable(1.0)
        optimizer.minimize(lambda variable=variable: variable * 2, [variable])
        with tf.GradientTape() as tape:
            loss = variable * 2
        optimizer.minimize(loss, [variable], tape=tape)
        steps = tracer.trace_of(optimizer).executions("apply_gradients")
        yield f"`apply_gradients` in two, of a function and of a tape, {LABELS[kind]}", 2, steps


@claim("All optimizers of Keras extend `OptimizerV2`.", BOOK)
def all_extend() -> Checks:
    for kind in KERAS:
        extend = share(kind, lambda cls: "OptimizerV2" in {base.__name__ for base in cls.__mro__})
        yield f"those that do, {LABELS[kind]}", "all", extend


@claim("`OptimizerV2` is the current base class of `tf.keras.optimizers`.", THREAD)
def current_base() -> Checks:
    names = {base.__name__ for base in tf.keras.optimizers.Optimizer.__mro__}
    yield "base class of `tf.keras.optimizers.Optimizer`", True, "OptimizerV2" in names


@claim(
    "`apply_gradients` updates on each replica, and each update is by `_resource_apply_dense`.",
    BOOK,
    "Sparse gradients go to `_resource_apply_sparse`.",
)
def on_each_replica() -> Checks:
    trace = fitted(two_layers, replicas=2)
    for replica in range(2):
        yield (
            f"executions on replica {replica}, 8 steps, 4 variables",
            32,
            trace.executions(DENSE, replica=replica),
        )
    yield "executions a step, `Embedding` and `Dense`", 3, per_step(embedding)
