"""Phrases facts about a trace, the same in all reports, and decides why steps updated nothing.

Names of optimizers, steps, replicas and processes; how processes ended; why steps with gradients
updated nothing (skipped, accumulated), and why methods never ran. The facts on an optimizer: why it
made no step; its own count of steps, backward passes, learning rates and weight decay; which
variables it does not update, and why; who else updates them. No TensorFlow.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import takewhile

from tracer.model import counts as measures
from tracer.model.dialects import KIND_WORDS
from tracer.model.evidence import (
    BackwardPasses,
    Fitted,
    Iterations,
    NoStep,
    Scheduled,
)
from tracer.model.records import Optimizer, Rate, RateRun
from tracer.model.timeline import Steps
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.words import first_true, listed, plural, shown, some, times

MAX_RATES = 3  # in a sentence
MAX_NAMES = 3  # of variables, layers or optimizers in a sentence


def class_of(optimizer: Optimizer) -> str:
    """The name of an optimizer's class, without the module."""
    return optimizer.class_name.rpartition(".")[2]


def steps_label(steps: Steps) -> str:
    """The text of steps: `33`, `1-32`, or `4, 8 … 64` for recurring steps.

    >>> steps_label(Steps(1, 63, 3, 4))
    '1-3, 5-7 … 61-63'
    """
    first, last, length, every = steps
    begins = [first] if every is None else [first, first + every, last - length + 1]
    spans = [f"{at:,}" if length == 1 else f"{at:,}-{at + length - 1:,}" for at in begins]
    return spans[0] if every is None else f"{spans[0]}, {spans[1]} … {spans[2]}"


def program_lines(trace: Trace) -> dict[int, str]:
    """The line that made each root optimizer, by index, if others have its class.

    Keras numbers their names (`adam`, `adam_3`), which say little.
    """
    roots = {i: each for i, each in enumerate(trace.optimizers) if each.root == i}
    several = Counter(each.class_name for each in roots.values())
    return {
        index: each.made
        for index, each in roots.items()
        if each.made and several[each.class_name] > 1
    }


def replica_noun(trace: Trace) -> str:
    """The program's word for a replica: `rank`, for a process of PyTorch, or `replica`."""
    others = any(not replica.worker.startswith("rank:") for replica in trace.replicas)
    return "replica" if others or not trace.replicas else "rank"


def replica_ids(trace: Trace) -> list[str]:
    """The names for a column headed by `replica_noun`: `0`, or `worker:1/0`."""
    several = len(trace.workers) > 1
    if replica_noun(trace) == "rank":
        return [each.worker.removeprefix("rank:") for each in trace.replicas]
    return [f"{each.worker}/{each.id}" if several else str(each.id) for each in trace.replicas]


# Processes: which ran, and how they ended.

_MAX_PROGRAMS = 3  # processes


def has_ended(trace: Trace) -> bool:
    """Whether all programs of the trace ended without an error, so that nothing follows."""
    well = all(each.status == 0 and not each.error for each in trace.data.programs)
    return trace.finished and bool(trace.data.programs) and well


def endings(trace: Trace) -> list[str]:
    """Return a sentence for each of the first processes that failed, or did not end."""
    steps_of = Counter({"": trace.steps})
    for (_, replica), steps in trace.steps_by_replica().items():
        worker = trace.replicas[replica].worker
        steps_of[worker] = max(steps_of[worker], steps)
    sentences = []
    for program in trace.data.programs:
        how = first_true(
            (program.error == "KeyboardInterrupt", "ended at Ctrl-C"),
            (program.error, f"ended with {program.error}"),
            (program.status, f"ended with status {program.status}"),
            (
                not program.finished and len(trace.data.programs) > 1,
                "had not ended when last saved",
            ),
        )
        steps, whose = steps_of[program.worker], f" of {program.worker}" if program.worker else ""
        after = f"after {some(steps, 'step')}" if steps else "before the first step"
        if how:
            sentences.append(shown(f"The program{whose} {how}, {after}."))
    more = some(len(sentences) - _MAX_PROGRAMS, "more program")
    left = [f"{more} failed, or had not ended."] if len(sentences) > _MAX_PROGRAMS else []
    return sentences[:_MAX_PROGRAMS] + left


