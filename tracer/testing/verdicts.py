"""The verdicts of `tracer check`, for people and for CI servers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from tracer.reporters import console
from tracer.reporters.layout import shown
from tracer.testing.expressions import Verdict


def put(verdicts: Sequence[Verdict], format: Literal["text", "junit"], output: Path | None) -> None:
    """Write the verdicts to a file, or to standard output.

    Raises `OSError` if the file cannot be written.
    """
    content = text(verdicts) if format == "text" else junit(verdicts)
    if output is None:
        console.put(lambda width, color: content)
    else:
        output.write_text(content, encoding="utf-8")


def text(verdicts: Sequence[Verdict]) -> str:
    """A line for each verdict; the rest of a longer reason stands below it."""
    lines = []
    for verdict in verdicts:
        first, *rest = _lines(verdict.reason)
        if verdict.reason:
            lines.append(f"FAILS  {shown(verdict.text)}: {first}")
        else:
            lines.append(f"holds  {shown(verdict.text)}")
        lines += [f"       {line}".rstrip() for line in rest]
    return "".join(f"{line}\n" for line in lines)


def _lines(reason: str) -> list[str]:
    """The lines of a reason, as they can be shown; one that is empty if there is no reason."""
    return [shown(line) for line in reason.split("\n")]


def junit(verdicts: Sequence[Verdict]) -> str:
    """One test suite with a test case for each expectation."""
    failures = sum(bool(verdict.reason) for verdict in verdicts)
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": "tracer check",
            "tests": str(len(verdicts)),
            "failures": str(failures),
            "errors": "0",
            "skipped": "0",
        },
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "tracer", "name": shown(verdict.text)}
        )
        if verdict.reason:
            lines = _lines(verdict.reason)
            ElementTree.SubElement(case, "failure", {"message": lines[0]}).text = "\n".join(lines)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'
