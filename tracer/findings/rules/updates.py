"""Rules on what was updated, and with what gradient."""

from collections.abc import Iterable, Iterator, Sequence

from tracer.findings.cases import (
    Case,
    Fact,
    Severity,
    class_of,
    fact_of,
    folded,
    names_of,
    of_optimizer,
    subject,
    was,
)
from tracer.findings.histories import Evidence, History, Span
from tracer.findings.rule import rule
from tracer.model.empty import accumulated_steps, is_loss_scale, skipper
from tracer.model.labels import (
    finds_nan,
    framework,
    of_optax,
    of_torch,
    replica_names,
    replica_noun,
)
from tracer.model.measures import counting, tries
from tracer.model.wording import listed, some, some_between, span, times

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
)
def no_gradient(evidence: Evidence) -> Iterator[Case]:
    """Every gradient that was handed over for a variable was `None`."""
    if not evidence.trace.complete:
        return
    facts = [
        fact_of(
            history.variables,
            max(history.count("request", "none", replica=r) for r in history.replicas),
        )
        for history in evidence.histories
        if history.count("request", "none")
        and not history.count("request")
        and not history.count("update")
        and not history.count("vain")
    ]
    for fact in folded(facts):
        steps = some_between(fact.numbers[0], "step")
        text = (
            f"{subject(evidence, fact.variables)} {was(fact.variables)} never updated: "
            f"the gradient was None each time, in {steps}"
        )
        names = names_of(evidence, fact.variables)
        if any(each.kind == "v1" for each in evidence.optimizers):
            yield Case("info", f"{text}.", _OF_THE_GRAPH, names, 1)
        elif framework(evidence.trace, evidence.optimizers) in ("torch", "torch.optim"):
            yield Case("warning", f"{text}.", _CUT_IN_TORCH, names, 1)
        elif framework(evidence.trace, evidence.optimizers) == "jax":
            yield Case("warning", f"{text}.", _CUT_IN_JAX, names, 1)
        else:
            yield Case("warning", f"{text}.", variables=names, step=1)


_CUT_IN_TORCH = (
    "Look for what cuts the parameter from the loss (detach, torch.no_grad, an output that is not "
    "used, backward that is not called), or set its requires_grad to False."
)

_CUT_IN_JAX = (
    "The program itself gives None for it: jax.grad has 0 where the loss does not depend on a "
    "weight. Look for what makes its list of gradients, or take the variable out of it."
)

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
)
def gradient_missing(evidence: Evidence) -> Iterator[Case]:
    """A variable had a gradient in some steps and `None` in others."""
    if not evidence.trace.complete:
        return
    facts = []
    for history in evidence.histories:
        if not history.count("request", "none") or not history.count("request"):
            continue
        replica = history.replicas[0]
        spans = [each for each in history.spans(replica) if each.step.missing]
        if spans and history.placed and _silent(history, replica, evidence) is None:
            steps, first = sum(each.steps for each in spans), min(each.first for each in spans)
            facts.append(fact_of(history.variables, steps, step=first))
    for fact in folded(facts):
        text = (
            f"{subject(evidence, fact.variables)} had no gradient (None) in "
            f"{span(fact.numbers[0])} of {some(evidence.steps, 'step')}, "
            f"first in step {fact.step:,}"
        )
        yield Case("info", f"{text}.", variables=names_of(evidence, fact.variables), step=fact.step)


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
)
def never_updated(evidence: Evidence) -> Iterator[Case]:
    """A variable had a gradient, and was not updated, though others were."""
    if not evidence.trace.complete:
        return
    every = evidence.histories
    if not any(history.count("update") for history in every):
        return
    facts: dict[bool, list[Fact]] = {False: [], True: []}
    for history in every:
        if history.count("request") and not history.count("update") and not history.count("vain"):
            most = max(history.count("request", replica=r) for r in history.replicas)
            facts[_only_skipped(evidence, history)].append(fact_of(history.variables, most))
    for skipped, of in facts.items():
        for fact in folded(of):
            text = (
                f"{subject(evidence, fact.variables)} {was(fact.variables)} never updated, "
                f"though {_asked(evidence)} got a gradient {_times(fact.numbers[0])}"
            )
            text += (
                f", in steps that {_skipper(evidence)} skipped" if skipped else _by_itself(evidence)
            )
            yield Case(
                "warning",
                f"{text}.",
                _infinite(evidence) if skipped else _taken_away(evidence),
                names_of(evidence, fact.variables),
                1,
            )


