"""Rules on the classes of the optimizers, from what `tracer.inspection` remarked at `wrap`."""

from collections.abc import Iterator

from tracer.findings.cases import Case, class_of, some
from tracer.findings.histories import Evidence
from tracer.kinds import KINDS
from tracer.model.records import Optimizer, Remark
from tracer.model.wording import times

_LABELS = {
    "legacy": "a legacy Keras optimizer",
    "keras2": "a Keras 2 optimizer",
    "keras3": "a Keras 3 optimizer",
    "v1": "a tf.compat.v1 optimizer",
}
_SIGNATURES = {
    "update_step": "`update_step(self, gradient, variable, learning_rate)`",
    "_resource_apply_dense": "`_resource_apply_dense(self, grad, var, apply_state=None)`",
    "_resource_apply_sparse": (
        "`_resource_apply_sparse(self, grad, var, indices, apply_state=None)`"
    ),
}


def override_unreached(found: Evidence) -> Iterator[Case]:
    """A subclass defines a method that its base class never calls."""
    for optimizer, remark in _remarked(found, "override-unreached"):
        yield Case(
            "error",
            f"{class_of(optimizer)}.{remark.method} overrides nothing: the base class, "
            f"{_LABELS[optimizer.kind]}, calls {remark.detail}, and no other method of "
            f"{class_of(optimizer)} calls {remark.method}.",
            f"Define {_signature(remark.detail, optimizer.kind)} instead{_or(remark.method)}.",
        )


def wrong_signature(found: Evidence) -> Iterator[Case]:
    """A method cannot be called with what its base class passes."""
    for optimizer, remark in _remarked(found, "wrong-signature"):
        sparse, _, embeddings = _sparse(found, optimizer, remark)
        if "sparse" in remark.method and not sparse and not embeddings:
            continue
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
            f"{_LABELS[optimizer.kind]} passes, {passed}): {error}; {when}.",
            f"Let {remark.method} take these arguments after self.",
        )


def sparse_missing(found: Evidence) -> Iterator[Case]:
    """A subclass has no method for sparse gradients, and they come, or an embedding waits."""
    for optimizer, remark in _remarked(found, "sparse-missing"):
        sparse, variables, embeddings = _sparse(found, optimizer, remark)
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


def python_side_effect(found: Evidence) -> Iterator[Case]:
    """An apply method changes Python state, and was traced into a graph."""
    for optimizer, remark in _remarked(found, "python-side-effect"):
        calls = _calls(found, optimizer, remark.method)
        executions = _executions(found, optimizer, remark.method)
        if executions > calls:
            yield Case(
                "warning",
                f"{class_of(optimizer)}.{remark.method}: `{remark.detail}` ran "
                f"{times(calls)}, when Python called the method, while the updates that "
                f"the method makes ran {times(executions)}.",
            )


def step_per_variable(found: Evidence) -> Iterator[Case]:
    """An apply method moves on a variable of the optimizer's own, once for each variable."""
    for optimizer, remark in _remarked(found, "step-per-variable"):
        index = found.trace.optimizers.index(optimizer)
        variables = {
            variable
            for calls in found.trace.data.calls
            if calls.optimizer == index and found.trace.methods[calls.method].name == remark.method
            for variable in calls.variables
        }
        if len(variables) > 1:
            yield Case(
                "warning",
                f"{class_of(optimizer)}.{remark.method} moves `{remark.detail}` once for each "
                f"variable: {len(variables):,} times a step, with "
                f"{some(len(variables), 'variable')}.",
            )


def _remarked(found: Evidence, code: str) -> Iterator[tuple[Optimizer, Remark]]:
    """The remarks with a code, those on several optimizers of one class once."""
    seen = set()
    for optimizer in found.optimizers:
        for remark in optimizer.remarks:
            key = optimizer.class_name, remark
            if remark.code == code and key not in seen:
                seen.add(key)
                yield optimizer, remark


def _sparse(
    found: Evidence, optimizer: Optimizer, remark: Remark
) -> tuple[bool, tuple[str, ...], str]:
    """Whether Python called a sparse method, for which variables, and the living embeddings."""
    index = found.trace.optimizers.index(optimizer)
    variables = {
        variable
        for calls in found.trace.data.calls
        if calls.optimizer == index and "sparse" in found.trace.methods[calls.method].name
        for variable in calls.variables
    }
    names = tuple(found.trace.variables[each].name for each in sorted(variables))
    layers = next((each.detail for each in optimizer.remarks if each.code == "embedding"), "")
    known = f", and there is an Embedding layer ({layers})" if layers else ""
    return bool(variables), names, known


def _calls(found: Evidence, optimizer: Optimizer, method: str) -> int:
    index = found.trace.optimizers.index(optimizer)
    return sum(
        (calls.eager + calls.tracing) * len(calls.variables)
        for calls in found.trace.data.calls
        if calls.optimizer == index and found.trace.methods[calls.method].name == method
    )


def _executions(found: Evidence, optimizer: Optimizer, method: str) -> int:
    index = found.trace.optimizers.index(optimizer)
    return sum(
        block.total * entry.times * len(entry.variables)
        for block in found.blocks
        for entry in block.entries
        if entry.optimizer == index
        and entry.role in ("update", "apply")
        and found.trace.methods[entry.method].name == method
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
        for each in KINDS:
            if each.name == kind and any(apply.name == method for apply in each.apply_methods):
                return f", or derive the class from {name}"
    return ""
