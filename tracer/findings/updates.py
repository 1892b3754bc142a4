"""Rules on updates: by which methods, of which variables, and their effect on the weights."""

from collections.abc import Iterable, Iterator, Mapping

from tracer.findings.rule import (
    Case,
    Severity,
    names_in_short,
    names_of,
    of_optimizer,
    rule,
)
from tracer.model.counts import (
    Counts,
    Measure,
    counting,
    dense,
    effects,
    missing,
    requests,
    sparse,
    updates,
    zeroed,
)
from tracer.model.dialects import KIND_WORDS
from tracer.model.evidence import (
    NeverAssigned,
    NeverPassed,
    Scheduled,
    SharedByMembers,
)
from tracer.model.phrases import class_of, replica_noun
from tracer.model.trace import Pattern, Summary, has_all_workers, summaries_of
from tracer.words import listed, plural, some, times

# The methods that make updates.

_LEGACY = "tf_keras.optimizers.legacy.Optimizer"
_METHODS = {
    "update_step": ("(self, gradient, variable, ...)", "keras.optimizers.Optimizer"),
    "_parallel_update_step": ("(self, grads, variables, ...)", "keras.optimizers.Optimizer"),
    "_resource_apply_dense": ("(self, grad, var, ...)", _LEGACY),
    "_resource_apply_sparse": ("(self, grad, var, indices, ...)", _LEGACY),
}
"""The arguments of methods that programs define, and the class that calls each."""


@rule(
    "override-unreached",
    severity="error",
    title="nothing calls this method",
    why="The method never runs: training fails, or uses the update of the base class.",
    advice="Define the method that the base class calls.",
    explanation=(
        "Legacy Keras and tf.compat.v1 optimizers call `_resource_apply_dense` and "
        "`_resource_apply_sparse`; Keras 2.11 and later call `update_step`. Found "
        "before training. Silent if the class also defines the right method, or calls "
        "this one."
    ),
)
def override_unreached(summary: Summary) -> Iterator[Case]:
    for optimizer, own in summary.methods_that("unreached"):
        name, base = class_of(optimizer), KIND_WORDS[optimizer.kind].optimizer
        arguments, _ = _METHODS.get(own.called, ("", ""))
        _, caller = _METHODS.get(own.method, ("", ""))
        derive = f", or derive the class from {caller}" if caller else ""
        yield Case(
            f"{name}.{own.method} overrides nothing: the base class, {base}, calls {own.called}, "
            f"and no other method of {name} calls {own.method}.",
            f"Define `{own.called}{arguments}` instead{derive}.",
        )


@rule(
    "sparse-missing",
    severity="error",
    title="a class has no method for sparse gradients",
    why=(
        "Embeddings have sparse gradients (`tf.IndexedSlices`), and the first one "
        "raises NotImplementedError."
    ),
    advice="Define `_resource_apply_sparse(self, grad, var, indices, apply_state=None)`.",
    explanation=(
        "For subclasses of legacy Keras and tf.compat.v1 optimizers with "
        "`_resource_apply_dense` alone, once a sparse gradient comes."
    ),
)
def sparse_missing(summary: Summary) -> Iterator[Case]:
    trace, methods = summary.trace, summary.trace.methods
    for optimizer, lacks in summary.methods_that("no sparse"):
        called = [i for i in summary.methods if "sparse" in methods[i].name]
        select = counting(["call"], None, called, optimizer=trace.optimizers.index(optimizer))
        found = summary.by(["variable"], select)
        variables = tuple(sorted(index for (index,) in found if index is not None))
        if variables:
            yield Case(
                f"{class_of(optimizer)} has no {lacks.method}, and the gradient of "
                f"{trace.variables[variables[0]].name} is sparse, which raises "
                "NotImplementedError.",
                variables=variables,
            )