def runs(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each of the first processes: its command and when it began."""
    for program in trace.data.programs[:_MAX_PROGRAMS]:
        whose = f"{program.worker}: " if program.worker else ""
        began = datetime.fromtimestamp(program.started, timezone.utc)
        yield shown(f"{whose}{program.command}, on {began:%Y-%m-%d at %H:%M:%S} UTC")
    if len(trace.data.programs) > _MAX_PROGRAMS:
        yield f"{len(trace.data.programs) - _MAX_PROGRAMS:,} more processes"


# Why steps updated nothing.

SET_TO_ZERO = "set to zero"
"""Why a leaf of optax was not updated: `set_to_zero` freezes it."""
NOTHING_PASSED = "nothing was passed"
NO_GRADIENT = "no gradient came"


def reason(summary: Summary) -> str:
    """Why steps updated nothing, if the trace shows it and it holds for all of them; else empty."""
    in_steps = summary.spread(measures.updates, measures.requests, measures.missing)
    idle = [(came, none) for made, came, none in in_steps if not made]
    if all(came for came, _ in idle):
        return not_applied(summary)
    without = {NO_GRADIENT if none else NOTHING_PASSED for _, none in idle}
    return "" if any(came for came, _ in idle) or len(without) > 1 else without.pop()


def not_applied(summary: Summary) -> str:
    """Why steps that got gradients updated nothing, as is no fault; empty if unknown."""
    by, number = skipper(summary.optimizers), accumulated_steps(summary.optimizers)
    accumulated = first_true(
        (number > 1, f"accumulated over {number:,} steps"),
        (summary.total(measures.discarded), "accumulated"),
    )
    known = ", or ".join(filter(None, (accumulated, by and f"skipped by {by}")))
    return (
        f"{known}{or_dropped(summary)}"
        if known
        else first_true(
            (summary.total(measures.zeroed), SET_TO_ZERO),
            (
                summary.replicas and every(summary, measures.updates, summary.replicas[0]),
                "accumulating, it seems",
            ),
        )
    )


def or_dropped(summary: Summary) -> str:
    """`, or dropped by Half.apply`, if a class of the program may drop gradients; else empty."""
    own = ((class_of(each), found.method) for each, found in summary.methods_that("own step"))
    return next((f", or dropped by {name}.{method}" for name, method in own), "")


# Loss scales and accumulation.


def skipper(optimizers: Iterable[Optimizer]) -> str:
    """The name of what skips steps, for example if gradients are not finite; empty if nothing does.

    For optax, `skipped_by` has the name of a transformation.
    """
    for each in optimizers:
        by = "GradScaler" if each.settings.get("grad_scaler") else each.settings.get("skipped_by")
        if by or "LossScale" in each.class_name.rpartition(".")[2]:
            return str(by or "the loss scale")
    return ""


def accumulated_steps(optimizers: Iterable[Optimizer]) -> int:
    """How many steps of gradients one of the optimizers accumulates."""
    settings = [each.settings.get("gradient_accumulation_steps") for each in optimizers]
    return max((number for number in settings if isinstance(number, int)), default=1)


def every(summary: Summary, measure: measures.Measure, replica: int) -> int:
    """Return `n` if the executions came every nth step from the nth to the end, else 0."""
    match [*summary.timeline(measure, replica=replica).parts()]:
        case [(_, (0,)), (Steps(length=1, every=int(number)), _), *rest]:
            ends = all(steps.every is None and made == (0,) for steps, made in rest)
            return number if ends and sum(steps.length for steps, _ in rest) < number else 0
    return 0


# Methods that never ran.


def never_reached(summary: Summary) -> list[str]:
    """Return a sentence for each update method of the program that never ran.

    Nothing calls it, or it is for dense gradients and there were none.
    """
    found = [
        (
            optimizer,
            own.method,
            own.line,
            f"{KIND_WORDS[optimizer.kind].calls} {own.called}",
        )
        for optimizer, own in summary.methods_that("unreached")
    ]
    methods = summary.trace.methods
    ran = {methods[at].name for at in summary.methods if summary.total(measures.of_methods([at]))}
    if summary.trace.complete and summary.total(measures.sparse):
        found += [
            (optimizer, own.method, own.line, "every gradient that was applied was sparse")
            for optimizer, own in summary.methods_that("own dense")
            if own.method not in ran and not summary.total(measures.dense)
        ]
    said = (
        f"{method} of {class_of(optimizer)}{f' ({line})' if line else ''} never ran: {why}."
        for optimizer, method, line, why in found
    )
    return [*dict.fromkeys(map(shown, said))]


# The facts on an optimizer.


def sentences_on(summary: Summary) -> list[str]:
    """The sentences on an optimizer, the numbers first."""
    numbers = "; ".join([*_own_counts(summary), *_rates(summary)])
    first = [f"{numbers[:1].upper()}{numbers[1:]}."] if numbers else []
    return [*map(shown, [*first, *_of_variables(summary)])]


# Its steps.

_WHY_NO_STEP = {
    "all frozen": ": all variables of its model are frozen",
    "not reached": ": train_step called no step method",
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


def _own_counts(summary: Summary) -> Iterator[str]:
    """The optimizer's own count of steps, and the backward passes, where they are not the steps."""
    counted = {*summary.steps_on.values(), summary.steps}
    if not summary.step_unknown(measures.updates):  # or of the steps that updated something
        counted |= {steps - summary.idle_on[on] for on, steps in summary.steps_on.items()}
    for own in dict.fromkeys(own for _, own in summary.evidence(Iterations)):
        if summary.trace.complete and (own.begin or own.end not in counted):
            yield f"iterations {own.begin:,} -> {own.end:,}"
    for used in dict.fromkeys(used for _, used in summary.evidence(BackwardPasses)):
        if used.passes != summary.steps:
            yield f"{used.passes:,} backward {plural(used.passes, 'pass', 'passes')}"


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
    finite = [rate for rate in rates_of(summary) if not rate.not_finite]
    rates = [rate for rate in finite if rate.what == "rate"]
    rates = [rate for rate in rates if rate.variables] or rates
    if rates:
        alike = _by_text(rates)
        differ = sum(map(len, alike.values())) > len(set[int]().union(*alike.values()))
        said = [
            f"{text} on {some(len(of), noun)}" if len(alike) > 1 and not differ else text
            for text, of in alike.items()
        ]
        by = f", by {replica_noun(summary.trace)}" if len(summary.workers) > 1 else ""
        where = by if differ else _read_in(summary, rates)
        yield f"learning rate {listed(said, MAX_RATES)}{where}"
    decays = [rate for rate in finite if rate.what == "decay" and rate.variables]
    for text, of in _by_text(decays).items():
        decaying = [summary.trace.variables[index] for index in sorted(of)]
        flat = [variable.name for variable in decaying if len(variable.shape) < 2]
        among = f", {len(flat):,} of them one-dimensional ({listed(flat, 2)})"
        among = among if 0 < len(flat) < len(of) < passed else ""
        number = "" if passed == 1 else "all " if len(of) == passed else f"{len(of):,} of "
        if text != "0":
            yield f"weight decay {text} on {number}{some(passed, noun)}{among}"
    others = [rate for rate in rates_of(summary) if rate.not_finite]
    yield from dict.fromkeys(
        f"{'learning rate' if rate.what == 'rate' else 'weight decay'} {rate.not_finite}"
        f"{_read_in(summary, [rate])}"
        for rate in others
    )
    for _, scheduled in summary.evidence(Scheduled):
        yield f"scheduled by {scheduled.name}"


def _by_text(rates: Sequence[Rate]) -> dict[str, set[int]]:
    """The variables that had the same rate, by its phrase."""
    alike: dict[str, set[int]] = defaultdict(set)
    for rate in rates:
        alike[_moves(rate)].update(rate.variables)
    return alike


def _read_in(summary: Summary, rates: Sequence[Rate]) -> str:
    """` in all steps` if each was read, else `, read 12 times`; empty if they moved or differ.

    A step of the program's own may set a rate for itself, so a look beside it proves less.
    """
    looks = min(rate.looks for rate in rates)
    is_beside = looks and any(summary.methods_that("own step"))
    known, *others = {sum(run.count for run in rate.runs) for rate in rates}
    moved = any(rate.schedule or number_of_values(rate.runs) > 1 for rate in rates)
    return first_true(
        (moved or others, ""),
        (is_beside or 0 < looks < known, f", read {times(looks)}"),
        (known == summary.steps, " in all steps"),
        (True, f" in {some(known, 'step')}"),
    )


def _moves(rate: Rate) -> str:
    """The values: `0.1`, `0.1 -> 0.001 (40 values)`, `0 -> 0.1 -> 0 (40 values)`, or a schedule."""
    ends = [rate.runs[0].value, rate.runs[-1].last] if rate.runs else []
    if rate.schedule:
        known = f": {ends[0]:.3g} in the first step, {ends[1]:.3g} in the last" if ends else ""
        return f"by {rate.schedule}{known}"
    number, steps = number_of_values(rate.runs), sum(run.count for run in rate.runs)
    if number <= 1:
        return f"{ends[0]:.3g}"
    values = [at for run in rate.runs for at in (run.value, run.turn, run.last) if at is not None]
    turns = [at for at in (max(values), min(values)) if not min(ends) <= at <= max(ends)][:1]
    points = " -> ".join(f"{value:.3g}" for value in (*ends[:1], *turns, *ends[1:]))
    return f"{points} ({'at least ' if 0 < rate.looks < steps else ''}{number:,} values)"


# The variables that it does not update, and those that others update.


def why_not(summary: Summary) -> dict[int, str]:
    """Why the optimizer does not update a variable of its model, by the variable's index."""
    found: dict[int, str] = {}
    passed = summary.trace.derived(_passed)
    for row in summary.not_updated:
        # A graph keeps its list of variables: it may have updated them since then.
        later = summary.within(range(row.since + 1, summary.steps + 1)) if row.since else None
        made = {} if later is None else later.by(["variable"], measures.updates)
        whom = summary.optimizers[0].name
        if len(summaries_of(summary.trace)) > 1 and passed.isdisjoint(row.variables):
            whom = "any optimizer"
        why = row.why if row.why == "frozen" else f"not passed to {whom}"
        # The look that found it may have been a late one.
        words = shown(f"{why} since step {row.since + 1:,} at the latest" if row.since else why)
        # What it has from the first step on and updates, it updates on other ranks.
        on_some = f"{words} on some {replica_noun(summary.trace)}s"
        updated = () if row.since else summary.updated
        found |= {
            index: on_some if index in updated else words
            for index in row.variables
            if not made.get((index,))
        }
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


def _passed(trace: Trace) -> frozenset[int]:
    """The variables that were passed to any of the optimizers."""
    return frozenset().union(*(summary.passed for summary in summaries_of(trace)))


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
    return f"{some(len(indices), summary.dialect.variable)} of {listed(own, MAX_NAMES)}"


def layers_of(names: Sequence[str], separator: str) -> list[str]:
    """The path of each name up to the first part in which the paths differ.

    >>> layers_of(["net/a/kernel", "net/a/bias", "net/b"], "/")
    ['net/a/*', 'net/a/*', 'net/b']
    """
    paths = [name.split(separator) for name in names]
    outer = zip(*(path[:-1] for path in paths), strict=False)
    is_one = len({(*path[:-1],) for path in paths}) == 1  # layer
    first = max(1, 1 - is_one + sum(1 for _ in takewhile(lambda same: len({*same}) == 1, outer)))
    # A variable and a layer may share a name.
    return [separator.join([*path[:first], *["*"] * bool(path[first:])]) for path in paths]
