"""Decides why steps with gradients updated nothing; `phrases` has the words. No TensorFlow."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tracer.model import counts as measures
from tracer.model.records import Block, Optimizer
from tracer.model.timeline import Steps
from tracer.model.trace import Summary


@dataclass(frozen=True)
class Accumulated:
    """The gradients were kept for a later step."""

    every: int = 1
    """The number of steps whose gradients one update takes; 1 if a schedule sets it."""
    seems: bool = False
    """True if only the regular steps show it."""


@dataclass(frozen=True)
class Skipped:
    """The gradients were dropped, for example because they were not finite."""

    by: str
    """`the loss scale`, `GradScaler`, or the name of a transformation of optax."""


@dataclass(frozen=True)
class SetToZero:
    """`set_to_zero` of optax replaced the updates."""


@dataclass(frozen=True)
class NothingPassed:
    """The step got no variables."""


@dataclass(frozen=True)
class NoGradient:
    """All gradients of the step were None."""


Fact = Accumulated | Skipped | SetToZero | NothingPassed | NoGradient


@dataclass(frozen=True)
class Reason:
    """Why steps updated nothing."""

    facts: tuple[Fact, ...]
    """One of these; empty if the trace does not show it."""
    everywhere: bool
    """Whether the reason holds for all steps that updated nothing: all got gradients, or none."""
    usual: bool
    """Whether the reason is known, and no fault."""


def reason(summary: Summary) -> Reason:
    """Return why steps updated nothing, as far as the trace shows it.

    If any of them got gradients, why these were not applied.
    """
    in_steps = summary.spread(measures.updates, measures.requests, measures.missing)
    idle = [(came, none) for made, came, none in in_steps if not made]
    if idle and not any(came for came, _ in idle):
        with_none = {none > 0 for _, none in idle}
        fact = NoGradient() if True in with_none else NothingPassed()
        return Reason((fact,), len(with_none) == 1, False)
    facts, skips = _facts(summary), skipped(summary)
    usual = bool(facts) and not (skips and skips.hopeless)
    return Reason(facts, all(came for came, _ in idle), usual)


def reason_for_all(summary: Summary) -> Reason | None:
    """Why no step of the run updated anything; None if one did, or if unknown."""
    if not summary.steps or summary.total(measures.updates):
        return None
    why = reason(summary)
    return why if why.facts and why.everywhere else None


def _facts(summary: Summary) -> tuple[Fact, ...]:
    by, kept = skipper(summary.optimizers), Accumulated(accumulated_steps(summary))
    if kept.every > 1 or summary.total(measures.discarded):
        reached = accumulations(summary)
        number = None if reached is None else summary.total(reached)
        if not by or (number is not None and number >= summary.total(measures.steps)):
            return (kept,)
        if number != 0:
            return kept, Skipped(by)
    if by:
        return (Skipped(by),)
    if summary.total(measures.zeroed):
        return (SetToZero(),)
    seems = summary.replicas and every(summary, measures.updates, summary.replicas[0])
    return (Accumulated(seems=True),) if seems else ()


# Loss scales.


@dataclass(frozen=True)
class Skips:
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
    if scale is None or not summary.trace.complete or not summary.steps:
        return None
    if reached is None or summary.step_unknown(reached) or not summary.asked_on:
        return None
    replica = summary.asked_on[0]  # a loss scale decides for all replicas
    timeline = summary.timeline(reached, replica=replica)
    streaks = [(first, last) for first, last, _ in timeline.spans(lambda made: not any(made))]
    if not streaks:
        return None
    longest = max(streaks, key=lambda each: each[1] - each[0])
    in_a_row = longest[1] - longest[0] + 1
    scales = (scale.settings.get("initial_scale"), _FIRST_SCALE)
    initial = next(n for n in scales if isinstance(n, int | float) and n >= 1)
    hopeless = (
        scale.settings.get("dynamic_scale") == 0
        or in_a_row > math.ceil(math.log2(initial))  # the number of halvings down to 1
        or in_a_row == summary.steps_on[replica]
    )
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
        case [(_, (0,)), (Steps(length=1, every=int(number)), _)]:
            return number
        case [
            (_, (0,)),
            (Steps(length=1, every=int(number)), _),
            (Steps(every=None) as rest, (0,)),
        ]:
            return number if rest.length < number else 0
    return 0
