"""How the counts of two traces differ, as a text that git and people can read."""

from collections.abc import Sequence

from tracer.model.executions import Executed, Work, executions
from tracer.model.matching import matched
from tracer.model.trace import Trace
from tracer.reporters.layout import shown
from tracer.testing.failure_rows import label


def difference(expected: Trace, actual: Trace) -> str:
    """The lines that differ, `-` what was expected and `+` what there is; empty if none does.

    Compared are the executions of each method on each variable, with kind, steps and replica; not
    times, versions, Python calls or how the work was spread over graphs. Keras numbers its names
    in the order in which layers are made in a process (`dense_7/kernel`), so layers whose names
    differ in such numbers only and hold variables of the same shapes are matched, as `tracer diff`
    does it, and have the names that they have in `expected`. A variable of the same name and
    another shape is another one.
    """
    lines = [
        f"{sign}{_name(work)}: {_counts(executed)}"
        for work, before, after in executions(expected, actual)
        for sign, executed in (("-", before), ("+", after))
        if executed is not None
    ]
    pairs = matched(expected, actual).pairs
    for pair in pairs:
        for indices in pair.reshaped:
            for sign, summary, index in zip("-+", (pair.before, pair.after), indices, strict=True):
                variable = summary.trace.variables[index]
                lines.append(f"{sign}{shown(variable.name)} has the shape {list(variable.shape)}")
    renamed = [f"{shown(a)} = {shown(b)}" for pair in pairs for a, b in pair.renamed]
    if lines and renamed:
        lines += ["", f"Layers with other names, matched by order and shapes: {', '.join(renamed)}"]
    return "\n".join(lines)


def _name(work: Work) -> str:
    """`Adam.update_step on dense/kernel (dense), replica 1`."""
    optimizer = f"{shown(work.optimizer)}." if work.optimizer else ""
    variable = "" if work.variable is None else f" on {shown(work.variable)}"
    kind = f" ({work.kind})" if work.kind else ""
    replica = f", {shown(work.replica)}" if work.replica else ""
    return f"{optimizer}{shown(work.method)}{variable}{kind}{replica}"


def _counts(executed: Executed) -> str:
    texts = [_steps(executed.steps)] if executed.steps else []
    if executed.outside:
        texts.append(f"{executed.outside:,} outside any step")
    return "; ".join(texts)


def _steps(counted: Sequence[tuple[int, int, int]]) -> str:
    """`1 in each of the steps 1-32, 34-64`, for each count."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for first, last, count in counted:
        spans.setdefault(count, []).append((first, last))
    return "; ".join(f"{n:,} in each of the steps {label(spans[n])}" for n in sorted(spans))
