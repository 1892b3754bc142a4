"""Read expectations such as `dense=4/step`, check them, and write the verdicts as text.

The gate of `tracer check`: an expression describes an `Expectation`, as the assertions for tests
do, and failures have the same text. No TensorFlow.
"""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import msgspec

from tracer.check import failure
from tracer.check.expectation import (
    Expectation,
    Limits,
    Quantity,
    known_methods,
    of_given,
    why_no_variable,
)
from tracer.errors import Mistake, shown, unknown_name
from tracer.findings.rule import Severity
from tracer.findings.run_rules import Finding, at_least, findings, rule_of
from tracer.model.measures import unknown_effects
from tracer.model.phrases import endings
from tracer.model.records import Kind
from tracer.model.trace import Trace
from tracer.model.words import listed

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>[\d.][\w.,+-]*?)\s*(?P<step>/\s*steps?)?\s*"
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
"""The counts that expressions can name, with their nouns and kinds of gradient."""
HELP = 'write it as "dense=4/step", "sparse=0", "updates[encoder/*]=0", "steps>=100" or "calls<=8"'

EXPECTATION = "expectation"
"""The code of a verdict on an expectation rather than a finding."""


class BadExpectation(Mistake):
    """Raised for an expectation that cannot be read; says how to write one."""


@dataclass(frozen=True)
class Verdict:
    """An expectation, and why it fails; an empty reason if it holds."""

    text: str
    reason: str = ""
    severity: Severity = "error"
    """The severity of the failure."""
    code: str = EXPECTATION
    """The code of the finding, if it is about one."""


class Project(NamedTuple):
    """The contents of `[tool.tracer]` in a `pyproject.toml`."""

    expect: Sequence[Expectation] = ()
    ignore: Sequence[str] = ()
    """Codes of findings."""


def read(text: str) -> Expectation:
    """The expectation that `text` describes.

    Raises `BadExpectation` if it describes none.

    >>> print(*read("dense[encoder/*]>=4/step").wanted)
    at least 4
    """
    parsed = _PATTERN.fullmatch(text)
    if parsed is None:
        raise BadExpectation(f"{text!r} is no expectation: {HELP}")
    what, variable, per_step = parsed["what"], parsed["variable"], parsed["step"] is not None
    if per_step and what in ("steps", "calls"):
        raise BadExpectation(f"{text!r}: {what} takes no /step")
    if variable is not None and what == "steps":
        raise BadExpectation(f"{text!r}: steps are not counted by variable")
    counted, noun, kinds = _COUNTS.get(what, ("executions", f"executions of {what}", None))
    of = of_given(variable, " on " if counted == "executions" else " of ")
    number = re.sub(r"[,_]", "", parsed["number"])
    if not number.isdecimal():
        raise BadExpectation(f"{text!r}: a count is a whole number, not {number}")
    limits = _LIMITS[parsed["relation"]](int(number))
    wanted = (Limits(f"{noun}{of}", *limits, kinds),)
    method = what if counted == "executions" else None
    return Expectation(counted, wanted, method, variable, per_step=per_step, text=text.strip())


def from_project(folder: Path) -> Project:
    """The contents of `[tool.tracer]` in the `pyproject.toml` of a folder or its nearest parent.

    A key of its table `expect` is a count, the value a number or a text such as `"4/step"` or `">=
    4/step"`. Raises `BadExpectation` for an unreadable file or entry; without the file or the
    table, nothing is expected.
    """
    paths = (top / "pyproject.toml" for top in (folder, *folder.parents))
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return Project()
    try:
        settings: Any = msgspec.toml.decode(path.read_text(encoding="utf-8-sig"))
        for name in ("tool", "tracer"):
            settings = settings.get(name, {})
            if not isinstance(settings, Mapping):
                raise BadExpectation(f"{name} is no table, as [tool.tracer] is")
        table, codes = settings.get("expect", {}), settings.get("ignore", [])
        if unknown := sorted({*settings} - {"expect", "ignore"}):
            raise BadExpectation(f"[tool.tracer] has no {unknown[0]}: there are expect and ignore")
        if not isinstance(table, Mapping):
            raise BadExpectation("[tool.tracer.expect] is no table")
        if not isinstance(codes, list) or not all(isinstance(each, str) for each in codes):
            raise BadExpectation('ignore in [tool.tracer] is not a list such as ["no-gradient"]')
        return Project([read(joined(key, value)) for key, value in table.items()], codes)
    except (OSError, ValueError) as error:
        raise BadExpectation(f"{path}: {error}") from error


