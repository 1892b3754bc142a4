"""Rules on the classes of optimizers, from the remarks of `evidence.inspection` and from counts."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from tracer.findings.rule import FEW, Case, rule
from tracer.kinds import KINDS
from tracer.model.measures import EXECUTIONS, Selection, counting
from tracer.model.phrases import class_of
from tracer.model.records import Calls, Optimizer
from tracer.model.summary import Summary
from tracer.model.words import KIND_WORDS, some, times

_SIGNATURES = {
    "update_step": "`update_step(self, gradient, variable, learning_rate)`",
    "_parallel_update_step": "`_parallel_update_step(self, grads, variables, learning_rate)`",
    "_resource_apply_dense": "`_resource_apply_dense(self, grad, var, apply_state=None)`",
    "_resource_apply_sparse": (
        "`_resource_apply_sparse(self, grad, var, indices, apply_state=None)`"
    ),
}
_NOT_PASSED = {"keras2": ", learning_rate", "v1": ", apply_state=None"}
_BASES = {
    "legacy": "tf_keras.optimizers.legacy.Optimizer",
    "keras3": "keras.optimizers.Optimizer",
    "v1": "tf.compat.v1.train.Optimizer",
}


@rule(
    "override-unreached",
    severity="error",
    title="nothing calls this method",
    why="The method never runs: training fails, or uses the update of the base class.",
    advice="Define the method that the base class calls.",
    explanation=(
        "Legacy Keras and tf.compat.v1 optimizers call `_resource_apply_dense` and "
        "`_resource_apply_sparse`; Keras 2.11 and later call `update_step`. Found "
        "before training. Silent if the class also defines the right method, or calls "
        "this one."
    ),
    explains=FEW,
)
def override_unreached(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("override-unreached"):
        kind, calls = optimizer.kind, remark.detail
        method = f"{class_of(optimizer)}.{remark.method}"
        base = f"the base class, {KIND_WORDS[kind].optimizer}, calls {calls}"
        signature = _SIGNATURES.get(calls, f"`{calls}`")
        signature = signature.replace(_NOT_PASSED.get(kind, ""), "")
        yield Case(
            f"{method} overrides nothing: {base}, and no other method of "
            f"{class_of(optimizer)} calls {remark.method}.",
            f"Define {signature} instead{_or_derive(remark.method)}.",
        )


def _or_derive(method: str) -> str:
    """`, or derive the class from` the optimizers that call a method of this name, if any do."""
    kinds = (k.name for k in KINDS if method in {each.name for each in k.apply_methods})
    return next((f", or derive the class from {_BASES[k]}" for k in kinds if k in _BASES), "")


@rule(
    "wrong-signature",
    severity="error",
    title="a method does not accept its arguments",
    why=("Each call raises TypeError, in the first step or with the first sparse gradient."),
    advice="Give the method the parameters that it has in the base class.",
    explanation=(
        "The base class passes other arguments, such as `indices` to sparse methods, or "
        "`learning_rate` to `update_step` in Keras 3. Found before training. A sparse "
        "method is a warning until a sparse gradient comes."
    ),
)
def wrong_signature(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("wrong-signature"):
        variables, embeddings = _sparse(summary, optimizer)
        passed, _, error = remark.detail.partition("): ")
        certain = bool(variables) or "sparse" not in remark.method
        fails = f"the first sparse gradient fails{embeddings}"
        yield Case(
            f"{class_of(optimizer)}.{remark.method} does not accept what "
            f"{KIND_WORDS[optimizer.kind].optimizer} passes, {passed}): {error}; "
            f"{'each call raises TypeError' if certain else fails}.",
            f"Let {remark.method} take these arguments after self.",
            "error" if certain else "warning",
        )


@rule(
    "sparse-missing",
    severity="error",
    title="a class has no method for sparse gradients",
    why=(
        "Embeddings have sparse gradients (`tf.IndexedSlices`), and the first one "
        "raises NotImplementedError."
    ),
    advice="Define `_resource_apply_sparse(self, grad, var, indices, apply_state=None)`.",
    explanation=(
        "For subclasses of legacy Keras and tf.compat.v1 optimizers with "
        "`_resource_apply_dense` alone. A warning while a Keras `Embedding` layer "
        "exists, an error once a sparse gradient comes."
    ),
)
def sparse_missing(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("sparse-missing"):
        variables, embeddings = _sparse(summary, optimizer)
        missing = f"{class_of(optimizer)} has no {remark.method}"
        if variables:
            first = summary.trace.variables[variables[0]].name
            yield Case(
                f"{missing}, and the gradient of {first} is sparse, which raises "
                "NotImplementedError.",
                variables=variables,
            )
        elif embeddings:
            yield Case(
                f"{missing}: the first sparse gradient fails with NotImplementedError{embeddings}.",
                severity="warning",
            )


@rule(
    "python-side-effect",
    severity="warning",
    title="Python state changes only while a graph is traced",
    why=("Python runs the method while it traces, once for each variable, and not in each step."),
    advice=("Keep such state in a tf.Variable of the optimizer, and change it with `assign`."),
    explanation=(
        "Found in the source of apply methods: `self.x += 1`, `self.x = ...` that the "
        "method does not read, `self.x.append(...)`, `global` counters. Silent for a "
        "method that ran only eagerly."
    ),
)
def python_side_effect(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("python-side-effect"):
        selection, called = _called(summary, optimizer, remark.method)
        calls = sum((each.eager + each.tracing) * len(each.variables) for each in called)
        executions = summary.total(selection)
        if executions > calls:
            yield Case(
                f"{class_of(optimizer)}.{remark.method}: `{remark.detail}` ran {times(calls)}, "
                "because it runs only when Python calls the method; its updates ran "
                f"{times(executions)}."
            )


@rule(
    "step-per-variable",
    severity="warning",
    title="a step counter advances once for each variable",
    why="With n variables a decay is n times too fast, and a bias correction is wrong.",
    advice=("Use `self.iterations`, or advance the counter once a step, in `apply_gradients`."),
    explanation=(
        "Found in the source of apply methods: `self.n.assign_add(...)` or similar, "
        "where the update depends on `self.n`. Silent for counters that are only "
        "logged, and for sums of gradients."
    ),
)
def step_per_variable(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("step-per-variable"):
        _, called = _called(summary, optimizer, remark.method)
        number = len({variable for calls in called for variable in calls.variables})
        if number > 1:
            yield Case(
                f"{class_of(optimizer)}.{remark.method} advances `{remark.detail}`, on which the "
                f"update depends, once for each variable: {times(number)} a step, with "
                f"{some(number, 'variable')}."
            )


def _sparse(summary: Summary, optimizer: Optimizer) -> tuple[list[int], str]:
    """The variables with Python calls of a sparse method, and a phrase on living embeddings."""
    _, called = _called(summary, optimizer, "*sparse*")
    layers = (remark.detail for remark in optimizer.remarks if remark.code == "embedding")
    known = (f", and there is an Embedding layer ({each})" for each in layers)
    return sorted({index for calls in called for index in calls.variables}), next(known, "")


def _called(summary: Summary, optimizer: Optimizer, name: str) -> tuple[Selection, list[Calls]]:
    """The executions and the Python calls of an optimizer's methods that match a pattern."""
    trace = summary.trace
    methods = [i for i, each in enumerate(trace.methods) if fnmatchcase(each.name, name)]
    index = trace.optimizers.index(optimizer)
    selection = counting(EXECUTIONS, None, methods, optimizer=index)
    calls = trace.data.calls
    return selection, [each for each in calls if each.method in methods and each.optimizer == index]


