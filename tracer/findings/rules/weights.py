"""Rules on what steps did to the weights: they need effects, which have to be asked for."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tracer.findings.cases import Case, Fact, cases, fact_of, names_of, subject
from tracer.findings.rule import rule
from tracer.model.measures import updates
from tracer.model.records import Observation
from tracer.model.runs import Run
from tracer.model.summary import Summary
from tracer.model.timeline import Timeline
from tracer.model.wording import plural, some

MIN_UPDATES = 3
"""Fewer updates that change nothing are usual: a warm-up begins with a learning rate of 0."""
MIN_LAST_UPDATES = 5
"""The same for the last updates."""
LAST_SHARE = 4
"""They are at least one of so many."""


class _Of(NamedTuple):
    """A variable on a replica."""

    replica: int
    variable: int


class _Moves(NamedTuple):
    """What came of the updates of a variable."""

    updated: int
    """In how many steps it was updated."""
    last_change: int
    """The last of them that changed it; 0 if none did."""
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
    seen = _runs(summary, "not_finite")
    begins = {of: min((run.first for run in runs), default=0) for of, runs in seen.items()}
    if not begins:
        return
    first = min(begins.values())
    at_first = sorted({of.variable for of, step in begins.items() if step == first})
    everyone = sorted({of.variable for of in begins})
    replicas = {of.replica for of, step in begins.items() if step == first}
    looked = _runs(summary, "compared")
    compared = {of.variable for of in looked}
    since = min((run.first for runs in looked.values() for run in runs), default=0)
    when = f"after step {first:,}" if first else "after some steps"
    text = f"{subject(summary, at_first)} held infinite or NaN values {when}"
    if first and first == since:
        text += f", the first one{' that was looked at' if first > 1 else ''}, or before it"
    if len(everyone) > len(at_first):
        text += f", and {len(everyone):,} of {some(len(compared), 'variable')} did so in the end"
    yield Case(
        "error",
        f"{text}.",
        "Look at the checkpoint that was loaded, or at what the weights were made with, and at the "
        "data of that step."
        if first and first == since
        else "Go back to a checkpoint from before that step. Look at the data and the loss of that "
        "step (log of 0, a division by 0, an overflow of float16): "
        f"{summary.dialect.find_nan} stops where it begins. A lower learning "
        "rate or clipping helps where gradients explode.",
        names_of(summary, everyone),
        first or None,
        _id_of(summary, replicas),
    )


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
    broken = [run.first for runs in _runs(summary, "not_finite").values() for run in runs]
    end = min(broken, default=0)
    before = f" before step {end:,}, which made a weight infinite or NaN" if end else ""
    moves = _moves(summary, end)
    never: list[Fact] = []
    stopped: list[Fact] = []
    known: set[int] = set()
    for of, move in sorted(moves.items()):
        if of.variable in known:
            continue  # its other replicas do as the first one
        if not move.last_change and move.since >= MIN_UPDATES:
            never.append(fact_of([of.variable], move.since))
            known.add(of.variable)
        elif move.last_change and move.since >= max(MIN_LAST_UPDATES, move.updated / LAST_SHARE):
            stopped.append(fact_of([of.variable], move.since, step=move.last_change + 1))
            known.add(of.variable)
    dead = {variable for fact in never for variable in fact.variables}
    moving = {of.variable for of, move in moves.items() if move.last_change}
    if never and not moving:
        yield from cases(
            summary,
            "error",
            [each._replace(numbers=(), step=1) for each in never],
            lambda which, _: (
                f"No step changed any bit of {which}, and "
                f"{plural(len(dead), 'it was', 'all of them were')} updated in "
                f"{some(max(move.updated for move in moves.values()), 'step')}{before}."
            ),
            "Print the learning rate: it may be 0, or so small that the change is lost. If it is "
            "not, all gradients are 0: look at the loss.",
        )
        never = []
    yield from cases(
        summary,
        "warning",
        never,
        lambda which, fact: (
            f"{which} {fact.was} updated in {some(fact.numbers[0], 'step')}{before}, and no bit of "
            f"{plural(len(fact.variables), 'it', 'them')} changed."
        ),
    )
    yield from cases(
        summary,
        "warning",
        stopped,
        lambda which, fact: (
            f"{which} {plural(len(fact.variables), 'has', 'have')} not changed since step "
            f"{fact.step:,}: {some(fact.numbers[0], 'update')}{before} changed nothing."
        ),
        "Print the learning rate: a schedule may have come to 0. If it has not, the gradient is 0 "
        "(a layer that is cut off, a loss at its minimum), or too small beside the weight for its "
        "type.",
    )


def _moves(summary: Summary, end: int) -> dict[_Of, _Moves]:
    """What came of the updates before step `end`, of each variable; of all updates if it is 0."""
    moves = {}
    for pattern in summary.patterns:
        for replica in pattern.replicas if pattern.effects and not pattern.argument else ():
            steps = min(summary.steps_on[replica], end - 1) if end else summary.steps_on[replica]
            seen: tuple[Observation, ...] = "compared", "unchanged"
            move = _moved(pattern.timeline(updates, replica=replica, observations=seen), steps)
            for variable in pattern.variables if move.updated else ():
                if 0 not in summary.trace.variables[variable].shape:  # else it cannot change
                    moves[_Of(replica, variable)] = move
    return moves


def _moved(timeline: Timeline, steps: int) -> _Moves:
    """What came of updates, from the updates, looks and looks without a change in each step."""
    looked = [at for at in timeline.upto(steps) if at[1][0] and at[1][1]]
    changed = max((part.last for part, (_, _, still) in looked if not still), default=0)
    since = sum(n for n, (made, seen, _) in timeline.within(changed + 1, steps) if made and seen)
    return _Moves(sum(part.number for part, _ in looked), changed, since)


def _runs(summary: Summary, what: Observation) -> Mapping[_Of, tuple[Run, ...]]:
    """In which steps something was seen of each variable on each replica, where it was."""
    found: dict[_Of, tuple[Run, ...]] = defaultdict(tuple)
    for effect in summary.trace.data.effects:
        if effect.root == summary.root and effect.what == what and effect.total:
            for variable in effect.variables:
                found[_Of(effect.replica, variable)] += effect.runs
    return dict(found)


def _id_of(summary: Summary, replicas: set[int]) -> int | None:
    """The id of the one replica on which it was so, if there are others."""
    if len(summary.replicas) == 1 or len(replicas) > 1:
        return None
    return summary.trace.replicas[min(replicas)].id
