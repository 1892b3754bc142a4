"""Defines rules and their cases, and runs the rules on a trace.

A rule is a function that yields cases for one root optimizer; the texts in `@rule(...)` also
document the function:

    @rule("never-updated", severity="warning", title="gradients came, and no update did", ...)
    def never_updated(summary: Summary) -> Iterator[Case]:

The rules are in the other modules of this package, which imports them. A rule reports only what the
trace shows. On an incomplete trace, rules on what did *not* happen are silent. No TensorFlow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from tracer.errors import unknown_name
from tracer.model.counts import unknown_effects, updates
from tracer.model.dialects import DIALECTS
from tracer.model.records import Finding as Finding, Severity as Severity
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.words import listed, plural, shown

MAX_CASES = 3  # the most cases of variables that are reported one by one
MAX_NAMES = 3  # the most variables named in a sentence


class Case(Struct, frozen=True):
    """A case of a rule; `severity` and `advice` default to the rule's."""

    text: str
    """A sentence, which may have `{which}` for the variables, `{were}`, `{them}` and `{their}`;
    `{of}` for the optimizer, and `{made}` for the line that made it."""
    advice: str = ""
    severity: Severity | None = None
    variables: tuple[int, ...] = ()
    """The indices of the variables in `{which}`; cases that differ only in these are one."""
    step: int | None = None
    names: tuple[str, ...] = ()
    """The names of the variables concerned, if not those of `variables`."""


Find = Callable[[Summary], Iterable[Case]]
"""Finds cases in the `Summary` of one root optimizer."""

Need = Literal["complete", "finished", "effects known", "steps", "steps known"]
"""A condition for a rule: the trace is complete; it is not of a program that may run on; no note
says that effects are unknown; the optimizer made a step; the step of each update is known."""

_HOLDS: Mapping[Need, Callable[[Summary], bool]] = {
    "complete": lambda summary: summary.trace.complete,
    "finished": lambda summary: summary.trace.finished,
    "effects known": lambda summary: not unknown_effects(summary.trace.data),
    "steps": lambda summary: summary.steps > 0,
    "steps known": lambda summary: not summary.step_unknown(updates),
}


@dataclass(frozen=True)
class Rule:
    """A rule: how to find its cases, and the text for them."""

    code: str
    find: Find
    severity: Severity
    """The worst severity of its cases."""
    title: str
    why: str
    advice: str
    explanation: str
    """When the rule reports a case and when not, and other severities of a case."""
    needs: tuple[Need, ...] = ()
    explains: Severity = "info"
    """The mildest severity of a case that may explain why a count is not as expected."""

    @property
    def advices(self) -> dict[str, str]:
        """Each advice below its heading; the advice for TensorFlow, or for all, comes first."""
        names: dict[str, list[str]] = {}
        for dialect in DIALECTS.values():
            if text := dialect.advice(self.code):
                names.setdefault(text, []).append(dialect.framework)
        special = {f"What to do with {listed(names[text])}": text for text in names}
        return {"What to do": self.advice, **special}

    def cases(self, summary: Summary) -> Iterator[Case]:
        """Yield the cases, with all texts: those that differ only in variables are one.

        If more than three remain, they are one case, with the text of the first.
        """
        alike: dict[tuple[str, Severity | None], dict[Case, list[int]]] = {}
        holds = all(_HOLDS[need](summary) for need in self.needs)
        for case in self.find(summary) if holds else ():
            same = alike.setdefault((case.advice, case.severity), {})
            same.setdefault(structs.replace(case, variables=()), []).extend(case.variables)
        for same in alike.values():
            first = min(same, key=lambda case: case.step or 0)
            many = len(same) > MAX_CASES and all(same.values())
            every = sorted(chain.from_iterable(same.values()))
            whole = [(first, every)] if many else same.items()
            for case, variables in whole:
                names = case.names or names_of(summary, sorted(variables))
                text = _filled(summary, case, same[case])
                if many:
                    which = names_in_short(names, of_optimizer(summary), summary.dialect.variable)
                    text = f"{which}: {self.title}. The first of these: {text}"
                advice = case.advice or summary.dialect.advice(self.code, self.advice)
                yield structs.replace(case, text=text, advice=advice, names=names)


