"""Snapshots: whether a trace counts what a trace file says, and how not, as a text."""

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
    """Why `trace` is not as the trace file at `path`; empty if it is, or if it was written.

    With `update`, the file is written if it is missing or differs. `name` is what the file is
    called in a message, and `command` is what would write it.
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
    """A line for each count that differs, from the `expected` one; empty if none does.

    Compared are the executions of each method on each variable, with kind, steps and replica; not
    times, versions, Python calls or how the work was spread over graphs. Keras numbers its names
    in the order in which layers are made in a process (`dense_7/kernel`), so layers whose names
    differ in such numbers only and hold variables of the same shapes are matched, as `tracer diff`
    does it. A variable of the same name and another shape is another one.
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