def _asked(evidence: Evidence) -> str:
    """The method that gets the gradients."""
    if of_optax(evidence.optimizers):
        return "update"
    methods = {"torch.optim": "step", "jax": "stateless_apply", "torch": "apply"}
    return methods.get(framework(evidence.trace, evidence.optimizers), "apply_gradients")


def _taken_away(evidence: Evidence) -> str:
    """What to look for where a gradient came, and no update did."""
    if of_optax(evidence.optimizers):
        return "Look for what the transformation returns in place of an update, as None."
    return f"Look for what takes gradients away in the optimizer's own {_asked(evidence)}."


def _skipper(evidence: Evidence) -> str:
    return skipper(evidence.optimizers) or "the loss scale"


def _infinite(evidence: Evidence) -> str:
    check = finds_nan(evidence.trace, evidence.optimizers)
    where = "in the steps in which it has one"
    return f"Look for what makes the gradients infinite or NaN {where}: {check}."


def _only_skipped(evidence: Evidence, history: History) -> bool:
    """Whether a loss scale skipped each step in which these variables had a gradient."""
    if not any(map(is_loss_scale, evidence.optimizers)) or accumulated_steps(evidence) > 1:
        return False
    if evidence.unplaced(tries):
        return False
    asked = counting(["request"], variable=history.variables[0])
    return not any(made and came for made, came in evidence.spread(tries, asked))


