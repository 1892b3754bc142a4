"""What the fuzzers of all frameworks have in common: statements, batches, and what must be counted.

A program is data, which Hypothesis draws and shrinks. A driver runs it twice, with the tracer and
without, and says what ran: its odometers and its log tell, never the tracer.
"""

import argparse
import faulthandler
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import hypothesis
from hypothesis.strategies import SearchStrategy

import tracer
from tracer.model.trace import Trace

LIMIT = 120
"""Seconds that one program may take."""
LAST = Path(tempfile.gettempdir()) / "fuzz-program.txt"
"""The program that runs, in case it hangs or ends the process."""


class Wrong(AssertionError):
    """What the tracer says is not what ran, or it changed that."""


class Node(NamedTuple):
    """A statement: what it does, to what, and the statements that it runs."""

    does: str
    to: tuple[Any, ...] = ()
    parts: tuple["Node", ...] = ()

    def walk(self) -> Iterator["Node"]:
        """The statement, and all that are in it."""
        yield self
        for part in self.parts:
            yield from part.walk()


Key = Literal["kind", "replica"]
Updates = Counter[tuple[Any, ...]]
"""How often each variable was updated, by its label and, if so asked, by kind and replica."""


def counted(
    trace: Trace, variables: Mapping[Any, Any], keys: Sequence[Key] = ()
) -> tuple[Updates, dict[int, Updates]]:
    """The updates of the labelled `variables`: of all, and of each step by its number."""
    whole: Updates = Counter()
    steps: dict[int, Updates] = {}
    for label, variable in variables.items():
        with suppress(tracer.UnknownName):
            for key, number in trace.count("updates", ("method", *keys), variable=variable).items():
                whole[(label, *key[1:])] += number
            by_step = trace.count("updates", ("step", *keys), variable=variable)
            for key, number in by_step.items():
                steps.setdefault(key[0], Counter())[(label, *key[1:])] += number
    return +whole, {step: +updates for step, updates in steps.items() if +updates}


def differ(
    trace: Trace,
    found: tuple[Updates, dict[int, Updates]],
    ran: Sequence[Updates],
    outside: Updates | None = None,
    *,
    ordered: bool = True,
) -> str:
    """What a complete trace says otherwise than what ran: in each step, and outside of steps."""
    if trace.steps != len(ran):
        return f"{trace.steps} steps, and {len(ran)} ran"
    whole, by_step = found
    expected = {number: +updates for number, updates in enumerate(ran, 1) if +updates}
    fits = by_step == expected if ordered else in_a_bag(by_step) == in_a_bag(expected)
    if not fits:
        return f"updates of each step {by_step}, and {expected} ran"
    total = sum(ran, outside or Counter())
    return "" if whole == total else f"updates {whole}, and {total} ran"


def in_a_bag(steps: Mapping[int, Updates]) -> list[list[tuple[tuple[Any, ...], int]]]:
    """The steps without their order."""
    return sorted(sorted(each.items()) for each in steps.values())


def require(faults: Iterable[str]) -> None:
    """Raise `Wrong` with those that are not empty."""
    if found := [fault for fault in faults if fault]:
        raise Wrong("\n".join(found[:4]))


def run_batch(
    programs: SearchStrategy[Any],
    check: Callable[[Any], Counter[str]],
    seed: int,
    examples: int = 25,
) -> Counter[str]:
    """Check programs of a seed, and shrink the first that fails; returns what was seen of them."""
    seen: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(programs)
    def holds(program: Any) -> None:
        seen["programs"] += 1
        seen.update(check(program))

    holds()
    return seen


def main(
    programs: SearchStrategy[Any], check: Callable[[Any], Counter[str]], clean: Callable[[], object]
) -> None:
    """The command; its exit status is 1 if a program was wrong, or took too long.

    `clean` is called after each batch.
    """
    parser = argparse.ArgumentParser(description="Run random programs, with the tracer and without")
    parser.add_argument("--seconds", type=float, default=60, help="how long to run")
    parser.add_argument("--seed", type=int, default=1, help="the first seed: one for 25 programs")
    options = parser.parse_args()
    print(f"a program that takes {LIMIT} s, or ends this process, is in {LAST}")
    faulthandler.enable()

    def watched(program: Any) -> Counter[str]:
        LAST.write_text(repr(program))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            return check(program)
        finally:
            faulthandler.cancel_dump_traceback_later()

    all_seen: Counter[str] = Counter()
    wrong = []
    end, seed = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < end:
        try:
            all_seen += run_batch(programs, watched, seed)
        except Exception:
            wrong.append(seed)
            print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
        clean()
        seed += 1
    for what, number in sorted(all_seen.items()):
        print(f"{number:6} {what}")
    print(f"seeds {options.seed} to {seed - 1}; wrong: {wrong}")
    sys.exit(bool(wrong))
