"""Runs the rules on a trace, for `Trace.findings()` and reports. No TensorFlow.

The order of the modules of `tracer.findings.rules` here is the order of their cases in a report. A
rule reports only what the trace shows. On an incomplete trace, rules on what did *not* happen are
silent.
"""

from collections.abc import Collection
from importlib import import_module
from typing import get_args

from tracer.errors import shown, unknown_name
from tracer.findings.rule import RULES as RULES, Rule, Severity
from tracer.model.records import Finding as Finding
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace

for _module in ("classes", "updates", "usage", "steps"):
    import_module(f"tracer.findings.rules.{_module}")  # adds its rules to `RULES`

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From worst to least."""


def findings(trace: Trace) -> list[Finding]:
    """Return the findings on a trace, errors first; an empty list for a healthy run.

    Equal facts about many variables are one finding, with some names and the number.
    """
    summaries_of(trace)  # shared by the findings and by later reports
    return list(trace.derived(_found))


def causes(trace: Trace, failed: str, roots: Collection[int]) -> list[Finding]:
    """Return the findings on these root optimizers that can explain a `failed` expectation."""
    known = trace.derived(_found)
    codes = {rule.code for rule in RULES if failed in rule.explains}
    return [each for each in known if each.code in codes and known[each] & {None, *roots}]


def _found(trace: Trace) -> dict[Finding, set[int | None]]:
    """All findings, each with its root optimizers; None for the whole trace."""
    found: dict[Finding, set[int | None]] = {}  # optimizers of one class share its findings
    for rule in RULES:
        for root, case in rule.cases(trace):
            replica = None if case.replica is None else trace.replicas[case.replica]
            finding = Finding(
                rule.code,
                case.severity or rule.severity,
                shown(case.text),
                rule.why,
                shown(case.advice or rule.advice),
                case.names,
                case.step,
                replica.id if replica else None,
                replica.worker if replica else "",
            )
            found.setdefault(finding, set()).add(root)
    return dict(sorted(found.items(), key=lambda each: SEVERITIES.index(each[0].severity)))


def at_least(all_of_them: list[Finding], severity: Severity) -> list[Finding]:
    """The findings of this `severity` or worse."""
    worst = SEVERITIES.index(severity)
    return [each for each in all_of_them if SEVERITIES.index(each.severity) <= worst]


def to_report(trace: Trace) -> list[Finding]:
    """Return the findings for a report: errors and warnings.

    Info findings repeat the counts above them, and a healthy run has some, too: TensorFlow traces a
    function twice, the last batch is smaller.
    """
    return at_least(findings(trace), "warning")


def rule_of(code: str) -> Rule:
    """Return the rule with this code; raises `tracer.UnknownName` with similar codes."""
    known = {each.code: each for each in RULES}
    if code not in known:
        raise unknown_name("finding", code, list(known), "there are")
    return known[code]