@rule(
    "never-assigned",
    severity="error",
    title="an apply method assigned nothing",
    why="The variable keeps its value, however often the method runs.",
    advice="Write to the variable itself, as with `assign_sub`.",
    explanation=(
        "Nothing in the method writes to the variable: `variable = variable - ...` only binds a "
        "Python name. An update by a gradient of 0 is an assignment too, and is not reported. Also "
        "reported: None returned in a graph of a legacy or tf.compat.v1 optimizer."
    ),
    explains=("few updates", "changes", "unchanged"),
)
def never_assigned(summary: Summary) -> Iterator[Case]:
    trace = summary.trace
    for optimizer, remark in summary.remarks("no-result"):
        if any(remark.method == method.name for method in trace.methods):
            yield Case(
                f"{class_of(optimizer)}.{remark.method} returned None while a graph was traced, "
                "where TensorFlow needs the op that makes the update.",
                f"Return the op: {KIND_WORDS[optimizer.kind].assign}.",
            )
    idle = (
        entry for block, entry in summary.entries if entry.role == "ineffective" and block.total
    )
    for index, method in sorted({(each.optimizer, each.method) for each in idle}):
        optimizer = trace.optimizers[index]
        selection = counting(["ineffective"], None, [method], optimizer=index)
        yield Case(
            "{method} ran {times:times} and assigned nothing to {which}.",
            f"Assign to the variable itself, as with {KIND_WORDS[optimizer.kind].assign}: "
            "`variable = ...` changes no weight.",
            variables=[
                variable
                for pattern in summary.patterns
                if pattern.total(selection)
                for variable in pattern.variables
            ],
            words={"method": f"{class_of(optimizer)}.{trace.methods[method].name}"},
            numbers={"times": summary.total(selection)},
        )
