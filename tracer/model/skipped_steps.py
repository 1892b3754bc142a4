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
    def expected(self) -> str:
        """The text, if it is no fault and holds for each of them; else empty."""
        return self.text if self.usual and self.everywhere else ""

    @property
    def in_brackets(self) -> str:
        """` (accumulated, 4 steps)`, where it holds for each of them; else empty."""
        plain = self.text.replace(" (", ", ").replace(")", "")
        return f" ({plain})" if plain and self.everywhere else ""


_IT_SEEMS = "accumulating, it seems", "gradients are being accumulated, it seems"
_UNKNOWN = "", "gradients are being accumulated, or a condition skipped them"


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
    if not scales or not summary.trace.complete or reached is None or summary.unplaced(reached):
        return None
    if not summary.steps:
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
    if not isinstance(initial, int | float) or initial < 1:
        return _HALVINGS
    return math.ceil(math.log2(initial))


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
    by = skipper(summary.optimizers)
    scaled = bool(by)
    if accumulated_steps(summary) > 1:
        reached = accumulations(summary)
        all_did = reached is not None and summary.total(reached) >= summary.total(measures.steps)
        if not scaled or all_did:
            return accumulated(summary), "gradients are being accumulated"
        if reached is None or summary.total(reached):
            return (
                f"{accumulated(summary)}, or skipped by {by}",
                f"gradients are being accumulated, or {by} skipped them",
            )
    if scaled:
        return f"skipped by {by}", f"skipped by {by}: {_why(by)}"
    first = summary.replicas[0] if summary.replicas else None
    if first is not None and every(summary, measures.tries, first):
        return _IT_SEEMS
    return _UNKNOWN


def is_loss_scale(optimizer: Optimizer) -> bool:
    """Whether it is an optimizer that skips steps, as those whose gradients are not finite."""
    return bool(_skips(optimizer))


def skipper(optimizers: Iterable[Optimizer]) -> str:
    """What skips steps, as people call it; empty if nothing does."""
    return next(filter(None, map(_skips, optimizers)), "")


def _skips(optimizer: Optimizer) -> str:
    if has_grad_scaler(optimizer):
        return "GradScaler"
    if setting := optimizer.settings.get(SKIPPED_BY):
        return str(setting)
    return "the loss scale" if "LossScale" in class_of(optimizer) else ""


def _why(by: str) -> str:
    """Why it skips a step."""
    if by == "MultiSteps":
        return "its should_skip_update_fn said so"
    return "a gradient was " + ("not finite" if by == "the loss scale" else "inf or NaN")


def has_grad_scaler(optimizer: Optimizer) -> bool:
    """Whether a `GradScaler` of PyTorch decides which of its steps are skipped."""
    return bool(optimizer.settings.get("grad_scaler"))


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
    telling = {
        index
        for index, each in enumerate(summary.trace.optimizers)
        if each.root == summary.root and _accumulated(each) > 1
    }

    def count(block: Block) -> int:
        return max(
            (
                entry.times
                for entry in block.entries
                if entry.role == "step" and entry.optimizer in telling
            ),
            default=0,
        )

    if any(each.settings.get(SKIPPED_BY) for each in summary.optimizers):
        return _reached_optax
    known = telling and (summary.total(count) or not summary.total(measures.tries))
    return count if known else None


def _reached_optax(block: Block) -> int:
    """Counts the steps in which a transformation computed anything, be it for a later one."""
    return int(block.step and any(entry.role in ("update", "discarded") for entry in block.entries))


def every(summary: Summary, measure: Measure, replica: int) -> int:
    """`n` if the executions came every nth step from the nth to the end, otherwise 0."""
    stretches = summary.timeline(measure, replica=replica).stretches
    if not stretches:
        return 0
    first = stretches[0]
    if len(first.cycle) != 2 or first.cycle[0][1] != (0,) or first.cycle[1][0] != 1:
        return 0
    rest = sum(length for each in stretches[1:] for length, _ in each.cycle)
    quiet = all(values == (0,) for each in stretches[1:] for _, values in each.cycle)
    return first.period if quiet and rest < first.period else 0
