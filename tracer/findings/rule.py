"""What a rule is, and what it finds. The rules are in the modules of `rules`, each with its text.

A rule is a function that finds its cases, below `@rule(...)` with what is said of every case:

    @rule("never-updated", severity="warning", title="gradients came, and no update did", ...)
    def never_updated(summary: Summary) -> Iterator[Case]:
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from msgspec import Struct, structs

from tracer.model.callers import nearest
from tracer.model.measures import tries, unknown_effects
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import first_of, listed, plural, some, span, times

Severity = Literal["error", "warning", "info"]
"""`error`: it is certain that training does not do what the program says. `warning`: most
probably it is not what was meant. `info`: good to know, and often as it should be."""

MAX_CASES = 3  # cases of one rule that differ in their numbers only, and stay apart
MAX_NAMES = 3  # variables that a sentence names
_SINGULAR = {"were": "was", "have": "has", "them": "it", "their": "its"}


class Case(Struct, frozen=True):
    """One case of a rule; without `severity` or `advice` it has those of the rule."""

    text: str
    """A sentence; a template, see `gathered`, if there are `words` or `numbers`."""
    advice: str = ""
    severity: Severity | None = None
    variables: Sequence[int] = ()
    """The indices of those that the template names as `{which}`."""
    step: int | None = None
    replica: int | None = None
    """The index of the replica concerned, if it is one."""
    words: Mapping[str, str] = {}
    numbers: Mapping[str, int] = {}
    """What the template names apart from the variables."""
    names: tuple[str, ...] = ()
    """The names of the variables concerned, where they are not those of `variables`."""


Find = Callable[[Any], Iterable[Case]]
"""From the `Summary` of one root optimizer, or from a whole `Trace`."""

Need = Literal["complete", "effects known", "steps", "steps known"]
"""What has to be so of an optimizer, or a rule is silent: the trace is complete; no note says that
effects are not known; it made a step; of each update the step is known."""

Failed = Literal[
    "few updates",
    "many updates",
    "few executions",
    "many executions",
    "few steps",
    "many steps",
    "changes",
    "unchanged",
    "not_finite",
    "calls",
]
"""What of an expectation is not so, that a finding can be the cause of. Executions are those of an
apply method, steps those of a step method."""

FEW: tuple[Failed, ...] = ("few updates", "few executions", "changes")
MANY: tuple[Failed, ...] = ("many updates", "many executions")

_HOLDS: Mapping[Need, Callable[[Summary], bool]] = {
    "complete": lambda summary: summary.trace.complete,
    "effects known": lambda summary: not unknown_effects(summary.trace.notes),
    "steps": lambda summary: summary.steps > 0,
    "steps known": lambda summary: not summary.step_unknown(tries),
}


@dataclass(frozen=True)
class Rule:
    """A rule: how to find its cases, and what to say of them."""

    code: str
    find: Find
    severity: Severity
    """The worst that a case of it has."""
    title: str
    why: str
    advice: str
    explanation: str
    """When it is found and when not, and what other severities a case may have."""
    whole: bool = False
    """Whether it looks at a whole trace, and not at what one root optimizer did."""
    says_line: bool = False
    """Whether a case ends with the line that makes the steps."""
    needs: tuple[Need, ...] = ()
    explains: tuple[Failed, ...] = ()
    """For which expectations that failed a case of it is a likely cause."""

    def cases(self, trace: Trace) -> Iterator[tuple[int | None, Case]]:
        """All its cases in a trace, each after the root optimizer that it is of.

        That is None for one of the whole trace. A case without advice has that of the rule.
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
    """The sentence with the line that makes the steps, if that is one and it names no other."""
    data = summary.trace.data
    ran = (each.path for each in summary.by_path() if each.step and each.total)
    lines = {nearest(data, path) for path in ran}
    line = lines.pop() if len(lines) == 1 and ".py:" not in text else None
    return text if line is None else f"{text[:-1]} (stepped in {line.file}:{line.number})."


def made_in(summary: Summary) -> str:
    """` (Adam was made in train.py:12)`, for the end of a sentence; empty if that is not known."""
    root = summary.optimizers[0]
    return f" ({root.name} was made in {root.made})" if root.made else ""


RULES: list[Rule] = []
"""All rules, in the order in which cases of one severity are reported: see `run_rules`."""


def rule(code: str, **texts: Any) -> Callable[[Find], Rule]:
    """Makes a rule of the function below it, with the fields of a `Rule`."""

    def add(find: Find) -> Rule:
        RULES.append(Rule(code, find, **texts))
        return RULES[-1]

    return add


class _Range(tuple[int, int]):
    """Numbers, from the lowest to the highest: `{n}`, `{n:times}` or `{n:row}` in a template."""

    def __format__(self, noun: str) -> str:
        return {"": span, "times": times}.get(noun, partial(some, noun=noun))(self)


def gathered(summary: Summary, cases: Iterable[Case]) -> Iterator[Case]:
    """The cases, with one for all those that say the same of several variables.

    That are those of one template with the same numbers; and all of one template if they are more
    than a few. Besides the words of the case, the template may name `{which}` variables, the first
    `{step}`, `{later}` if others follow, and `{were}`, `{have}`, `{them}` and `{their}`.
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
    """The names of variables; one without a name is `''`."""
    return tuple(summary.trace.variables[index].name or "''" for index in variables)


def of_optimizer(summary: Summary) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {each.root for each in summary.trace.optimizers}
    return f" of {summary.optimizers[0].name}" if len(roots) > 1 else ""
