"""Claims: how often it runs."""

import math

import custom
import keras
import tensorflow as tf
import tf_keras
from claims.judging import ANSWER, Checks, Subject
from claims.ways import DENSE, fitted, per_step, three_layers, two_layers
from measuring import (
    LABELS,
    OPTIMIZERS,
    OUTPUTS,
    dense,
    each_step,
    embedding,
    executions,
    fit,
    in_turn,
)

claim = Subject("How often it runs")


@claim(
    "The method is called once for each weight tensor in each step.",
    ANSWER,
    "The update is executed so often; the method is called only while a graph is traced.",
)
def once_per_tensor() -> Checks:
    trace = fitted(two_layers)
    yield "executions in 8 steps, 4 tensors", 32, executions(trace, DENSE)
    yield "Python calls in them", 32, trace.calls(DENSE)


@claim(
    "Two `Dense` layers make two calls a step, and three make three: one for each layer.",
    ANSWER,
    "A `Dense` layer has two variables, the kernel and the bias.",
)
def once_per_layer() -> Checks:
    yield "executions a step, two layers", 2, per_step(two_layers)
    yield "executions a step, three layers", 3, per_step(three_layers)


@claim("A custom optimizer is called once a batch for one `Dense` layer.", ANSWER)
def once_for_one_layer() -> Checks:
    trace = fit("legacy", custom.Legacy(), dense(1), run_eagerly=True)
    yield "executions a step", 1, each_step(executions(trace, DENSE), trace.steps)


@claim(
    "The number of calls a step is the number of trainable weight tensors, whatever the model.",
    ANSWER,
    "Sparse gradients go another way, and each replica updates its own copy.",
)
def one_for_each_tensor() -> Checks:
    yield "two `Dense`, 4 tensors", 4, per_step(two_layers)
    yield "`Embedding` and `Dense`, 3 tensors", 3, per_step(embedding)
    trace = fitted(two_layers, replicas=2)
    yield "two `Dense` on 2 replicas", 4, each_step(executions(trace, DENSE), trace.steps)


@claim(
    "Which Keras optimizer it is makes no difference.",
    ANSWER,
    "Optimizers of Keras 2.11 and later do not have the method; they have `update_step`.",
)
def any_optimizer() -> Checks:
    for name in ("SGD", "RMSprop", "Adam"):
        yield f"executions a step, legacy {name}", 4, per_step(two_layers, name=name)
    for kind in ("keras2", "keras3"):
        yield f"executions a step, {LABELS[kind]} Adam", 4, per_step(two_layers, kind=kind)


@claim(
    "A model compiled with `optimizer='sgd'` calls it.",
    ANSWER,
    "The name stands for the new class.",
)
def by_name() -> Checks:
    for kind in ("keras2", "keras3"):
        trace = fit(kind, OPTIMIZERS[kind].get("sgd"), two_layers, run_eagerly=True)
        yield f"called, {LABELS[kind]}", True, executions(trace, DENSE) > 0


@claim("More layers mean more calls, and so do larger weight matrices.", ANSWER)
def larger_matrices() -> Checks:
    wide = per_step(lambda to, x: in_turn(x, to.Dense(64), to.Dense(OUTPUTS)))
    yield (
        "more with three layers than with two",
        True,
        per_step(three_layers) > per_step(two_layers),
    )
    yield "more with 64 units than with 4", True, wide > per_step(two_layers)


@claim("A larger batch does not change the number of calls in a step.", ANSWER)
def larger_batch() -> Checks:
    for batch in (1, 32, 512):
        yield f"executions a step, batch {batch}", 4, per_step(two_layers, batch=batch, batches=2)


@claim(
    "What a larger batch changes is how large the gradients are.",
    ANSWER,
    "Keras' losses are means by default, so the same samples twice give the same gradient.",
)
def larger_gradients() -> Checks:
    for reduction, name in (("sum_over_batch_size", "the mean"), ("sum", "the sum")):
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        sizes = []
        for times in (1, 4):
            weight = tf.Variable(1.0)
            with tf.GradientTape() as tape:
                targets = tf.tile([[1.0], [3.0]], (times, 1))
                value = loss(targets, weight * tf.ones_like(targets))
            sizes.append(float(tape.gradient(value, weight)))
        yield (
            f"larger for the same batch four times over, loss is {name}",
            True,
            not math.isclose(*sizes),
        )


@claim(
    "How often is decided by the number of dense tensors and of batches alone.",
    ANSWER,
    "Replicas, skipped steps and accumulation decide too: see [wrappers](wrappers.md).",
)
def decided_by() -> Checks:
    one, two = (fitted(two_layers, replicas=number) for number in (1, 2))
    yield "executions in 8 batches, 1 replica", 32, executions(one, DENSE)
    yield "executions in 8 batches, 2 replicas", 32, executions(two, DENSE)
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(OPTIMIZERS["legacy"].SGD())
    skipped = fit("legacy", optimizer, two_layers, overflows=2)
    yield "executions in 8 batches, one of which overflows", 32, executions(skipped, DENSE)


@claim(
    "Keras keeps no count of the updates that one could read.",
    ANSWER,
    "`iterations` counts steps; this is what `tracer` is for.",
)
def no_count() -> Checks:
    optimizer = OPTIMIZERS["legacy"].Adam()
    updates = fit("legacy", optimizer, two_layers).updates()
    yield f"`iterations` after {updates} updates", 8, int(optimizer.iterations)


@claim("One need not call the method oneself; training does.", ANSWER)
def called_by_training() -> Checks:
    yield "called in `model.fit`", True, fitted(two_layers).calls(DENSE) > 0
