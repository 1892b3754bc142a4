"""What looks wrong in a trace: `CallTrace.findings()`, and the rules that find it.

No TensorFlow. Rules are functions, in the modules of `tracer.findings.rules`, whose order here is
that of their cases in a report; a rule says nothing that the trace does not show. Where a trace is
incomplete, rules on what did *not* happen are silent.
"""

from collections.abc import Collection
from importlib import import_module
from typing import get_args

import msgspec

from tracer.errors import shown, unknown_name
from tracer.findings.rule import RULES as RULES, Rule, Severity
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace

for _module in ("classes", "updates", "transformations", "usage", "steps", "rates"):
    import_module(f"tracer.findings.rules.{_module}")  # which adds its rules to `RULES`

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the worst to the least."""


class Finding(msgspec.Struct, frozen=True):
    """Something in a trace that looks wrong, or is good to know."""

    code: str
    """The rule's name: `tracer explain CODE`."""
    severity: Severity
    """`error`: training certainly does not do what the program says. `warning`: most probably a
    mistake. `info`: good to know, and often normal."""
    text: str
    """What looks wrong, in one sentence, with the variable, step and replica."""
    why: str
    """Why it matters."""
    advice: str
    """What to do."""
    variables: tuple[str, ...] = ()
    """The names of all variables concerned."""
    step: int | None = None
    """The first step concerned, from 1 on."""
    replica: int | None = None
    """The id of the replica concerned, if it is one."""


def findings(trace: Trace) -> list[Finding]:
    """All that the rules find, errors first; an empty list for a healthy run.

    What is the same of many variables is one finding, with some of their names and their number.
    """
    summaries_of(trace)  # which the findings read, and reports after them
    return list(trace.derived(_found))


def causes(trace: Trace, failed: str, roots: Collection[int]) -> list[Finding]:
    """The findings on these root optimizers that can be why what is `failed` is not so.

    Of a part of a trace there are none, because rules would take for missing what was left out.
    """
    known = {} if trace.excerpt else trace.derived(_found)
    codes = {rule.code for rule in RULES if failed in rule.explains}
    return [each for each in known if each.code in codes and known[each] & {None, *roots}]


def _found(trace: Trace) -> dict[Finding, set[int | None]]:
    """All findings, each with the root optimizers that it is on; None for the whole trace."""
    found: dict[Finding, set[int | None]] = {}  # what a class shows is so of each optimizer of it
    for rule in RULES:
        for root, case in rule.cases(trace):
            finding = Finding(
                rule.code,
                case.severity or rule.severity,
                shown(case.text),
                rule.why,
                shown(case.advice or rule.advice),
                case.names,
                case.step,
                None if case.replica is None else trace.replicas[case.replica].id,
            )
            found.setdefault(finding, set()).add(root)
    return dict(sorted(found.items(), key=lambda each: SEVERITIES.index(each[0].severity)))


def at_least(all_of_them: list[Finding], severity: Severity) -> list[Finding]:
    """Those that are as bad as `severity`, or worse."""
    worst = SEVERITIES.index(severity)
    return [each for each in all_of_them if SEVERITIES.index(each.severity) <= worst]


def to_report(trace: Trace) -> list[Finding]:
    """What a report for people shows: errors and warnings.

    What is good to know is in the counts above it already, and a healthy run has such findings
    too: TensorFlow traces a function twice, the last batch is smaller. Of a part of a trace nothing
    is reported, because rules would take for missing what was left out.
    """
    return [] if trace.excerpt else at_least(findings(trace), "warning")


def rule_of(code: str) -> Rule:
    """The rule with this code; raises `tracer.UnknownName`, with near codes, if there is none."""
    known = {each.code: each for each in RULES}
    if code not in known:
        raise unknown_name("finding", code, list(known), "there are")
    return known[code]
