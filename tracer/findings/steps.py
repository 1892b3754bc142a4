"""Rules on the steps: skipped, accumulated, counted otherwise, or never made."""

import math
from collections.abc import Iterator

from tracer.findings.cases import Case, class_of, of_optimizer, some
from tracer.findings.histories import Evidence
from tracer.model.records import Optimizer
from tracer.model.tally import updates

_HALVINGS = 15
"""How often a loss scale halves from TensorFlow's and Keras' first one, 2**15, to 1."""


def steps_skipped(found: Evidence) -> Iterator[Case]:
    """A loss scale found gradients that were not finite, and skipped the step."""
    scales = [each for each in found.optimizers if _scales(each)]
    if not scales or not found.trace.complete or found.unplaced(updates):
        return
    if _accumulation(found) > 1:
        yield from _skipped_while_accumulating(found)
        return
    for replica in found.replicas[:1]:  # a loss scale decides for all replicas
        number = found.spread(updates, replica=replica)[(0,)]
        if not number:
            return
        streaks = list(_streaks(found, replica))
        first, last = max(streaks, key=lambda each: each[1] - each[0])
        longest = last - first + 1
        which = f"the first of them step {streaks[0][0]:,}"
        if number == 1:
            which = f"step {first:,}"
        elif longest > 1:
            row = f"in a row, from step {first:,} to {last:,}"
            which = f"all {row}" if longest == number else f"{which}; {longest:,} of them {row}"
        text = (
            f"{some(number, 'step')} of {found.steps_on[replica]:,}{of_optimizer(found)} "
            f"{'was' if number == 1 else 'were'} skipped by the loss scale, {which}"
        )
        hopeless = longest > _halvings(scales[0])
        yield Case("warning" if hopeless else "info", f"{text}.", step=streaks[0][0])


def _skipped_while_accumulating(found: Evidence) -> Iterator[Case]:
    """Steps without updates say nothing here, but the inner optimizer's own count does."""
    inner = [each.iterations for each in found.optimizers if not _scales(each)]
    known = [each for each in inner if each is not None]
    if known and found.steps > max(known) > 0:
        number = found.steps - max(known)
        yield Case(
            "info",
            f"{some(number, 'step')} of {found.steps:,}{of_optimizer(found)} "
            f"{'was' if number == 1 else 'were'} skipped by the loss scale.",
        )


def _streaks(found: Evidence, replica: int) -> Iterator[tuple[int, int]]:
    """The first and the last step of those in a row that updated nothing.

    Of steps that repeat a cycle, those of its first two turns and of its last.
    """
    begin = end = 0
    for stretch in found.stretches(updates, replica=replica):
        for turn in sorted({0, min(1, stretch.turns - 1), stretch.turns - 1}):
            first = stretch.first + turn * stretch.period
            for length, (count,) in stretch.cycle:
                if not count and begin and end == first - 1:
                    end = first + length - 1
                elif not count:
                    if begin:
                        yield begin, end
                    begin, end = first, first + length - 1
                first += length
    if begin:
        yield begin, end


def _scales(optimizer: Optimizer) -> bool:
    return "LossScale" in class_of(optimizer)


def _halvings(scale: Optimizer) -> int:
    """How many steps in a row a loss scale skips until it has found a scale that works.

    More than that cannot be for the scale: it is 1 or less by then.
    """
    initial = scale.settings.get("initial_scale")
    if not isinstance(initial, int | float) or initial < 1:
        return _HALVINGS
    return math.ceil(math.log2(initial))


def _accumulation(found: Evidence) -> int:
    """Of how many steps the gradients are accumulated."""
    settings = (each.settings.get("gradient_accumulation_steps") for each in found.optimizers)
    return max((each for each in settings if isinstance(each, int)), default=1)


def steps_differ(found: Evidence) -> Iterator[Case]:
    """Steps that were asked for, steps that updated anything and `iterations` are not the same."""
    if not found.steps or not found.trace.complete or found.unplaced(updates):
        return
    replica = found.replicas[0]
    steps = found.steps_on[replica]
    applied = steps - found.spread(updates, replica=replica)[(0,)]
    for index, made in _made(found, replica).items() if applied else ():
        optimizer = found.trace.optimizers[index]
        moved = optimizer.iterations
        if moved is None or moved == made:
            continue
        told = f"{optimizer.name} made {some(made, 'step')}, and its iterations "
        if moved == 0:
            yield Case("warning", f"{told}stayed at 0.")
        elif moved > made and moved % made == 0:
            yield Case(
                "warning",
                f"{told}moved by {moved:,}, {moved // made:,} for each step.",
                "Count iterations in one place: apply_gradients of the base class does it already.",
            )
        else:
            yield Case("info", f"{told}moved by {moved:,}{_why(moved, applied)}.", _FINE)
    every = _accumulation(found)
    if applied < steps and (every > 1 or not any(map(_scales, found.optimizers))):
        reason = "its own code decides which"
        if every > 1:
            reason = f"the gradients of {every:,} steps are accumulated"
        yield Case(
            "info",
            f"{applied:,} of {some(steps, 'step')}{of_optimizer(found)} updated anything: "
            f"{reason}.",
            _FINE,
        )


def _made(found: Evidence, replica: int) -> dict[int, int]:
    """For each optimizer that updates variables, how often its step method ran on a replica."""
    making: set[int] = set()
    ran: dict[tuple[int, int], int] = {}
    for block in found.blocks:
        for entry in block.entries:
            if entry.role == "update" and not block.outside:
                making.add(entry.optimizer)
            elif entry.role == "step" and block.replica == replica:
                key = entry.optimizer, entry.method
                ran[key] = ran.get(key, 0) + block.total * entry.times
    made = {
        index: max((n for (o, _), n in ran.items() if o == index), default=0) for index in making
    }
    return {index: number for index, number in sorted(made.items()) if number}


_FINE = "If that is what you meant, there is nothing to do."


def _why(moved: int, applied: int) -> str:
    if moved == applied:
        return ", one for each step that updated anything"
    return " (a checkpoint, or an assignment, sets them too)"


def never_used(found: Evidence) -> Iterator[Case]:
    """An optimizer was given its variables, and made no step."""
    root = found.optimizers[0]
    built = root.settings.get("built") or (root.kind == "legacy" and root.iterations is not None)
    idle = not found.blocks and not any(each.iterations for each in found.optimizers)
    if built and idle and found.trace.complete:
        text = f"{root.name} ({class_of(root)}) was built for its variables, and made no step"
        yield Case("warning", f"{text}.")
