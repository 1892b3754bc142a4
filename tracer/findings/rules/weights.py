"""Rules on what steps did to the weights: they need effects, which have to be asked for."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracer.findings.cases import Case, names_in_short, names_of, of_optimizer
from tracer.findings.rule import rule
from tracer.model.measures import updates
from tracer.model.records import Effect
from tracer.model.summary import Summary
from tracer.model.wording import plural, some

MIN_UPDATES = 3
"""Fewer updates that change nothing are usual: a warm-up begins with a learning rate of 0."""
MIN_LAST_UPDATES = 5
"""The same for the last updates."""
LAST_SHARE = 4
"""They are at least one of so many."""


class _Moves(NamedTuple):
    """What came of the updates of variables."""

    variables: Sequence[int]
    updated: int
    """In how many steps they were updated."""
    last_change: int
    """The last of them that changed them; 0 if none did."""
    since: int
    """How many of them came after that, and changed nothing."""


@rule(
    "not-finite",
    severity="error",
    title="a weight became infinite or NaN",
    why=(
        "NaN spreads: what is computed with it is NaN, its gradients too, and soon all weights "
        "are. No later step can mend it."
    ),
    advice=(
        "Go back to a checkpoint from before that step. Look at the data and the loss of that step "
        "(log of 0, a division by 0, an overflow of float16): tf.debugging.enable_check_numerics() "
        "stops where it begins, as jax_debug_nans and torch.autograd.detect_anomaly() do. A lower "
        "learning rate or clipping helps where gradients explode."
    ),
    explanation=(
        "Needs effects: `tracer.wrap(optimizer, effects=True)` or `tracer run --effects`. Each "
        "variable that a step is handed is looked at when the step has ended; the finding names "
        "the first step after which one held an infinite value or NaN, and the variables that did "
        "so first. If it is the first step that was looked at, they may have been so before, as "
        "those of a checkpoint."
    ),
)
def not_finite(summary: Summary) -> Iterator[Case]:
    """Something in a variable was infinite or NaN when a step had ended."""
    seen = [each for each in summary.effects if each.what == "not_finite" and each.total]
    if not seen:
        return
    looked = [each for each in summary.effects if each.what == "compared" and each.total]
    first = _first_step(seen)
    at_first = [each for each in seen if _first_step([each]) == first]
    replicas = {each.replica for each in at_first}
    names = names_of(summary, sorted({index for each in at_first for index in each.variables}))
    everyone = sorted({index for each in seen for index in each.variables})
    of, noun = of_optimizer(summary), summary.dialect.variable
    when = f"after step {first:,}" if first else "after some steps"
    text = f"{names_in_short(names, of, noun)} held infinite or NaN values {when}"
    from_the_start = first and first == _first_step(looked)
    if from_the_start:
        text += f", the first one{' that was looked at' if first > 1 else ''}, or before it"
    if len(everyone) > len(names):
        compared = {index for each in looked for index in each.variables}
        text += f", and {len(everyone):,} of {some(len(compared), 'variable')} did so in the end"
    yield Case(
        f"{text}.",
        "Look at the checkpoint that was loaded, or at what the weights were made with, and at the "
        "data of that step."
        if from_the_start
        else "Go back to a checkpoint from before that step. Look at the data and the loss of that "
        "step (log of 0, a division by 0, an overflow of float16): "
        f"{summary.dialect.find_nan} stops where it begins. A lower learning "
        "rate or clipping helps where gradients explode.",
        variables=everyone,
        step=first or None,
        replica=min(replicas) if len(summary.replicas) > 1 == len(replicas) else None,
    )


def _first_step(effects: Sequence[Effect]) -> int:
    """The first step in which any of it was seen; 0 if that is not known."""
    return min((run.first for each in effects for run in each.runs), default=0)


@rule(
    "unchanged",
    severity="error",
    title="updates changed nothing",
    why="The update was executed, and every bit of the variable is what it was: it does not learn.",
    advice=(
        "Look at its gradient: 0 for a layer that is cut off (a dead ReLU, a mask, a rounding), "
        "or too small beside the weight for its type, as in float16 and bfloat16."
    ),
    explanation=(
        "Needs effects: `tracer.wrap(optimizer, effects=True)` or `tracer run --effects`. A "
        "variable is named that was updated in at least 3 steps, none of which changed any bit of "
        "it, or that did not change in its last updates, at least 5 and a quarter of all. It is an "
        "error if that is so of all variables from the first step on, as with a learning rate of "
        "0, else a warning. Steps that a loss scale skipped or that only accumulated are no "
        "updates. Nor are those from the first step on that made a weight infinite or NaN, which "
        "`not-finite` reports."
    ),
    needs=("complete",),
)
def unchanged(summary: Summary) -> Iterator[Case]:
    """A variable was updated, and did not change."""
    end = _first_step([each for each in summary.effects if each.what == "not_finite"])
    before = f" before step {end:,}, which made a weight infinite or NaN" if end else ""
    moves = list(_moves(summary, end))
    never = [each for each in moves if not each.last_change and each.since >= MIN_UPDATES]
    if never and not any(each.last_change for each in moves):
        dead = [index for each in never for index in each.variables]
        yield Case(
            "No step changed any bit of {which}, and {all} updated in {steps:step}{before}.",
            "Print the learning rate: it may be 0, or so small that the change is lost. If it is "
            "not, all gradients are 0: look at the loss.",
            variables=dead,
            step=1,
            words={"all": plural(len(dead), "it was", "all of them were"), "before": before},
            numbers={"steps": max(each.updated for each in moves)},
        )
        return
    for each in never:
        yield Case(
            "{which} {were} updated in {steps:step}{before}, and no bit of {them} changed.",
            severity="warning",
            variables=each.variables,
            words={"before": before},
            numbers={"steps": each.since},
        )
    for each in moves:
        if each.last_change and each.since >= max(MIN_LAST_UPDATES, each.updated / LAST_SHARE):
            yield Case(
                "{which} {have} not changed since step {step:,}: {updates:update}{before} changed "
                "nothing.",
                "Print the learning rate: a schedule may have come to 0. If it has not, the "
                "gradient is 0 (a layer that is cut off, a loss at its minimum), or too small "
                "beside the weight for its type.",
                "warning",
                each.variables,
                each.last_change + 1,
                words={"before": before},
                numbers={"updates": each.since},
            )


def _moves(summary: Summary, end: int) -> Iterator[_Moves]:
    """What came of the updates before step `end`, or of all if it is 0, on the first replica.

    The other replicas do as the first one that updates a variable.
    """
    every = summary.trace.variables
    for pattern in summary.asked:
        variables = [each for each in pattern.variables if 0 not in every[each].shape]
        updating = [each for each in pattern.replicas if pattern.total(updates, each)]
        for replica in updating[:1] if pattern.effects and variables else ():
            steps = min(summary.steps_on[replica], end - 1) if end else summary.steps_on[replica]
            timeline = pattern.timeline(
                updates, replica=replica, observations=("compared", "unchanged")
            )
            looked = [
                (at, still) for at, (made, seen, still) in timeline.upto(steps) if made and seen
            ]
            changed = max((at.last for at, still in looked if not still), default=0)
            after = timeline.within(changed + 1, steps)
            since = sum(number for number, (made, seen, _) in after if made and seen)
            yield _Moves(variables, sum(at.number for at, _ in looked), changed, since)
