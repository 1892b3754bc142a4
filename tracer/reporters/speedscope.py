"""The callers as a file that speedscope opens: https://www.speedscope.app.

Its format is told by `src/lib/file-format-spec.ts` of jlfwong/speedscope. For each optimizer there
are two profiles, of executions and of Python calls; a sample is a stack, its weight the count.
"""

import json
from typing import Any

from tracer.errors import shown
from tracer.model import callers
from tracer.model.records import Line
from tracer.model.trace import Trace
from tracer.reporters.answer import question
from tracer.reporters.stacks import optimizer_names, stacks

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(trace: Trace, by: None = None) -> str:
    """The stacks to the apply methods as JSON of speedscope, with executions and calls as weights.

    Raises `ValueError` for a trace that knows no callers.
    """
    if not callers.known(trace.data):
        raise ValueError(callers.LACKING)
    frames: dict[Line, int] = {}
    profiles: list[dict[str, Any]] = []
    for summary, name in optimizer_names(trace):
        known = [
            ([frames.setdefault(line, len(frames)) for line in stack.frames], stack)
            for stack in stacks(summary)
        ]
        executed = [(numbers, stack.executions) for numbers, stack in known if stack.executions]
        called = [(numbers, stack.calls) for numbers, stack in known if stack.calls]
        profiles.append(_profile(f"{name}: executions", executed))
        profiles.append(_profile(f"{name}: Python calls", called))
    content = {
        "$schema": _SCHEMA,
        "name": question(trace),
        "exporter": "optimizer-tracer",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(line) for line in frames]},
        "profiles": profiles,
    }
    return json.dumps(content, indent=1) + "\n"


def _frame(line: Line) -> dict[str, Any]:
    frame: dict[str, Any] = {"name": shown(callers.label(line))}
    if line.file:
        frame |= {"file": line.file, "line": line.number}
    return frame


def _profile(name: str, samples: list[tuple[list[int], int]]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weight for _, weight in samples),
        "samples": [stack for stack, _ in samples],
        "weights": [weight for _, weight in samples],
    }