@rule(
    "never-assigned",
    severity="error",
    title="an apply method assigned nothing",
    why="The variable keeps its value, however often the method runs.",
    advice="Write to the variable itself, as with `assign_sub`.",
    explanation=(
        "Nothing in the method writes to the variable: `variable = variable - ...` only binds a "
        "Python name. An update by a gradient of 0 is an assignment too, and is not reported. Seen "
        "while TensorFlow traces a graph; in eager mode, effects show the variable as unchanged."
    ),
)
def never_assigned(summary: Summary) -> Iterator[Case]:
    names = [variable.name for variable in summary.trace.variables]
    for optimizer, idle in summary.evidence(NeverAssigned):
        variables = tuple(i for i in summary.variables if names[i] in idle.variables)
        if variables and any(idle.method == method.name for method in summary.trace.methods):
            yield Case(
                f"{class_of(optimizer)}.{idle.method} assigned nothing to {{which}} while it was "
                "traced.",
                f"Assign to the variable itself, as with {KIND_WORDS[optimizer.kind].assign}: "
                "`variable = ...` changes no weight.",
                variables=variables,
            )


# Variables and their gradients.

_ONE_COPY = ("CentralStorageStrategy", "ParameterServerStrategy")
"""Strategies that keep one copy of a variable for all replicas."""


@rule(
    "not-finite",
    severity="error",
    title="a weight became infinite or NaN",
    why="NaN spreads to every value computed from it. No later step repairs it.",
    advice=(
        "Go back to an earlier checkpoint. Look at the data and the loss of that step: "
        "log of 0, division by 0, overflow of float16. If gradients explode, clip them "
        "or lower the learning rate."
    ),
    explanation=(
        "Needs `--effects` or `effects=True`. Names the first step after which a weight "
        "held NaN or infinity; if that is the first observed step, the weight may have "
        "held it before."
    ),
)
def not_finite(summary: Summary) -> Iterator[Case]:
    compared, _, spoilt = effects
    seen = [pattern for pattern in summary.patterns if pattern.total(spoilt)]
    if not seen:
        return
    first = 0 if summary.step_unknown(spoilt) else _first_step(summary, spoilt)
    from_the_start = first and first == _first_step(summary, compared)
    begins = [each for each in seen if not first or _first_step(each, spoilt) == first]
    yield Case(
        f"{{which}} held NaN or infinity after {f'step {first:,}' if first else 'some steps'}"
        f"{', the first one observed, or earlier' if from_the_start else ''}.",
        "Look at the checkpoint or the initial weights, and at the data of that step."
        if from_the_start
        else "Go back to an earlier checkpoint, and look at the data and the loss of that step "
        f"(log of 0, division by 0, overflow of float16): {summary.dialect.advice('find-nan')} "
        "stops where it begins. If gradients explode, clip them or lower the learning rate.",
        variables=_all_of(begins),
        step=first or None,
        names=names_of(summary, _all_of(seen)),
    )


def _all_of(patterns: Iterable[Pattern]) -> tuple[int, ...]:
    """The variables of these patterns, in the order of the trace."""
    return tuple(sorted(index for pattern in patterns for index in pattern.variables))


def _first_step(counts: Counts, measure: Measure, replica: int | None = None) -> int:
    """The first step that counts anything; 0 if there is none, or it is unknown."""
    parts = counts.timeline(measure, replica=replica).parts()
    return next((steps.first for steps, (number,) in parts if number), 0)


MIN_UPDATES = 3
"""Fewer updates without change are normal: a warm-up begins with a learning rate of 0."""


@rule(
    "unchanged",
    severity="error",
    title="updates changed nothing",
    why="The update ran, but the variable does not learn.",
    advice=(
        "Look at its gradient: 0 behind a dead ReLU, a mask or a rounding, or too small "
        "for the type of the weight (float16, bfloat16)."
    ),
    explanation=(
        "Needs `--effects` or `effects=True`. Reported if there were at least 3 updates and no "
        "step changed the variable. An error if no variable ever changed."
    ),
    needs=("complete", "effects known"),
)
def unchanged(summary: Summary) -> Iterator[Case]:
    every, (compared, still, spoilt) = summary.trace.variables, effects
    watched = [
        pattern
        for pattern in summary.asked
        if pattern.total(updates) and pattern.total(compared)
        # Else other shards may have changed.
        if has_all_workers(summary.trace) or not summary.is_sharded(pattern)
    ]
    idle = [each for each in watched if each.total(still) == each.total(compared)]
    for pattern in idle:
        number = max(pattern.total(updates, replica) for replica in pattern.replicas)
        variables = tuple(index for index in pattern.variables if 0 not in every[index].shape)
        if number >= MIN_UPDATES and variables and not pattern.total(spoilt):
            yield Case(
                f"{{which}} {{were}} updated {times(number)}, and no bit of {{them}} changed.",
                ""
                if len(idle) < len(watched)
                else "Print the learning rate: it may be 0, or too small to change anything. If it "
                "is not, all gradients are 0: look at the loss.",
                "warning" if len(idle) < len(watched) else "error",
                variables,
                step=1,
            )


