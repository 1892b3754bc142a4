"""Phrases the facts on an optimizer, from typed records, the same in all reports.

Why it made no step; its own count of steps, backward passes, learning rates and weight decay; which
variables it does not update, and why; who else updates them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import to_builtins

from tracer.errors import shown
from tracer.model.counts import updates
from tracer.model.evidence import BackwardPasses, Fitted, Iterations, NoStep, Scheduled
from tracer.model.phrases import class_of, replica_noun
from tracer.model.records import NotUpdated, Rate, RateRun
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import first_of, listed, plural, some, span

MOST = 50
"""The most runs kept of a rate: the last ones."""
MAX_RATES = 3  # in a sentence
MAX_NAMES = 3  # of variables, layers or optimizers in a sentence


def sentences_on(summary: Summary) -> list[str]:
    """The sentences on an optimizer, the numbers first."""
    numbers = "; ".join([*_iterations(summary), *_passes(summary), *rate_phrases(summary)])
    first = [f"{numbers[:1].upper()}{numbers[1:]}."] if numbers else []
    return [*map(shown, [*first, *_not_updated(summary), *_shared(summary)])]


# Its steps.

_WHY_NO_STEP = {
    "all frozen": ": all variables of its model are frozen",
    "not reached": ": train_step called no step method while it was traced",
    "nothing passed": ": no gradient was passed to it",
    "gradients came": ", though its parameters got gradients",
    "from config": ": made from the config of its model",
}


def no_steps(summary: Summary) -> str:
    """`Adam (train.py:12): 0 steps`, with the reason if it is known."""
    root = summary.optimizers[0]
    whys = [_WHY_NO_STEP[own.why] for _, own in summary.evidence(NoStep)]
    whys += [", though fit trained its model" for _ in summary.evidence(Fitted)]
    name = class_of(root) if len(summaries_of(summary.trace)) == 1 else root.name
    return f"{name}{f' ({root.made})' if root.made else ''}: 0 steps{''.join(whys[:1])}."


def _iterations(summary: Summary) -> Iterator[str]:
    """The optimizer's own count of steps, unless it is the number of steps or of updating ones."""
    counted = {*summary.steps_on.values(), summary.steps}
    if not summary.step_unknown(updates):
        counted |= {steps - summary.idle_on[on] for on, steps in summary.steps_on.items()}
    for own in dict.fromkeys(own for _, own in summary.evidence(Iterations)):
        if summary.trace.complete and (own.begin or own.end not in counted):
            yield f"iterations {own.begin:,} -> {own.end:,}"


def _passes(summary: Summary) -> Iterator[str]:
    """The backward passes, unless there were as many steps."""
    passes = [own.passes for _, own in summary.evidence(BackwardPasses)]
    if passes and {*passes} != {summary.steps}:
        yield f"{span((min(passes), max(passes)))} backward {plural(max(passes), 'pass', 'passes')}"


# Its learning rates and weight decays.


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


