"""The gate of `tracer check`: expectations as texts, and the verdicts on a trace in each format."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec

from tracer.check.expectation import (
    METHODS,
    WIDTH,
    Expectation,
    Quantity,
    failure,
    runs_for_all,
)
from tracer.errors import Mistake, shown, unknown_name
from tracer.findings.rule import Severity, at_least, findings, rule_of
from tracer.layout import paragraph
from tracer.model.names import variables_meant, with_namesakes
from tracer.model.phrases import endings
from tracer.model.records import Kind
from tracer.model.trace import Trace
from tracer.model.words import listed

_WIDTH = 80


# Expectations as text.

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>\d[\d,_]*)\s*(?P<step>/\s*steps?)?\s*"
)
_LIMITS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "=": lambda number: (number, number),
    "==": lambda number: (number, number),
    "<=": lambda number: (None, number),
    ">=": lambda number: (number, None),
    "<": lambda number: (None, number - 1),
    ">": lambda number: (number + 1, None),
}
COUNTS: dict[str, tuple[Quantity, Kind | None]] = {
    "updates": ("updates", None),
    "dense": ("updates", "dense"),
    "sparse": ("updates", "sparse"),
    "steps": ("steps", None),
    "calls": ("calls", None),
}
"""The counts that a text can name, besides methods."""
HELP = 'write it as "dense=4/step", "sparse=0", "updates[encoder/*]=0", "steps>=100" or "calls<=8"'


class BadExpectation(Mistake):
    """Raised for an expectation that cannot be read; says how to write one."""


def read(text: str) -> Expectation:
    """The expectation that `text` describes.

    Raises `BadExpectation` if it describes none.

    >>> read("dense[encoder/*]>=4/step").noun, read("dense[encoder/*]>=4/step").limits
    ('dense updates of encoder/*', 'at least 4 in each step')
    """
    parsed = _PATTERN.fullmatch(text)
    if parsed is None:
        raise BadExpectation(f"{text!r} is no expectation: {HELP}")
    name, variable, per_step = parsed["what"], parsed["variable"], parsed["step"] is not None
    what, kind = COUNTS.get(name, ("executions", None))
    if (per_step and what in ("steps", "calls")) or (variable is not None and what == "steps"):
        of = "/step" if per_step else "variable"
        raise BadExpectation(f"{text!r}: {what} takes no {of}")
    method = None if name in COUNTS else name
    names = () if variable is None else (variable,)
    try:
        low, high = _LIMITS[parsed["relation"]](int(re.sub("[,_]", "", parsed["number"])))
        return Expectation(what, low, high, kind, method, names, None, per_step, text.strip())
    except ValueError as error:
        raise BadExpectation(f"{text!r}: {error}") from None


# The verdicts.


class Verdict(NamedTuple):
    """An expectation as text, and why it fails; an empty reason if it holds."""

    text: str
    reason: str = ""


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of `[tool.tracer]` in a `pyproject.toml`."""

    expect: dict[str, int | float | str] = {}
    """Counts, each with a number or a text such as `"4/step"` or `">= 4/step"`."""
    ignore: list[str] = []
    """Codes of findings."""


