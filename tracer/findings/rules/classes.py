"""Rules on the classes of the optimizers, from what `hooks.inspection` remarked at `wrap`."""

from collections.abc import Callable, Iterable, Iterator

from tracer.findings.cases import Case
from tracer.findings.rule import rule
from tracer.kinds import KINDS
from tracer.model.dialects import KIND_WORDS
from tracer.model.labels import class_of
from tracer.model.records import Calls, Optimizer, Remark
from tracer.model.summary import Summary
from tracer.model.wording import some, times

_SIGNATURES = {
    "update_step": "`update_step(self, gradient, variable, learning_rate)`",
    "_parallel_update_step": "`_parallel_update_step(self, grads, variables, learning_rate)`",
    "_resource_apply_dense": "`_resource_apply_dense(self, grad, var, apply_state=None)`",
    "_resource_apply_sparse": (
        "`_resource_apply_sparse(self, grad, var, indices, apply_state=None)`"
    ),
}


@rule(
    "override-unreached",
    severity="error",
    title="a method is defined that nothing calls",
    why=(
        "The code in the method never runs; training goes on with what the base class does, or "
        "fails because the method that is called is missing."
    ),
    advice="Define the method that the base class calls.",
    explanation=(
        "Legacy Keras and tf.compat.v1 optimizers call `_resource_apply_dense` and "
        "`_resource_apply_sparse`; those of Keras 2.11 and later, and of Keras 3, call "
        "`update_step`. A name without the underscore (`resource_apply_dense`) is called by none: "
        "it is a warning in a class that has the right method, too, if no file of the program "
        "calls it. It is found when the optimizer is wrapped, before any training. Not reported "
        "is a class that also defines the method that is called, as one for several versions of "
        "Keras does, or that calls the method itself."
    ),
)
def override_unreached(summary: Summary) -> Iterator[Case]:
    """A subclass defines a method that its base class never calls."""
    for optimizer, remark in _remarked(summary, "override-unreached"):
        yield Case(
            "error",
            f"{class_of(optimizer)}.{remark.method} overrides nothing: the base class, "
            f"{KIND_WORDS[optimizer.kind].optimizer}, calls {remark.detail}, and no other method "
            f"of {class_of(optimizer)} calls {remark.method}.",
            f"Define {_signature(remark.detail, optimizer.kind)} instead{_or(remark.method)}.",
        )
    for optimizer, remark in _remarked(summary, "override-beside"):
        yield Case(
            "warning",
            f"{class_of(optimizer)}.{remark.method} is called by nothing: the base class, "
            f"{KIND_WORDS[optimizer.kind].optimizer}, calls {remark.detail}, which the class has, "
            f"too, and the program calls no {remark.method}.",
            f"Delete it, or put its code into {remark.detail}.",
        )


@rule(
    "wrong-signature",
    severity="error",
    title="a method cannot take what it is passed",
    why=(
        "Python raises TypeError when the method is called, in the first step or with the first "
        "sparse gradient."
    ),
    advice="Give the method the parameters of the base class.",
    explanation=(
        "The signature is compared with what the base class really passes: `indices` as the third "
        "argument of the sparse methods, `learning_rate` as that of Keras 3's `update_step`, and "
        "`apply_state` by name to a legacy method that has such a parameter. It is found when the "
        "optimizer is wrapped. A sparse method is a warning until a sparse gradient came. A method "
        "that does nothing but raise an error is not reported."
    ),
)
def wrong_signature(summary: Summary) -> Iterator[Case]:
    """A method cannot be called with what its base class passes."""
    for optimizer, remark in _remarked(summary, "wrong-signature"):
        sparse, _, embeddings = _sparse(summary, optimizer, remark)
        passed, _, error = remark.detail.partition("): ")
        certain = sparse or "sparse" not in remark.method
        when = (
            "each call raises TypeError"
            if certain
            else f"the first sparse gradient fails{embeddings}"
        )
        yield Case(
            "error" if certain else "warning",
            f"{class_of(optimizer)}.{remark.method} cannot take what "
            f"{KIND_WORDS[optimizer.kind].optimizer} passes, {passed}): {error}; {when}.",
            f"Let {remark.method} take these arguments after self.",
        )


@rule(
    "sparse-missing",
    severity="error",
    title="there is no method for sparse gradients",
    why=(
        "An embedding gives sparse gradients (`tf.IndexedSlices`); without the method the first "
        "one raises NotImplementedError."
    ),
    advice="Define `_resource_apply_sparse(self, grad, var, indices, apply_state=None)`.",
    explanation=(
        "For subclasses of legacy Keras and tf.compat.v1 optimizers that define "
        "`_resource_apply_dense` and none of the sparse methods. It is a warning, when the "
        "optimizer is wrapped, while an `Embedding` layer of Keras is alive, and an error when a "
        "sparse gradient came. A model without sparse gradients needs no such method."
    ),
)
def sparse_missing(summary: Summary) -> Iterator[Case]:
    """A subclass has no method for sparse gradients, and they come, or an embedding waits."""
    for optimizer, remark in _remarked(summary, "sparse-missing"):
        sparse, variables, embeddings = _sparse(summary, optimizer, remark)
        if sparse:
            of = f" of {variables[0]}" if variables else ""
            yield Case(
                "error",
                f"{class_of(optimizer)} has no {remark.method}, and the gradient{of} is sparse, "
                "which raises NotImplementedError.",
                variables=variables,
            )
        elif embeddings:
            yield Case(
                "warning",
                f"{class_of(optimizer)} has no {remark.method}: the first sparse gradient fails "
                f"with NotImplementedError{embeddings}.",
            )


