"""The callers as files for other viewers: speedscope, and collapsed stacks."""

import json
from collections.abc import Iterator
from typing import Any

from tracer.errors import Mistake, shown
from tracer.model import callers
from tracer.model.phrases import class_of
from tracer.model.records import Line
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace
from tracer.reporters import trees
from tracer.reporters.answer import question

Stack = tuple[tuple[Line, ...], tuple[int, int]]
"""Calls, outermost first, and the counts at their end: executions and Python calls."""


def stacks_of(trace: Trace) -> list[tuple[str, list[Stack]]]:
    """The stacks to the apply methods of each optimizer: `Adam`, or `Adam "adam_1"` of several.

    Raises `tracer.errors.Mistake` for a trace without callers.
    """
    if not callers.known(trace.data):
        raise Mistake(callers.LACKING)
    summaries = summaries_of(trace)
    roots = [summary.optimizers[0] for summary in summaries]
    names = [f' "{shown(root.name)}"' if len(roots) > 1 else "" for root in roots]
    return [
        (shown(class_of(root)) + name, list(_stacks(trees.callers_of(summary))))
        for root, name, summary in zip(roots, names, summaries, strict=True)
    ]


def _stacks(caller: callers.Caller, above: tuple[Line, ...] = ()) -> Iterator[Stack]:
    """The stacks below a caller; their counts add up to the counts of the tree."""
    for each in caller.children:
        lines = (*above, each.line or callers.UNKNOWN)
        executions = each.executions - sum(child.executions for child in each.children)
        calls = each.calls - sum(child.calls for child in each.children)
        yield lines, (executions, calls)
        yield from _stacks(each, lines)


def collapsed(trace: Trace) -> str:
    """A line for each stack to an apply method: its frames, joined by `;`, and the executions.

    With several optimizers, the first frame is the optimizer. Raises `tracer.errors.Mistake` for a
    trace without callers.
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


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(trace: Trace) -> str:
    """The stacks to the apply methods as speedscope JSON, weighted by executions and by calls.

    Raises `tracer.errors.Mistake` for a trace without callers.
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
