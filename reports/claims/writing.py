"""Claims: writing an optimizer."""

import tempfile
from typing import Any

import custom
import samples
import tensorflow as tf
import tf_keras
from claims.judging import ANSWER, BOOK, DOCS, THREAD, TUTORIAL, Checks, Subject
from claims.ways import DENSE, NO_ERROR, SPARSE, apply, error_or_not, outcome, share, two_layers
from custom import CUSTOM, Ticks
from measuring import KERAS, LABELS, OPTIMIZERS, embedding, executions, fit, strategy_of

claim = Subject("Writing an optimizer")


@claim(
    "Override `resource_apply_dense`, `resource_apply_sparse` and `create_slots`, without an "
    "underscore.",
    DOCS,
    "Nothing calls them.",
)
def no_underscore() -> Checks:
    body = Ticks()
    yield "first step", NO_ERROR, outcome(apply, samples.NoUnderscore(body))
    sparse = outcome(apply, samples.NoUnderscore(body), sparse=True)
    yield "first step with a sparse gradient", NO_ERROR, sparse
    yield "the three are called", True, body.read() > 0


@claim(
    "Base class and optimizers have the methods with an underscore, and none without.",
    THREAD,
)
def underscore() -> Checks:
    for kind in KERAS:
        base = OPTIMIZERS[kind].Optimizer
        for word, claimed, start in (("with", 2, 0), ("without", 0, 1)):
            number = sum(hasattr(base, name[start:]) for name in (DENSE, SPARSE))
            yield f"of the two {word} an underscore, {LABELS[kind]}", claimed, number


@claim(
    "The methods to override are those with the underscore.",
    THREAD,
    "From Keras 2.11 on it is `update_step`.",
)
def override_underscore() -> Checks:
    for kind in KERAS:
        tried = outcome(apply, samples.only_dense(kind))
        yield f"first step of a class with `{DENSE}`, {LABELS[kind]}", NO_ERROR, tried


@claim(
    "Though private, they are safe to rely on in later versions.",
    THREAD,
)
def safe() -> Checks:
    for kind in KERAS:
        have = share(kind, lambda cls: hasattr(cls, DENSE))
        yield f"built-in optimizers with it, {LABELS[kind]}", "all", have


@claim("A subclass must override `_resource_apply_dense`; the base raises an error.", BOOK)
def must_override() -> Checks:
    empty = type("Empty", (OPTIMIZERS["legacy"].Optimizer,), {})
    yield "first step without it", "NotImplementedError", outcome(apply, empty("Empty"))


@claim(
    "A dense method alone makes an optimizer; other kinds of tensors need other methods.",
    BOOK,
)
def dense_alone() -> Checks:
    yield (
        "two `Dense` in `model.fit`",
        NO_ERROR,
        outcome(fit, "legacy", custom.Legacy(), two_layers),
    )
    tried = outcome(fit, "legacy", custom.Legacy(), embedding)
    yield "with an `Embedding`", "NotImplementedError", tried


@claim(
    "A subclass must define `_create_slots`: `apply_gradients` calls it and the base has none.",
    THREAD,
    "The base class has an empty one now.",
)
def create_slots() -> Checks:
    calls = Ticks()

    class Slots(custom.Legacy):
        def _create_slots(self, var_list: Any) -> None:
            calls()

    apply(Slots())
    yield "called in a step", True, calls.read() > 0
    yield "the base class has it", False, hasattr(OPTIMIZERS["legacy"].Optimizer, "_create_slots")
    yield "first step without it", "an error", outcome(apply, custom.Legacy())


@claim(
    "Whether `_create_slots` is needed has nothing to do with overriding `apply_gradients`.",
    THREAD,
    "An override that does not call the inherited method never gets there.",
)
def unrelated() -> Checks:
    calls = Ticks()

    class Slots(custom.Legacy):
        def _create_slots(self, var_list: Any) -> None:
            calls()

    class Alone(Slots):
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            return [self._resource_apply_dense(grad, var) for grad, var in grads_and_vars]

    apply(Slots())
    inherited = calls.read()
    apply(Alone())
    yield "needed at all", False, outcome(apply, custom.Legacy()) != NO_ERROR
    yield "as many calls if `apply_gradients` is overridden", True, calls.read() == inherited


@claim(
    "`_create_slots` makes what an update needs to remember, and Adam has two slots a variable.",
    f"{TUTORIAL}, {THREAD}",
)
def slots() -> Checks:
    for name, claimed in (("SGD", 0), ("RMSprop", 2), ("Adam", 4)):
        optimizer = getattr(OPTIMIZERS["legacy"], name)()
        variables = apply(optimizer)
        made = len([v for v in optimizer.variables() if v is not optimizer.iterations])
        yield f"slots of {name}, {len(variables)} variables", claimed, made


@claim("Slots are trainable variables.", THREAD)
def trainable_slots() -> Checks:
    optimizer = OPTIMIZERS["legacy"].Adam()
    variable = apply(optimizer)[0]
    yield "the slot `m` is trainable", True, bool(optimizer.get_slot(variable, "m").trainable)


