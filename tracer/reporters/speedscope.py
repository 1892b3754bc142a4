"""The callers as a file that speedscope opens: https://www.speedscope.app.

`src/lib/file-format-spec.ts` of jlfwong/speedscope defines the format. For each optimizer there
are two profiles, of executions and of Python calls; a sample is a stack, its weight the count.
"""

import json
from typing import Any

from tracer.errors import shown
from tracer.model import callers
from tracer.model.records import Line
from tracer.model.trace import Trace
from tracer.reporters.answer import question
from tracer.reporters.stacks import stacks_of

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(trace: Trace, by: None = None) -> str:
    """The stacks to the apply methods as JSON of speedscope, with executions and calls as weights.

    Raises `ValueError` for a trace that knows no callers.
    """
    optimizers = stacks_of(trace)
    stacks = [stack for _, found in optimizers for stack in found]
    lines = dict.fromkeys(line for stack in stacks for line in stack.frames)
    frames = {line: number for number, line in enumerate(lines)}
    profiles: list[dict[str, Any]] = []
    for name, found in optimizers:
        for place, what in enumerate(("executions", "Python calls")):
            counted = [stack for stack in found if stack.counts[place]]
            weights = [stack.counts[place] for stack in counted]
            profile = {
                "type": "sampled",
                "name": f"{name}: {what}",
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[frames[line] for line in stack.frames] for stack in counted],
                "weights": weights,
            }
            profiles.append(profile)
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
