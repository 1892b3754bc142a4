"""Why steps update nothing: a loss scale skips them, or gradients are accumulated.

These are the words for it, in all that is said to people, and the judgement whether it is a fault.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tracer.model import measures
from tracer.model.labels import class_of
from tracer.model.measures import Measure
from tracer.model.records import Block, Optimizer
from tracer.model.summary import Summary
from tracer.model.timeline import Stretch

SKIPPED_BY = "skipped_by"
"""The setting of a transformation of optax with what in it skips steps: `apply_if_finite`."""


class Reason(NamedTuple):
    """Why gradients that were handed over were not applied."""

    text: str
    """`accumulated (4 steps)`; empty if the trace does not show it."""
    clause: str
    """The same as a clause: `gradients are being accumulated`."""
    everywhere: bool
    """Whether all steps that updated nothing got gradients, so that it holds for each of them."""
    usual: bool
    """Whether that is as it should be: known, and no fault."""

    @property
    def in_brackets(self) -> str:
        """` (accumulated, 4 steps)`, where it holds for each of them; else empty."""
        plain = self.text.replace(" (", ", ").replace(")", "")
        return f" ({plain})" if plain and self.everywhere else ""


def reason(summary: Summary) -> Reason:
    """Why steps in which gradients came updated nothing, as far as the trace shows it."""
    in_steps = summary.spread(measures.tries, measures.requests)
    text, clause = _words(summary)
    skips = None if summary.trace.only else skipped(summary)  # a part of a trace shows no fault
    usual = bool(text) and not (skips and skips.hopeless)
    return Reason(text, clause, all(came for made, came in in_steps if not made), usual)


_HALVINGS = 15
"""How often a loss scale halves from TensorFlow's and Keras' first one, 2**15, to 1."""


class Skipped(NamedTuple):
    """The steps that a loss scale skipped."""

    number: int
    first: int
    longest: tuple[int, int]
    """The first and the last step of most in a row."""
    by: Optimizer
    hopeless: bool
    """Whether no scale can help: the gradients are infinite or NaN whatever the scale is."""


def skipped(summary: Summary) -> Skipped | None:
    """What a loss scale skipped; None if it is nothing, or if that is not known."""
    scales = [each for each in summary.optimizers if is_loss_scale(each)]
    accumulates = accumulated_steps(summary) > 1
    reached = accumulations(summary) if accumulates else measures.tries
    if not scales or not summary.trace.complete or not summary.steps:
        return None
    if reached is None or summary.unplaced(reached):
        return None
    replica = summary.replicas[0]  # a loss scale decides for all replicas
    timeline = summary.timeline(reached, replica=replica)
    streaks = [(first, last) for first, last, _ in timeline.spans(lambda made: not any(made))]
    if not streaks:
        return None
    longest = max(streaks, key=lambda each: each[1] - each[0])
    in_a_row = longest[1] - longest[0] + 1
    hopeless = (
        scales[0].settings.get("dynamic_scale") == 0
        or in_a_row > _halvings(scales[0])
        or in_a_row == summary.steps_on[replica]
    )
    return Skipped(timeline.spread[(0,)], streaks[0][0], longest, scales[0], hopeless)


def _halvings(scale: Optimizer) -> int:
    """How many steps in a row a loss scale skips until it has found a scale that works.

    More than that cannot be for the scale: it is 1 or less by then.
    """
    initial = scale.settings.get("initial_scale")
    if isinstance(initial, int | float) and initial >= 1:
        return math.ceil(math.log2(initial))
    return _HALVINGS


def reason_for_all(summary: Summary) -> Reason | None:
    """Why no step of a whole run updated anything; None if one did, or if it is not known."""
    if not summary.steps or summary.total(measures.tries):
        return None
    why = reason(summary)
    return why if why.text and why.everywhere else None


def accumulated(summary: Summary) -> str:
    """What is said of a step that kept its gradients for a later one: `accumulated (4 steps)`."""
    return f"accumulated ({accumulated_steps(summary):,} steps)"


def _words(summary: Summary) -> tuple[str, str]:
    """Why they updated nothing, in brackets and as a clause."""
    by, kept = skipper(summary.optimizers), "gradients are being accumulated"
    if accumulated_steps(summary) > 1:
        reached = accumulations(summary)
        number = None if reached is None else summary.total(reached)
        if not by or (number is not None and number >= summary.total(measures.steps)):
            return accumulated(summary), kept
        if number != 0:
            return f"{accumulated(summary)}, or skipped by {by}", f"{kept}, or {by} skipped them"
    if by:
        return f"skipped by {by}", f"skipped by {by}: {_WHY.get(by, 'a gradient was inf or NaN')}"
    if summary.replicas and every(summary, measures.tries, summary.replicas[0]):
        return "accumulating, it seems", f"{kept}, it seems"
    return "", f"{kept}, or a condition skipped them"


_WHY = {
    "MultiSteps": "its should_skip_update_fn said so",
    "the loss scale": "a gradient was not finite",
}
"""Why it skips a step."""


def is_loss_scale(optimizer: Optimizer) -> bool:
    """Whether it is an optimizer that skips steps, as those whose gradients are not finite."""
    return bool(_skips(optimizer))


def skipper(optimizers: Iterable[Optimizer]) -> str:
    """What skips steps, as people call it; empty if nothing does."""
    return next(filter(None, map(_skips, optimizers)), "")


def _skips(optimizer: Optimizer) -> str:
    if optimizer.settings.get("grad_scaler"):
        return "GradScaler"
    if setting := optimizer.settings.get(SKIPPED_BY):
        return str(setting)
    return "the loss scale" if "LossScale" in class_of(optimizer) else ""


def accumulated_steps(summary: Summary) -> int:
    """Of how many steps the optimizer was told to accumulate the gradients."""
    return max(map(_accumulated, summary.optimizers), default=1)


def _accumulated(optimizer: Optimizer) -> int:
    setting = optimizer.settings.get("gradient_accumulation_steps")
    return setting if isinstance(setting, int) else 1


def accumulations(summary: Summary) -> Measure | None:
    """Counts the steps that reached an optimizer which accumulates; None if that is not known.

    Each of them added its gradients up, or applied a whole group. One that a loss scale skipped is
    none of them: it did not reach the optimizer inside.
    """
    optimizers = summary.trace.optimizers

    def count(block: Block) -> int:
        steps = (entry for entry in block.entries if entry.role == "step")
        kept = (each.times for each in steps if _accumulated(optimizers[each.optimizer]) > 1)
        return max(kept, default=0)

    if any(each.settings.get(SKIPPED_BY) for each in summary.optimizers):
        return _reached_optax
    known = summary.total(count) or not summary.total(measures.tries)
    return count if known and accumulated_steps(summary) > 1 else None


def _reached_optax(block: Block) -> int:
    """Counts the steps in which a transformation computed anything, be it for a later one."""
    return int(block.step and any(entry.role in ("update", "discarded") for entry in block.entries))


def every(summary: Summary, measure: Measure, replica: int) -> int:
    """`n` if the executions came every nth step from the nth to the end, otherwise 0."""
    match summary.timeline(measure, replica=replica).stretches:
        case [Stretch(cycle=((_, (0,)), (1, _))) as first, *others]:
            rest = [part for each in others for part in each.cycle]
            if sum(n for n, _ in rest) < first.period and not any(made for _, (made,) in rest):
                return first.period
    return 0