@rule(
    "replicas-disagree",
    severity="error",
    title="replicas or workers made different updates",
    why="Their copies of the variable, or the steps of its shards, are no longer equal.",
    advice=(
        "Look for a condition around the step that holds only on some devices or processes, and "
        "give all of them the same number of batches (with PyTorch: `DistributedSampler`)."
    ),
    explanation=(
        "Compares the steps that all of them ran; fewer steps on one is a warning. A shard that is "
        "never updated may be empty. "
        "Silent if a variable has one copy (`ParameterServerStrategy`, `ZeroRedundancyOptimizer`)."
    ),
    needs=("complete",),
)
def replicas_disagree(summary: Summary) -> Iterator[Case]:
    if len(summary.replicas) < 2 or _one_copy(summary):
        return
    names, steps = [each.label for each in summary.trace.replicas], summary.steps_on
    most = max(summary.replicas, key=lambda r: steps[r])
    behind = [replica for replica in summary.replicas if steps[replica] < steps[most]]
    if behind and summary.trace.finished:
        low = min(steps[replica] for replica in behind)
        ran = some((low, max(steps[replica] for replica in behind)), "step")
        which = names_in_short([names[r] for r in behind], noun=replica_noun(summary.trace))
        yield Case(
            f"{which}{of_optimizer(summary)} ran {ran}, {names[most]} ran {steps[most]:,}: they "
            f"differ from step {low + 1:,} on.",
            severity="warning",
            step=low + 1,
        )
    for pattern in summary.asked:
        total = {each: pattern.total(updates, each) for each in summary.replicas_with(pattern)}
        most, least = max(total, key=lambda r: total[r]), min(total, key=lambda r: total[r])
        # An empty shard needs no update.
        is_due = total[least] or pattern.total(missing, least) or not summary.is_sharded(pattern)
        if total[most] == total[least] or not (pattern.steps_known and is_due):
            continue
        both = min(steps[most], steps[least])
        parts = pattern.timeline(updates.on([most]), updates.on([least])).parts()
        differ = [(at.first, *made) for at, made in parts if len({*made}) > 1 and at.first <= both]
        for step, more, less in differ[:1]:
            yield Case(
                f"{{which}} {{were}} updated {times(more)} on {names[most]} and {times(less)} on "
                f"{names[least]} in step {step:,}, the first that differs (in all: "
                f"{times(total[most])} and {times(total[least])}).",
                variables=pattern.variables,
                step=step,
            )


@rule(
    "never-updated",
    severity="warning",
    title="gradients came, but no update",
    why="The variable keeps its first value, although the program asked for its update.",
    advice=(
        "Look for what drops gradients in the optimizer's own apply_gradients, and for skipped "
        "steps."
    ),
    explanation=(
        "The optimizer got gradients for this variable, and updated only others. Frozen "
        "variables are not passed, and not reported."
    ),
    needs=("complete",),
)
def never_updated(summary: Summary) -> Iterator[Case]:
    own_steps = (
        f"{class_of(optimizer)}.{own.method}" for optimizer, own in summary.methods_that("own step")
    )
    by_itself = next((f" (what {own} assigns by itself is not seen)" for own in own_steps), "")
    any_was = any(pattern.total(updates) for pattern in summary.asked)
    some_ranks = not has_all_workers(summary.trace)
    for pattern in summary.asked if any_was else ():
        elsewhere = some_ranks and (summary.is_partitioned or summary.is_sharded(pattern))
        got = max(pattern.total(requests, replica) for replica in pattern.replicas)
        if got and not (pattern.total(zeroed) or pattern.total(updates) or elsewhere):
            yield Case(
                f"{{which}} {{were}} never updated, though {summary.dialect.step_method} got a "
                f"gradient {times(got)}{by_itself}.",
                variables=pattern.variables,
                step=1,
            )


