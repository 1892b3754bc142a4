"""Rules on updates: by which methods, of which variables, and their effect on the weights."""

from collections.abc import Iterator, Mapping, Sequence

from tracer.findings.rule import (
    Case,
    Severity,
    names_in_short,
    names_of,
    of_optimizer,
    on_replicas,
    rule,
)
from tracer.kinds import KINDS
from tracer.model.counts import (
    counting,
    dense,
    effects,
    missing,
    requests,
    sparse,
    updates,
    zeroed,
)
from tracer.model.evidence import (
    NeverAssigned,
    OutsideModules,
    OverrideUnreached,
    OwnStep,
    Scheduled,
    SharedByMembers,
    SparseMissing,
)
from tracer.model.phrases import accumulated_steps, class_of, replica_noun, skipper
from tracer.model.records import Block, Observation, Optimizer
from tracer.model.trace import Pattern, Summary, has_all_workers, summaries_of
from tracer.model.words import KIND_WORDS, listed, plural, some, times

# The methods that make updates.

_SIGNATURES = {
    "update_step": "`update_step(self, gradient, variable, learning_rate)`",
    "_parallel_update_step": "`_parallel_update_step(self, grads, variables, learning_rate)`",
    "_resource_apply_dense": "`_resource_apply_dense(self, grad, var, apply_state=None)`",
    "_resource_apply_sparse": (
        "`_resource_apply_sparse(self, grad, var, indices, apply_state=None)`"
    ),
}
_NOT_PASSED = {"keras2": ", learning_rate", "v1": ", apply_state=None"}
_BASES = {
    "legacy": "tf_keras.optimizers.legacy.Optimizer",
    "keras3": "keras.optimizers.Optimizer",
    "v1": "tf.compat.v1.train.Optimizer",
}


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
    for optimizer, own in summary.evidence(OverrideUnreached):
        kind, calls = optimizer.kind, own.called
        method = f"{class_of(optimizer)}.{own.method}"
        base = f"the base class, {KIND_WORDS[kind].optimizer}, calls {calls}"
        signature = _SIGNATURES.get(calls, f"`{calls}`")
        signature = signature.replace(_NOT_PASSED.get(kind, ""), "")
        yield Case(
            f"{method} overrides nothing: {base}, and no other method of "
            f"{class_of(optimizer)} calls {own.method}.",
            f"Define {signature} instead{_or_derive(own.method)}.",
        )


def _or_derive(method: str) -> str:
    """`, or derive the class from` the optimizers that call a method of this name, if any do."""
    kinds = (k.name for k in KINDS if method in {each.name for each in k.apply_methods})
    return next((f", or derive the class from {_BASES[k]}" for k in kinds if k in _BASES), "")


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
    for optimizer, own in summary.evidence(SparseMissing):
        variables = _with_sparse_calls(summary, optimizer)
        if variables:
            first = summary.trace.variables[variables[0]].name
            yield Case(
                f"{class_of(optimizer)} has no {own.method}, and the gradient of {first} is "
                "sparse, which raises NotImplementedError.",
                variables=variables,
            )


def _with_sparse_calls(summary: Summary, optimizer: Optimizer) -> tuple[int, ...]:
    """The variables for which Python called a sparse apply method of the optimizer."""
    trace = summary.trace
    sparse = {i for i, method in enumerate(trace.methods) if "sparse" in method.name}
    index = trace.optimizers.index(optimizer)
    entries = [entry for block in trace.data.calls for entry in block.entries]
    of_it = (each for each in entries if each.method in sparse and each.optimizer == index)
    return tuple(sorted({variable for entry in of_it for variable in entry.variables}))


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
    trace = summary.trace
    for optimizer, idle in summary.evidence(NeverAssigned):
        names = [variable.name for variable in trace.variables]
        variables = tuple(i for i in summary.variables if names[i] in idle.variables)
        if variables and any(idle.method == method.name for method in trace.methods):
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
    seen, looked = _effects(summary, "not_finite"), _effects(summary, "compared")
    if not seen:
        return
    first = min(_first_step([effect]) for effect in seen)
    beginning = _variables([effect for effect in seen if _first_step([effect]) == first])
    from_the_start = first and first == _first_step(looked)
    yield Case(
        f"{{which}} held NaN or infinity after {f'step {first:,}' if first else 'some steps'}"
        f"{', the first one observed, or earlier' if from_the_start else ''}.",
        "Look at the checkpoint or the initial weights, and at the data of that step."
        if from_the_start
        else "Go back to an earlier checkpoint, and look at the data and the loss of that step "
        f"(log of 0, division by 0, overflow of float16): {summary.dialect.find_nan} stops where "
        "it begins. If gradients explode, clip them or lower the learning rate.",
        variables=beginning,
        step=first or None,
        names=names_of(summary, _variables(seen)),
    )


