"""What people say about the apply methods: each claim as things that it implies, measured.

No verdict is written down: a claim is true if all is as claimed, false if nothing is, else half
true. The sample optimizers do what samples on the web do: they override the same methods, with the
same signatures, and assign to the same things.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import how_often
import msgspec
import tensorflow as tf
from how_often import KERAS, LABELS, MODELS, OPTIMIZERS, Case
from make import table

import tracer

prepare, PACKAGES = how_often.prepare, how_often.PACKAGES
DENSE = "_resource_apply_dense"
ANSWER, CHAPTER, DOCS = "answer page", "chapter", "class documentation"
THREAD, TUTORIAL = "question thread", "tutorial"
RATE, NO_ERROR, TWO, EMBEDDING = 0.01, "no error", "2 `Dense`", "`Embedding`, `Dense`"

Value = int | float | str | bool
Checks = Iterator[tuple[str, Value, Value]]
"""What is measured, what the claim implies, and the measured value."""


class Check(msgspec.Struct, frozen=True, array_like=True):
    """One thing that a claim implies."""

    what: str
    claimed: Value
    measured: Value


class Row(msgspec.Struct, frozen=True):
    """A claim, measured."""

    claim: str
    said_by: str
    verdict: str
    checks: list[Check]
    why: str


CLAIMS: list[tuple[str, str, str, Callable[[], Checks]]] = []


def claim(text: str, said_by: str, why: str = "") -> Callable[[Callable[[], Checks]], None]:
    """Add a claim; the function under it yields its checks."""
    return lambda checks: CLAIMS.append((text, said_by, why, checks))


def measure() -> list[Row]:
    """Judge every claim."""
    rows = []
    for text, said_by, why, measured in CLAIMS:
        checks = [Check(*check) for check in measured()]
        right = [check.claimed == check.measured for check in checks]
        verdict = "true" if all(right) else "half true" if any(right) else "false"
        rows.append(Row(text, said_by, verdict, checks, why))
    return rows


# Ways to measure.


def outcome(action: Callable[..., object], *given: Any, **named: Any) -> str:
    """The name of the error that the action raises."""
    try:
        action(*given, **named)
    except Exception as error:
        return type(error).__name__
    return NO_ERROR


def fit(optimizer: Any, model: str = TWO, mode: str = "eager") -> tracer.Trace:
    """The trace of eight batches with an optimizer of one's own."""
    return how_often.train(Case(model, mode=mode, batch=4), optimizer)[0]


@cache
def fitted(model: str = TWO, **case: Any) -> tracer.Trace:
    """The trace of eight batches with a built-in optimizer."""
    given: dict[str, Any] = {"batch": 4, "mode": "eager"} | case
    return how_often.train(Case(model, **given))[0]


def ran(trace: tracer.Trace, method: str = DENSE) -> int:
    """The executions of a method per step; 0 if it was never called."""
    known = method in {each.name for each in trace.methods}
    return trace.executions(method) // trace.steps if known else 0


def apply(optimizer: Any, *, sparse: bool = False, steps: int = 1) -> list[Any]:
    """Apply eager gradients of ones to two variables, or a sparse one with a repeated row."""
    variables = [tf.Variable(tf.zeros((3, 2)), name="table"), tf.Variable(tf.zeros(2), name="bias")]
    pairs = [(tf.ones_like(variable), variable) for variable in variables]
    if sparse:
        rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 2, 2]), tf.constant([3, 2]))
        pairs = [(rows, variables[0])]
    for _ in range(steps):
        optimizer.apply_gradients(pairs)
    return variables


# The sample optimizers.


def custom(base: Any = OPTIMIZERS["legacy"].Optimizer, **members: Any) -> Any:
    """An optimizer with these methods; `calls` counts the calls of the last one."""
    calls: list[None] = []

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(None)
            return method(*given, **named)

        plain: Callable[..., Any] = tf.autograph.experimental.do_not_convert(call)
        return plain

    methods = {name: counted(method) for name, method in members.items()}
    is_named = base in (OPTIMIZERS[kind].Optimizer for kind in ("legacy", "keras2"))
    optimizer = type("Sample", (base,), methods)("sample" if is_named else RATE)
    if base is OPTIMIZERS["keras2"].Optimizer:
        optimizer._learning_rate = optimizer._build_learning_rate(RATE)
    object.__setattr__(optimizer, "calls", calls)
    return optimizer


