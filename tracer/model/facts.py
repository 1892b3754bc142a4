"""Phrases the facts on an optimizer, from typed records, the same in all reports.

Why it made no step; its own count of steps, backward passes, learning rates and weight decay; which
variables it does not update, and why; who else updates them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from tracer.errors import shown
from tracer.model.counts import updates
from tracer.model.evidence import BackwardPasses, Fitted, Iterations, NoStep, Scheduled
from tracer.model.phrases import class_of, replica_noun
from tracer.model.records import Rate, RateRun
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import first_of, first_true, listed, plural, some

MAX_RATES = 3  # in a sentence
MAX_NAMES = 3  # of variables, layers or optimizers in a sentence


def sentences_on(summary: Summary) -> list[str]:
    """The sentences on an optimizer, the numbers first."""
    numbers = "; ".join([*_iterations(summary), *_passes(summary), *_rates(summary)])
    first = [f"{numbers[:1].upper()}{numbers[1:]}."] if numbers else []
    return [*map(shown, [*first, *_of_variables(summary)])]


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
    """The backward passes that the steps used, unless there were as many steps."""
    for own in dict.fromkeys(own for _, own in summary.evidence(BackwardPasses)):
        if own.passes != summary.steps:
            yield f"{own.passes:,} backward {plural(own.passes, 'pass', 'passes')}"


# Its learning rates and weight decays.


def number_of_values(runs: Sequence[RateRun]) -> int:
    """The number of successive values of a rate.

    >>> number_of_values([RateRun(1, 3, 0.1, 0.1), RateRun(4, 2, 0.1, 0.01, 2)])
    2
    """
    before = [None, *(each.last for each in runs)]
    return sum(each.values - (each.value == old) for each, old in zip(runs, before, strict=False))


def rates_of(summary: Summary) -> list[Rate]:
    """The learning rates and weight decays of each group on each worker."""
    return [rate for rate in summary.trace.data.rates if rate.root == summary.root]


def _rates(summary: Summary) -> Iterator[str]:
    """Yield phrases: `learning rate 0.1 -> 0.001 (40 values)`, `weight decay 0.01 on all ...`."""
    noun, passed = summary.dialect.variable, len(summary.passed)
    rates = [rate for rate in rates_of(summary) if rate.what == "rate"]
    rates = [rate for rate in rates if rate.variables] or rates
    if rates:
        alike = _by_text(rates)
        differ = sum(map(len, alike.values())) > len(set[int]().union(*alike.values()))
        said = [
            f"{text} on {some(len(of), noun)}" if len(alike) > 1 and not differ else text
            for text, of in alike.items()
        ]
        where = f", by {replica_noun(summary.trace)}" if differ else _read_in(summary, rates)
        yield f"learning rate {listed(said, MAX_RATES)}{where}"
    decays = [rate for rate in rates_of(summary) if rate.what == "decay" and rate.variables]
    for text, of in _by_text(decays).items():
        decaying = [summary.trace.variables[index] for index in sorted(of)]
        flat = [variable.name for variable in decaying if len(variable.shape) < 2]
        among = f", {len(flat):,} of them one-dimensional ({first_of(flat, 2)})"
        among = among if 0 < len(flat) < len(of) < passed else ""
        number = "" if passed == 1 else "all " if len(of) == passed else f"{len(of):,} of "
        if text != "0":
            yield f"weight decay {text} on {number}{some(passed, noun)}{among}"
    for _, scheduled in summary.evidence(Scheduled):
        yield f"scheduled by {scheduled.name}"


def _by_text(rates: Sequence[Rate]) -> dict[str, set[int]]:
    """The variables that had the same rate, by its phrase."""
    alike: dict[str, set[int]] = defaultdict(set)
    for rate in rates:
        alike[_moves(rate)].update(rate.variables)
    return alike


def _read_in(summary: Summary, rates: Sequence[Rate]) -> str:
    """` in all steps` if each step was read, else ` at 12 looks`; empty for a rate that moved."""
    looks = min(rate.looks for rate in rates)
    known = min(sum(run.count for run in rate.runs) for rate in rates)
    moved = any(e.schedule or e.not_finite or number_of_values(e.runs) > 1 for e in rates)
    sampled = any(rate.sampled for rate in rates) or 0 < looks < known
    return first_true(
        (moved or (sampled and not looks), ""),
        (sampled, f" at {some(looks, 'look')}"),
        (known == summary.steps, " in all steps"),
        (True, f" in {some(known, 'step')}"),
    )


def _moves(rate: Rate) -> str:
    """The values: `0.1`, `0.1 -> 0.001 (40 values)`, `0 -> 0.1 -> 0 (40 values)`, or a schedule."""
    ends = [rate.runs[0].value, rate.runs[-1].last] if rate.runs else []
    turns = [run.turn for run in rate.runs if run.turn is not None][:1]
    if rate.schedule:
        known = f": {ends[0]:.3g} in the first step, {ends[1]:.3g} in the last" if ends else ""
        return f"by {rate.schedule}{known}"
    finite = number_of_values(rate.runs)
    points = [f"{value:.3g}" for value in (*ends[:1], *turns, *ends[1:])][
        : None if finite > 1 else 1
    ]
    points += ["NaN or inf"] if rate.not_finite else []
    number = finite + bool(rate.not_finite)
    values = f" ({'at least ' if rate.sampled else ''}{number:,} values)"
    return f"{' -> '.join(points)}{values if number > 1 else ''}"


# The variables that it does not update, and those that others update.


def why_not(summary: Summary) -> dict[int, str]:
    """Why the optimizer does not update a variable of its model, by the variable's index."""
    found: dict[int, str] = {}
    for row in summary.not_updated:
        # A graph keeps its list of variables: it may have updated them since then.
        later = summary.within(range(row.since + 1, summary.steps + 1)) if row.since else None
        made = {} if later is None else later.by(["variable"], updates)
        why = row.why if row.why == "frozen" else f"not passed to {summary.optimizers[0].name}"
        words = shown(f"{why} since step {row.since + 1:,}" if row.since else why)
        # What it has from the first step on and updates, it updates on other ranks.
        on_some = f"{words} on some {replica_noun(summary.trace)}s"
        updated = () if row.since else summary.updated
        still = [index for index in row.variables if not made.get((index,))]
        found |= {index: on_some if index in updated else words for index in still}
    return found


