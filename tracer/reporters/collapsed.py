"""The callers as collapsed stacks, which `flamegraph.pl`, speedscope, inferno and others read."""

from collections.abc import Iterator

from tracer.errors import shown
from tracer.model import callers
from tracer.model.trace import Trace
from tracer.reporters.stacks import optimizer_names, stacks


def render(trace: Trace, by: None = None) -> str:
    """A line for each stack to an apply method: its frames with `;` between, and the executions.

    Of several optimizers the first frame is the optimizer. Raises `ValueError` for a trace that
    knows no callers.
    """
    if not callers.known(trace.data):
        raise ValueError(callers.LACKING)
    return "".join(f"{line}\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    optimizers = optimizer_names(trace)
    for summary, name in optimizers:
        first = [name] if len(optimizers) > 1 else []
        for stack in stacks(summary):
            if stack.executions:
                frames = [*first, *(shown(callers.label(line)) for line in stack.frames)]
                yield f"{';'.join(each.replace(';', ',') for each in frames)} {stack.executions}"
