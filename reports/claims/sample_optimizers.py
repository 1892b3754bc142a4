"""Claims: what the sample optimizers do."""

import custom
import samples
import tensorflow as tf
from claims.judging import ANSWER, BOOK, TUTORIAL, Checks, Subject
from claims.ways import DENSE, NO_ERROR, apply, outcome, two_layers
from custom import Ticks
from measuring import KERAS, LABELS, embedding, fit

claim = Subject("What the sample optimizers do")


@claim(
    "`tf.keras.optimizers.Optimizer` with `_set_hyper` and these methods makes an optimizer.",
    f"{ANSWER}, {TUTORIAL}",
    "It works with the legacy class only.",
)
def made_from() -> Checks:
    for kind in KERAS:
        made = outcome(samples.with_hyper, kind)
        yield f"made from the base class, {LABELS[kind]}", NO_ERROR, made


@claim("The update can be written with `tf.assign`.", ANSWER)
def tf_assign() -> Checks:
    yield "TensorFlow 2 has it", True, hasattr(tf, "assign")


@claim(
    "A sparse method that raises `NotImplementedError` must be there for completeness.",
    ANSWER,
    "The inherited one does the same.",
)
def raising_sparse() -> Checks:
    tried = outcome(apply, custom.Legacy())
    yield "dense step without a sparse method", "an error", tried


@claim(
    "Gradient descent is the op `ResourceApplyGradientDescent` with a variable and a gradient.",
    BOOK,
    "It also needs the learning rate, `alpha`.",
)
def raw_op() -> Checks:
    variable = tf.Variable(tf.zeros(2))
    op = tf.raw_ops.ResourceApplyGradientDescent
    yield "called so", NO_ERROR, outcome(op, var=variable.handle, delta=tf.ones(2))


@claim(
    "Apply methods that assign to the variable and return nothing train a model.",
    f"{TUTORIAL}, {BOOK}",
    "In a graph, the legacy base class groups what they return, and cannot group nothing.",
)
def returning_nothing() -> Checks:
    for eagerly in (False, True):
        tried = outcome(fit, "legacy", samples.Decorated(), two_layers, run_eagerly=eagerly)
        yield f"two `Dense` in `model.fit`{', eager' * eagerly}", NO_ERROR, tried


@claim(
    "A sparse method needs no `indices`: the gradient and the variable will do.",
    TUTORIAL,
    "The indices are a third argument.",
)
def no_indices() -> Checks:
    yield "step with a dense gradient", NO_ERROR, outcome(apply, samples.Decorated())
    yield (
        "step with a sparse gradient",
        NO_ERROR,
        outcome(apply, samples.Decorated(), sparse=True),
    )
    tried = outcome(fit, "legacy", samples.Decorated(), embedding, run_eagerly=True)
    yield "`model.fit` with an `Embedding`, eager", NO_ERROR, tried


@claim(
    "`@tf.function` on the apply methods makes them run compiled.",
    TUTORIAL,
    "That helps eager loops only: in `model.fit` they are in a graph already.",
)
def decorated() -> Checks:
    with_it, without = Ticks(), Ticks()
    apply(samples.Decorated(with_it), steps=8)
    yield "runs of its Python in 8 eager steps, 2 variables", 2, with_it.read()
    trace = fit("legacy", custom.Legacy(without), two_layers)
    calls = trace.count("calls", by="context", method=DENSE)
    yield "without it, all calls in `model.fit` are eager", True, calls["tracing",] == 0


@claim(
    "A counter that the apply method moves on counts steps, so the rate decays once a step.",
    TUTORIAL,
    "It moves on once for each variable: the rate decays so many times too fast, and "
    "differs between the variables of a step.",
)
def decaying() -> Checks:
    optimizer = samples.Decaying()
    trace = fit("legacy", optimizer, two_layers, run_eagerly=True)
    yield f"the counter after {trace.steps} steps, two `Dense`", trace.steps, int(optimizer.counter)
    first, second = (float(tf.reshape(variable, [-1])[0]) for variable in apply(samples.Decaying()))
    yield "rates of two variables in step 1 are equal", True, first == second


@claim("`tf.pow` takes a float and such a counter, of 64-bit integers.", TUTORIAL)
def integer_exponent() -> Checks:
    yield "first step", NO_ERROR, outcome(apply, samples.Decaying(tf.int64))


@claim(
    "A momentum of `m * slot + gradient` averages the past gradients.",
    TUTORIAL,
    "It is a sum: it grows to 1 / (1 - m) times the gradient.",
)
def averages() -> Checks:
    optimizer = samples.Momentum()
    variables = apply(optimizer, steps=20)
    slot = optimizer.get_slot(variables[0], "sum")
    yield "slot after 20 gradients of 1, m = 0.5", 1.0, round(float(slot[0, 0]), 3)