def standing(summary: Summary) -> dict[int, str]:
    """By variable: `frozen; updated by Adam#2`, `also by Adam#2`: why not, and who else updates it.

    Variables that this optimizer alone updates are left out.
    """
    why, trace = why_not(summary), summary.trace
    found = {}
    for index in summary.variables:
        roots = (root for root in trace.derived(_updaters).get(index, ()) if root != summary.root)
        by = listed([shown(trace.optimizers[root].name) for root in roots], MAX_NAMES)
        also = f"{'also' if index in summary.updated else 'updated'} by {by}" if by else ""
        found[index] = "; ".join(filter(None, (why.get(index, ""), also)))
    return {index: text for index, text in found.items() if text}


def _updaters(trace: Trace) -> Mapping[int, Sequence[int]]:
    """The root optimizers that update each variable."""
    roots: dict[int, list[int]] = defaultdict(list)
    for summary in summaries_of(trace):
        for index in summary.updated:
            if not trace.variables[index].argument:
                roots[index].append(summary.root)
    return roots


def _of_variables(summary: Summary) -> Iterator[str]:
    """Yield `Not updated: 12 variables of encoder/*: frozen.`, `Updated: a/b: also by Adam#2.`."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, text in standing(summary).items():
        alike["Updated" if index in summary.updated else "Not updated", text].append(index)
    for (begin, text), indices in sorted(alike.items(), key=lambda group: group[0][0]):
        yield f"{begin}: {which(summary, indices)}: {text}."


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