@rule(
    "no-gradient",
    severity="warning",
    title="the gradient was None",
    why="The loss does not depend on the variable in these steps, so it does not learn.",
    advice=(
        "Find what cuts the variable from the loss (tf.stop_gradient, a comparison, "
        "argmax, rounding, an unused output, NumPy), or take it out of the list."
    ),
    explanation=(
        "A warning if the gradient was None each time; info for tf.compat.v1, whose `minimize` "
        "passes all trainable variables of the graph, and for an optimizer that only moves its "
        "schedule while another one trains. Info if the gradient was None in some steps; from some "
        "step on, see updates-stopped. Frozen variables are not passed, and not reported."
    ),
    needs=("complete",),
)
def no_gradient(summary: Summary) -> Iterator[Case]:
    of_graph = any(optimizer.kind == "v1" for optimizer in summary.optimizers)
    every = summary.trace.variables
    severity: Severity | None = "info" if of_graph or _only_schedules(summary) else None
    for pattern in summary.asked:
        replica = max(pattern.replicas, key=lambda each: pattern.total(missing, each))
        number = pattern.total(missing, replica)
        if number and pattern.total(requests) and pattern.steps_known:
            first = _first_step(pattern, missing, replica)
            if not _silence(summary, pattern, replica):
                yield Case(
                    f"{{which}} had no gradient (None) in {number:,} of "
                    f"{some(summary.steps_on[replica], 'step')}, first in step {first:,}.",
                    "Nothing to do if the model does not use each of its branches in every step.",
                    "info",
                    pattern.variables,
                    first,
                )
        elif number and not pattern.total(_requests_or_updates):
            for index in (i for i in pattern.variables if 0 not in every[i].shape):
                yield Case(
                    "{which} {were} never updated: the gradient was None each time, in "
                    f"{some(number, 'step')}.",
                    "minimize without var_list passes every trainable variable of the "
                    "graph, also those of other networks. If this one should learn, look for what "
                    "cuts it from the loss."
                    if of_graph
                    else "",
                    severity,
                    (index,),
                    step=1,
                )


def _only_schedules(summary: Summary) -> bool:
    """Whether the optimizer only moves a schedule, while another one trains everything."""
    others = summaries_of(summary.trace)
    return (
        any(summary.evidence(Scheduled))
        and not any(pattern.total(_requests_or_updates) for pattern in summary.asked)
        and any(each.total(updates) for each in others)
        and not any(any(each.evidence(NeverPassed)) for each in others)
    )


_requests_or_updates = counting(["request", "update"])


@rule(
    "updates-stopped",
    severity="warning",
    title="no more updates after some step",
    why="From that step on the variable no longer learns.",
    advice="Look for what changed at that step.",
    explanation=(
        "No update for more than three times the longest earlier gap, while the gradient "
        "was None or other variables were updated. Info if the variable was no longer "
        "passed, as after freezing."
    ),
    needs=("complete",),
)
def stopped(summary: Summary) -> Iterator[Case]:
    every = [
        each  # replicas that differ: see replicas_disagree
        for each in summary.asked
        if each.steps_known and each.replicas[0] == summary.replicas_with(each)[0]
    ]
    latest = max((_last(each, each.replicas[0]) for each in every), default=0)
    own = summary.dialect.advice
    for pattern in every:
        first = pattern.replicas[0]
        because, last = _silence(summary, pattern, first), _last(pattern, first)
        if because == "missing" or (because and latest > last + 1):  # others were updated
            code = f"updates-stopped:{because}"
            severity, why, advice = _STOPPED[because]
            yield Case(
                f"{{which}} {{were}} no longer updated from step {last + 1:,} on (of "
                f"{some(summary.steps, 'step')}): {own(f'{code} why', why)}.",
                own(code, advice) or own(never_updated.code, never_updated.advice),
                severity,
                pattern.variables,
                last + 1,
            )


_STOPPED: Mapping[str, tuple[Severity, str, str]] = {
    "missing": (
        "warning",
        "the gradient was None from then on",
        "Look for what changed in the loss at that step: a branch that is no longer taken, a "
        "stop_gradient or detach, a layer whose output is no longer used.",
    ),
    "gradients": ("warning", "a gradient was passed, but not applied", ""),
    "nothing": (
        "info",
        "no longer passed to the optimizer",
        "Nothing to do if you froze it. Otherwise look at the list of variables that the train "
        "step passes.",
    ),
}


