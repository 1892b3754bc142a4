"""Long runs, each with and without the tracer in processes of their own: memory, time and counts.

python tests/support/endurance.py            # the full lengths: about half an hour
python tests/support/endurance.py 0.02       # that part of them
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = Path(__file__).parents[1] / "programs" / "endurance.py"
MEGABYTES = 20
"""By how much a traced run's resident size may exceed an untraced one's."""

FULL = (
    ("steps_in_one_loop", "legacy", 1_000_000),
    ("steps_in_one_loop", "keras3", 1_000_000),
    ("graph_tracings", "legacy", 10_000),
    ("graph_tracings", "keras2", 10_000),
    ("graph_tracings", "v1", 10_000),
    ("calls_of_a_function", "legacy", 100_000),
)


class Outcome(NamedTuple):
    """Both runs."""

    untraced: dict[str, Any]
    traced: dict[str, Any]

    @property
    def more(self) -> float:
        """How many megabytes the traced run took more."""
        return float(self.traced["resident"] - self.untraced["resident"])

    def right(self) -> bool:
        """Whether the trace says what the odometers show, and that nothing was missed."""
        truth = self.traced["truth"]
        return bool(
            self.traced["complete"] and self.traced["counted"] == truth == self.untraced["truth"]
        )


def run(what: str, kind: str, number: int) -> Outcome:
    """Both runs, one after the other."""
    return Outcome(*(_run(what, kind, str(number), *more) for more in ((), ("--traced",))))


def _run(*arguments: str) -> dict[str, Any]:
    places = [str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Print a line for each run; the exit status is 1 if one of them is not as it must be."""
    part = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    print(
        "untraced and traced           kind       number        seconds        MB resident   more"
    )
    failed = False
    for what, kind, number in FULL:
        number = max(1, round(number * part))
        outcome = run(what, kind, number)
        bad = not outcome.right() or (outcome.more > MEGABYTES)
        failed |= bad
        seconds, resident = (
            f"{outcome.untraced[key]:7.1f}{outcome.traced[key]:8.1f}"
            for key in ("seconds", "resident")
        )
        verdict = f"  WRONG: {outcome}" if bad else ""
        print(
            f"{what:28}{kind:8}{number:>10,}{seconds}{resident:>18}{outcome.more:7.1f}{verdict}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
