"""Defines rules and their cases, and runs the rules on a trace.

A rule is a function that yields cases; the texts in `@rule(...)` also document the function:

    @rule("never-updated", severity="warning", title="gradients came, and no update did", ...)
    def never_updated(summary: Summary) -> Iterator[Case]:

The rules are in the other modules of this package, which imports them. A rule reports only what the
trace shows. On an incomplete trace, rules on what did *not* happen are silent. No TensorFlow.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from tracer.errors import shown, unknown_name
from tracer.model.counts import unknown_effects, updates
from tracer.model.phrases import replica_names, replica_noun, where_made
from tracer.model.records import Finding as Finding, Severity as Severity
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import DIALECTS, first_of, listed, plural, some, span, times

"""`error`: training certainly does not do what the program says. `warning`: most probably a
mistake. `info`: good to know, and often normal."""

MAX_CASES = 3  # the most cases of a rule, differing only in numbers, that are not merged
MAX_NAMES = 3  # the most variables named in a sentence
_SINGULAR = {"were": "was", "have": "has", "them": "it", "their": "its"}


class Case(Struct, frozen=True):
    """A case of a rule; `severity` and `advice` default to the rule's."""

    text: str
    """A sentence, or a template (see `gathered`) if there are `words` or `numbers`."""
    advice: str = ""
    severity: Severity | None = None
    variables: Sequence[int] = ()
    """The indices of the variables in the template's `{which}`."""
    step: int | None = None
    replica: int | None = None
    """The index of the replica concerned, if only one is."""
    words: Mapping[str, str] = {}
    numbers: Mapping[str, int] = {}
    """The template's other fields."""
    names: tuple[str, ...] = ()
    """The names of the variables concerned, if not those of `variables`."""


Find = Callable[[Any], Iterable[Case]]
"""Finds cases in the `Summary` of one root optimizer, or in a whole `Trace`."""

Need = Literal["complete", "finished", "effects known", "steps", "steps known"]
"""A condition for a rule: the trace is complete; it is not of a program that may run on; no note
says that effects are unknown; the optimizer made a step; the step of each update is known."""

Failed = Literal[
    "few updates",
    "many updates",
    "few executions",
    "many executions",
    "few steps",
    "many steps",
    "unchanged",
    "not_finite",
    "calls",
]
"""A failed expectation that a finding can explain. Executions are of an apply method, steps of a
step method."""

FEW: tuple[Failed, ...] = ("few updates", "few executions")
MANY: tuple[Failed, ...] = ("many updates", "many executions")

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
    whole: bool = False
    """Whether the rule reads a whole trace, rather than one root optimizer."""
    says_line: bool = False
    """Whether a case ends with the line that makes the steps."""
    needs: tuple[Need, ...] = ()
    explains: tuple[Failed, ...] = ()
    """The failed expectations that a case may explain."""

    @property
    def advices(self) -> dict[str, str]:
        """Each advice below its heading; the advice for TensorFlow, or for all, comes first."""
        names: dict[str, list[str]] = {}
        for dialect in DIALECTS.values():
            if text := dialect.advice(self.code):
                names.setdefault(text, []).append(dialect.framework)
        special = {f"What to do with {listed(names[text])}": text for text in names}
        return {"What to do": self.advice, **special}

    def cases(self, trace: Trace) -> Iterator[tuple[int | None, Case]]:
        """Yield the cases of a trace, each with its root optimizer, or None for the whole trace.

        A case without advice gets the rule's.
        """
        if self.whole:
            yield from ((None, case) for case in self.find(trace))
            return
        for summary in summaries_of(trace):
            if all(_HOLDS[need](summary) for need in self.needs):
                for case in gathered(summary, self.find(summary)):
                    advice = case.advice or summary.dialect.advice(self.code, self.advice)
                    text = with_line(summary, case.text) if self.says_line else case.text
                    yield summary.root, structs.replace(case, text=text, advice=advice)


