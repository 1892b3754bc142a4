"""Rules on the classes of optimizers, from `evidence.inspection` and from counts."""

from collections.abc import Iterator

from tracer.findings.rule import FEW, Case, rule
from tracer.kinds import KINDS
from tracer.model.evidence import (
    NeverAssigned,
    NothingReturned,
    OverrideUnreached,
    SparseMissing,
)
from tracer.model.phrases import class_of
from tracer.model.records import Optimizer
from tracer.model.summary import Summary
from tracer.model.words import KIND_WORDS

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
    for optimizer, own in summary.evidence(OverrideUnreached):
        kind, calls = optimizer.kind, own.called
        method = f"{class_of(optimizer)}.{own.method}"
        base = f"the base class, {KIND_WORDS[kind].optimizer}, calls {calls}"
        signature = _SIGNATURES.get(calls, f"`{calls}`")
        signature = signature.replace(_NOT_PASSED.get(kind, ""), "")
        yield Case(
            f"{method} overrides nothing: {base}, and no other method of "
            f"{class_of(optimizer)} calls {own.method}.",
            f"Define {signature} instead{_or_derive(own.method)}.",
        )


def _or_derive(method: str) -> str:
    """`, or derive the class from` the optimizers that call a method of this name, if any do."""
    kinds = (k.name for k in KINDS if method in {each.name for each in k.apply_methods})
    return next((f", or derive the class from {_BASES[k]}" for k in kinds if k in _BASES), "")


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
        "`_resource_apply_dense` alone, once a sparse gradient comes."
    ),
)
def sparse_missing(summary: Summary) -> Iterator[Case]:
    for optimizer, own in summary.evidence(SparseMissing):
        variables = _with_sparse_calls(summary, optimizer)
        if variables:
            first = summary.trace.variables[variables[0]].name
            yield Case(
                f"{class_of(optimizer)} has no {own.method}, and the gradient of {first} is "
                "sparse, which raises NotImplementedError.",
                variables=variables,
            )


def _with_sparse_calls(summary: Summary, optimizer: Optimizer) -> list[int]:
    """The variables for which Python called a sparse apply method of the optimizer."""
    trace = summary.trace
    sparse = {i for i, method in enumerate(trace.methods) if "sparse" in method.name}
    index = trace.optimizers.index(optimizer)
    calls = [c for c in trace.data.calls if c.method in sparse and c.optimizer == index]
    return sorted({variable for call in calls for variable in call.variables})


@rule(
    "never-assigned",
    severity="error",
    title="an apply method assigned nothing",
    why="The variable keeps its value, however often the method runs.",
    advice="Write to the variable itself, as with `assign_sub`.",
    explanation=(
        "Nothing in the method writes to the variable: `variable = variable - ...` only binds a "
        "Python name. An update by a gradient of 0 is an assignment too, and is not reported. Seen "
        "while TensorFlow traces a graph; in eager mode, effects show the variable as unchanged. "
        "Also reported: None returned in a graph of a legacy or tf.compat.v1 optimizer."
    ),
    explains=("few updates", "unchanged"),
)
def never_assigned(summary: Summary) -> Iterator[Case]:
    trace = summary.trace
    for optimizer, own in summary.evidence(NothingReturned):
        if any(own.method == method.name for method in trace.methods):
            yield Case(
                f"{class_of(optimizer)}.{own.method} returned None while a graph was traced, "
                "where TensorFlow needs the op that makes the update.",
                f"Return the op: {KIND_WORDS[optimizer.kind].assign}.",
            )
    for optimizer, idle in summary.evidence(NeverAssigned):
        names = [variable.name for variable in trace.variables]
        variables = [index for index in summary.variables if names[index] in idle.variables]
        if variables and any(idle.method == method.name for method in trace.methods):
            yield Case(
                "{method} assigned nothing to {which} while it was traced.",
                f"Assign to the variable itself, as with {KIND_WORDS[optimizer.kind].assign}: "
                "`variable = ...` changes no weight.",
                variables=variables,
                words={"method": f"{class_of(optimizer)}.{idle.method}"},
            )
