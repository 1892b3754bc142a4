"""Rules on what was updated, and with what gradient."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tracer.findings.cases import (
    Case,
    Fact,
    Severity,
    cases,
    fact_of,
    of_optimizer,
)
from tracer.findings.rule import rule
from tracer.model.labels import (
    class_of,
    replica_names,
    replica_noun,
)
from tracer.model.measures import (
    counting,
    dense,
    ineffective,
    missing,
    requests,
    sparse,
    tries,
    updates,
)
from tracer.model.runs import Run
from tracer.model.skipped_steps import accumulated_steps, is_loss_scale, skipper
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Steps, Timeline, Values
from tracer.model.wording import listed, plural, some, span, times

_ONE_COPY = ("CentralStorageStrategy", "ParameterServerStrategy")
"""Strategies under which a variable has one copy, however many replicas compute gradients."""


@rule(
    "no-gradient",
    severity="warning",
    title="the gradient was always None",
    why="The loss does not depend on the variable, so it never learns.",
    advice=(
        "Look for what cuts the variable from the loss (tf.stop_gradient, an unused output, a "
        "rounding or numpy in between), or take it out of the list."
    ),
    explanation=(
        "apply_gradients was asked for it and got None each time. The optimizer leaves such a "
        "variable out, and Keras warns once. For PyTorch: a parameter of the optimizer that "
        "requires a gradient had none in each step. "
        "It is info for a tf.compat.v1 optimizer, of which "
        "`minimize` hands over every trainable variable of the graph. That of a frozen "
        "layer is not handed over at all, so it is not reported."
    ),
    needs=("complete",),
)
def no_gradient(summary: Summary) -> Iterator[Case]:
    """Every gradient that was handed over for a variable was `None`."""
    facts = [
        fact_of(variables, max(pattern.total(missing, r) for r in pattern.replicas), step=1)
        for pattern in summary.asked
        if (variables := _with_elements(summary, pattern))
        and pattern.total(missing)
        and not pattern.total(_requests_or_tries)
    ]
    of_graph = any(each.kind == "v1" for each in summary.optimizers)
    return cases(
        summary,
        "info" if of_graph else "warning",
        facts,
        lambda which, fact: (
            f"{which} {fact.was} never updated: the gradient was None each time, in "
            f"{some(fact.numbers[0], 'step')}."
        ),
        _OF_THE_GRAPH if of_graph else "",
    )


_requests_or_tries = counting(["request", "update", "vain"])

_OF_THE_GRAPH = (
    "minimize without var_list hands over every trainable variable of the graph, also those of "
    "other networks. Of one that should learn, look for what cuts it from the loss."
)


@rule(
    "gradient-missing",
    severity="info",
    title="the gradient was None in some steps",
    why="In these steps the variable was not updated.",
    advice="If a branch of the model is not used in each step, this is as it should be.",
    explanation=(
        "See no-gradient for a gradient that was always None, and updates-stopped for one that was "
        "None from some step on."
    ),
    needs=("complete",),
)
def gradient_missing(summary: Summary) -> Iterator[Case]:
    """A variable had a gradient in some steps and `None` in others."""
    facts = []
    for pattern in summary.asked:
        if not pattern.total(missing) or not pattern.total(requests):
            continue
        if _is_split(summary, pattern):  # of a part without elements it is always None
            continue
        replica = pattern.replicas[0]
        parts = [steps for steps, step in _parts(pattern, replica) if step.missing]
        if parts and pattern.placed and _silent(pattern, replica, summary) is None:
            steps, first = sum(each.number for each in parts), min(each.first for each in parts)
            facts.append(fact_of(pattern.variables, steps, step=first))
    return cases(
        summary,
        "info",
        facts,
        lambda which, fact: (
            f"{which} had no gradient (None) in {span(fact.numbers[0])} of "
            f"{some(summary.steps, 'step')}, first in step {fact.step:,}."
        ),
    )


@rule(
    "never-updated",
    severity="warning",
    title="gradients came, and no update did",
    why="The variable keeps its first value, although the program asked for its update.",
    advice="Look for what takes gradients away in the optimizer's own apply_gradients.",
    explanation=(
        "apply_gradients got gradients for it that were not None, other variables were updated, "
        "this one never was. Variables that Keras overwrites itself (those of float8 scales) are "
        "reported too. A variable that is not handed to apply_gradients, as that of a frozen "
        "layer, is not."
    ),
    needs=("complete",),
)
def never_updated(summary: Summary) -> Iterator[Case]:
    """A variable had a gradient, and was not updated, though others were."""
    every = summary.asked
    if not any(pattern.total(updates) for pattern in every):
        return
    facts: dict[bool, list[Fact]] = {False: [], True: []}
    for pattern in every:
        if (
            pattern.total(requests)
            and not pattern.total(updates)
            and not pattern.total(ineffective)
        ):
            most = max(pattern.total(requests, r) for r in pattern.replicas)
            facts[_only_skipped(summary, pattern)].append(fact_of(pattern.variables, most, step=1))
    by = skipper(summary.optimizers) or "the loss scale"
    yield from _never(summary, facts[False], _by_itself(summary), _taken_away(summary))
    yield from _never(summary, facts[True], f", in steps that {by} skipped", _infinite(summary))


def _never(summary: Summary, facts: Iterable[Fact], how: str, advice: str) -> Iterator[Case]:
    return cases(
        summary,
        "warning",
        facts,
        lambda which, fact: (
            f"{which} {fact.was} never updated, though {summary.dialect.step_method} got a "
            f"gradient {times(fact.numbers[0])}{how}."
        ),
        advice,
    )


def _taken_away(summary: Summary) -> str:
    """What to look for where a gradient came, and no update did."""
    method = summary.dialect.step_method
    own = f"Look for what takes gradients away in the optimizer's own {method}."
    return summary.dialect.advice("never-updated", own)


def _infinite(summary: Summary) -> str:
    where = "in the steps in which it has one"
    return f"Look for what makes the gradients infinite or NaN {where}: {summary.dialect.find_nan}."


def _only_skipped(summary: Summary, pattern: Pattern) -> bool:
    """Whether a loss scale skipped each step in which these variables had a gradient."""
    if not any(map(is_loss_scale, summary.optimizers)) or accumulated_steps(summary) > 1:
        return False
    if summary.unplaced(tries):
        return False
    asked = counting(["request"], variable=pattern.variables[0])
    return not any(made and came for made, came in summary.spread(tries, asked))


def _by_itself(summary: Summary) -> str:
    """What else may have updated a variable that no apply method was called for."""
    for optimizer, remark in summary.remarks("own-step"):
        return f" (what {class_of(optimizer)}.{remark.method} assigns by itself is not seen)"
    return ""


@rule(
    "updates-stopped",
    severity="warning",
    title="no more updates from some step on",
    why="From that step on the variable no longer learns.",
    advice="Look for what changed at that step.",
    explanation=(
        "The silence is more than three times as long as any before it, and the gradient was None "
        "in it, or other variables went on. It is info if the variable was no longer handed to "
        "apply_gradients, as after it was frozen."
    ),
    needs=("complete",),
)
def stopped(summary: Summary) -> Iterator[Case]:
    """A variable was updated up to some step and never again, while others were."""
    if not summary.replicas:
        return
    replica = summary.replicas[0]  # of those that do not do the same, see replicas_disagree
    every = [
        pattern for pattern in summary.asked if pattern.total(updates, replica) and pattern.placed
    ]
    latest = max((_last(_parts(pattern, replica)) for pattern in every), default=0)
    facts: dict[str, list[Fact]] = {because: [] for because, *_ in _STOPPED}
    for pattern in every:
        last, because = _silent(pattern, replica, summary) or (latest, "")
        if because == "missing" or latest > last + 1:  # others were updated
            facts[because].append(fact_of(pattern.variables, step=last + 1))
    for because, severity, reason, advice in _STOPPED:
        own, code = summary.dialect.advice, f"updates-stopped:{because}"
        why = f"(of {some(summary.steps, 'step')}): {own(f'{code} why', reason)}."
        since = f" or later {why}" if len(facts[because]) > 3 else f" {why}"
        advice = own(code, advice or _taken_away(summary))
        yield from _no_longer(summary, severity, facts[because], since, advice)


def _no_longer(
    summary: Summary, severity: Severity, facts: Iterable[Fact], since: str, advice: str
) -> Iterator[Case]:
    return cases(
        summary,
        severity,
        facts,
        lambda which, fact: (
            f"{which} {fact.was} no longer updated from step {fact.step:,} on{since}"
        ),
        advice,
    )


_STOPPED: tuple[tuple[str, Severity, str, str], ...] = (
    (
        "missing",
        "warning",
        "the gradient was None since then",
        "Look for what changed in the loss at that step: a branch that is no longer taken, a "
        "stop_gradient or detach, a layer whose output is no longer used.",
    ),
    (
        "gradients",
        "warning",
        "a gradient was handed over, and not applied",
        "",
    ),
    (
        "nothing",
        "info",
        "no longer handed to the optimizer",
        "If you froze it, this is as it should be. If not, look at the list of variables that the "
        "train step passes.",
    ),
)


class _Step(NamedTuple):
    """What a variable got in one step."""

    updates: int
    requests: int
    """Gradients."""
    missing: int
    """What was `None` in place of a gradient."""


_Parts = Sequence[tuple[Steps, _Step]]


def _parts(pattern: Pattern, replica: int) -> _Parts:
    """What each of the variables got in the steps of a replica."""
    timeline = pattern.timeline(updates, requests, missing, replica=replica)
    return [(steps, _Step(*values)) for steps, values in timeline.parts()]


def _silent(pattern: Pattern, replica: int, summary: Summary) -> tuple[int, str] | None:
    """The last step with an update and what came after, if no update is due any more.

    None if the steps since then are not many more than least_in_step ever were between two updates.
    """
    parts = _parts(pattern, replica)
    last = _last(parts)
    silent = summary.steps_on[replica] - last
    if not last or silent < max(3, 3 * _gap(parts, last) + 1):
        return None
    after = [step for steps, step in parts if steps.last > last and not step.updates]
    if any(step.requests for step in after):
        return last, "gradients"
    return last, "missing" if any(step.missing for step in after) else "nothing"


def _last(parts: _Parts) -> int:
    """The last step with an update, 0 if least_in_step is none."""
    return max((steps.last for steps, step in parts if step.updates), default=0)


def _gap(parts: _Parts, last: int) -> int:
    """At least the longest stretch of steps without an update before the last one."""
    longest = current = 0
    for steps, step in parts:
        if steps.every is not None:
            current = 0
            longest = max(longest, steps.every)
        elif step.updates:
            current = 0
        elif steps.last < last:
            current += steps.length
        longest = max(longest, current)
    return longest


@rule(
    "updated-twice",
    severity="warning",
    title="several updates of a variable in one step",
    why=(
        "The step is applied twice: a learning rate that is twice as high, and momentum that moves "
        "twice."
    ),
    advice=(
        "Look for a variable that is twice in the list of gradients, or for an apply_gradients of "
        "your own that calls the inherited one twice."
    ),
    explanation=(
        "Counted are updates of one variable in one step on one replica, where all replicas do the "
        "same; where they do not, see replicas-disagree; and not those of the members of a "
        "`jax.vmap`, of which each updates its own. That a train step calls apply_gradients "
        "twice makes two steps of it: see apply-gradients-twice."
    ),
)
def updated_twice(summary: Summary) -> Iterator[Case]:
    """A variable was updated more than once in a step."""
    by_members = any(summary.remarks("updated-twice"))  # of a `vmap`, each once
    facts = []
    for pattern in summary.asked:
        if by_members or _uneven(summary, pattern):
            continue
        for replica in pattern.replicas[:1]:
            parts = [each for each in _parts(pattern, replica) if each[1].updates > 1]
            if parts:
                most = max(step.updates for _, step in parts)
                steps = sum(each.number for each, _ in parts)
                first = min(each.first for each, _ in parts)
                facts.append(fact_of(pattern.variables, most, steps, step=first))
    return cases(summary, "warning", facts, partial(_updated_twice, some(summary.steps, "step")))


def _updated_twice(steps: str, which: str, fact: Fact) -> str:
    in_step, in_steps = fact.numbers
    where = f"in step {fact.step:,}"
    if in_steps[1] > 1:
        where = f"a step in {span(in_steps)} of {steps}, first in step {fact.step:,}"
    return f"{which} {fact.was} updated {times(in_step)} {where}."


@rule(
    "replicas-disagree",
    severity="error",
    title="replicas or workers did not do the same",
    why="Each of them has a copy of the variable, and the copies are no longer the same.",
    advice="Look for a condition on the replica or on its own data around apply_gradients.",
    explanation=(
        "Compared are the steps that both replicas ran. That one replica or worker ran fewer steps "
        "than another is a warning. Strategies with one copy of each variable "
        "(`CentralStorageStrategy`, `ParameterServerStrategy`) are left out, and PyTorch's "
        "`ZeroRedundancyOptimizer` and FSDP, with which each rank updates a part."
    ),
    needs=("complete",),
)
def replicas_disagree(summary: Summary) -> Iterator[Case]:
    """Replicas that should do the same in each step did not."""
    if len(summary.replicas) < 2 or _one_copy(summary):
        return
    yield from _steps_disagree(summary)
    apart: dict[tuple[int, int], list[Fact]] = {}
    for pattern in summary.asked:
        counts = {r: pattern.total(updates, r) for r in summary.replicas}
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        first = _difference(summary, pattern, most, least) if counts[most] > counts[least] else None
        if first is not None and pattern.placed and not _is_split(summary, pattern):
            step, most_in_step, least_in_step = first
            numbers = (most_in_step, least_in_step, counts[most], counts[least])
            known = fact_of(pattern.variables, *numbers, step=step, replica=least)
            apart.setdefault((most, least), []).append(known)
    name_of = replica_names(summary.trace)
    for (most, least), facts in apart.items():
        yield from _disagree(summary, facts, name_of[most], name_of[least])


def _disagree(summary: Summary, facts: Iterable[Fact], most: str, least: str) -> Iterator[Case]:
    return cases(
        summary,
        "error",
        facts,
        lambda which, fact: (
            f"{which} {fact.was} updated {times(fact.numbers[0])} on {most} and "
            f"{times(fact.numbers[1])} on {least} in step {fact.step:,}, where they first differ; "
            f"{times(fact.numbers[2])} and {times(fact.numbers[3])} in all."
        ),
        _ON_A_RANK if replica_noun(summary.trace) == "rank" else _on_a_replica(summary),
    )


def _difference(
    summary: Summary, pattern: Pattern, one: int, other: int
) -> tuple[int, int, int] | None:
    """The first step, of those that both replicas ran, in which the updates differ, and these."""
    weighted: list[tuple[Run, Values]] = [
        *((run, (times, 0)) for run, times in pattern.runs(updates, one)),
        *((run, (0, times)) for run, times in pattern.runs(updates, other)),
    ]
    steps = min(summary.steps_on[each] for each in (one, other))
    parts = Timeline.of(weighted, steps, 2).parts()
    return next(
        (
            (at.first, most_in_step, least_in_step)
            for at, (most_in_step, least_in_step) in parts
            if most_in_step != least_in_step
        ),
        None,
    )


def _on_a_replica(summary: Summary) -> str:
    method = summary.dialect.step_method
    return f"Look for a condition on the replica or on its own data around {method}."


_ON_A_RANK = "Look for a condition on the rank or on its own data around the step."
_MORE_FOR_A_WORKER = (
    "Give each worker as much data (`dataset.repeat()` with `steps_per_epoch`), and look for a "
    "worker that left the loop early."
)
_MORE_FOR_A_RANK = (
    "Give each rank as many batches (`DistributedSampler` does), and look for a rank that left the "
    "loop early."
)


def _more_for(summary: Summary, most: int, behind: Sequence[int]) -> str:
    """What to do for those that made fewer steps than the one that made most."""
    trace = summary.trace
    if replica_noun(trace) == "rank":
        return _MORE_FOR_A_RANK
    if {trace.replicas[each].worker for each in behind} == {trace.replicas[most].worker}:
        return _on_a_replica(summary)
    return _MORE_FOR_A_WORKER


def _steps_disagree(summary: Summary) -> Iterator[Case]:
    if not summary.trace.finished:
        return
    steps = summary.steps_on
    most = max(summary.replicas, key=lambda r: steps[r])
    behind = [each for each in summary.replicas if steps[each] < steps[most]]
    if behind:
        low = min(steps[each] for each in behind)
        name_of = replica_names(summary.trace)
        names = [name_of[each] for each in behind]
        which = listed(names) if len(names) <= 3 else some(len(names), replica_noun(summary.trace))
        ran = some((low, max(steps[each] for each in behind)), "step")
        yield Case(
            "warning",
            f"{which}{of_optimizer(summary)} ran {ran}, {name_of[most]} ran "
            f"{steps[most]:,}: they differ from step {low + 1:,} on.",
            _more_for(summary, most, behind),
            step=low + 1,
            replica=summary.trace.replicas[behind[0]].id,
        )


@rule(
    "densified",
    severity="warning",
    title="a sparse gradient was applied as a dense one",
    why=(
        "A sparse gradient holds the rows that a batch used, a dense one all rows: it takes the "
        "memory of the whole table, and the time to work through it, in each update."
    ),
    advice=(
        "Clip or accumulate in a way that keeps tf.IndexedSlices, or take the embedding's gradient "
        "out of it, with an optimizer of its own."
    ),
    explanation=(
        "Every gradient of the variable reached apply_gradients as `tf.IndexedSlices` and every "
        "update was dense. What makes it dense before, as a regularizer of the whole table does, "
        "is not seen. In Keras 3.15 `gradient_accumulation_steps` and `global_clipnorm` do "
        "this; `clipnorm`, `clipvalue` and `LossScaleOptimizer` do not, and none of them does in "
        "tf_keras 2.21, as the tests show. A sparse gradient does not mean that the other rows "
        "stay as they are: with Adam, Adamax, Nadam, and SGD with momentum, rows of earlier "
        "batches move too. Of the legacy optimizers only Adam does that."
    ),
)
def densified(summary: Summary) -> Iterator[Case]:
    """A gradient was sparse when it was handed over, and dense when it was applied."""
    facts = []
    for pattern in summary.asked:
        sparse_requests, dense_requests = (
            pattern.total(counting(["request"], [kind])) for kind in ("sparse", "dense")
        )
        mixed = dense_requests or pattern.total(sparse)
        if sparse_requests and pattern.total(dense) and not mixed:
            facts += [fact_of([index], _rows(summary, index)) for index in pattern.variables]
    return cases(
        summary,
        "warning",
        facts,
        lambda which, fact: (
            f"{which}: the gradient was sparse when it reached apply_gradients and dense when it "
            f"was applied{_densifier(summary)}, with all {some(fact.numbers[0], 'row')}."
        ),
    )


def _rows(summary: Summary, variable: int) -> int:
    shape = summary.trace.variables[variable].shape
    return (shape[0] or 0) if shape else 1


def _densifier(summary: Summary) -> str:
    """` (global_clipnorm is set)`: what may have done it."""
    names = ("gradient_accumulation_steps", "global_clipnorm")
    causes = [name for name in names if any(each.settings.get(name) for each in summary.optimizers)]
    return f" ({listed(causes)} {plural(len(causes), 'is', 'are')} set)" if causes else ""


def _one_copy(summary: Summary) -> bool:
    if any(class_of(each) == "ZeroRedundancyOptimizer" for each in summary.optimizers):
        return True  # of PyTorch: each rank updates its own part, and sends it to the others
    return any(name in summary.trace.environment.get("strategy", "") for name in _ONE_COPY)


def _uneven(summary: Summary, pattern: Pattern) -> bool:
    counts = {pattern.total(updates, each) for each in summary.replicas}
    return len(counts) > 1 and not _one_copy(summary) and not _is_split(summary, pattern)


def _with_elements(summary: Summary, pattern: Pattern) -> list[int]:
    """The variables without those of which other ranks hold all elements, and get the gradient."""
    every = summary.trace.variables
    return [each for each in pattern.variables if 0 not in every[each].shape]


def _is_split(summary: Summary, pattern: Pattern) -> bool:
    """Whether each worker updates its own part of the variables, which may have no elements."""
    variables = (summary.trace.variables[each] for each in pattern.variables)
    return any(each.part_of == each.name for each in variables)
