"""Phrases learning rates, schedules and weight decay, the same in all reports."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from tracer.errors import shown
from tracer.model.evidence import Scheduled
from tracer.model.phrases import where_made
from tracer.model.records import Rate, RateRun
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace, has_all_workers
from tracer.model.words import first_of, listed, some

MOST = 50
"""The most runs kept of a rate; the last one has all later steps."""
MAX_RATES = 3  # in a sentence


def rates(summary: Summary, what: str) -> list[Rate]:
    """The learning rates or weight decays of each group.

    Of the first worker: others may differ.
    """
    return [*{each.group: each for each in reversed(of_all_workers(summary, what))}.values()][::-1]


def of_all_workers(summary: Summary, what: str) -> list[Rate]:
    """The learning rates or weight decays of all workers."""
    return [
        each for each in summary.trace.data.rates if (each.root, each.what) == (summary.root, what)
    ]


def number_of_values(runs: Sequence[RateRun]) -> int:
    """The number of successive values of a rate.

    >>> number_of_values([RateRun(1, 3, 0.1, 0.1), RateRun(4, 2, 0.1, 0.01, 2)])
    2
    """
    before = [None, *(each.last for each in runs)]
    return sum(each.values - (each.value == old) for each, old in zip(runs, before, strict=False))


def decaying(summary: Summary) -> tuple[set[int], set[int]]:
    """The variables that decay, and the variables that do not although others do."""
    groups = rates(summary, "decay")
    decayed = {i for each in groups if any(run.last for run in each.runs) for i in each.variables}
    rest = set(summary.variables) - decayed if decayed else set()
    of_others = summary.is_partitioned and not has_all_workers(summary.trace)
    return decayed, set() if of_others else rest


def vectors(summary: Summary, variables: set[int]) -> list[str]:
    """The names of the variables with at most one dimension."""
    every = summary.trace.variables
    return [every[index].name for index in sorted(variables) if len(every[index].shape) < 2]


def plain(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the rates and decays of each group as plain values, for reports that programs read."""
    names = [shown(each.name) for each in summary.trace.variables]
    for what in ("rate", "decay"):
        for each in rates(summary, what):
            runs = [to_builtins(run) for run in each.runs]
            yield {
                "what": what,
                "group": each.group,
                "schedule": each.schedule,
                "variables": [names[index] for index in each.variables],
                "runs": [dict(zip(RateRun.__struct_fields__, run, strict=True)) for run in runs],
            }


def sentences(trace: Trace) -> list[str]:
    """Return the sentence of each optimizer, with its name if there are several."""
    summaries = summaries_of(trace)
    said = [(each.optimizers[0].name, sentence(each)) for each in summaries]
    named = len(said) > 1
    return [shown(f"{name}: {text}" if named else text) for name, text in said if text]


def sentence(summary: Summary, *, brief: bool = True) -> str:
    """The sentence on rates: `Learning rate 0.1 -> 0.001 (40 values); weight decay 0.01 on 12 ...`.

    Empty if nothing is known or, if `brief`, if it would only have one number.
    """
    every = rates(summary, "rate")
    groups = [each for each in every if each.variables] or every
    found = dict[tuple[str, tuple[RateRun, ...]], int]()
    for each in groups:
        key = each.schedule, each.runs
        found[key] = found.get(key, 0) + len(each.variables)
    number = sum(number_of_values(runs) or 2 for _, runs in found)
    parts = [*_decay(summary), *_schedules(summary)]
    if number < 1 + brief and not parts:
        return ""
    noun = summary.dialect.variable
    said = [
        (f"by {schedule}" if schedule else _moves(runs, any(each.sampled for each in groups)))
        + (f" on {some(count, noun)}" if len(found) > 1 else "")
        for (schedule, runs), count in found.items()
    ]
    values = sorted(n for _, runs in found for run in runs for n in (run.value, run.last))
    if len(said) > MAX_RATES and values:
        said = [f"from {values[0]:.3g} to {values[-1]:.3g} in {some(len(groups), 'group')}"]
    text = "; ".join([*([f"learning rate {listed(said)}"] if said else []), *parts])
    return f"{text[:1].upper()}{text[1:]}."


def _moves(runs: Sequence[RateRun], sampled: bool) -> str:
    """The values of runs: `0.1`, `0.1 -> 0.001 (40 values)`, or `0 -> 0.1 -> 0 (40 values)`."""
    ends = [value for run in runs for value in (run.value, run.last)]
    first, last, least, most = ends[0], ends[-1], min(ends), max(ends)
    points = [first, *_turn(first, last, least, most), last]
    number = number_of_values(runs)
    if number == 1:
        return f"{first:.3g}"
    at_least = "at least " if sampled and any(1 < run.values < run.count for run in runs) else ""
    return f"{' -> '.join(f'{each:.3g}' for each in points)} ({at_least}{number:,} values)"


def _turn(first: float, last: float, least: float, most: float) -> list[float]:
    """The highest value if above both ends, else the lowest if below both; else none."""
    return [most] if most > max(first, last) else [least] if least < min(first, last) else []


def _decay(summary: Summary) -> Iterator[str]:
    """The phrase on weight decay: its values, and the variables."""
    decayed, others = decaying(summary)
    if not decayed:
        return
    values: dict[str, set[int]] = {}
    for each in rates(summary, "decay"):
        if each.runs and each.variables:
            values.setdefault(_moves(each.runs, each.sampled), set()).update(each.variables)
    differ = len({*map(frozenset, values.values())}) > 1
    decays = [f"{value}{f' on {len(on):,}' * differ}" for value, on in values.items()]
    every = some(len(decayed | others), summary.dialect.variable)
    flat = vectors(summary, decayed) if others else []
    named = "; ".join(filter(None, [first_of(flat, 2), where_made(summary)]))
    among = f", {len(flat):,} of them one-dimensional ({named})" if flat else ""
    on = f"on {len(decayed):,} of " if others else "on all "
    yield f"weight decay {listed(decays)} {'of ' if differ else on}{every}{among}"


def _schedules(summary: Summary) -> Iterator[str]:
    """The phrase on each schedule of PyTorch: its name."""
    for _, scheduled in summary.evidence(Scheduled):
        yield f"scheduled by {scheduled.name}"