def _effects(summary: Summary, what: Observation) -> list[Block]:
    """The steps with this observation."""
    return [each for each in summary.effects if each.total and each.entries[0].role == what]


def _variables(effects: Sequence[Block]) -> tuple[int, ...]:
    return tuple(sorted({index for effect in effects for index in effect.entries[0].variables}))


def _first_step(effects: Sequence[Block]) -> int:
    """The first step of these effects; 0 if unknown."""
    return min((run.first for effect in effects for run in effect.runs), default=0)


MIN_UPDATES = 3
"""Fewer updates without change are normal: a warm-up begins with a learning rate of 0."""
MIN_LAST_UPDATES = 5
"""The minimum for the last updates."""
LAST_SHARE = 4
"""The last updates must be at least one in this many."""


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
        "Needs `--effects` or `effects=True`. Reported if there were at least 3 updates and none "
        "changed the variable, or if the last ones did not (at least 5, and a quarter of all). An "
        "error if no variable ever changed."
    ),
    needs=("complete", "effects known"),
)
def unchanged(summary: Summary) -> Iterator[Case]:
    end = _first_step(_effects(summary, "not_finite"))
    before = f" before step {end:,}, which made a weight infinite or NaN" if end else ""
    moves = list(_moves(summary, end))
    learns = any(last for _, _, last, _ in moves)
    dead = [(variables, since) for variables, _, _, since in moves if since >= MIN_UPDATES]
    if dead and not learns:
        steps = some(max(since for _, since in dead), "step")
        yield Case(
            f"No step changed any bit of {{which}}, though {steps} updated {{them}}{before}.",
            "Print the learning rate: it may be 0, or too small to change anything. If it is not, "
            "all gradients are 0: look at the loss.",
            variables=tuple(index for variables, _ in dead for index in variables),
            step=1,
        )
    for variables, updated, last, since in moves if learns else ():
        if not last and since >= MIN_UPDATES:
            yield Case(
                f"{{which}} {{were}} updated in {some(since, 'step')}{before}, and no bit of "
                "{them} changed.",
                severity="warning",
                variables=variables,
            )
        elif last and since >= max(MIN_LAST_UPDATES, updated / LAST_SHARE):
            yield Case(
                f"{{which}} {{have}} not changed since step {last + 1:,}: "
                f"{some(since, 'update')}{before} changed nothing.",
                "Print the learning rate: a schedule may have reached 0. If it has not, the "
                "gradient is 0 (a layer that is cut off, a loss at its minimum), or too small for "
                "the type of the weight.",
                "warning",
                variables,
                last + 1,
            )


def _moves(summary: Summary, end: int) -> Iterator[tuple[tuple[int, ...], int, int, int]]:
    """Yield the outcome of the updates before step `end`, or of all if `end` is 0.

    Each item has the variables, the number of steps that updated them, the last of these that
    changed them (0 if none), and the number of later ones. Copies count as the first updated one; a
    variable sharded over workers changed if any shard did.
    """
    every = summary.trace.variables
    for pattern in summary.asked:
        variables = tuple(index for index in pattern.variables if 0 not in every[index].shape)
        updating = [each for each in pattern.replicas if pattern.total(updates, each)]
        is_sharded = summary.is_sharded(pattern)
        unknown = is_sharded and not has_all_workers(summary.trace)  # other shards may have changed
        if unknown or not (updating and variables and pattern.total(effects[0])):
            continue
        moves = []
        for replica in updating if is_sharded else updating[:1]:
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
            moves.append((changed, updated, since))
        changed, updated, since = max(moves)
        yield variables, updated, changed, since


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
            replica=behind[0],
        )
    for pattern in summary.asked:
        total = {each: pattern.total(updates, each) for each in summary.replicas_with(pattern)}
        most, least = max(total, key=lambda r: total[r]), min(total, key=lambda r: total[r])
        if total[most] == total[least] or not pattern.steps_known:
            continue
        if summary.is_sharded(pattern) and not (total[least] or pattern.total(missing, least)):
            continue  # an empty shard needs no update
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
                replica=least,
            )