@claim(
    "Optimizers track the variables in their attributes, as layers do.",
    BOOK,
    "One in an attribute of an `OptimizerV2` is not saved in a checkpoint.",
)
def tracked() -> Checks:
    for kind in KERAS:
        optimizer = CUSTOM[kind]()
        optimizer.marker = tf.Variable(1.0)
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(optimizer=optimizer).write(f"{folder}/checkpoint")
            saved = any("marker" in name for name, _ in tf.train.list_variables(path))
        yield f"saved in a checkpoint, {LABELS[kind]}", True, saved


@claim(
    "`_get_hyper` gives back what `_set_hyper` was given: numbers, functions and tensors.",
    THREAD,
)
def hyper() -> Checks:
    values = {"number": 0.5, "function": lambda: 0.5, "tensor": tf.constant(0.5)}
    for name, value in values.items():
        optimizer = samples.OneHyper(value)
        apply(optimizer)
        yield f"{name} 0.5, after a step", 0.5, float(optimizer._get_hyper("value"))


@claim(
    "Override `apply_gradients` only to add to what it does.",
    THREAD,
    "It runs once a step, so that is the place for what is to happen once a step.",
)
def override_apply_gradients() -> Checks:
    extra = tf.Variable(0)

    class Extra(custom.Legacy):
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            extra.assign_add(1)
            return super().apply_gradients(*args, **kwargs)

    trace = fit("legacy", Extra(), two_layers)
    yield "times that the addition ran in 8 steps", trace.steps, int(extra)


@claim(
    "The built-in optimizers do not override `apply_gradients`.",
    THREAD,
)
def built_in_override() -> Checks:
    for kind in KERAS:
        override = share(kind, lambda cls: "apply_gradients" in vars(cls))
        yield f"those that do, {LABELS[kind]}", "none", override


@claim(
    "An apply method returns the op that does the update.",
    THREAD,
    "Where it returns nothing, eager steps work and `model.fit` fails at its first step.",
)
def returns_op() -> Checks:
    nothing = samples.Momentum
    yield (
        "`model.fit` if it returns nothing",
        "an error",
        error_or_not(fit, "legacy", nothing(), two_layers),
    )
    yield "an eager step if it returns nothing", "an error", error_or_not(apply, nothing())


@claim(
    "In the TensorFlow 1 optimizer, `handle` is a tensor of the type `resource`.",
    THREAD,
    "It gets the variable itself.",
)
def handle() -> Checks:
    seen = []

    class Looking(custom.V1):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            seen.append(handle.dtype.name)
            return super()._resource_apply_dense(grad, handle)

    apply(Looking())
    yield "type of `handle`", "resource", seen[0]


@claim(
    "The TensorFlow 1 base class has all of these methods, and implements none.",
    THREAD,
    "Its `_create_slots` is complete: it does nothing.",
)
def v1_base() -> Checks:
    empty = type("Empty", (OPTIMIZERS["v1"].Optimizer,), {})
    yield (
        "first step without a dense method",
        "NotImplementedError",
        outcome(apply, empty(False, "Empty")),
    )
    slots = outcome(empty(False, "Empty")._create_slots, [])
    yield "its `_create_slots`", "NotImplementedError", slots


@claim(
    "Overriding an apply method of TensorFlow 1 is dangerous if each replica makes an optimizer.",
    THREAD,
    "All replicas use the methods of one of them; the updates are as they should be.",
)
def dangerous() -> Checks:
    strategy = strategy_of(2)
    bodies = [Ticks(), Ticks()]
    with strategy.scope():
        variable = tf.Variable(tf.zeros(2))

    def apply_own() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        body = bodies[int(tf.get_static_value(replica))]
        custom.V1(body).apply_gradients([(tf.ones(2), variable)])

    tf.function(lambda: strategy.run(apply_own))()
    calls = sorted(body.read() for body in bodies)
    yield "calls of the method of one of two", 0, calls[0]
    copies = {tuple(copy.numpy().tolist()) for copy in variable.values}
    yield "the copies of a variable differ", True, len(copies) > 1


@claim(
    "`get_config` is needed for an optimizer to be saved.",
    f"{ANSWER}, {TUTORIAL}",
    "Without one of its own it is serialized all the same, but forgets its hyperparameters.",
)
def get_config() -> Checks:
    optimizer = samples.OneHyper(0.5)
    serialize = tf_keras.optimizers.serialize
    yield "`serialize` without it", "an error", error_or_not(serialize, optimizer)
    again = samples.OneHyper.from_config(optimizer.get_config())
    kept = float(again._get_hyper("value")) == 0.5
    yield "a hyperparameter is kept without it", False, kept


@claim(
    "`get_config` is what saves the state of an optimizer.",
    TUTORIAL,
    "It holds hyperparameters; the state is variables, and is saved in a checkpoint.",
)
def config_is_state() -> Checks:
    optimizer = OPTIMIZERS["legacy"].SGD(0.25)
    apply(optimizer, steps=8)
    again = type(optimizer).from_config(optimizer.get_config())
    yield "learning rate, made again", 0.25, float(again.learning_rate)
    yield "`iterations` after 8 steps, made again", 8, int(again.iterations)


@claim(
    "How fast these methods are decides how fast training is.",
    TUTORIAL,
    "The ops that they build run in each step; their Python does not.",
)
def speed() -> Checks:
    body = Ticks()
    trace = fit("legacy", custom.Legacy(body), two_layers)
    yield "executions of their ops in 8 steps", 32, executions(trace, DENSE)
    yield "runs of their Python in 8 steps", 32, body.read()
