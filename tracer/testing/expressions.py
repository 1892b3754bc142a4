"""Expressions of what a run should do, as `dense=4/step`, whether it did, and the verdicts as text.

The gate of `tracer check`: an expression says an `Expectation`, as the assertions for tests do, and
what does not hold has the same text. No TensorFlow.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec

from tracer.errors import Mistake, shown, unknown_name
from tracer.findings.rule import Severity
from tracer.findings.run_rules import Finding, at_least, findings
from tracer.model.measures import unknown_effects
from tracer.model.phrases import endings
from tracer.model.records import Kind
from tracer.model.trace import Trace
from tracer.testing import failure
from tracer.testing.expected import Expectation, Limits, Quantity, known_methods, of_given

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>\d[\d_,]*)\s*(?P<step>/\s*step)?\s*"
)
_LIMITS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "=": lambda number: (number, number),
    "==": lambda number: (number, number),
    "<=": lambda number: (None, number),
    ">=": lambda number: (number, None),
    "<": lambda number: (None, number - 1),
    ">": lambda number: (number + 1, None),
}
_COUNTS: dict[str, tuple[Quantity, str, frozenset[Kind | None] | None]] = {
    "updates": ("updates", "updates", None),
    "dense": ("updates", "dense updates", frozenset({"dense"})),
    "sparse": ("updates", "sparse updates", frozenset({"sparse"})),
    "steps": ("steps", "steps", None),
    "calls": ("calls", "calls", None),
    "unchanged": ("unchanged", "unchanged", None),
    "not_finite": ("not_finite", "not finite", None),
}
"""What an expression can name: what is counted, its name, the kinds of gradient; or a method."""
HELP = 'write it as "dense=4/step", "sparse=0", "updates[encoder/*]=0", "steps>=100" or "calls<=8"'


class BadExpectation(Mistake):
    """Raised for an expectation that cannot be read; says how to write one."""


@dataclass(frozen=True)
class Verdict:
    """An expectation, and why it does not hold; an empty reason if it does."""

    text: str
    reason: str = ""
    severity: Severity = "error"
    """How bad it is that it does not hold."""


def read(text: str) -> Expectation:
    """What `text` says is expected.

    Raises `BadExpectation` if it says nothing that can be.

    >>> print(*read("dense[encoder/*]>=4/step").wanted)
    at least 4
    """
    parsed = _PATTERN.fullmatch(text)
    if parsed is None:
        raise BadExpectation(f"{text!r} is no expectation: {HELP}")
    what, variable, per_step = parsed["what"], parsed["variable"], parsed["step"] is not None
    if per_step and what in ("steps", "calls"):
        raise BadExpectation(f"{text!r}: {what} are not counted by step")
    if variable is not None and what == "steps":
        raise BadExpectation(f"{text!r}: steps are not counted by variable")
    counted, noun, kinds = _COUNTS.get(what, ("executions", f"executions of {what}", None))
    of = of_given(variable, " on " if counted == "executions" else " of ")
    limits = _LIMITS[parsed["relation"]](int(re.sub(r"[,_]", "", parsed["number"])))
    wanted = (Limits(f"{noun}{of}", *limits, kinds),)
    method = what if counted == "executions" else None
    return Expectation(counted, wanted, method, variable, per_step=per_step, text=text.strip())


def from_project(folder: Path) -> list[Expectation]:
    """What `[tool.tracer.expect]` says in the `pyproject.toml` of a folder or of one above it.

    A key is what is counted, the value a number or a text such as `"4/step"` or `">= 4/step"`.
    Raises `BadExpectation` for a file or an entry that cannot be read; without a file, or without
    the table in it, there is no expectation.
    """
    paths = (top / "pyproject.toml" for top in (folder, *folder.parents))
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return []
    try:
        content: dict[str, Any] = msgspec.toml.decode(path.read_text(encoding="utf-8-sig"))
        table = content.get("tool", {}).get("tracer", {}).get("expect", {})
        if not isinstance(table, Mapping):
            raise BadExpectation("[tool.tracer.expect] is no table")
        return [read(_joined(key, value)) for key, value in table.items()]
    except (AttributeError, OSError, ValueError) as error:
        raise BadExpectation(f"{path}: {error}") from error


def _joined(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadExpectation(f"{key} = {value!r} is no expectation: {HELP}")
    text = str(value).strip()
    return f"{key}{'' if text[:1] in '<>=' else '='}{text}"


def check(
    trace: Trace,
    expectations: list[Expectation],
    worst: Severity | None = None,
    *,
    allow_unfinished: bool = False,
) -> list[Verdict]:
    """What holds and what does not; a trace that does not know everything is no proof.

    With `worst`, findings that are as bad, or worse, are what does not hold. With
    `allow_unfinished` it does not matter how the program ended, or whether it did.

    Raises `tracer.UnknownName` for a variable that the trace does not hold, and for a method that
    neither it nor `tracer` knows.
    """
    bad = [] if worst is None else at_least(findings(trace), worst)
    none = f"no {worst}{'' if worst == 'error' else ' or error'} is found"
    notes = "\n".join(map(shown, trace.notes)) or "it is not"
    unfinished = "the run went on, or was killed, after it was written"
    verdicts = [Verdict(each.text, _reason(trace, each)) for each in expectations]
    verdicts += map(of_finding, bad)
    verdicts += [Verdict(none)] if worst and not bad else []
    verdicts += [] if trace.complete else [Verdict("the trace is complete", notes)]
    unseen = unknown_effects(trace.notes) if any(map(failure.is_of_effects, expectations)) else []
    verdicts += [Verdict("all effects are known", "\n".join(map(shown, unseen)))] if unseen else []
    ends = [("the program ended well", said) for said in endings(trace)]
    ends += [] if trace.finished else [("the trace is of a finished run", unfinished)]
    return verdicts + [Verdict(*each) for each in ends if not allow_unfinished]


def of_finding(finding: Finding) -> Verdict:
    """That what should not be found was found."""
    said = f"{finding.text} {finding.advice}"
    return Verdict(f"finding {finding.code}", said, finding.severity)


def milder(trace: Trace, worst: Severity) -> list[Verdict]:
    """The findings that `check` lets pass because they are less bad than `worst`."""
    bad = at_least(findings(trace), worst)
    return [of_finding(each) for each in findings(trace) if each not in bad]


def _reason(trace: Trace, expected: Expectation) -> str:
    """Why the counts are not as expected; whether the trace is complete is a verdict of its own."""
    names = [method.name for method in trace.methods]
    if expected.method is not None and expected.method not in (*names, *known_methods()):
        known = (*_COUNTS, *names)
        meant = get_close_matches(expected.method, (*known, *known_methods()), n=1, cutoff=0.7)
        raise unknown_name("count", expected.method, known, meant=meant)
    on_each_replica = expected.per_step and len(trace.replicas) > 1
    return failure.of_expected(trace, replace(expected, per_replica=on_each_replica), partial=True)


# The verdicts, for people, for CI servers and for GitHub.

_COMMANDS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
"""What GitHub calls an annotation that is as bad."""


def as_text(verdicts: Sequence[Verdict]) -> str:
    """A line for each verdict; the rest of a longer reason stands below it."""
    lines = []
    for verdict in verdicts:
        first, *rest = _lines(verdict.reason)
        text = shown(verdict.text)
        head = f"FAILS  {text}: {first}" if verdict.reason else f"holds  {text}"
        lines += [head, *(f"       {line}".rstrip() for line in rest)]
    return "".join(f"{line}\n" for line in lines)


def _lines(reason: str) -> list[str]:
    """The lines of a reason, as they can be shown; one that is empty if there is no reason."""
    return [shown(line) for line in reason.split("\n")]


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """One test suite with a test case for each expectation."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>"]
    failures = sum(bool(verdict.reason) for verdict in verdicts)
    numbers = f'tests="{len(verdicts)}" failures="{failures}" errors="0" skipped="0"'
    lines.append(f'  <testsuite name="tracer check" {numbers}>')
    for verdict in verdicts:
        reason = _lines(verdict.reason)
        head = f"\n      <failure message={quoteattr(reason[0])}>"
        failure = f"{head}{escape(chr(10).join(reason))}</failure>\n    </testcase>"
        case = f'    <testcase classname="tracer" name={quoteattr(shown(verdict.text))}'
        lines.append(f"{case}>{failure}" if verdict.reason else f"{case} />")
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def as_github(verdicts: Sequence[Verdict], milder: Sequence[Verdict], trace: Trace) -> str:
    """A workflow command for each verdict that fails and each milder finding; lines for the rest.

    GitHub shows a command as an annotation, of the program's file if it is known. It shows ten of
    each kind in a step, so the worst come first.

    Sources: `escapeData` and `escapeProperty` of github.com/actions/toolkit, packages/core,
    src/command.ts; docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    place = _program_file(trace)
    failed = sorted(
        (each for each in verdicts if each.reason), key=lambda v: [*_COMMANDS].index(v.severity)
    )
    lines = [f"holds  {shown(each.text)}" for each in verdicts if not each.reason]
    lines += [_annotation(each, place) for each in (*failed, *milder)]
    return "".join(f"{line}\n" for line in lines)


def _annotation(verdict: Verdict, file: str) -> str:
    properties = {"file": file, "title": f"tracer check: {shown(verdict.text)}"}
    written = (
        f"{key}={_escaped(each).replace(':', '%3A').replace(',', '%2C')}"
        for key, each in properties.items()
        if each
    )
    message = _escaped("\n".join(_lines(verdict.reason)))
    return f"::{_COMMANDS[verdict.severity]} {','.join(written)}::{message}"


def _escaped(text: str) -> str:
    """As GitHub reads the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _program_file(trace: Trace) -> str:
    """The script that ran, if the trace knows it and it is a path in the repository."""
    for program in trace.programs:
        with suppress(IndexError, ValueError):
            script = PurePosixPath(shlex.split(program.command)[0])
            if script.suffix == ".py" and not script.is_absolute() and ".." not in script.parts:
                return str(script)
    return ""