def joined(key: str, value: object) -> str:
    """The expectation in an entry of the table; raises `BadExpectation` for an invalid value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadExpectation(f"{key} = {value!r} is no expectation: {HELP}")
    text = str(value).strip()
    return f"{key}{'' if text[:1] in '<>=' else '='}{text}"


def check(
    trace: Trace,
    expectations: Sequence[Expectation],
    worst: Severity | None = None,
    *,
    ignore: Collection[str] = (),
    allow_unfinished: bool = False,
) -> list[Verdict]:
    """The verdicts on a trace; an incomplete trace never passes.

    With `worst`, findings at least that severe fail, except those with a code in `ignore`. With
    `allow_unfinished`, the program may have failed or may still run.

    Raises `tracer.UnknownName` for a variable that the trace does not have, a method unknown to
    both the trace and `tracer`, and a code without a finding.
    """
    apart = f" apart from {listed([rule_of(each).code for each in ignore])}" if ignore else ""
    found = [each for each in findings(trace) if each.code not in ignore] if worst else []
    bad = at_least(found, worst or "error")
    worse = "" if worst == "error" else " or error"
    none = f"no {worst}{worse} is found{apart}"
    notes = "\n".join(map(shown, trace.notes)) or "it is not"
    unfinished = "the run went on, or was killed, after it was written"
    verdicts = [Verdict(each.text, _reason(trace, each)) for each in expectations]
    verdicts += map(of_finding, bad)
    verdicts += [Verdict(none)] if worst and not bad else []
    verdicts += [] if trace.complete else [Verdict("the trace is complete", notes)]
    unseen = unknown_effects(trace.data) if any(map(failure.is_of_effects, expectations)) else []
    verdicts += [Verdict("all effects are known", "\n".join(map(shown, unseen)))] if unseen else []
    ends = [*([] if trace.finished else [unfinished]), *endings(trace)]
    well = Verdict("the program ended well", "\n".join(ends))
    return [*verdicts, *([well] if ends and not allow_unfinished else [])]


def of_finding(finding: Finding) -> Verdict:
    """The failing verdict on a finding."""
    said = f"{finding.text} {finding.advice}"
    return Verdict(f"finding {finding.code}", said, finding.severity, finding.code)


def milder(trace: Trace, worst: Severity, ignore: Collection[str] = ()) -> list[Verdict]:
    """Verdicts on the findings that `check` passes because they are less severe than `worst`."""
    bad, known = at_least(findings(trace), worst), findings(trace)
    return [of_finding(e) for e in known if e not in bad and e.code not in ignore]


def _reason(trace: Trace, expected: Expectation) -> str:
    """Why the counts are not as expected; a separate verdict says whether the trace is complete."""
    names = [method.name for method in trace.methods]
    if expected.method is not None and expected.method not in (*names, *known_methods()):
        known = (*_COUNTS, *names)
        meant = get_close_matches(expected.method, (*known, *known_methods()), n=1, cutoff=0.7)
        raise unknown_name("count", expected.method, known, meant=meant)
    if why := why_no_variable(trace, expected):
        raise BadExpectation(f"{expected.text}: {why}; write updates[...]")
    on_each_replica = expected.per_step and len(trace.replicas) > 1
    return failure.of_expected(trace, replace(expected, per_replica=on_each_replica), partial=True)


# The verdicts as text for people, CI servers and GitHub.

_COMMANDS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
"""GitHub's workflow commands, by severity."""


def as_text(verdicts: Sequence[Verdict]) -> str:
    """A line for each verdict, with the rest of a longer reason below it."""
    lines = []
    for verdict in verdicts:
        first, *rest = _lines(verdict.reason)
        text = shown(verdict.text)
        head = f"FAILS  {text}: {first}" if verdict.reason else f"holds  {text}"
        lines += [head, *(f"       {line}".rstrip() for line in rest)]
    return "".join(f"{line}\n" for line in lines)


def _lines(reason: str) -> list[str]:
    """The printable lines of a reason; one empty line without a reason."""
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
    """A workflow command for each failed verdict and each milder finding; plain lines for the rest.

    GitHub shows a command as an annotation, of the program's file if known. It shows ten of each
    kind in a step, so the most severe come first.

    Sources: `escapeData` and `escapeProperty` of github.com/actions/toolkit, packages/core,
    src/command.ts; docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    failed = sorted(
        (each for each in verdicts if each.reason), key=lambda v: [*_COMMANDS].index(v.severity)
    )
    lines = [f"holds  {shown(each.text)}" for each in verdicts if not each.reason]
    lines += [_annotation(each, *_place(each, trace)) for each in (*failed, *milder)]
    return "".join(f"{line}\n" for line in lines)


def _annotation(verdict: Verdict, file: str, line: int) -> str:
    at = {"file": file, "line": str(line or "")}
    properties = {**at, "title": f"tracer check: {shown(verdict.text)}"}
    written = (
        f"{key}={_escaped(each).replace(':', '%3A').replace(',', '%2C')}"
        for key, each in properties.items()
        if each
    )
    message = _escaped("\n".join(_lines(verdict.reason)))
    return f"::{_COMMANDS[verdict.severity]} {','.join(written)}::{message}"


def _escaped(text: str) -> str:
    """The text, escaped for the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _place(verdict: Verdict, trace: Trace) -> tuple[str, int]:
    """The first file and line that a finding names, or else the script that ran, and 0.

    The file is empty if neither is a path in the repository.
    """
    named = re.findall(r"(?<![^\s(])([^\s(]+\.py):(\d{1,9})\b", verdict.reason)
    for program in trace.programs:
        with suppress(IndexError, ValueError):
            named.append((shlex.split(program.command)[0], 0))
    for file, line in named:
        path = PurePosixPath(file)
        if path.suffix == ".py" and not path.is_absolute() and ".." not in path.parts:
            return str(path), int(line)
    return "", 0
