"""Rules on what steps did to the weights: they need effects, which have to be asked for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tracer.findings.cases import Case, Fact, fact_of, folded, names_of, subject, was
from tracer.findings.histories import Evidence
from tracer.findings.rule import rule
from tracer.model import stretches
from tracer.model.labels import finds_nan
from tracer.model.measures import counting
from tracer.model.records import Observation
from tracer.model.runs import Run
from tracer.model.wording import some, some_between

_FEWEST = 3
"""Fewer updates that change nothing are usual: a warm-up begins with a learning rate of 0."""
_LAST = 5
"""The same for the last updates."""
_SHARE = 4
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
def not_finite(evidence: Evidence) -> Iterator[Case]:
    """Something in a variable was infinite or NaN when a step had ended."""
    seen = _runs(evidence, "not_finite")
    begins = {of: min((run.first for run in runs), default=0) for of, runs in seen.items()}
    if not begins:
        return
    first = min(begins.values())
    at_first = sorted({of.variable for of, step in begins.items() if step == first})
    everyone = sorted({of.variable for of in begins})
    replicas = {of.replica for of, step in begins.items() if step == first}
    looked = _runs(evidence, "compared")
    compared = {of.variable for of in looked}
    since = min((run.first for runs in looked.values() for run in runs), default=0)
    when = f"after step {first:,}" if first else "after some steps"
    text = f"{subject(evidence, at_first)} held infinite or NaN values {when}"
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
        f"{finds_nan(evidence.trace, evidence.optimizers)} stops where it begins. A lower learning "
        "rate or clipping helps where gradients explode.",
        names_of(evidence, everyone),
        first or None,
        _id_of(evidence, replicas),
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
)
def unchanged(evidence: Evidence) -> Iterator[Case]:
    """A variable was updated, and did not change."""
    if not evidence.trace.complete:
        return
    broken = [run.first for runs in _runs(evidence, "not_finite").values() for run in runs]
    end = min(broken, default=0)
    before = f" before step {end:,}, which made a weight infinite or NaN" if end else ""
    moves = _moves(evidence, range(1, end) if end else None)
    never: list[Fact] = []
    stopped: list[Fact] = []
    told: set[int] = set()
    for of, move in sorted(moves.items()):
        if of.variable in told:
            continue  # its other replicas do as the first one
        if not move.last_change and move.since >= _FEWEST:
            never.append(fact_of([of.variable], move.since))
            told.add(of.variable)
        elif move.last_change and move.since >= max(_LAST, move.updated / _SHARE):
            stopped.append(fact_of([of.variable], move.since, step=move.last_change + 1))
            told.add(of.variable)
    dead = {variable for fact in never for variable in fact.variables}
    moving = {of.variable for of, move in moves.items() if move.last_change}
    if never and not moving:
        fact = next(iter(folded([each._replace(numbers=()) for each in never])))
        yield Case(
            "error",
            f"No step changed any bit of {subject(evidence, fact.variables)}, and "
            f"{'it was' if len(dead) == 1 else 'all of them were'} updated in "
            f"{some(max(move.updated for move in moves.values()), 'step')}{before}.",
            "Print the learning rate: it may be 0, or so small that the change is lost. If it is "
            "not, all gradients are 0: look at the loss.",
            names_of(evidence, fact.variables),
            1,
        )
        never = []
    for fact in folded(never):
        yield Case(
            "warning",
            f"{subject(evidence, fact.variables)} {was(fact.variables)} updated in "
            f"{some_between(fact.numbers[0], 'step')}{before}, and no bit of "
            f"{'it' if len(fact.variables) == 1 else 'them'} changed.",
            variables=names_of(evidence, fact.variables),
        )
    for fact in folded(stopped):
        has = "has" if len(fact.variables) == 1 else "have"
        yield Case(
            "warning",
            f"{subject(evidence, fact.variables)} {has} not changed since step {fact.step:,}: "
            f"{some_between(fact.numbers[0], 'update')}{before} changed nothing.",
            "Print the learning rate: a schedule may have come to 0. If it has not, the gradient "
            "is 0 (a layer that is cut off, a loss at its minimum), or too small beside the weight "
            "for its type.",
            names_of(evidence, fact.variables),
            fact.step,
        )


def _moves(evidence: Evidence, wanted: range | None) -> dict[_Of, _Moves]:
    """What came of the updates in the `wanted` steps, of each variable of which all is known."""
    compared, unchanged = (_runs(evidence, what) for what in ("compared", "unchanged"))
    moves = {}
    known: dict[tuple[tuple[Run, ...], ...], _Moves] = {}  # most variables have the same
    for of, looked in compared.items():
        variable = evidence.trace.variables[of.variable]
        if variable.argument or 0 in variable.shape:  # without elements it cannot change
            continue
        key: tuple[tuple[Run, ...], ...]
        key = tuple(_updated(evidence, of)), looked, unchanged.get(of, ())
        if wanted is not None:
            key = tuple(_only(runs, wanted) for runs in key)
        if key not in known:
            known[key] = _moved(key, evidence.steps_on.get(of.replica, 0))
        if known[key].updated:
            moves[of] = known[key]
    return moves


def _only(runs: Iterable[Run], wanted: range) -> tuple[Run, ...]:
    """The part of these runs that is in the wanted steps."""
    return tuple(cut for run in runs if (cut := run.only(wanted)) is not None)


def _moved(runs: tuple[tuple[Run, ...], ...], steps: int) -> _Moves:
    """From the steps in which it was updated, compared and unchanged."""
    number = changed = 0
    for part, turns, still in _steps_with_updates(runs, steps):
        number += part.length * turns
        if not still:
            changed = max(changed, part.last)
    later = range(changed + 1, steps + 1)
    rest = tuple(tuple(cut.moved(-changed) for cut in _only(each, later)) for each in runs)
    left = _steps_with_updates(rest, steps - changed)
    return _Moves(number, changed, sum(part.length * turns for part, turns, _ in left))


def _steps_with_updates(
    runs: tuple[tuple[Run, ...], ...], steps: int
) -> Iterator[tuple[stretches.Steps, int, bool]]:
    """How often they come, and whether it stayed as it was."""
    weighted = [
        (Run(run.first, run.stride, run.count), tuple(int(place == at) for at in range(len(runs))))
        for place, each in enumerate(runs)
        for run in each
    ]
    for stretch in stretches.folded(weighted, steps, len(runs)):
        for part, (updates, compared, still) in stretch.parts():
            if updates and compared:
                yield part, stretch.turns, bool(still)


def _updated(evidence: Evidence, of: _Of) -> Iterator[Run]:
    """The steps in which the variable was updated on the replica."""
    measure = counting(["update"], variable=of.variable)
    for block in evidence.blocks:
        if block.replica == of.replica and not block.outside and measure(block):
            for run in block.runs:
                yield Run(run.first, run.stride, run.count)


def _runs(evidence: Evidence, what: Observation) -> Mapping[_Of, tuple[Run, ...]]:
    """In which steps something was seen of each variable on each replica, where it was."""
    found: dict[_Of, tuple[Run, ...]] = defaultdict(tuple)
    for effect in evidence.trace.data.effects:
        if effect.root == evidence.root and effect.what == what and effect.total:
            for variable in effect.variables:
                found[_Of(effect.replica, variable)] += effect.runs
    return dict(found)


def _id_of(evidence: Evidence, replicas: set[int]) -> int | None:
    """The id of the one replica on which it was so, if there are others."""
    if len(evidence.replicas) == 1 or len(replicas) > 1:
        return None
    return evidence.trace.replicas[min(replicas)].id