def _by_itself(evidence: Evidence) -> str:
    """What else may have updated a variable that no apply method was called for."""
    for optimizer in evidence.optimizers:
        for remark in optimizer.remarks:
            if remark.code == "own-step":
                return (
                    f" (what {class_of(optimizer)}.{remark.method} assigns by itself is not seen)"
                )
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
)
def stopped(evidence: Evidence) -> Iterator[Case]:
    """A variable was updated up to some step and never again, while others were."""
    if not evidence.trace.complete:
        return
    if not evidence.replicas:
        return
    replica = evidence.replicas[0]  # of those that do not do the same, see replicas_disagree
    every = [
        history
        for history in evidence.histories
        if history.count("update", replica=replica) and history.placed
    ]
    latest = max((_last(history.spans(replica)) for history in every), default=0)
    for because, severity, reason, advice in _STOPPED:
        facts = []
        for history in every:
            silent = _silent(history, replica, evidence)
            went_on = silent is not None and latest > silent[0] + 1  # others were updated
            if silent is not None and silent[1] == because and (went_on or because == "missing"):
                facts.append(fact_of(history.variables, step=silent[0] + 1))
        for fact in folded(facts):
            own = _NOT_HANDED_TO_TORCH if of_torch(evidence.optimizers) else {}
            reason, advice = own.get(because, (reason, advice or _taken_away(evidence)))
            since = f"from step {fact.step:,} on{' or later' if len(facts) > 3 else ''}"
            text = (
                f"{subject(evidence, fact.variables)} {was(fact.variables)} no longer updated "
                f"{since} (of {some(evidence.steps, 'step')}): {reason}"
            )
            yield Case(
                severity,
                f"{text}.",
                advice,
                names_of(evidence, fact.variables),
                fact.step,
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


_NOT_HANDED_TO_TORCH = {
    "missing": (
        "no gradient came since then",
        "Look for what changed at that step: a branch that is no longer taken, a detach, a layer "
        "whose output is no longer used; or other parameters in the model, as after "
        "load_state_dict(assign=True), for which the optimizer is to be made anew.",
    ),
    "nothing": (
        "no longer one of its parameters that require a gradient",
        "If you froze it, this is as it should be. If not, look at requires_grad, and at the "
        "parameter groups.",
    ),
}


def _silent(history: History, replica: int, evidence: Evidence) -> tuple[int, str] | None:
    """The last step with an update and what came after, if no update is due any more.

    None if the steps since then are not many more than there ever were between two updates.
    """
    spans = history.spans(replica)
    last = _last(spans)
    silent = evidence.steps_on[replica] - last
    if not last or silent < max(3, 3 * _gap(spans, last) + 1):
        return None
    after = [each.step for each in spans if each.last > last and not each.step.updates]
    if any(step.gradients for step in after):
        return last, "gradients"
    return last, "missing" if any(step.missing for step in after) else "nothing"


def _last(spans: Iterable[Span]) -> int:
    """The last step with an update, 0 if there is none."""
    return max((each.last for each in spans if each.step.updates), default=0)


def _gap(spans: Iterable[Span], last: int) -> int:
    """At least the longest stretch of steps without an update before the last one."""
    longest = current = 0
    for stretch in spans:
        if stretch.turns > 1:
            current = 0
            longest = max(longest, stretch.period)
        elif stretch.step.updates:
            current = 0
        elif stretch.last < last:
            current += stretch.length
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
def updated_twice(evidence: Evidence) -> Iterator[Case]:
    """A variable was updated more than once in a step."""
    if any(each.code == "updated-twice" for of in evidence.optimizers for each in of.remarks):
        return  # by each member of a `vmap`
    facts = []
    for history in evidence.histories:
        if _uneven(evidence, history):
            continue
        for replica in history.replicas[:1]:
            spans = [each for each in history.spans(replica) if each.step.updates > 1]
            if spans:
                most = max(each.step.updates for each in spans)
                steps = sum(each.steps for each in spans)
                first = min(each.first for each in spans)
                facts.append(fact_of(history.variables, most, steps, step=first))
    for fact in folded(facts):
        in_step, in_steps = fact.numbers
        where = f"in step {fact.step:,}"
        if in_steps[1] > 1:
            of = some(evidence.steps, "step")
            where = f"a step in {span(in_steps)} of {of}, first in step {fact.step:,}"
        text = (
            f"{subject(evidence, fact.variables)} {was(fact.variables)} updated "
            f"{_times(in_step)} {where}"
        )
        advice = _TWICE_IN_TORCH if of_torch(evidence.optimizers) else ""
        names = names_of(evidence, fact.variables)
        yield Case("warning", f"{text}.", advice, names, fact.step)


_TWICE_IN_TORCH = "Look for a step of the optimizer's own class that calls the inherited one twice."


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
        "`ZeroRedundancyOptimizer`, with which each rank updates a part."
    ),
)
def replicas_disagree(evidence: Evidence) -> Iterator[Case]:
    """Replicas that should do the same in each step did not."""
    if not evidence.trace.complete:
        return
    if len(evidence.replicas) < 2 or _one_copy(evidence):
        return
    yield from _steps_disagree(evidence)
    apart: dict[tuple[int, int], list[Fact]] = {}
    for history in evidence.histories:
        counts = {r: history.count("update", replica=r) for r in evidence.replicas}
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        first = history.difference(most, least) if counts[most] > counts[least] else None
        if first is not None and history.placed:
            step, here, there = first
            numbers = (here.updates, there.updates, counts[most], counts[least])
            known = fact_of(history.variables, *numbers, step=step, replica=least)
            apart.setdefault((most, least), []).append(known)
    name_of = replica_names(evidence.trace)
    for (most, least), facts in apart.items():
        for fact in folded(facts):
            in_step, in_step_less, in_all, in_all_less = fact.numbers
            text = (
                f"{subject(evidence, fact.variables)} {was(fact.variables)} updated "
                f"{_times(in_step)} on {name_of[most]} and {_times(in_step_less)} on "
                f"{name_of[least]} in step {fact.step:,}, where they first differ; "
                f"{_times(in_all)} and {_times(in_all_less)} in all"
            )
            yield Case(
                "error",
                f"{text}.",
                _ON_A_RANK if replica_noun(evidence.trace) == "rank" else _on_a_replica(evidence),
                names_of(evidence, fact.variables),
                fact.step,
                evidence.trace.replicas[least].id,
            )