def plain_not_updated(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield the variables that it does not get as plain values, for reports that programs read."""
    variables = summary.trace.variables
    for row in summary.not_updated:
        own = [shown(variables[index].name) for index in row.variables]
        yield {"why": row.why, "since": row.since, "variables": own}


def rate_phrases(summary: Summary) -> list[str]:
    """The phrases on rates: `learning rate 0.1 -> 0.001 (40 values)`, `weight decay 0.01 on ...`.

    Empty if nothing is known.
    """
    every = rates(summary, "rate")
    groups = [each for each in every if each.variables] or every
    found = dict[tuple[str, tuple[RateRun, ...]], int]()
    for each in groups:
        key = each.schedule, each.runs
        found[key] = found.get(key, 0) + len(each.variables)
    parts = [*_decay(summary), *_schedules(summary)]
    known = [each for each in _of_all_workers(summary, "rate") if each.runs and not each.sampled]
    if len({(each.group, _moves(each.runs, False)) for each in known}) > len(every):
        parts.append(f"not the same on all {replica_noun(summary.trace)}s")
    noun = summary.dialect.variable
    said = [
        (_by(schedule, runs) if schedule else _moves(runs, any(each.sampled for each in groups)))
        + (f" on {some(count, noun)}" if len(found) > 1 else "")
        for (schedule, runs), count in found.items()
    ]
    values = sorted(n for _, runs in found for run in runs for n in (run.value, run.last))
    if len(said) > MAX_RATES and values:
        said = [f"from {values[0]:.3g} to {values[-1]:.3g} in {some(len(groups), 'group')}"]
    is_constant = all(not by and number_of_values(runs) == 1 for by, runs in found)
    where = _read_in(summary, groups) if is_constant and said else ""
    return [*([f"learning rate {listed(said)}{where}"] if said else []), *parts]


def _read_in(summary: Summary, groups: Sequence[Rate]) -> str:
    """` in all steps` if each step was read, else ` at 12 looks`."""
    looks = min(each.looks for each in groups)
    known = min(sum(run.count for run in each.runs) for each in groups)
    if any(each.sampled for each in groups) or 0 < looks < known:
        return f" at {some(looks, 'look')}" if looks else ""
    return " in all steps" if known == summary.steps else f" in {some(known, 'step')}"


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
        passed = summary.passed
        every = some(len(passed), summary.dialect.variable)
        on = "all " if len(variables) == len(passed) else f"{len(variables):,} of "
        yield f"weight decay {value} on {on if len(passed) > 1 else ''}{every}"


def _schedules(summary: Summary) -> Iterator[str]:
    """The phrase on each schedule of PyTorch: its name."""
    for _, scheduled in summary.evidence(Scheduled):
        yield f"scheduled by {scheduled.name}"


# The variables that it does not update, and those that others update.


def why_not(summary: Summary) -> dict[int, str]:
    """Why the optimizer does not update a variable of its model, by the variable's index."""
    found: dict[int, str] = {}
    for row in summary.not_updated:
        # A graph keeps its list of variables: it may have updated them since then.
        later = summary.within(range(row.since + 1, summary.steps + 1)) if row.since else None
        made = {} if later is None else later.by(["variable"], updates)
        still = [index for index in row.variables if not made.get((index,))]
        words = _words_of(row, summary)
        # What it has from the first step on and updates, it updates on other ranks.
        on_some = f"{words} on some {replica_noun(summary.trace)}s"
        updated = () if row.since else summary.updated
        found |= {index: on_some if index in updated else words for index in still}
    return found


def _words_of(row: NotUpdated, summary: Summary) -> str:
    """`frozen since step 11`, or `not passed to Adam`."""
    what = row.why if row.why == "frozen" else f"not passed to {shown(summary.optimizers[0].name)}"
    return f"{what} since step {row.since + 1:,}" if row.since else what


def also_by(summary: Summary) -> dict[int, str]:
    """`Adam#2 and Adam#3`, by variable: the other optimizers that update it."""
    by = summary.trace.derived(_updaters)
    if not by:
        return {}
    names = [shown(each.name) for each in summary.trace.optimizers]
    others = {
        index: [names[root] for root in by.get(index, ()) if root != summary.root]
        for index in summary.variables
    }
    return {index: listed(found, MAX_NAMES) for index, found in others.items() if found}


def _updaters(trace: Trace) -> Mapping[int, Sequence[int]]:
    """The root optimizers that update each variable, if there are several of them."""
    roots: dict[int, list[int]] = defaultdict(list)
    summaries = summaries_of(trace)
    for summary in summaries if len(summaries) > 1 else ():
        for index in summary.updated:
            if not trace.variables[index].argument:
                roots[index].append(summary.root)
    return roots


def _not_updated(summary: Summary) -> Iterator[str]:
    """Yield a sentence for each reason: `Not updated: 12 variables of encoder/*: frozen.`."""
    others = also_by(summary)
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, why in why_not(summary).items():
        alike[why, others.get(index, "")].append(index)
    for (why, other), indices in alike.items():
        elsewhere = f"; updated by {other}" if other else ""
        yield f"Not updated: {which(summary, indices)}: {why}{elsewhere}."


def _shared(summary: Summary) -> Iterator[str]:
    """Yield a sentence for each group of others: `Also updated by Adam#2: encoder/kernel.`."""
    alike: dict[str, list[int]] = defaultdict(list)
    for index, others in also_by(summary).items():
        if index in summary.updated:
            alike[others].append(index)
    for others, indices in alike.items():
        yield f"Also updated by {others}: {which(summary, indices)}."


def which(summary: Summary, indices: Sequence[int]) -> str:
    """`head/kernel and head/bias`, or `12 variables of encoder/*`."""
    variables = summary.trace.variables
    if len(indices) <= MAX_NAMES:
        return listed([variables[index].name for index in indices])
    names = [variables[index].name for index in summary.variables]
    layers = dict(zip(summary.variables, layers_of(names, summary.dialect.separator), strict=True))
    own = [*dict.fromkeys(layers[index] for index in indices)]
    return f"{some(len(indices), summary.dialect.variable)} of {first_of(own, MAX_NAMES)}"


def layers_of(names: Sequence[str], separator: str) -> list[str]:
    """The path of each name up to the first part in which the paths differ.

    >>> layers_of(["net/a/kernel", "net/a/bias", "net/b"], "/")
    ['net/a/*', 'net/a/*', 'net/b']
    """
    paths = [name.split(separator) for name in names]
    outer = zip(*(path[:-1] for path in paths), strict=False)
    first = 1 + sum(1 for _ in takewhile(lambda parts: len({*parts}) == 1, outer))
    # A variable and a layer may share a name.
    return [separator.join([*path[:first], *["*"] * bool(path[first:])]) for path in paths]
