"""Phrases learning rates, schedules and weight decay, the same in all reports."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from tracer.errors import shown
from tracer.model.evidence import Scheduled
from tracer.model.phrases import replica_noun
from tracer.model.records import Rate, RateRun
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import listed, some

MOST = 50
"""The most runs kept of a rate: the last ones."""
MAX_RATES = 3  # in a sentence


def rates(summary: Summary, what: str) -> list[Rate]:
    """The learning rates or weight decays of each group.

    Of the first worker: others may differ.
    """
    own = reversed(_of_all_workers(summary, what))
    return [*{each.group: each for each in own}.values()][::-1]


def _of_all_workers(summary: Summary, what: str) -> list[Rate]:
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


def sentence(summary: Summary) -> str:
    """The sentence on rates: `Learning rate 0.1 -> 0.001 (40 values); weight decay 0.01 on 12 ...`.

    Empty if nothing is known, or only that the rate was constant.
    """
    every = rates(summary, "rate")
    groups = [each for each in every if each.variables] or every
    found = dict[tuple[str, tuple[RateRun, ...]], int]()
    for each in groups:
        key = each.schedule, each.runs
        found[key] = found.get(key, 0) + len(each.variables)
    number = sum(2 if schedule else number_of_values(runs) for schedule, runs in found)
    parts = [*_decay(summary), *_schedules(summary)]
    known = [each for each in _of_all_workers(summary, "rate") if each.runs and not each.sampled]
    if len({(each.group, _moves(each.runs, False)) for each in known}) > len(every):
        parts.append(f"not the same on all {replica_noun(summary.trace)}s")
    if number < 2 and not parts:
        return ""
    noun = summary.dialect.variable
    said = [
        (_by(schedule, runs) if schedule else _moves(runs, any(each.sampled for each in groups)))
        + (f" on {some(count, noun)}" if len(found) > 1 else "")
        for (schedule, runs), count in found.items()
    ]
    values = sorted(n for _, runs in found for run in runs for n in (run.value, run.last))
    if len(said) > MAX_RATES and values:
        said = [f"from {values[0]:.3g} to {values[-1]:.3g} in {some(len(groups), 'group')}"]
    text = "; ".join([*([f"learning rate {listed(said)}"] if said else []), *parts])
    return f"{text[:1].upper()}{text[1:]}."


def _by(schedule: str, runs: Sequence[RateRun]) -> str:
    """A schedule, with its values in the first and the last step if known."""
    ends = runs and f": {runs[0].value:.3g} in the first step, {runs[-1].last:.3g} in the last"
    return f"by {schedule}{ends or ''}"


def _moves(runs: Sequence[RateRun], sampled: bool) -> str:
    """The values of runs: `0.1`, `0.1 -> 0.001 (40 values)`, or `0 -> 0.1 -> 0 (40 values)`."""
    number, ends = number_of_values(runs), (runs[0].value, runs[-1].last)
    if number == 1:
        return f"{ends[0]:.3g}"
    turns = [run.turn for run in runs if run.turn is not None][:1]
    at_least = "at least " if sampled else ""
    points = " -> ".join(f"{value:.3g}" for value in (ends[0], *turns, ends[1]))
    return f"{points} ({at_least}{number:,} values)"


def _decay(summary: Summary) -> Iterator[str]:
    """The phrase on weight decay: its values, and the number of variables that decay."""
    values: dict[str, set[int]] = {}
    for each in rates(summary, "decay"):
        if each.variables and any(run.value or run.last for run in each.runs):
            values.setdefault(_moves(each.runs, each.sampled), set()).update(each.variables)
    for value, variables in values.items():
        every = some(len(summary.variables), summary.dialect.variable)
        on = "all" if len(variables) == len(summary.variables) else f"{len(variables):,} of"
        yield f"weight decay {value} on {on} {every}"


def _schedules(summary: Summary) -> Iterator[str]:
    """The phrase on each schedule of PyTorch: its name."""
    for _, scheduled in summary.evidence(Scheduled):
        yield f"scheduled by {scheduled.name}"
