"""What a rule finds, and how the alike of it become one case."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from tracer.model.records import Optimizer
from tracer.model.tally import Tally

Severity = Literal["error", "warning", "info"]
"""`error`: it is certain that training does not do what the program says. `warning`: most
probably it is not what was meant. `info`: good to know, and often as it should be."""

_APART = 3  # cases of one rule that are alike but for their numbers, and stay apart
_NAMES = 3  # variables that a sentence names


class Case(NamedTuple):
    """One case of a rule; `advice` stands for the rule's own."""

    severity: Severity
    text: str
    advice: str = ""
    variables: tuple[str, ...] = ()
    step: int | None = None
    replica: int | None = None


class Fact(NamedTuple):
    """What is so of some variables: numbers from a lowest to a highest, and the first step."""

    variables: tuple[int, ...]
    numbers: tuple[tuple[int, int], ...] = ()
    step: int | None = None
    replica: int | None = None


def fact(
    variables: Sequence[int], *numbers: int, step: int | None = None, replica: int | None = None
) -> Fact:
    """A fact with one value for each number."""
    return Fact(tuple(variables), tuple((each, each) for each in numbers), step, replica)


def folded(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Those with the same numbers as one; and all of them as one if they are more than a few."""
    alike: dict[Fact, list[Fact]] = {}
    for each in facts:
        alike.setdefault(each._replace(variables=()), []).append(each)
    groups = list(alike.values())
    if len(groups) > _APART:
        groups = [[each for group in groups for each in group]]
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


def subject(found: Tally, variables: Sequence[int]) -> str:
    """`dense/kernel`, `a and b`, or `1,000 variables (a, b, c and 997 more)`.

    With several optimizers in the trace, that of the variables is named with them.
    """
    names = names_of(found, variables)
    of = of_optimizer(found)
    if len(names) <= _NAMES:
        return listed(names) + of
    first = ", ".join(names[:_NAMES])
    return f"{len(names):,} variables{of} ({first} and {len(names) - _NAMES:,} more)"


def names_of(found: Tally, variables: Iterable[int]) -> tuple[str, ...]:
    """The names of variables; one without a name is `''`."""
    return tuple(found.trace.variables[index].name or "''" for index in variables)


def of_optimizer(found: Tally) -> str:
    """` of adam#2` if the trace has several root optimizers, else nothing."""
    roots = {each.root for each in found.trace.optimizers}
    return f" of {found.optimizers[0].name}" if len(roots) > 1 else ""


def class_of(optimizer: Optimizer) -> str:
    """The name of an optimizer's class."""
    return optimizer.class_name.rpartition(".")[2]


def replica_of(found: Tally, index: int) -> str:
    """`replica 1`, or `worker:1 replica 0` if there are several workers."""
    replica = found.trace.replicas[index]
    workers = {found.trace.replicas[each].worker for each in found.replicas}
    return f"{replica.worker} replica {replica.id}" if len(workers) > 1 else f"replica {replica.id}"


def was(variables: Sequence[int]) -> str:
    """The verb for them."""
    return "was" if len(variables) == 1 else "were"


def span(numbers: tuple[int, int]) -> str:
    """`3`, or `3 to 10`."""
    low, high = numbers
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def some(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
