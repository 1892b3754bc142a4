"""How a claim is put, measured and judged.

A claim is put as one or more things that it implies: a figure, yes or no, the name of an error.
Each is measured. No verdict is written down: all as claimed is *true*, none is *false*, the rest
is *half true*.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from measuring import shown, table

ANSWER = "answer page"
BOOK = "chapter"
DOCS = (
    "[class documentation]"
    "(https://www.tensorflow.org/api_docs/python/tf/keras/optimizers/Optimizer)"
)
THREAD = "question thread"
TUTORIAL = "tutorial"

Value = int | float | str | bool
Checks = Iterator[tuple[str, Value, Value]]
"""What is measured, what the claim implies that it is, and what it is."""


class Check(msgspec.Struct, frozen=True):
    """One thing that a claim implies."""

    what: str
    claimed: Value
    measured: Value


class Row(msgspec.Struct, frozen=True):
    """A claim, measured."""

    subject: str
    claim: str
    said_by: str
    verdict: str
    checks: list[Check]
    why: str


class Claim(NamedTuple):
    """What somebody says, and how to measure it."""

    subject: str
    text: str
    said_by: str
    why: str
    checks: Callable[[], Checks]

    def judge(self) -> Row:
        """Measure it."""
        checks = [Check(*check) for check in self.checks()]
        right = [check.claimed == check.measured for check in checks]
        verdict = "true" if all(right) else "half true" if any(right) else "false"
        return Row(self.subject, self.text, self.said_by, verdict, checks, self.why)


class Subject:
    """The claims on one subject; called, it gives a decorator that adds one."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.claims: list[Claim] = []

    def __call__(
        self, text: str, said_by: str, why: str = ""
    ) -> Callable[[Callable[[], Checks]], Callable[[], Checks]]:
        """Add a claim; the function under it yields its checks."""

        def add(checks: Callable[[], Checks]) -> Callable[[], Checks]:
            self.claims.append(Claim(self.title, text, said_by, why, checks))
            return checks

        return add


def tables(rows: list[Row]) -> str:
    """A table for each subject."""
    parts = []
    for subject in dict.fromkeys(row.subject for row in rows):
        chosen = [row for row in rows if row.subject == subject]
        columns = {
            "claim": [row.claim for row in chosen],
            "verdict": [f"**{row.verdict}**" for row in chosen],
            "measured": [evidence(row) for row in chosen],
            "said by": [row.said_by for row in chosen],
        }
        parts.append(f"## {subject}\n\n{table(columns)}")
    return "\n\n".join(parts)


def evidence(row: Row) -> str:
    """What was measured, with what was claimed where that is another thing, and why it is so."""
    lines = [
        f"{check.what}: {shown(check.measured)}"
        if check.claimed == check.measured
        else f"{check.what}: **{shown(check.measured)}** (claimed: {shown(check.claimed)})"
        for check in row.checks
    ]
    return "<br>".join([*lines, *([f"*{row.why}*"] if row.why else [])])
