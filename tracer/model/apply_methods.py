"""Which apply methods make an optimizer's updates, and which never run. No TensorFlow."""

from tracer.errors import shown
from tracer.model import measures
from tracer.model.dialects import KIND_WORDS
from tracer.model.labels import class_of
from tracer.model.records import Optimizer
from tracer.model.selection import EXECUTIONS
from tracer.model.summary import Summary


def never_reached(summary: Summary) -> list[str]:
    """A sentence for each method that the program defines to update, and that never ran.

    Nothing calls it; or it is for dense gradients, and there were none.
    """
    sentences = []
    for optimizer, remark in summary.remarks("override-unreached", "own-dense"):
        why = f"{KIND_WORDS[optimizer.kind].calls} {shown(remark.detail)}"
        if remark.code == "own-dense":
            only_sparse = _only_sparse(summary, optimizer, remark.method)
            why = "every gradient that was applied was sparse" if only_sparse else ""
        if why:
            where = f" ({shown(remark.where)})" if remark.where else ""
            method, cls = shown(remark.method), shown(class_of(optimizer))
            sentences.append(f"{method} of {cls}{where} never ran: {why}.")
    return list(dict.fromkeys(sentences))


def _only_sparse(summary: Summary, optimizer: Optimizer, method: str) -> bool:
    """Whether an optimizer got sparse gradients only, and so a method for others never ran."""
    trace = summary.trace
    index = trace.optimizers.index(optimizer)
    done = {
        (entry.kind, trace.methods[entry.method].name)
        for block, entry in summary.entries
        if block.total and entry.optimizer == index and entry.role in EXECUTIONS - {"step"}
    }
    is_sparse = {kind for kind, _ in done} == {"sparse"}
    return trace.complete and is_sparse and ("sparse", method) not in done


def apply_methods(summary: Summary) -> list[int]:
    """The indices of the methods that the question is about: those that make the updates.

    Where a method does no more than prepare the gradient for another (the default
    `_resource_apply_sparse_duplicate_indices`, `_update_step_xla`), it is the other.
    """
    methods = summary.trace.methods
    tried = ("update", "vain", "discarded")
    makers = {entry.method for _, entry in summary.entries if entry.role in tried}
    if not makers:
        makers = {index for index in summary.methods if methods[index].role == "apply"}
    by_name = {methods[index].name: index for index in summary.methods}
    chosen: set[int] = set()
    for maker in makers:
        name = methods[maker].name
        inner = by_name.get(_INNER.get(name, name.removesuffix("_duplicate_indices")), maker)
        runs, runs_inside = (summary.total(measures.of_methods([i])) for i in (maker, inner))
        chosen.add(inner if runs_inside >= runs else maker)
    return sorted(chosen, key=lambda index: ("sparse" in methods[index].name, index))


_INNER = {"_update_step_xla": "update_step"}
"""By method the one that it only prepares the gradient for, if their names do not say so."""
