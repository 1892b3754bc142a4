"""What a rule finds, and how cases that say the same of several variables become one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from tracer.model.summary import Summary
from tracer.model.wording import listed, plural, some, span, times

Severity = Literal["error", "warning", "info"]
"""`error`: it is certain that training does not do what the program says. `warning`: most
probably it is not what was meant. `info`: good to know, and often as it should be."""

MAX_CASES = 3  # cases of one rule that differ in their numbers only, and stay apart
MAX_NAMES = 3  # variables that a sentence names
_SINGULAR = {"were": "was", "have": "has", "them": "it", "their": "its"}


class Case(Struct, frozen=True):
    """One case of a rule; without `severity` or `advice` it has those of the rule."""

    text: str
    """A sentence; a template, see `folded`, if there are `words` or `numbers`."""
    advice: str = ""
    severity: Severity | None = None
    variables: Sequence[int] = ()
    """The indices of those that the template names as `{which}`."""
    step: int | None = None
    replica: int | None = None
    """The index of the replica concerned, if it is one."""
    words: Mapping[str, str] = {}
    numbers: Mapping[str, int] = {}
    """What the template names beside the variables."""
    names: tuple[str, ...] = ()
    """The names of the variables concerned, where they are not those of `variables`."""


class _Range(tuple[int, int]):
    """Numbers, from the lowest to the highest: `{n}`, `{n:times}` or `{n:row}` in a template."""

    def __format__(self, noun: str) -> str:
        if noun == "times":
            return times(self)
        return some(self, noun) if noun else span(self)


def folded(summary: Summary, cases: Iterable[Case]) -> Iterator[Case]:
    """The cases, with one for all those that say the same of several variables.

    That are those of one template with the same numbers; and all of one template if they are more
    than a few. Besides the words of the case, the template may name `{which}` variables, the first
    `{step}`, `{later}` if others follow, and `{were}`, `{have}`, `{them}` and `{their}`.
    """
    alike: dict[object, dict[object, list[Case]]] = {}
    for case in cases:
        template = case.text, case.severity, case.advice, case.names, *case.words.values()
        same = alike.setdefault(template, {})
        same.setdefault((case.step, case.replica, *case.numbers.values()), []).append(case)
    for groups in alike.values():
        every = [case for group in groups.values() for case in group]
        for group in groups.values() if len(groups) <= MAX_CASES else [every]:
            yield _together(summary, group)


def _together(summary: Summary, group: Sequence[Case]) -> Case:
    first = group[0]
    known = names_of(summary, sorted(index for case in group for index in case.variables))
    names = known or first.names
    of = of_optimizer(summary) if known else ""
    steps = [case.step for case in group if case.step is not None]
    numbers = {key: sorted(case.numbers[key] for case in group) for key in first.numbers}
    words = dict(
        which=names_in_short(names, of, summary.dialect.variable),
        step=min(steps, default=None),
        later=" or later" if len(set(steps)) > 1 else "",
        **{many: plural(len(names), one, many) for many, one in _SINGULAR.items()},
        **{key: _Range((each[0], each[-1])) for key, each in numbers.items()},
        **first.words,
    )
    return structs.replace(
        first,
        text=first.text.format(**words) if first.words or first.numbers else first.text,
        names=first.names or names,
        step=min(steps, default=None),
        replica=first.replica if len({case.replica for case in group}) == 1 else None,
    )


def names_in_short(names: Sequence[str], of: str = "", noun: str = "variable") -> str:
    """`dense/kernel`, `a and b`, or `1,000 variables (a, b, c and 997 more)`, `of` an optimizer."""
    if len(names) <= MAX_NAMES:
        return listed(names) + of
    first = ", ".join(names[:MAX_NAMES])
    return f"{len(names):,} {noun}s{of} ({first} and {len(names) - MAX_NAMES:,} more)"


def names_of(summary: Summary, variables: Iterable[int]) -> tuple[str, ...]:
    """The names of variables; one without a name is `''`."""
    return tuple(summary.trace.variables[index].name or "''" for index in variables)


def of_optimizer(summary: Summary) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {each.root for each in summary.trace.optimizers}
    return f" of {summary.optimizers[0].name}" if len(roots) > 1 else ""
