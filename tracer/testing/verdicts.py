"""The verdicts of `tracer check`, for people, for CI servers and for GitHub's pages."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from xml.sax.saxutils import escape, quoteattr

from tracer.findings.rule import Severity
from tracer.layout import shown
from tracer.model.trace import Trace
from tracer.testing.expressions import Verdict

_COMMANDS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
"""What GitHub calls an annotation that is as bad."""


def text(verdicts: Sequence[Verdict]) -> str:
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


def junit(verdicts: Sequence[Verdict]) -> str:
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


def github(verdicts: Sequence[Verdict], milder: Sequence[Verdict], trace: Trace) -> str:
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