def _on_a_replica(evidence: Evidence) -> str:
    return f"Look for a condition on the replica or on its own data around {_asked(evidence)}."


_ON_A_RANK = "Look for a condition on the rank or on its own data around the step."
_MORE_FOR_A_WORKER = (
    "Give each worker as much data (`dataset.repeat()` with `steps_per_epoch`), and look for a "
    "worker that left the loop early."
)
_MORE_FOR_A_RANK = (
    "Give each rank as many batches (`DistributedSampler` does), and look for a rank that left the "
    "loop early."
)


def _more_for(evidence: Evidence, most: int, behind: Sequence[int]) -> str:
    """What to do for those that made fewer steps than the one that made most."""
    trace = evidence.trace
    if replica_noun(trace) == "rank":
        return _MORE_FOR_A_RANK
    if {trace.replicas[each].worker for each in behind} == {trace.replicas[most].worker}:
        return _on_a_replica(evidence)
    return _MORE_FOR_A_WORKER


def _steps_disagree(evidence: Evidence) -> Iterator[Case]:
    if not evidence.trace.finished:
        return
    steps = evidence.steps_on
    most = max(evidence.replicas, key=lambda r: steps[r])
    behind = [each for each in evidence.replicas if steps[each] < steps[most]]
    if behind:
        low = min(steps[each] for each in behind)
        name_of = replica_names(evidence.trace)
        names = [name_of[each] for each in behind]
        which = listed(names) if len(names) <= 3 else some(len(names), replica_noun(evidence.trace))
        ran = some_between((low, max(steps[each] for each in behind)), "step")
        yield Case(
            "warning",
            f"{which}{of_optimizer(evidence)} ran {ran}, {name_of[most]} ran "
            f"{steps[most]:,}: they differ from step {low + 1:,} on.",
            _more_for(evidence, most, behind),
            step=low + 1,
            replica=evidence.trace.replicas[behind[0]].id,
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
def densified(evidence: Evidence) -> Iterator[Case]:
    """A gradient was sparse when it was handed over, and dense when it was applied."""
    facts = []
    for history in evidence.histories:
        sparse = history.count("request", "sparse")
        dense = history.count("update", "dense")
        mixed = history.count("request", "dense") or history.count("update", "sparse")
        if sparse and dense and not mixed:
            facts += [fact_of([index], _rows(evidence, index)) for index in history.variables]
    for fact in folded(facts):
        text = (
            f"{subject(evidence, fact.variables)}: the gradient was sparse when it reached "
            f"apply_gradients and dense when it was applied{_densifier(evidence)}, with all "
            f"{some_between(fact.numbers[0], 'row')}"
        )
        yield Case("warning", f"{text}.", variables=names_of(evidence, fact.variables))


def _rows(evidence: Evidence, variable: int) -> int:
    shape = evidence.trace.variables[variable].shape
    return (shape[0] or 0) if shape else 1


def _densifier(evidence: Evidence) -> str:
    """` (global_clipnorm is set)`: what may have done it."""
    names = ("gradient_accumulation_steps", "global_clipnorm")
    causes = [
        name for name in names if any(each.settings.get(name) for each in evidence.optimizers)
    ]
    return f" ({listed(causes)} {'is' if len(causes) == 1 else 'are'} set)" if causes else ""


def _one_copy(evidence: Evidence) -> bool:
    if any(class_of(each) == "ZeroRedundancyOptimizer" for each in evidence.optimizers):
        return True  # of PyTorch: each rank updates its own part, and sends it to the others
    return any(name in evidence.trace.environment.get("strategy", "") for name in _ONE_COPY)


def _uneven(evidence: Evidence, history: History) -> bool:
    counts = {history.count("update", replica=each) for each in evidence.replicas}
    return len(counts) > 1 and not _one_copy(evidence)


def _times(numbers: tuple[int, int]) -> str:
    low, high = numbers
    return times(low) if low == high else f"{span(numbers)} times"