@rule(
    "never-updated",
    severity="warning",
    title="gradients came, but no update",
    why="The variable keeps its first value, although the program asked for its update.",
    advice="Look for what drops gradients in the optimizer's own apply_gradients.",
    explanation=(
        "The optimizer got gradients for this variable, and updated only others. Frozen "
        "variables are not passed, and not reported."
    ),
    needs=("complete",),
)
def never_updated(summary: Summary) -> Iterator[Case]:
    by = skipper(summary.optimizers) or "the loss scale"
    own_steps = (
        f"{class_of(optimizer)}.{own.method}" for optimizer, own in summary.evidence(OwnStep)
    )
    by_itself = next((f" (what {own} assigns by itself is not seen)" for own in own_steps), "")
    any_was = any(pattern.total(updates) for pattern in summary.asked)
    some_ranks = not has_all_workers(summary.trace)
    for pattern in summary.asked if any_was else ():
        elsewhere = some_ranks and (summary.is_partitioned or summary.is_sharded(pattern))
        got = max(pattern.total(requests, replica) for replica in pattern.replicas)
        if got and not (pattern.total(zeroed) or pattern.total(updates) or elsewhere):
            skipped = _only_skipped(summary, pattern)
            how = f", in steps that {by} skipped" if skipped else by_itself
            yield Case(
                f"{{which}} {{were}} never updated, though {summary.dialect.step_method} got a "
                f"gradient {times(got)}{how}.",
                "Look for what makes the gradients infinite or NaN in exactly these steps: "
                f"{summary.dialect.find_nan}."
                if skipped
                else "",
                variables=pattern.variables,
                step=1,
            )


def _only_skipped(summary: Summary, pattern: Pattern) -> bool:
    """Whether a loss scale skipped each step with a gradient for these variables."""
    scaled = bool(skipper(summary.optimizers)) and accumulated_steps(summary.optimizers) == 1
    asked = counting(["request"], variable=pattern.variables[0])
    in_steps = summary.spread(updates, asked)
    return scaled and not summary.step_unknown(updates) and not any(map(all, in_steps))


@rule(
    "no-gradient",
    severity="warning",
    title="the gradient was None",
    why="The loss does not depend on the variable in these steps, so it does not learn.",
    advice=(
        "Look for what cuts the variable from the loss (tf.stop_gradient, an unused "
        "output, rounding, NumPy), or take it out of the list."
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
    every, no_module = summary.trace.variables, ", and no module has {them}{made}"
    unowned = {name for _, own in summary.evidence(OutsideModules) for name in own.variables}
    severity: Severity | None = "info" if of_graph or _only_schedules(summary) else None
    for pattern in summary.asked:
        replica = max(pattern.replicas, key=lambda each: pattern.total(missing, each))
        number = pattern.total(missing, replica)
        if number and pattern.total(requests) and pattern.steps_known:
            parts = pattern.timeline(missing, replica=replica).parts()
            first = next(steps.first for steps, (none,) in parts if none)
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
                lost, on = every[index].name in unowned, on_replicas(summary, pattern.replicas)
                yield Case(
                    "{which} {were} never updated: the gradient was None each time, in "
                    f"{some(number, 'step')}{on}{no_module if lost else ''}.",
                    summary.dialect.advice("no-gradient:unowned")
                    if lost
                    else "minimize without var_list passes every trainable variable of the "
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
        and not any(each.optimizers[0].never_passed for each in others)
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
        first, *others = pattern.replicas
        because, last = _silence(summary, pattern, first), _last(pattern, first)
        if because == "missing" or (because and latest > last + 1):  # others were updated
            code = f"updates-stopped:{because}"
            severity, why, advice = _STOPPED[because]
            alike = [first, *(each for each in others if _last(pattern, each) == last)]
            yield Case(
                f"{{which}} {{were}} no longer updated from step {last + 1:,} on (of "
                f"{some(summary.steps, 'step')}){on_replicas(summary, alike)}: "
                f"{own(f'{code} why', why)}.",
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
    last = _last(pattern, replica)
    steps = summary.steps_on[replica]
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
        number = sum(steps.number for steps, _ in parts)
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
    every, dense_requests = summary.trace.variables, counting(["request"], ["dense"])
    settings = ("gradient_accumulation_steps", "global_clipnorm")
    causes = [key for key in settings if any(own.settings.get(key) for own in summary.optimizers)]
    by = f" ({listed(causes)} {plural(len(causes), 'is', 'are')} set)" if causes else ""
    for pattern in summary.asked:
        came_sparse = pattern.total(requests) > pattern.total(dense_requests) == 0
        if came_sparse and pattern.total(dense) and not pattern.total(sparse):
            for index in pattern.variables:
                rows = some(next(iter(every[index].shape), 1) or 0, "row")
                yield Case(
                    "{which}: the gradient was sparse when it reached apply_gradients and dense "
                    f"when it was applied{by}: each update writes all {rows}.",
                    variables=(index,),
                )


def _one_copy(summary: Summary) -> bool:
    """Whether a variable has one copy, or each rank updates a part and sends it to the others."""
    strategy = summary.trace.environment.get("strategy", "")
    return summary.is_partitioned or any(name in strategy for name in _ONE_COPY)
