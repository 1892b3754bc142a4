"""Rules on what steps did to the weights: they need effects, which have to be asked for."""

from collections.abc import Iterator, Sequence

from tracer.findings.rule import Case, names_of, rule
from tracer.model.measures import effects, updates
from tracer.model.records import Effect
from tracer.model.summary import Summary
from tracer.model.wording import first_true, plural, some

MIN_UPDATES = 3
"""Fewer updates that change nothing are usual: a warm-up begins with a learning rate of 0."""
MIN_LAST_UPDATES = 5
"""The same for the last updates."""
LAST_SHARE = 4
"""They are at least one of so many."""


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
    explains=("not_finite",),
)
def not_finite(summary: Summary) -> Iterator[Case]:
    """Something in a variable was infinite or NaN when a step had ended."""
    seen = [each for each in summary.effects if each.what == "not_finite" and each.total]
    if not seen:
        return
    looked = [each for each in summary.effects if each.what == "compared" and each.total]
    first = min(_first_step([each]) for each in seen)
    at_first = [each for each in seen if _first_step([each]) == first]
    replicas = {each.replica for each in at_first}
    everyone, beginning = _variables(seen), _variables(at_first)
    from_the_start = first and first == _first_step(looked)
    start = first_true(
        (not from_the_start, ""),
        (first > 1, ", the first one that was looked at, or before it"),
        (True, ", the first one, or before it"),
    )
    more = f" of {some(len(_variables(looked)), 'variable')} did so in the end"
    yield Case(
        "{which} held infinite or NaN values after {when}{start}{more}.",
        "Look at the checkpoint that was loaded, or at what the weights were made with, and at the "
        "data of that step."
        if from_the_start
        else "Go back to a checkpoint from before that step. Look at the data and the loss of that "
        "step (log of 0, a division by 0, an overflow of float16): "
        f"{summary.dialect.find_nan} stops where it begins. A lower learning "
        "rate or clipping helps where gradients explode.",
        variables=beginning,
        step=first or None,
        replica=min(replicas) if len(summary.replicas) > 1 == len(replicas) else None,
        words={
            "when": f"step {first:,}" if first else "some steps",
            "start": start,
            "more": f", and {len(everyone):,}{more}" if len(everyone) > len(beginning) else "",
        },
        names=names_of(summary, everyone),
    )


def _variables(effects: Sequence[Effect]) -> list[int]:
    return sorted({index for each in effects for index in each.variables})


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
    explains=("changes", "unchanged"),
)
def unchanged(summary: Summary) -> Iterator[Case]:
    """A variable was updated, and did not change."""
    end = _first_step([each for each in summary.effects if each.what == "not_finite"])
    before = f" before step {end:,}, which made a weight infinite or NaN" if end else ""
    moves = list(_moves(summary, end))
    learns = any(last for _, _, last, _ in moves)
    dead = [i for variables, _, _, since in moves if since >= MIN_UPDATES for i in variables]
    if dead and not learns:
        yield Case(
            "No step changed any bit of {which}, and {all} updated in {steps:step}{before}.",
            "Print the learning rate: it may be 0, or so small that the change is lost. If it is "
            "not, all gradients are 0: look at the loss.",
            variables=dead,
            step=1,
            words={"all": plural(len(dead), "it was", "all of them were"), "before": before},
            numbers={"steps": max(updated for _, updated, _, _ in moves)},
        )
    for variables, updated, last, since in moves if learns else ():
        if not last and since >= MIN_UPDATES:
            yield Case(
                "{which} {were} updated in {steps:step}{before}, and no bit of {them} changed.",
                severity="warning",
                variables=variables,
                words={"before": before},
                numbers={"steps": since},
            )
        elif last and since >= max(MIN_LAST_UPDATES, updated / LAST_SHARE):
            yield Case(
                "{which} {have} not changed since step {step:,}: {updates:update}{before} changed "
                "nothing.",
                "Print the learning rate: a schedule may have come to 0. If it has not, the "
                "gradient is 0 (a layer that is cut off, a loss at its minimum), or too small "
                "beside the weight for its type.",
                "warning",
                variables,
                last + 1,
                words={"before": before},
                numbers={"updates": since},
            )


def _moves(summary: Summary, end: int) -> Iterator[tuple[list[int], int, int, int]]:
    """What came of the updates before step `end`, or of all if it is 0, on the first replica.

    Variables, in how many steps they were updated, the last of these that changed them (0 if none
    did), and how many came after that one. Other replicas do as the first that updates a variable.
    """
    every = summary.trace.variables
    for pattern in summary.asked:
        variables = [each for each in pattern.variables if 0 not in every[each].shape]
        updating = [each for each in pattern.replicas if pattern.total(updates, each)]
        for replica in updating[:1] if pattern.total(effects[0]) and variables else ():
            steps = min(summary.steps_on[replica], end - 1) if end else summary.steps_on[replica]
            timeline = pattern.timeline(updates, *effects[:2], replica=replica)
            looked = [(at, still) for at, (made, seen, still) in timeline.parts() if made and seen]
            changed = max(
                (at.last_before(steps + 1) for at, still in looked if not still), default=0
            )
            updated, since = (
                sum(n for n, (made, seen, _) in timeline.within(first, steps) if made and seen)
                for first in (1, changed + 1)
            )
            yield variables, updated, changed, since