def with_line(summary: Summary, text: str) -> str:
    """Add the line that makes the steps to a sentence, if unique and no line is in it yet."""
    data = summary.trace.data
    ran = (block.path for block in summary.blocks if block.step and block.total)
    lines = {data.nearest_line(path) for path in ran}
    line = lines.pop() if len(lines) == 1 and ".py:" not in text else None
    return text if line is None else f"{text[:-1]} (stepped in {line.file}:{line.number})."


def made_in(summary: Summary) -> str:
    """` (Adam was made in train.py:12)`, for the end of a sentence; empty if unknown."""
    made = where_made(summary)
    return f" ({made})" if made else ""


RULES: list[Rule] = []
"""All rules, in the order in which cases of one severity are reported."""


def rule(code: str, **texts: Any) -> Callable[[Find], Rule]:
    """Decorator that makes a rule of a function, with the fields of a `Rule`."""

    def add(find: Find) -> Rule:
        RULES.append(Rule(code, find, **texts))
        return RULES[-1]

    return add


class _Range(tuple[int, int]):
    """A range of numbers: `{n}`, `{n:times}` or `{n:row}` in a template."""

    def __format__(self, noun: str) -> str:
        return {"": span, "times": times}.get(noun, partial(some, noun=noun))(self)


def gathered(summary: Summary, cases: Iterable[Case]) -> Iterator[Case]:
    """Merge the cases that say the same of several variables.

    These are cases of one template with equal numbers, or all of a template if there are many.
    Besides the case's words, a template may use `{which}` (the variables), the first `{step}`,
    `{later}` if others follow, and `{were}`, `{have}`, `{them}` and `{their}`.
    """
    alike: dict[object, dict[object, list[Case]]] = {}
    for case in cases:
        template = case.text, case.severity, case.advice, case.names, case.replica
        same = alike.setdefault((*template, *case.words.values()), {})
        same.setdefault((case.step, *case.numbers.values()), []).append(case)
    for groups in alike.values():
        every = [case for group in groups.values() for case in group]
        for group in groups.values() if len(groups) <= MAX_CASES else [every]:
            yield _together(summary, group)


def _together(summary: Summary, group: Sequence[Case]) -> Case:
    first = group[0]
    known = names_of(summary, sorted(index for case in group for index in case.variables))
    names = known or first.names
    of = of_optimizer(summary) if known else ""
    steps = {case.step for case in group if case.step is not None}
    step = min(steps, default=None)
    numbers = {key: sorted(case.numbers[key] for case in group) for key in first.numbers}
    words = dict(
        which=names_in_short(names, of, summary.dialect.variable),
        step=step,
        later=" or later" if len(steps) > 1 else "",
        **{many: plural(len(names), one, many) for many, one in _SINGULAR.items()},
        **{key: _Range((each[0], each[-1])) for key, each in numbers.items()},
        **first.words,
    )
    return structs.replace(
        first,
        text=first.text.format(**words) if first.words or first.numbers else first.text,
        names=first.names or names,
        step=step,
    )


def names_in_short(names: Sequence[str], of: str = "", noun: str = "variable") -> str:
    """`dense/kernel`, `a and b`, or `1,000 variables (a, b, c and 997 more)`, `of` an optimizer."""
    if len(names) <= MAX_NAMES:
        return listed(names) + of
    return f"{len(names):,} {noun}s{of} ({first_of(names, MAX_NAMES)})"


def names_of(summary: Summary, variables: Iterable[int]) -> tuple[str, ...]:
    """The names of variables; `''` for an empty name."""
    return tuple(summary.trace.variables[index].name or "''" for index in variables)


def on_replicas(summary: Summary, replicas: Sequence[int]) -> str:
    """` on rank 1`, or ` on 4 ranks`; empty for all replicas of the optimizer."""
    if len(replicas) == len(summary.replicas):
        return ""
    names = replica_names(summary.trace)
    many = some(len(replicas), replica_noun(summary.trace))
    return f" on {many if len(replicas) > MAX_NAMES else listed([names[e] for e in replicas])}"


def of_optimizer(summary: Summary) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {optimizer.root for optimizer in summary.trace.optimizers}
    return f" of {summary.optimizers[0].name}" if len(roots) > 1 else ""


# Running the rules.

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
    return [finding for finding in all_of_them if SEVERITIES.index(finding.severity) <= worst]


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
