"""Healthy programs, drawn by a seed: one way of each kind, as a tutorial has it.

Nothing may be said of one. `healthy_torch` and `healthy_optax` have the ways of their framework.
"""

import random
from collections.abc import Iterable, Mapping

from tracer.model.trace import Trace


def drawn(ways: Mapping[str, Iterable[object]], seed: int) -> dict[str, str]:
    """One way of each kind, by its name."""
    choice = random.Random(seed).choice
    return {kind: str(choice([*names])) for kind, names in ways.items()}


def said(trace: Trace, made: int) -> list[str]:
    """What is said of a program that made so many steps, and of these if they are counted wrong."""
    texts = [f"{f.severity}[{f.code}]: {f.text}" for f in trace.findings() if f.severity != "info"]
    steps = sum(trace.steps_by_replica().values())
    texts += [] if steps == made else [f"{steps} steps counted, {made} made"]
    return texts + ([] if trace.complete else list(trace.notes))
