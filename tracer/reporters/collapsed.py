"""The callers as collapsed stacks, which `flamegraph.pl`, speedscope, inferno and others read."""

from tracer.errors import shown
from tracer.model import callers
from tracer.model.trace import Trace
from tracer.reporters.stacks import stacks_of


def render(trace: Trace, by: None = None) -> str:
    """A line for each stack to an apply method: its frames with `;` between, and the executions.

    Of several optimizers the first frame is the optimizer. Raises `ValueError` for a trace that
    knows no callers.
    """
    optimizers = stacks_of(trace)
    found = []
    for name, stacks in optimizers:
        first = [name] if len(optimizers) > 1 else []
        for lines, (executions, _) in stacks:
            frames = [*first, *(shown(callers.label(line)) for line in lines)]
            if executions:
                found.append(f"{';'.join(each.replace(';', ',') for each in frames)} {executions}")
    return "".join(f"{each}\n" for each in found)