@rule(
    "python-side-effect",
    severity="warning",
    title="Python state changed while a graph was traced",
    why=(
        "Python runs the method only while a graph is traced, once for each variable, and not in "
        "each step: what it counts or keeps is not what happened."
    ),
    advice="Keep such state in a tf.Variable of the optimizer, and change it with `assign`.",
    explanation=(
        "The source of the apply methods is read for `self.x += 1`, `self.x = ...` that the method "
        "does not read itself, `self.x.append(...)` and counters that are `global` or `nonlocal`. "
        "What is under a condition that asks for the attribute itself (`if self.x is None`) or for "
        "eager mode is left out, and so is a method that ran in eager mode only, or whose source "
        "cannot be read."
    ),
)
def python_side_effect(summary: Summary) -> Iterator[Case]:
    """An apply method changes Python state, and was traced into a graph."""
    for optimizer, remark in _remarked(summary, "python-side-effect"):
        called = _called(summary, optimizer, remark.method.__eq__)
        calls = sum((each.eager + each.tracing) * len(each.variables) for each in called)
        executions = _executions(summary, optimizer, remark.method)
        if executions > calls:
            yield Case(
                "warning",
                f"{class_of(optimizer)}.{remark.method}: `{remark.detail}` ran "
                f"{times(calls)}, when Python called the method, while the updates that "
                f"the method makes ran {times(executions)}.",
            )


@rule(
    "step-per-variable",
    severity="warning",
    title="a step variable moves once for each variable",
    why=(
        "With n variables it goes on by n in each step: a decay is n times too fast, and a bias "
        "correction is wrong."
    ),
    advice="Use `self.iterations`, or move the variable once a step, in `apply_gradients`.",
    explanation=(
        "The source of the apply methods is read for `self.n.assign_add(...)`, `assign_sub`, or an "
        "`assign` of a value made of itself, which nothing decides, and for a use of `self.n` in "
        "what is assigned to anything else. It takes two variables or more. Left out is what is "
        "counted and not used, or only logged; what a gradient goes into, for that is a sum over "
        "the variables; what seeds random numbers; and what another method sets back."
    ),
)
def step_per_variable(summary: Summary) -> Iterator[Case]:
    """An apply method moves on a variable of the optimizer's own, once for each variable."""
    for optimizer, remark in _remarked(summary, "step-per-variable"):
        called = _called(summary, optimizer, remark.method.__eq__)
        variables = {variable for calls in called for variable in calls.variables}
        if len(variables) > 1:
            yield Case(
                "warning",
                f"{class_of(optimizer)}.{remark.method} moves `{remark.detail}`, which the update "
                f"depends on, once for each variable: {len(variables):,} times a step, with "
                f"{some(len(variables), 'variable')}.",
            )


def _remarked(summary: Summary, code: str) -> Iterable[tuple[Optimizer, Remark]]:
    """The remarks with a code, those on several optimizers of one class once."""
    first: dict[tuple[str, Remark], tuple[Optimizer, Remark]] = {}
    for optimizer, remark in summary.remarks(code):
        first.setdefault((optimizer.class_name, remark), (optimizer, remark))
    return first.values()


def _called(summary: Summary, optimizer: Optimizer, name: Callable[[str], bool]) -> list[Calls]:
    """The Python calls of those methods of an optimizer of which the name is meant."""
    index = summary.trace.optimizers.index(optimizer)
    return [
        calls
        for calls in summary.trace.data.calls
        if calls.optimizer == index and name(summary.trace.methods[calls.method].name)
    ]


def _sparse(
    summary: Summary, optimizer: Optimizer, remark: Remark
) -> tuple[bool, tuple[str, ...], str]:
    """Whether Python called a sparse method, for which variables, and the living embeddings."""
    called = _called(summary, optimizer, lambda name: "sparse" in name)
    variables = {variable for calls in called for variable in calls.variables}
    names = tuple(summary.trace.variables[each].name for each in sorted(variables))
    layers = next((each.detail for each in optimizer.remarks if each.code == "embedding"), "")
    known = f", and there is an Embedding layer ({layers})" if layers else ""
    return bool(variables), names, known


def _executions(summary: Summary, optimizer: Optimizer, method: str) -> int:
    index = summary.trace.optimizers.index(optimizer)
    return sum(
        number
        for of, number in summary.executions.items()
        if of.optimizer == index
        and of.role in ("update", "vain", "discarded", "apply")
        and summary.trace.methods[of.method].name == method
    )


def _signature(method: str, kind: str) -> str:
    signature = _SIGNATURES.get(method, f"`{method}`")
    if kind == "keras2":
        return signature.replace(", learning_rate", "")
    return signature.replace(", apply_state=None", "") if kind == "v1" else signature


def _or(method: str) -> str:
    """`, or derive the class from` the optimizers that call a method of this name, if any do."""
    for kind, name in (
        ("legacy", "tf_keras.optimizers.legacy.Optimizer"),
        ("keras3", "keras.optimizers.Optimizer"),
        ("v1", "tf.compat.v1.train.Optimizer"),
    ):
        for known in KINDS:
            if known.name == kind and any(each.name == method for each in known.apply_methods):
                return f", or derive the class from {name}"
    return ""