def _filled(summary: Summary, case: Case, variables: Iterable[int]) -> str:
    """The text of a case, with the names of its variables."""
    own, of, root = (
        names_of(summary, sorted(variables)),
        of_optimizer(summary),
        summary.optimizers[0],
    )
    names, text = own or case.names, case.text
    words = {
        "were": plural(len(names), "was", "were"),
        "them": plural(len(names), "it", "them"),
        "their": plural(len(names), "its", "their"),
        "of": of,
        "made": f" ({root.name} was made in {root.made})" if root.made else "",
        "which": names_in_short(names, of if own else "", summary.dialect.variable),
    }
    for field, word in words.items():
        text = text.replace(f"{{{field}}}", word)
    return text


RULES: list[Rule] = []
"""All rules, in the order in which cases of one severity are reported."""


def rule(code: str, **texts: Any) -> Callable[[Find], Rule]:
    """Decorator that makes a rule of a function, with the fields of a `Rule`."""

    def add(find: Find) -> Rule:
        RULES.append(Rule(code, find, **texts))
        return RULES[-1]

    return add


def names_in_short(names: Sequence[str], of: str = "", noun: str = "variable") -> str:
    """`dense/kernel`, `a and b`, or `1,000 variables (a, b, c and 997 more)`, `of` an optimizer."""
    if len(names) <= MAX_NAMES:
        return listed(names) + of
    return f"{len(names):,} {noun}s{of} ({listed(names, MAX_NAMES)})"


def names_of(summary: Summary, variables: Iterable[int]) -> tuple[str, ...]:
    """The names of variables; `''` for an empty name."""
    return tuple(summary.trace.variables[index].name or "''" for index in variables)


def of_optimizer(summary: Summary) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {optimizer.root for optimizer in summary.trace.optimizers}
    return f" of {summary.optimizers[0].name}" if len(roots) > 1 else ""


# Running the rules.

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From worst to least. `error`: training certainly does not do what the program says. `warning`:
most probably a mistake. `info`: good to know, and often normal."""


def findings(trace: Trace) -> list[Finding]:
    """Return the findings on a trace, errors first; an empty list for a healthy run.

    Equal facts about many variables are one finding, with some names and the number.
    """
    return list(trace.derived(_found))


def findings_on(trace: Trace, root: int) -> list[Finding]:
    """Return the findings on this root optimizer that may explain its counts."""
    own = [finding for finding, roots in trace.derived(_found).items() if root in roots]
    return [each for each in own if at_least([each], rule_of(each.code).explains)]


def _found(trace: Trace) -> dict[Finding, set[int]]:
    """All findings, each with its root optimizers."""
    found: dict[Finding, set[int]] = {}  # optimizers of one class share its findings
    for rule, summary in product(RULES, summaries_of(trace)):
        for case in rule.cases(summary):
            finding = Finding(
                rule.code,
                case.severity or rule.severity,
                shown(case.text),
                rule.why,
                shown(case.advice),
                case.names,
                case.step,
            )
            found.setdefault(finding, set()).add(summary.root)
    return dict(sorted(found.items(), key=lambda each: SEVERITIES.index(each[0].severity)))


def at_least(all_of_them: list[Finding], severity: Severity) -> list[Finding]:
    """The findings of this `severity` or worse."""
    worst = SEVERITIES.index(severity)
    return [finding for finding in all_of_them if SEVERITIES.index(finding.severity) <= worst]


def rule_of(code: str) -> Rule:
    """Return the rule with this code; raises `tracer.UnknownName` with similar codes."""
    known = {each.code: each for each in RULES}
    if code not in known:
        raise unknown_name("finding", code, list(known), "there are")
    return known[code]
