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
    lines = dict.fromkeys(line for _, stacks in optimizers for found, _ in stacks for line in found)
    frames = {line: number for number, line in enumerate(lines)}
    profiles: list[dict[str, Any]] = []
    for name, stacks in optimizers:
        for place, what in enumerate(("executions", "Python calls")):
            counted = [(found, counts[place]) for found, counts in stacks if counts[place]]
            profile = {
                "type": "sampled",
                "name": f"{name}: {what}",
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weight for _, weight in counted),
                "samples": [[frames[line] for line in found] for found, _ in counted],
                "weights": [weight for _, weight in counted],
            }
            profiles.append(profile)
    content = {
        "$schema": _SCHEMA,
        "name": question(trace),
        "exporter": "optimizer-tracer",
        "activeProfileIndex": 0,
        "shared": {"frames": list(map(_frame, frames))},
        "profiles": profiles,
    }
    return json.dumps(content, indent=1) + "\n"


def _frame(line: Line) -> dict[str, Any]:
    place = {"file": line.file, "line": line.number} if line.file else {}
    return {"name": shown(callers.label(line)), **place}
