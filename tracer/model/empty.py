"""Why steps update nothing by design: a loss scale skips them, or gradients are accumulated."""

from typing import NamedTuple

from tracer.model import measures
from tracer.model.measures import Measure
from tracer.model.records import Optimizer
from tracer.model.tally import Tally


class Reason(NamedTuple):
    """Why gradients that were handed over were not applied."""

    text: str
    """`accumulating`; empty if the trace does not show it."""
    everywhere: bool
    """Whether all steps that updated nothing got gradients, so that it holds for each of them."""


def reason(tally: Tally) -> Reason:
    """Why steps in which gradients came updated nothing, as far as the trace shows it."""
    in_steps = tally.spread(measures.tries, measures.requests)
    return Reason(_text(tally), all(came for made, came in in_steps if not made))


def _text(tally: Tally) -> str:
    scaled = any(map(is_loss_scale, tally.optimizers))
    if accumulated_steps(tally) > 1:
        return "accumulating, or skipped" if scaled else "accumulating"
    if scaled:
        return "skipped by the loss scale"
    first = tally.replicas[0] if tally.replicas else None
    if first is not None and every(tally, measures.tries, first):
        return "accumulating, it seems"
    return ""


def is_loss_scale(optimizer: Optimizer) -> bool:
    """Whether it is an optimizer that skips steps whose gradients are not finite."""
    return "LossScale" in optimizer.class_name.rpartition(".")[2]


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