def _last(pattern: Pattern, replica: int) -> int:
    """The last step with an update on the replica; 0 if none."""
    timeline = pattern.timeline(updates, replica=replica)
    return max((steps.last for steps, (made,) in timeline.parts() if made), default=0)


def _silence(summary: Summary, pattern: Pattern, replica: int) -> str:
    """The requests after the last update on the replica, if updates are overdue.

    Empty unless there are clearly more steps since then than ever between two updates.
    """
    last, steps = _last(pattern, replica), summary.steps_on[replica]
    gaps = (
        at.every or at.length
        for at, (made,) in pattern.timeline(updates, replica=replica).parts()
        if at.every or (at.last < last and not made)
    )
    if not last or steps - last < max(3, 3 * max(gaps, default=0) + 1):
        return ""
    measures = requests, missing, zeroed
    after = pattern.timeline(*measures, replica=replica).within(last + 1, steps)
    came, none, frozen = map(any, zip(*(values for _, values in after), strict=True))
    return "" if frozen else "gradients" if came else "missing" if none else "nothing"


@rule(
    "updated-twice",
    severity="warning",
    title="several updates of a variable in one step",
    why=("The update is applied twice: twice the learning rate, and momentum moves twice."),
    advice=(
        "Look for a variable that appears twice in the list of gradients, or an "
        "apply_gradients of your own that calls the inherited one twice."
    ),
    explanation=(
        "Within one step and replica; each member of a `jax.vmap` counts alone. Two calls "
        "of apply_gradients are two steps."
    ),
)
def updated_twice(summary: Summary) -> Iterator[Case]:
    by_members = any(summary.evidence(SharedByMembers))  # of a `vmap`, each once
    for pattern in () if by_members else summary.asked:
        timeline = pattern.timeline(updates, replica=pattern.replicas[0])
        parts = [(steps, made) for steps, (made,) in timeline.parts() if made > 1]
        number = sum(steps.within(1, steps.last + 1) for steps, _ in parts)
        counts = {pattern.total(updates, replica) for replica in summary.replicas}
        copies = not _one_copy(summary) and not summary.is_sharded(pattern)
        if parts and not (copies and len(counts) > 1):
            most, first = times(max(made for _, made in parts)), parts[0][0].first
            yield Case(
                f"{{which}} {{were}} updated {most} in step {first:,}."
                if number == 1
                else f"{{which}} {{were}} updated {most} a step in {number:,} of "
                f"{some(summary.steps, 'step')}, first in step {first:,}.",
                variables=pattern.variables,
                step=first,
            )


@rule(
    "densified",
    severity="warning",
    title="a sparse gradient was applied as a dense one",
    why=(
        "A dense update needs memory and time for the whole table, not only for the "
        "rows of the batch."
    ),
    advice=(
        "Clip or accumulate in a way that keeps tf.IndexedSlices, or give the embedding "
        "its own optimizer."
    ),
    explanation=(
        "Every gradient reached apply_gradients as `tf.IndexedSlices`, and every update "
        "was dense. In Keras 3.15 `gradient_accumulation_steps` and `global_clipnorm` "
        "cause this. A gradient that the loss made dense is not reported."
    ),
)
def densified(summary: Summary) -> Iterator[Case]:
    dense_requests = counting(["request"], ["dense"])
    settings = ("gradient_accumulation_steps", "global_clipnorm")
    causes = [key for key in settings if any(own.settings.get(key) for own in summary.optimizers)]
    by = f" ({listed(causes)} {plural(len(causes), 'is', 'are')} set)" if causes else ""
    for pattern in summary.asked:
        came_sparse = pattern.total(requests) > pattern.total(dense_requests) == 0
        if came_sparse and pattern.total(dense) and not pattern.total(sparse):
            yield Case(
                "{which}: the gradient was sparse when it reached apply_gradients and dense "
                f"when it was applied{by}: each update writes all rows.",
                variables=pattern.variables,
            )


def _one_copy(summary: Summary) -> bool:
    """Whether a variable has one copy, or each rank updates a part and sends it to the others."""
    strategy = summary.trace.data.environment.get("strategy", "")
    return summary.is_partitioned or any(name in strategy for name in _ONE_COPY)