def from_project(folder: Path) -> tuple[list[Expectation], list[str]]:
    """The expectations, and the codes to ignore, in the nearest `pyproject.toml`.

    Raises `BadExpectation` for a file or an expectation that cannot be read.
    """
    paths = (top / "pyproject.toml" for top in (folder, *folder.parents))
    path = next((path for path in paths if path.is_file()), None)
    try:
        text = "" if path is None else path.read_text(encoding="utf-8-sig")
        table = msgspec.toml.decode(text, type=dict[str, Any]).get("tool", {}).get("tracer", {})
        own = msgspec.convert(table, Settings)
    except (OSError, ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise BadExpectation(f"{path}: [tool.tracer]: {error}") from error
    texts = ((count, str(value).strip()) for count, value in own.expect.items())
    written = [f"{count}{'' if text[:1] in '<>=' else '='}{text}" for count, text in texts]
    return list(map(read, written)), own.ignore


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
    verdicts = [Verdict(each.text, _reason(trace, each)) for each in expectations]
    ignored = listed([rule_of(code).code for code in ignore])
    if worst:
        apart = f" apart from {ignored}" if ignored else ""
        bad = [each for each in at_least(findings(trace), worst) if each.code not in ignore]
        worse = "error" if worst == "error" else f"{worst} or error"
        verdicts += [Verdict(f"finding {each.code}", f"{each.text} {each.advice}") for each in bad]
        verdicts += [] if bad else [Verdict(f"no {worse} is found{apart}")]
    if not trace.complete:
        notes = "\n".join(map(shown, trace.notes))
        verdicts.append(Verdict("the trace is complete", notes or "it is not"))
    ends = endings(trace)
    if not trace.finished:
        ends = ["the run went on, or was killed, after it was written", *ends]
    if ends and not allow_unfinished:
        verdicts.append(Verdict("the program ended well", "\n".join(ends)))
    return verdicts


def _reason(trace: Trace, expected: Expectation) -> str:
    """Why the counts are not as expected; a separate verdict says whether the trace is complete."""
    names = [method.name for method in trace.methods]
    if expected.method is not None and expected.method not in (*names, *METHODS):
        known = (*COUNTS, *names)
        meant = get_close_matches(expected.method, (*known, *METHODS), n=1, cutoff=0.7)
        raise unknown_name("count", expected.method, known, meant=meant)
    if expected.names and runs_for_all(trace, expected.method):
        why = f"{expected.method} runs once for all variables; write updates[...]"
        raise BadExpectation(f"{expected.text}: {why}")
    rows = None
    for variable in expected.names:  # one at most
        meant_by_name = variables_meant(variable, trace.variables, None)
        rows = with_namesakes(meant_by_name, trace.variables)
    return failure(trace, [replace(expected, rows=rows)], partial=True)


# The formats.


def as_text(verdicts: Sequence[Verdict]) -> str:
    """A paragraph for each verdict, with the rest of a longer reason below it."""
    lines = []
    for verdict in verdicts:
        first, *rest = _lines(verdict.reason)
        head = f"{shown(verdict.text)}: {first}" if first else shown(verdict.text)
        lines += paragraph(head, _WIDTH, "FAILS  " if first else "holds  ")
        for line in rest:  # tables are narrower
            lines += paragraph(line, WIDTH + 7, " " * 7)
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def _lines(reason: str) -> list[str]:
    """The printable lines of a reason; one empty line without a reason."""
    return [shown(line) for line in reason.split("\n")]


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """One test suite with a test case for each expectation."""
    numbers = len(verdicts), sum(bool(verdict.reason) for verdict in verdicts)
    counts = dict(zip(("tests", "failures"), map(str, numbers), strict=True))
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", counts, name="tracer check")
    for verdict in verdicts:
        name, lines = shown(verdict.text), _lines(verdict.reason)
        case = ElementTree.SubElement(suite, "testcase", classname="tracer", name=name)
        if verdict.reason:
            ElementTree.SubElement(case, "failure", message=lines[0]).text = "\n".join(lines)
    ElementTree.indent(suites)
    return f"{ElementTree.tostring(suites, encoding='unicode')}\n"


def as_github(verdicts: Sequence[Verdict]) -> str:
    """A workflow command for each failed verdict, which GitHub shows as an annotation.

    Sources: `escapeData` and `escapeProperty` of github.com/actions/toolkit, packages/core,
    src/command.ts; docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    lines = [f"holds  {shown(each.text)}\n" for each in verdicts if not each.reason]
    for verdict in (each for each in verdicts if each.reason):
        texts = shown(verdict.text), "\n".join(_lines(verdict.reason))
        title, message = (each.replace("%", "%25").replace("\n", "%0A") for each in texts)
        title = title.replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::error title=tracer check%3A {title}::{message}\n")
    return "".join(lines)
