"""Why steps update nothing: a loss scale skips them, or gradients are accumulated.

These are the words for it, in all that is said to people.
"""

from typing import NamedTuple

from tracer.model import measures
from tracer.model.measures import Measure
from tracer.model.records import Optimizer
from tracer.model.tally import Tally


class Reason(NamedTuple):
    """Why gradients that were handed over were not applied."""

    text: str
    """`accumulating`; empty if the trace does not show it."""
    clause: str
    """The same as a clause: `gradients are being accumulated`."""
    everywhere: bool
    """Whether all steps that updated nothing got gradients, so that it holds for each of them."""


_SCALED = "skipped by the loss scale", "skipped by the loss scale: a gradient was not finite"
_BY_SCALER = "skipped by GradScaler", "skipped by GradScaler: a gradient was inf or NaN"
_ACCUMULATING = "accumulating", "gradients are being accumulated"
_BOTH = (
    "accumulating, or skipped",
    "gradients are being accumulated, or the loss scale skipped them",
)
_IT_SEEMS = "accumulating, it seems", "gradients are being accumulated, it seems"
_UNKNOWN = "", "gradients are being accumulated, or a condition skipped them"


def reason(tally: Tally) -> Reason:
    """Why steps in which gradients came updated nothing, as far as the trace shows it."""
    in_steps = tally.spread(measures.tries, measures.requests)
    return Reason(*_words(tally), all(came for made, came in in_steps if not made))


def reason_for_all(tally: Tally) -> str:
    """Why no step of a whole run updated anything; empty if one did, or if it is not known."""
    if not tally.steps or tally.total(measures.tries):
        return ""
    why = reason(tally)
    return why.text if why.everywhere else ""


def _words(tally: Tally) -> tuple[str, str]:
    scaled = any(map(is_loss_scale, tally.optimizers))
    if accumulated_steps(tally) > 1:
        return _BOTH if scaled else _ACCUMULATING
    if scaled:
        return _BY_SCALER if any(map(has_grad_scaler, tally.optimizers)) else _SCALED
    first = tally.replicas[0] if tally.replicas else None
    if first is not None and every(tally, measures.tries, first):
        return _IT_SEEMS
    return _UNKNOWN


def is_loss_scale(optimizer: Optimizer) -> bool:
    """Whether it is an optimizer that skips steps whose gradients are not finite."""
    return "LossScale" in optimizer.class_name.rpartition(".")[2] or has_grad_scaler(optimizer)


def has_grad_scaler(optimizer: Optimizer) -> bool:
    """Whether a `GradScaler` of PyTorch decides which of its steps are skipped."""
    return bool(optimizer.settings.get("grad_scaler"))


def accumulated_steps(tally: Tally) -> int:
    """Of how many steps the optimizer was told to accumulate the gradients."""
    settings = (each.settings.get("gradient_accumulation_steps") for each in tally.optimizers)
    return max((each for each in settings if isinstance(each, int)), default=1)


def every(tally: Tally, measure: Measure, replica: int) -> int:
    """`n` if the executions came every nth step from the nth to the end, otherwise 0."""
    stretches = tally.stretches(measure, replica=replica)
    if not stretches:
        return 0
    first = stretches[0]
    if len(first.cycle) != 2 or first.cycle[0][1] != (0,) or first.cycle[1][0] != 1:
        return 0
    rest = sum(length for each in stretches[1:] for length, _ in each.cycle)
    quiet = all(values == (0,) for each in stretches[1:] for _, values in each.cycle)
    return first.period if quiet and rest < first.period else 0
