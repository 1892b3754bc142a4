"""Phrases facts about a trace, the same in all reports, and decides why steps updated nothing.

Names of optimizers, steps, replicas and processes; how processes ended; why steps with gradients
updated nothing (skipped, accumulated), and why methods never ran. No TensorFlow.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from tracer.errors import shown
from tracer.model import counts as measures
from tracer.model.evidence import OverrideUnreached, OwnDense
from tracer.model.records import Block, Optimizer
from tracer.model.timeline import Steps
from tracer.model.trace import Summary, Trace
from tracer.model.words import KIND_WORDS, first_true, listed, plural, some


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

_MAX_PROGRAMS = 8  # processes


def has_ended(trace: Trace) -> bool:
    """Whether all programs of the trace ended without an error, so that nothing follows."""
    every = trace.programs
    return trace.finished and bool(every) and all(e.status == 0 and not e.error for e in every)


def endings(trace: Trace) -> list[str]:
    """Return a sentence for each way in which processes of the run failed, or did not end.

    A process that had not ended may have been killed: then it saved its file earlier than others.
    """
    most, alike = Counter({"": trace.steps}), dict[str, list[str]]()
    for (_, replica), steps in trace.steps_by_replica().items():
        worker = trace.replicas[replica].worker
        most[worker] = max(most[worker], steps)
    for program in trace.programs:
        how = first_true(
            (program.error == "KeyboardInterrupt", "ended at Ctrl-C"),
            (program.error, f"ended with {program.error}"),
            (program.status, f"ended with status {program.status}"),
        )
        if not (how or program.finished) and len(trace.programs) > 1:
            saved = _utc(program.started + program.seconds)
            how = f"had not ended when last saved, at {saved:%H:%M} UTC"
        if how:
            alike.setdefault(how, []).append(program.worker)
    sentences = []
    for how, workers in [*alike.items()][:_MAX_PROGRAMS]:
        number = [most[worker] for worker in workers]
        after = f"after {some((min(number), max(number)), 'step')}"
        after = after if max(number) else "before the first step"
        names = [worker for worker in workers if worker]
        whose = f" of {listed(names, _MAX_PROGRAMS)}" if names else ""
        noun = plural(len(names) or 1, "program")
        sentences.append(shown(f"The {noun}{whose} {how}, {after}."))
    more = sum(map(len, [*alike.values()][_MAX_PROGRAMS:]))
    left = [f"{some(more, 'more program')} failed, or had not ended."] if more else []
    return sentences + left


def runs(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each of the first processes: its command and when it began."""
    for program in trace.programs[:_MAX_PROGRAMS]:
        whose, began = f"{program.worker}: " if program.worker else "", _utc(program.started)
        yield shown(f"{whose}{program.command}, on {began:%Y-%m-%d at %H:%M:%S} UTC")
    if len(trace.programs) > _MAX_PROGRAMS:
        yield f"{len(trace.programs) - _MAX_PROGRAMS:,} more processes"


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


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
    by, number = skipper(summary.optimizers), accumulated_steps(summary)
    accumulated = first_true(
        (number > 1, f"accumulated over {number:,} steps"),
        (summary.total(measures.discarded), "accumulated"),
    )
    known = ", or ".join(filter(None, (accumulated, by and f"skipped by {by}")))
    return known or first_true(
        (summary.total(measures.zeroed), SET_TO_ZERO),
        (
            summary.replicas and every(summary, measures.updates, summary.replicas[0]),
            "accumulating, it seems",
        ),
    )


# Loss scales.


class Skips(NamedTuple):
    """The steps skipped by a loss scale."""

    number: int
    first: int
    longest: tuple[int, int]
    """The first and last step of the longest streak."""
    by: Optimizer
    hopeless: bool
    """Whether no loss scale can help: gradients are infinite or NaN at any scale."""


_FIRST_SCALE = 2**15
"""The initial loss scale of TensorFlow and Keras, unless set."""


def skipped(summary: Summary) -> Skips | None:
    """The steps that a loss scale skipped; None if none, or if unknown."""
    scale = next((each for each in summary.optimizers if skipper([each])), None)
    reached = accumulations(summary) if accumulated_steps(summary) > 1 else measures.updates
    if scale is None or not (summary.trace.complete and summary.steps and summary.asked_on):
        return None
    if reached is None or summary.step_unknown(reached):
        return None
    replica = summary.asked_on[0]  # a loss scale decides for all replicas
    timeline = summary.timeline(reached, replica=replica)
    streaks = [(first, last) for first, last, made in timeline.spans() if not any(made)]
    if not streaks:
        return None
    longest = max(streaks, key=lambda each: each[1] - each[0])
    in_a_row = longest[1] - longest[0] + 1
    scales = (scale.settings.get("initial_scale"), _FIRST_SCALE)
    initial = next(each for each in scales if isinstance(each, int | float) and each >= 1)
    halvings = math.ceil(math.log2(initial))  # down to 1
    hopeless = in_a_row > halvings or in_a_row == summary.steps_on[replica]
    return Skips(timeline.spread[(0,)], streaks[0][0], longest, scale, hopeless)


def skipper(optimizers: Iterable[Optimizer]) -> str:
    """The name of what skips steps, for example if gradients are not finite; empty if nothing does.

    For optax, `skipped_by` has the name of a transformation.
    """
    for each in optimizers:
        by = "GradScaler" if each.settings.get("grad_scaler") else each.settings.get("skipped_by")
        if by or "LossScale" in each.class_name.rpartition(".")[2]:
            return str(by or "the loss scale")
    return ""


def accumulated_steps(summary: Summary) -> int:
    """How many steps of gradients the optimizer accumulates."""
    return max(map(_accumulated, summary.optimizers), default=1)


def _accumulated(optimizer: Optimizer) -> int:
    setting = optimizer.settings.get("gradient_accumulation_steps")
    return setting if isinstance(setting, int) else 1


def accumulations(summary: Summary) -> measures.Measure | None:
    """Return a measure of the steps that reached an accumulating optimizer; None if unknown.

    Each of these steps added gradients up, or applied a whole group. A step that a loss scale
    skipped is not counted: it did not reach the optimizer inside. An optax transformation was
    reached if it computed anything, even for a later step.
    """
    if any(each.settings.get("skipped_by") for each in summary.optimizers):
        return lambda block: int(block.step and _computed(block) > 0)
    optimizers = summary.trace.optimizers

    def reached(block: Block) -> int:
        steps = (entry for entry in block.entries if entry.role == "step")  # by each step method
        kept = (each.times for each in steps if _accumulated(optimizers[each.optimizer]) > 1)
        return max(kept, default=0)

    known = summary.total(reached) or not summary.total(measures.updates)
    return reached if known and accumulated_steps(summary) > 1 else None


_computed = measures.counting(["update", "discarded"], None)


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
        (optimizer, own.method, own.line, f"{KIND_WORDS[optimizer.kind].calls} {own.called}")
        for optimizer, own in summary.evidence(OverrideUnreached)
    ]
    methods = summary.trace.methods
    ran = {methods[at].name for at in summary.methods if summary.total(measures.of_methods([at]))}
    if summary.trace.complete and summary.total(measures.sparse):
        found += [
            (optimizer, own.method, own.line, "every gradient that was applied was sparse")
            for optimizer, own in summary.evidence(OwnDense)
            if own.method not in ran and not summary.total(measures.dense)
        ]
    sentences = (
        shown(f"{method} of {class_of(optimizer)}{f' ({line})' if line else ''} never ran: {why}.")
        for optimizer, method, line, why in found
    )
    return list(dict.fromkeys(sentences))