def descend(self: Any, grad: Any, var: Any, *rest: Any) -> Any:
    """Gradient descent that returns its op."""
    return var.assign_sub(RATE * grad)


def descend_silently(self: Any, grad: Any, var: Any) -> None:
    """Gradient descent that returns nothing, and takes no indices."""
    var.assign_sub(RATE * grad)


# How often it runs.


@claim(
    "The method is called once for each weight tensor in each step.",
    ANSWER,
    "The update runs so often; the method is called only while a graph is traced.",
)
def _() -> Checks:
    trace = fitted(mode="graph")
    yield "executions in 8 steps, 4 tensors", 32, trace.executions(DENSE)
    yield "Python calls", 32, trace.calls(DENSE)


@claim(
    "Two `Dense` layers make two calls a step, and three make three.",
    ANSWER,
    "A `Dense` layer has two variables, the kernel and the bias.",
)
def _() -> Checks:
    for count in (2, 3):
        yield f"executions per step, {count} layers", count, ran(fitted(f"{count} `Dense`"))


@claim("A custom optimizer is called once a batch for one `Dense` layer.", ANSWER)
def _() -> Checks:
    trace = fit(custom(_resource_apply_dense=descend), "1 `Dense`")
    yield "executions per step", 1, ran(trace)


@claim(
    "The calls of a step are as many as the trainable weight tensors, whatever the model.",
    ANSWER,
    "Sparse gradients go another way, and each replica updates its own copy.",
)
def _() -> Checks:
    yield "2 `Dense`, 4 tensors", 4, ran(fitted())
    yield "`Embedding` and `Dense`, 3 tensors", 3, ran(fitted(EMBEDDING))
    yield "2 `Dense` on 2 replicas", 4, ran(fitted(replicas=2, mode="graph"))


@claim(
    "Which Keras optimizer it is makes no difference.",
    ANSWER,
    "Optimizers since Keras 2.11 do not have the method; they have `update_step`.",
)
def _() -> Checks:
    for name in ("SGD", "RMSprop", "Adam"):
        yield f"executions per step, legacy {name}", 4, ran(fitted(optimizer=name))
    for kind in ("keras2", "keras3"):
        yield f"executions per step, {LABELS[kind]} Adam", 4, ran(fitted(kind=kind))


@claim("A larger batch does not change the number of calls in a step.", ANSWER)
def _() -> Checks:
    for batch in (1, 32, 512):
        yield f"executions per step, batch {batch}", 4, ran(fitted(batch=batch))


@claim(
    "Keras keeps no count of the updates that one could read.",
    ANSWER,
    "`iterations` counts steps; `tracer` counts the updates.",
)
def _() -> Checks:
    optimizer = OPTIMIZERS["legacy"].Adam()
    updates = fit(optimizer).updates()
    yield f"`iterations` after {updates} updates", 8, int(optimizer.iterations)


# Which method runs.


@claim("Convolutional and recurrent layers are updated in another way.", ANSWER)
def _() -> Checks:
    for name in ("Conv2D", "LSTM"):
        trace = fitted(f"`{name}`, `Dense`")
        others = {each.name for each in trace.methods if each.role == "apply"} - {DENSE}
        yield f"other apply methods with `{name}`", True, bool(others)


@claim(
    "`_resource_apply_sparse` is for layers such as `Embedding`, `_resource_apply_dense` for all "
    "others.",
    THREAD,
    "The gradient decides, not the layer.",
)
def _() -> Checks:
    MODELS["regularised"] = lambda to: [
        *(to.Embedding(5, 3, embeddings_regularizer="l2"), to.Flatten(), to.Dense(2)),
    ]
    rows = "embedding*/embeddings"
    yield "dense updates of an `Embedding`", 0, fitted(EMBEDDING).updates("dense", rows)
    trace = fitted("regularised")
    yield "dense updates with an L2 regulariser", 0, trace.updates("dense", rows)


@claim("`model.fit` calls `optimizer.minimize`.", CHAPTER, "Keras 3 has no `minimize`.")
def _() -> Checks:
    for kind, library in OPTIMIZERS.items():
        if kind != "v1":
            base = library.SGD
            plain = getattr(base, "minimize", descend)
            optimizer = custom(base, minimize=plain)
            how_often.train(Case(TWO, kind=kind, mode="eager", batch=4), optimizer)
            yield f"calls in 8 steps, {LABELS[kind]}", 8, len(optimizer.calls)


