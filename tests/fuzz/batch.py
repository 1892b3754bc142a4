"""Runs random programs in batches: what the fuzzers of all backends have in common."""

import argparse
import faulthandler
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

LIMIT = 120
"""Seconds that one program may take."""
LAST = Path(tempfile.gettempdir()) / "fuzz-program.txt"
"""The program that runs, in case it hangs or ends the process."""


class Wrong(AssertionError):
    """What the tracer says is not what ran, or it changed that."""


class Batch:
    """Some programs of one seed, and what was seen of them."""

    def __init__(
        self,
        programs: SearchStrategy[Any],
        check: Callable[[Any], Counter[str]],
        seed: int,
        end: float,
        examples: int = 50,
        shrink: float = 60,
    ) -> None:
        """Begins no program after `end`, and shrinks one that fails for so many seconds.

        `check` raises if something is wrong with a program, and returns what it has seen.
        """
        self.check, self.end, self.shrink = check, end, shrink
        self.seen: Counter[str] = Counter()
        self.failed: dict[Any, str] = {}
        self.last: Any = None
        self.tried: set[str] = set()
        settings = hypothesis.settings(
            max_examples=examples,
            database=None,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        given = settings(hypothesis.given(programs)(lambda program: self.holds(program)))
        try:
            hypothesis.seed(seed)(given)()
        except Exception as error:
            if self.last is None:
                raise
            self.failed.setdefault(repr(self.last), repr(error))
        else:
            self.last = None

    def holds(self, program: Any) -> None:
        text = repr(program)
        done = time.monotonic() > self.end or text in self.tried
        if done and text not in self.failed:
            return
        self.tried.add(text)
        self.seen["programs"] += 1
        try:
            self.seen.update(self.check(program))
        except Exception as error:
            raised = "".join(traceback.format_exception(error)[-4:])
            if not self.failed:
                self.end = time.monotonic() + self.shrink
                print(f"{text}\n{raised}\n", flush=True)  # shrinking may take long
            self.last, self.failed[text] = program, raised
            raise

    def __str__(self) -> str:
        return f"{self.failed[repr(self.last)]}\n{self.last}" if self.last else "nothing wrong"


def main(
    programs: SearchStrategy[Any], check: Callable[[Any], Counter[str]], clean: Callable[[], object]
) -> int:
    """The command; its exit status is 1 if a program was wrong, or took too long.

    `clean` is called after each batch.
    """
    parser = argparse.ArgumentParser(description="Run random programs, with the tracer and without")
    parser.add_argument("--seconds", type=float, default=60, help="how long to run")
    parser.add_argument("--seed", type=int, default=1, help="the first seed: one for 50 programs")
    options = parser.parse_args()
    print(f"a program that takes {LIMIT} s, or ends this process, is in {LAST}")

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
        batch = Batch(programs, watched, seed, end)
        all_seen += batch.seen
        if batch.last is not None:
            wrong.append(seed)
            print(f"seed {seed}: {batch}\n", flush=True)
        clean()
        seed += 1
    for what, number in sorted(all_seen.items()):
        print(f"{number:6} {what}")
    print(f"seeds {options.seed} to {seed - 1}; wrong: {wrong}")
    return bool(wrong)
