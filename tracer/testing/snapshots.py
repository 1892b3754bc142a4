"""Compare a trace with a trace file, a snapshot, and describe the differences as text."""

from pathlib import Path

from tracer.api import CallTrace
from tracer.layout import shown
from tracer.model.compare import Difference, executions
from tracer.model.trace import Trace
from tracer.model.tracefile import load
from tracer.testing.failure import incomplete


def compare_with_snapshot(
    trace: CallTrace, path: Path, name: str, *, update: bool, command: str
) -> str:
    """How `trace` differs from the trace file at `path`; empty if it does not, or after writing.

    With `update`, the file is written if it is missing or differs. `name` is the file's name in
    messages, and `command` the command that would write it.
    """
    if not trace.complete:
        return incomplete(trace)
    if not path.exists() and not update:
        return f"there is no snapshot {name}; to write it, run:\n\n  {command}"
    changes = difference(load(path), trace) if path.exists() else "new"
    if not changes:
        return ""
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)
        return ""
    return (
        f"the counts differ from the snapshot {name} (first: the snapshot, second: now):\n\n"
        f"{changes}\n\n"
        f"If this is what you want, run:\n\n  {command}"
    )


def difference(expected: Trace, actual: Trace) -> str:
    """A line for each count that differs from `expected`; empty if none does.

    Compares the executions of each method on each variable, by kind, steps and replica; not times,
    versions, Python calls or the distribution over graphs. Keras numbers layers in the order of
    their creation in a process (`dense_7/kernel`), so layers that differ only in such numbers and
    have variables of the same shapes are matched, as in `tracer diff`. A variable with the same
    name and another shape is another variable.
    """
    compared = executions(expected, actual)
    lines = [line for each in compared for line in _lines(each, named=len(compared) > 1)]
    renamed = [f"{shown(a)} = {shown(b)}" for each in compared for a, b in each.renamed]
    if lines and renamed:
        lines += ["", f"Layers with other names, matched by order and shapes: {', '.join(renamed)}"]
    return "\n".join(lines)


def _lines(compared: Difference, named: bool) -> list[str]:
    """`dense/kernel, update_step (dense): 16 to 15; 2 to 1 in step 8`, and so on."""
    texts = [
        "; ".join(
            filter(None, (f"{each.name}: {each.before or 0:,} to {each.after or 0:,}", each.where))
        )
        for each in compared.changes.get("executions", ())
    ]
    texts += [*compared.reshaped, *compared.one_sided]
    return [shown(f"{compared.title}: {text}" if named else text) for text in texts]
