"""What the healthy programs of all backends have in common: nothing may be said of one."""

import sys
from collections.abc import Callable

from tracer.model.trace import Trace


def said(trace: Trace, made: int) -> list[str]:
    """What is said of a program that made so many steps, and of these if they are counted wrong."""
    texts = [f"{f.severity}[{f.code}]: {f.text}" for f in trace.findings() if f.severity != "info"]
    steps = sum(trace.steps_by_replica().values())
    texts += [] if steps == made else [f"{steps} steps counted, {made} made"]
    return texts + ([] if trace.complete else list(trace.notes))


def main(drawn: Callable[[int], object], check: Callable[[int], list[str]]) -> None:
    """The command: `FIRST LAST` are the seeds of the programs."""
    first, last = map(int, sys.argv[1:] or ("0", "200"))
    wrong = 0
    for seed in range(first, last):
        if found := check(seed):
            wrong += 1
            print(drawn(seed), *found, sep="\n  ", flush=True)
    print(f"{last - first} programs, {wrong} with anything said")