@claim("`apply_gradients` updates each variable on each replica.", CHAPTER)
def _() -> Checks:
    for replica in range(2):
        found = fitted(replicas=2, mode="graph").executions(DENSE, replica=replica)
        yield f"executions on replica {replica}, 8 steps, 4 variables", 32, found


# Writing an optimizer.


@claim(
    "Override `resource_apply_dense`, `resource_apply_sparse` and `create_slots`.",
    DOCS,
    "Nothing calls a method without the underscore.",
)
def _() -> Checks:
    optimizer = custom(resource_apply_dense=descend, create_slots=lambda self, variables: None)
    yield "first step", NO_ERROR, outcome(apply, optimizer)
    yield "the methods are called", True, bool(optimizer.calls)


@claim(
    "The methods to override are those with the underscore, and that is safe in later versions.",
    THREAD,
    "Since Keras 2.11 the method is `update_step`.",
)
def _() -> Checks:
    for kind in KERAS:
        optimizer = custom(OPTIMIZERS[kind].Optimizer, _resource_apply_dense=descend)
        yield f"first step, {LABELS[kind]}", NO_ERROR, outcome(apply, optimizer)


@claim("A dense method alone makes an optimizer; other tensors need other methods.", CHAPTER)
def _() -> Checks:
    for name, model, claimed in (
        ("2 `Dense`", TWO, NO_ERROR),
        ("an `Embedding`", EMBEDDING, "NotImplementedError"),
    ):
        optimizer = custom(_resource_apply_dense=descend)
        yield f"`fit` with {name}", claimed, outcome(fit, optimizer, model)


@claim("A subclass must define `_create_slots`.", THREAD, "The base class has an empty one by now.")
def _() -> Checks:
    tried = outcome(apply, custom(_resource_apply_dense=descend))
    yield "first step without it", "AttributeError", tried


@claim(
    "An apply method that assigns and returns nothing trains a model.",
    f"{TUTORIAL}, {CHAPTER}",
    "In a graph, the legacy base class groups the returned ops, and cannot group None.",
)
def _() -> Checks:
    for mode in ("graph", "eager"):
        optimizer = custom(_resource_apply_dense=descend_silently)
        yield f"`fit`, {mode}", NO_ERROR, outcome(fit, optimizer, mode=mode)


@claim(
    "A sparse method needs no `indices`.",
    TUTORIAL,
    "The indices are a third argument.",
)
def _() -> Checks:
    optimizer = custom(_resource_apply_sparse=descend_silently)
    yield "step with a sparse gradient", NO_ERROR, outcome(apply, optimizer, sparse=True)


@claim(
    "A counter that the apply method increments counts steps, so the rate decays once a step.",
    TUTORIAL,
    "The counter moves once for each variable, so the rate decays too fast.",
)
def _() -> Checks:
    counter = tf.Variable(0)

    def decay(self: Any, grad: Any, var: Any, *rest: Any) -> Any:
        counter.assign_add(1)
        return descend(self, grad, var)

    fit(custom(_resource_apply_dense=decay))
    yield "the counter after 8 steps, 2 `Dense`", 8, int(counter)


# The page.


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    verdicts = [row.verdict for row in rows]
    lines: list[dict[str, object]] = [
        {
            "claim": row.claim,
            "verdict": f"**{row.verdict}**",
            "measured": "<br>".join([*map(evidence, row.checks), *([row.why] if row.why else [])]),
            "said by": row.said_by,
        }
        for row in rows
    ]
    return f"""# What people say about `_resource_apply_dense`

**Of {len(rows)} claims, {verdicts.count("true")} are true, {verdicts.count("half true")} are half
true and {verdicts.count("false")} are false.** Each claim is put as things that it implies. Each of
them is measured, on legacy optimizers unless another kind is named. Many were true up to
TensorFlow 2.10.

{table(lines)}

Said by: *answer page*, on how often the method is called; *chapter*, on the optimizers in a text on
Keras; *class documentation*, of `tf.keras.optimizers.Optimizer` in 2020; *question thread*, about
that documentation ([TensorFlow issue 36449](https://github.com/tensorflow/tensorflow/issues/36449));
*tutorial*, on custom optimizers. Advice and GPU kernels are not measured.
"""


def evidence(check: Check) -> str:
    """The measured value, with the claimed one if it differs."""
    measured, claimed = (
        {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        for value in (check.measured, check.claimed)
    )
    if measured == claimed:
        return f"{check.what}: {measured}"
    return f"{check.what}: **{measured}** (claimed: {claimed})"
