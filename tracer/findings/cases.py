"""What a rule finds, and how what is the same of many variables becomes one case."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from tracer.model.summary import Summary
from tracer.model.wording import listed, plural

Severity = Literal["error", "warning", "info"]
"""`error`: it is certain that training does not do what the program says. `warning`: most
probably it is not what was meant. `info`: good to know, and often as it should be."""

MAX_CASES = 3  # cases of one rule that differ in their numbers only, and stay apart
MAX_NAMES = 3  # variables that a sentence names


class Case(NamedTuple):
    """One case of a rule; without `advice` it has that of the dialect, or the rule's."""

    severity: Severity
    text: str
    advice: str = ""
    variables: tuple[str, ...] = ()
    step: int | None = None
    replica: int | None = None

    def advised(self, advice: str) -> "Case":
        """The case, with this advice if it has none."""
        return self if self.advice else self._replace(advice=advice)


class Fact(NamedTuple):
    """What is so of some variables: numbers from a lowest to a highest, and the first step."""

    variables: tuple[int, ...]
    numbers: tuple[tuple[int, int], ...] = ()
    step: int | None = None
    replica: int | None = None

    @property
    def was(self) -> str:
        """The verb for the variables."""
        return plural(len(self.variables), "was", "were")


def fact_of(
    variables: Sequence[int], *numbers: int, step: int | None = None, replica: int | None = None
) -> Fact:
    """A fact with one value for each number."""
    return Fact(tuple(variables), tuple((each, each) for each in numbers), step, replica)


def folded(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Those with the same numbers as one; and all of them as one if they are more than a few."""
    same: dict[Fact, list[Fact]] = {}
    for fact in facts:
        same.setdefault(fact._replace(variables=()), []).append(fact)
    groups = list(same.values())
    if len(groups) > MAX_CASES:
        groups = [[fact for group in groups for fact in group]]
    for group in groups:
        yield _together(group)


def _together(group: Sequence[Fact]) -> Fact:
    steps = [each.step for each in group if each.step is not None]
    return Fact(
        tuple(sorted(variable for each in group for variable in each.variables)),
        tuple(
            (min(low for low, _ in spans), max(high for _, high in spans))
            for spans in zip(*(each.numbers for each in group), strict=True)
        ),
        min(steps, default=None),
        group[0].replica if len({each.replica for each in group}) == 1 else None,
    )


def cases(
    summary: Summary,
    severity: Severity,
    facts: Iterable[Fact],
    sentence: Callable[[str, Fact], str],
    advice: str = "",
) -> Iterator[Case]:
    """A case for each fact that is left when they are folded.

    The sentence is made of the names of the variables, `a and b`, and the fact; of a fact on one
    replica, the case names that.
    """
    for fact in folded(facts):
        yield Case(
            severity,
            sentence(subject(summary, fact.variables), fact),
            advice,
            names_of(summary, fact.variables),
            fact.step,
            None if fact.replica is None else summary.trace.replicas[fact.replica].id,
        )


def subject(summary: Summary, variables: Sequence[int]) -> str:
    """`dense/kernel`, `a and b`, or `1,000 variables (a, b, c and 997 more)`.

    With several optimizers in the trace, that of the variables is named with them.
    """
    noun = summary.dialect.variable
    return names_in_short(names_of(summary, variables), of_optimizer(summary), noun)


def names_in_short(names: Sequence[str], of: str = "", noun: str = "variable") -> str:
    """The names, `of` an optimizer; of many the first, and how many there are."""
    if len(names) <= MAX_NAMES:
        return listed(list(names)) + of
    first = ", ".join(names[:MAX_NAMES])
    return f"{len(names):,} {noun}s{of} ({first} and {len(names) - MAX_NAMES:,} more)"


def names_of(summary: Summary, variables: Iterable[int]) -> tuple[str, ...]:
    """The names of variables; one without a name is `''`."""
    return tuple(summary.trace.variables[index].name or "''" for index in variables)


def of_optimizer(summary: Summary) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {each.root for each in summary.trace.optimizers}
    return f" of {summary.optimizers[0].name}" if len(roots) > 1 else ""
