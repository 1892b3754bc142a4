"""Rules on optimizers and their steps, and on graphs with steps.

Optimizers that were made again or never used, and variables that do not suit them; steps that
raised, were skipped, accumulated, or miscounted; graphs that never ran, functions traced
repeatedly.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from math import ceil, log2

from msgspec import structs

from tracer.findings.rule import (
    MAX_NAMES,
    Case,
    Severity,
    names_in_short,
    names_of,
    of_optimizer,
    rule,
)
from tracer.model.counts import updates
from tracer.model.evidence import (
    Failure,
    Fitted,
    GradientsAdded,
    GradientsLeft,
    Iterations,
    LossNotScaled,
    NeverPassed,
    NoStep,
    StateRenewed,
)
from tracer.model.phrases import (
    NOTHING_PASSED,
    accumulated_steps,
    class_of,
    has_ended,
    or_dropped,
    reason,
    skipper,
)
from tracer.model.records import Graph, NotUpdated
from tracer.model.trace import Summary, Trace, has_all_workers, is_first_only, summaries_of
from tracer.words import listed, plural, some, times

MIN_RENEWED = 3  # optimizers in a row: fine-tuning has two, one a phase
_SCALES = {
    "initial_scale": " by its scale ({:,.0f} at first)",
    "loss_scale_factor": " by its loss_scale_factor ({:,g})",
}


@rule(
    "never-passed",
    severity="warning",
    title="no optimizer gets these trainable variables",
    why="Nothing updates them. A traced train step keeps its list of variables.",
    advice=(
        "Call model.compile again after a change of `trainable`. In your own loop, make "
        "a new tf.function, and a new optimizer if it was built for the other variables "
        "only."
    ),
    explanation=(
        "TensorFlow: layers that became trainable after tracing. `torch.optim`: "
        "parameters of a trained model that get gradients. Silent where it is unclear "
        "which model an optimizer trains, or if other threads may write gradients."
    ),
    needs=("steps", "complete"),
)
def never_passed(summary: Summary) -> Iterator[Case]:
    thawed = (
        "{were} made trainable after the train step was traced, and no optimizer ever got {them}: "
        "the step{of} trains only what was trainable before"
    )
    late = (row for row in summary.not_updated if row.why == "not passed" and row.since)
    never = chain.from_iterable(own.names for _, own in summary.evidence(NeverPassed))
    names = tuple(dict.fromkeys([*never, *_names(summary, late)]))
    own = summary.dialect.advice
    if names:
        advice = own("never-passed:list") if all("[" in name for name in names) else ""
        yield Case(f"{{which}} {own('never-passed:when', thawed)}.", advice, names=names)


def _names(summary: Summary, records: Iterable[NotUpdated]) -> list[str]:
    """The names of the variables of such records."""
    return [summary.trace.variables[index].name for each in records for index in each.variables]


@rule(
    "frozen-but-updated",
    severity="warning",
    title="frozen variables are still updated",
    why="A traced train step keeps its list of variables.",
    advice=(
        "Call model.compile again after a change of `trainable`. In your own loop, make "
        "a new tf.function."
    ),
    explanation=(
        "TensorFlow: `trainable` became False after tracing (tf_keras: after "
        "`compile`). `torch.optim`: requires_grad became False, and the gradient was "
        "kept. Info if there are several optimizers, as in a GAN."
    ),
    needs=("steps",),
)
def frozen_but_updated(summary: Summary) -> Iterator[Case]:
    roots = {optimizer.root for optimizer in summary.trace.optimizers}
    frozen = (
        "{were} frozen (trainable = False) after the train step was traced or compiled, and the "
        "step{of} still updates {them}"
    )
    still = (
        structs.replace(row, variables=_updated_after(summary, row.since, row.variables))
        for row in summary.not_updated
        if row.why == "frozen" and row.since
    )
    if names := (*_names(summary, still),):
        yield Case(
            f"{{which}} {summary.dialect.advice('frozen-but-updated:when', frozen)}.",
            severity="warning" if len(roots) == 1 else "info",
            names=names,
        )


def _updated_after(summary: Summary, step: int, variables: Iterable[int]) -> tuple[int, ...]:
    """The variables that were updated after a step, by all workers: one may have frozen them."""
    later = summary.within(range(step + 1, summary.steps + 1)).by(["variable", "replica"], updates)
    workers = summary.workers.values()
    return tuple(
        index
        for index in variables
        if all(any(later[index, own] for own in replicas) for replicas in workers)
    )


_FROZEN = "all variables of the model are frozen"
_NEVER_CALLS = "train_step never called its apply_gradients"
_APPLY = (
    "Call self.optimizer.apply_gradients(zip(gradients, self.trainable_variables)) in train_step."
)
_THAW = (
    "Set trainable = True for what this model should train, and call its compile again; freeze it "
    "for another model only while that model is trained."
)


@rule(
    "never-used",
    severity="warning",
    title="an optimizer trained nothing",
    why=("It costs memory, and the program may train with another optimizer than it seems to."),
    advice="Check which optimizer the train step calls; compile keeps the one that it got.",
    explanation=(
        "The optimizer made no step, and `fit` trained its model, or its parameters got gradients "
        "and nobody updated them; or nothing in the run was trained, and it was built, or its "
        "steps got no variables. Silent for a model that was loaded, and until the program has "
        "ended."
    ),
    needs=("complete", "finished"),
)
def never_used(summary: Summary) -> Iterator[Case]:
    trace, root = summary.trace, summary.optimizers[0]
    name, whys = f"{root.name} ({class_of(root)})", {own.why for _, own in summary.evidence(NoStep)}
    built = root.settings.get("built") or (root.kind == "legacy" and root.iterations is not None)
    loaded = "from config" in whys or any(own.begin for _, own in summary.evidence(Iterations))
    idle = not (summary.replicas or any(each.iterations for each in summary.optimizers))
    trained = any(summary.evidence(Failure)) or any(
        other.total(updates) for other in summaries_of(trace)
    )
    idles = not trained and has_all_workers(trace)  # other ranks may train
    if idle and any(summary.evidence(Fitted)):
        why, advice = (_FROZEN, _THAW) if "all frozen" in whys else (_NEVER_CALLS, _APPLY)
        yield Case(
            f"fit or train_on_batch trained a model that was compiled with {name}, but the "
            f"optimizer made no step: {why}.",
            advice,
        )
    elif idle and "gradients came" in whys:
        yield Case(
            f"{name} made no step, though its parameters got gradients.",
            "Call its step after backward, or leave it out.",
        )
    elif idles and summary.steps and reason(summary) == NOTHING_PASSED:
        yield Case(
            f"{name} made {some(summary.steps, 'step')}, and nothing was passed in any of them.",
            "Check which variables it gets, and whether they are trainable.",
        )
    elif built and idle and not (loaded or trained):
        yield Case(f"{name} was built for its variables, but made no step.")


@rule(
    "loss-not-scaled",
    severity="warning",
    title="gradients are unscaled but the loss was never scaled",
    why=(
        "Each gradient is too small by the scale, 32,768 at first: SGD hardly moves, and "
        "Adam's epsilon dominates."
    ),
    advice="Compute the gradients of optimizer.scale_loss(loss), inside the GradientTape.",
    explanation=(
        "`LossScaleOptimizer` always divides; `fit` scales the loss, but your own loop "
        "must do so. In tf_keras: `get_unscaled_gradients` without `get_scaled_loss`. "
        "Silent if the code around the first step mentions the scale."
    ),
    needs=(
        "steps",
        "complete",
    ),
)
def loss_not_scaled(summary: Summary) -> Iterator[Case]:
    for optimizer, scale in summary.evidence(LossNotScaled):
        settings = optimizer.settings
        scales = (
            by.format(number)
            for key, by in _SCALES.items()
            if isinstance(number := settings.get(key), int | float)
        )
        # A scale of 1 changes nothing.
        if settings.get("initial_scale") != 1 or settings.get("dynamic_scale", 1) != 1:
            yield Case(
                f"{class_of(optimizer)}.{scale.divided} divided each gradient{next(scales, '')}, "
                f"but {scale.missing} was never called: unless the loss was multiplied elsewhere, "
                "the gradients are too small by that factor.",
                f"Compute the gradients of optimizer.{scale.missing}(loss)"
                f"{summary.dialect.advice('loss-not-scaled:where')}.",
            )


@rule(
    "optimizer-renewed",
    severity="warning",
    title="a new optimizer again and again for the same variables",
    why="Each new one loses the moments, the step count and the place in a schedule.",
    advice=(
        "Nothing to do if each is meant to start from zero, as for each fold of a validation. "
        "Otherwise make and compile it once, before the loop; to change the rate, assign to "
        "optimizer.learning_rate."
    ),
    explanation=(
        f"Info: {MIN_RENEWED} or more optimizers of one line trained the same variables. With JAX "
        "and optax a warning: a state was dropped, or a function was traced for each optimizer."
    ),
)
def optimizer_renewed(summary: Summary) -> Iterator[Case]:
    trace, first = summary.trace, summary.optimizers[0]
    for optimizer, renewed in summary.evidence(StateRenewed) if trace.complete else ():
        yield Case(
            f"{optimizer.name} started from zero in each of {some(renewed.steps, 'step')}: the "
            "state that update returned was never passed to the next step.",
            "Pass each step the state that the previous one returned, and call init once, "
            "before the loop. If each step is meant to start from zero, as the only step of "
            "an inner loop or of a candidate, there is nothing to do.",
        )
    alike = trace.derived(_made_alike).get(summary.root, [])
    if len(alike) < MIN_RENEWED:
        return
    which = listed([each.optimizers[0].name for each in alike], MIN_RENEWED)
    names, function = names_of(summary, sorted(_own(summary))), _traced_once(summary)
    if function:
        yield Case(
            f"{function} was traced {len(alike):,} times, each time for a new {class_of(first)} "
            f"that {first.made} made and that stepped once: {which}.",
            "Make it once, before the loop. A static argument is compared by identity, so JAX "
            "traces and compiles the function again for each new transformation.",
        )
    elif names:
        yield Case(
            f"{first.made} made {len(alike):,} optimizers of the class {class_of(first)} "
            f"({which}), and each trained "
            f"{names_in_short(names, noun=summary.dialect.variable)}.",
            severity="info",
            names=names,
        )


def _own(summary: Summary) -> frozenset[int]:
    """The variables that the optimizer updates, without arguments of functions."""
    every = summary.trace.variables
    return frozenset(index for index in summary.updated if not every[index].argument)


def _traced_once(summary: Summary) -> str:
    """The only function with a step, if it was traced once and stepped once; else empty."""
    graphs = [graph for graph in summary.trace.graphs if graph.root == summary.root]
    once = len(graphs) == 1 and graphs[0].tracings == graphs[0].steps == 1
    return graphs[0].function if once else ""


def _made_alike(trace: Trace) -> dict[int, list[Summary]]:
    """By the first, optimizers of one class and line for one function, or the same variables."""
    alike: dict[object, list[Summary]] = {}
    for summary in summaries_of(trace):
        root = summary.optimizers[0]
        if root.made:
            trained = _traced_once(summary) or _own(summary)
            alike.setdefault((root.class_name, root.made, trained), []).append(summary)
    return {group[0].root: group for group in alike.values()}


# Steps and graphs.

MIN_TRACINGS = 5  # of a function: TensorFlow, too, warns at 5 (eager/function, def_function)
MIN_ADDED = 3  # the fewest steps to judge a training by
STEPS_PER_TRACING = 20  # steps: rarer tracings cost little time


@rule(
    "apply-raised",
    severity="error",
    title="a step raised an error",
    why="That step updated nothing.",
    advice="Fix what the error says.",
    explanation=(
        "apply_gradients (Keras 3: `apply`) raised an error, while it ran or while a graph "
        "was traced. Info if training went on, or if the program caught the error and ended well."
    ),
)
def apply_raised(summary: Summary) -> Iterator[Case]:
    root, caught = summary.optimizers[0], has_ended(summary.trace)
    is_explained = summary.methods_that("unreached") or summary.methods_that("no sparse")
    for _, failure in () if is_explained else summary.evidence(Failure):
        when = f"after step {failure.after:,}" if failure.after else "in the first step"
        error = failure.error.partition(". ")[0].rstrip(".")
        yield Case(
            f"{class_of(root)}.{failure.method}{of_optimizer(summary)} raised an error, "
            f"{when}: {error}{'' if error.endswith('…') else '.'}",
            severity="error" if failure.last and not caught else "info",
        )


@rule(
    "steps-skipped",
    severity="warning",
    title="steps were skipped",
    why="A few at the beginning are normal; many in a row mean inf or NaN at any scale.",
    advice=(
        "If it goes on, look for the layer that gives inf or NaN: "
        "tf.debugging.enable_check_numerics() (PyTorch: torch.autograd.detect_anomaly(), JAX: "
        "jax_debug_nans), a lower learning rate, that layer in float32."
    ),
    explanation=(
        "By a loss scale, a GradScaler, apply_if_finite or MultiSteps. If gradients are "
        "accumulated, in longer rows than these explain. A warning if all "
        "steps were skipped, or so many in a row that the scale would fall below 1."
    ),
    needs=("complete",),
)
def steps_skipped(summary: Summary) -> Iterator[Case]:
    scale = next((each for each in summary.optimizers if skipper([each])), None)
    every = accumulated_steps(summary.optimizers)  # which steps only accumulated is not known
    if scale is None or not summary.asked_on or summary.step_unknown(updates):
        return
    replica = summary.asked_on[0]  # a loss scale decides for all replicas
    timeline, steps = summary.timeline(updates, replica=replica), summary.steps_on[replica]
    idle = ((first, last) for first, last, made in timeline.spans() if not any(made))
    # Between two updates fewer than `every` steps reached the optimizer.
    streaks = [(first, last) for first, last in idle if last - first + 1 >= every]
    if not streaks:
        return
    number = sum(last - first + 2 - every for first, last in streaks)
    by, begin = skipper(summary.optimizers), streaks[0][0]
    longest = max(last - first + 1 for first, last in streaks) - every + 1
    row = f", up to {longest:,} in a row" if longest > 1 else ""
    which = f"the first is step {begin:,}{row}" if number > 1 else f"step {begin:,}"
    initial = scale.settings.get("initial_scale")
    initial = initial if isinstance(initial, int | float) and initial >= 1 else _FIRST_SCALE
    # No scale helps: the gradients are inf or NaN at any, down to 1.
    hopeless = longest > ceil(log2(initial)) or longest == steps
    now = scale.settings.get("dynamic_scale")
    is_low = hopeless and isinstance(now, int | float) and now < 1  # Keras 3 has no limit
    yield Case(
        f"{'At least ' if every > 1 else ''}{some(number, 'step')} of {steps:,}"
        f"{of_optimizer(summary)} {plural(number, 'was', 'were')} skipped by {by}"
        f"{or_dropped(summary)}: {which}"
        f"{f'; the scale has fallen to {now:g}' if is_low else ''}.",
        _OTHERS.get(by, _GOES_ON).format(summary.dialect.advice("find-nan")),
        "warning" if hopeless else "info",
        step=begin,
    )


_FIRST_SCALE = 2**15
"""The initial loss scale of TensorFlow and Keras, unless set."""
_GOES_ON = (
    "If it goes on, look for the layer that gives inf or NaN: {}, a lower learning rate, that "
    "layer in float32."
)

_OTHERS = {
    "apply_if_finite": (
        "If it goes on, look for what gives inf or NaN: {}, a lower learning rate. After "
        "max_consecutive_errors in a row it applies them."
    ),
    "MultiSteps": "Look at skip_state in its state: what should_skip_update_fn says of a step.",
}


@rule(
    "gradients-left",
    severity="warning",
    title="accumulated gradients were never applied",
    why="Training loses what these batches would have taught.",
    advice=(
        "Choose a number of batches that gradient_accumulation_steps divides: Keras "
        "keeps the rest for the next epoch, and nothing applies it at the end."
    ),
    explanation=(
        "Keras 3 and optax: the last group was incomplete; info for less than a tenth of the "
        "steps, or if the program may train on. `torch.optim`: gradients were cleared before a "
        "step used them, or left at the end; info for less than a twentieth of the passes."
    ),
    needs=("steps", "complete", "steps known"),
)
def gradients_left(summary: Summary) -> Iterator[Case]:
    for _, lost in summary.evidence(GradientsLeft):
        yield Case(
            f"The gradients of {lost.passes:,} of {lost.of:,} backward passes"
            f"{f' ({lost.line})' if lost.line else ''} were cleared or left, and no "
            f"step{of_optimizer(summary)} used them.",
            "To accumulate them, call zero_grad once for each step, after it, and not in each "
            "pass. Otherwise these passes are wasted."
            if lost.every == 1
            else "",
            "info" if lost.passes * 20 < lost.of else None,
        )
    every = accumulated_steps(summary.optimizers)
    if every < 2 or skipper(summary.optimizers) or summary.step_unknown(updates):
        return
    replica, steps = summary.replicas[0], summary.steps_on[summary.replicas[0]]
    parts = summary.timeline(updates, replica=replica).parts()
    last = max((part.last for part, (made,) in parts if made), default=0)
    left = steps - last
    if 0 < left < every:
        yield Case(
            f"The gradients of {some(left, 'step')} after step {last:,} of {steps:,}"
            f"{of_optimizer(summary)} were accumulated, but never applied: an update takes the "
            f"gradients of {every:,} steps.",
            severity="warning" if left * 10 >= steps and has_ended(summary.trace) else "info",
            step=last + 1,
        )


@rule(
    "gradients-added",
    severity="warning",
    title="gradients were added to those of the previous step",
    why="Each step uses the sum of all gradients so far.",
    advice="Call optimizer.zero_grad() once for each step: after it, or before backward.",
    explanation=(
        f"Backward found the gradients of the previous step, in at least {MIN_ADDED} "
        "steps and half of all. Silent if the program scales or writes gradients "
        "between steps, or a step takes a closure."
    ),
    needs=("steps",),
)
def gradients_added(summary: Summary) -> Iterator[Case]:
    for _, added in summary.evidence(GradientsAdded):
        if added.steps >= max(MIN_ADDED, added.of / 2):
            yield Case(
                f"In {added.steps:,} of {some(added.of, 'step')}{of_optimizer(summary)} backward "
                "added to gradients that the previous step had used: zero_grad did not clear them."
            )


@rule(
    "retraced",
    severity="warning",
    title="a function was traced again",
    why="Each tracing takes as long as many steps, and the graphs stay in memory.",
    advice=(
        "Make the tf.function once, outside the loop, and do not compile the model again. Pass "
        "tensors instead of Python numbers, use `drop_remainder=True`, or give an input_signature "
        "with None for the sizes that change."
    ),
    explanation=(
        "For another signature, or again for the same one, as by a tf.function that is made again "
        "and again. A warning for five tracings or more, and at least one for every 20 steps; else "
        "info, as for a smaller last batch. The first graph of a function that makes variables "
        "never runs, and does not count. On JAX the step is approximate."
    ),
)
def retraced(summary: Summary) -> Iterator[Case]:
    for rows in _by_function(summary):
        later = [graph for graph in [row for row in rows if row.signature][1:] if graph.after > 0]
        again = [number for row in rows if (number := row.tracings - row.idle) > 1]
        steps, tracings = sum(row.steps for row in rows), sum(graph.tracings for graph in later)
        function = f"{rows[0].function}{of_optimizer(summary)}"
        often = max(tracings, sum(again))
        is_costly = often >= MIN_TRACINGS and often * STEPS_PER_TRACING >= steps
        severity: Severity = "warning" if is_costly else "info"
        if later:
            more = f" {times(tracings)}, first" if tracings > 1 else ""
            yield Case(
                f"{function} was traced again{more} after step {later[0].after:,}"
                f"{summary.dialect.advice('retraced:roughly')}{_change(summary, later[0])}.",
                severity=severity,
                step=later[0].after + 1,
            )
        elif again:
            each = "one signature" if len(again) == 1 else f"{len(again):,} signatures"
            yield Case(f"{function} was traced {times(sum(again))} for {each}.", severity=severity)


def _change(summary: Summary, row: Graph) -> str:
    """What was another argument when this graph was traced first, and the line of the call."""
    became = row.detail.replace(" -> ", " became ")
    line, _ = summary.trace.data.origin(row.path)
    by = f", by the call in {line.file}:{line.number}" if line else ""
    return f"{became and f', when {became}'}{by}"


def _by_function(summary: Summary) -> list[list[Graph]]:
    """The graphs of the optimizer by function, taking one of several workers' equal graphs."""
    functions: dict[str, dict[str, Graph]] = {}
    for graph in sorted(summary.trace.graphs, key=lambda each: each.after):
        if graph.root == summary.root:
            functions.setdefault(graph.function, {}).setdefault(graph.signature, graph)
    return [list(signatures.values()) for signatures in functions.values()]


@rule(
    "graph-never-ran",
    severity="warning",
    title="a graph was traced and never ran",
    why="Python ran while it was traced, but no step followed.",
    advice=(
        "Call the function. If it was called, it ended before its first step: look for an error, "
        "or for data without a batch. Nothing to do if it was traced only to be saved or inspected."
    ),
    explanation=(
        "A warning if nothing of the optimizer ever ran, else info. The first graph of a "
        "function that makes variables never runs, and is not reported. Silent until the program "
        "has ended."
    ),
    needs=("complete", "finished"),
    explains="warning",  # of info, other graphs ran, and gave the counts
)
def graph_never_ran(summary: Summary) -> Iterator[Case]:
    # A tracing that an error ended made no graph to run.
    traced = [
        structs.replace(each, tracings=each.tracings - each.failed, idle=each.idle - each.failed)
        for rows in _by_function(summary)
        for each in rows
    ]
    twice = summary.dialect.traces_twice
    idle = [each for each in traced if each.idle and not (twice and is_first_only(each))]
    functions = list(dict.fromkeys(each.function for each in idle))
    for names in [functions] if len(functions) > MAX_NAMES else [[each] for each in functions]:
        never_ran = [each for each in idle if each.function in names]
        number, noun = sum(each.idle for each in never_ran), summary.dialect.program
        tracings = sum(each.tracings for each in traced if each.function in names)
        graphs = f"{{}} {noun}" if tracings == 1 else f"{number:,} of {{}} {tracings:,} {noun}s"
        yield Case(
            f"{names_in_short(names, of_optimizer(summary), 'function')}: "
            f"{graphs.format(plural(len(names), 'its', 'their'))} never ran.",
            severity="info" if any(block.total for block in summary.blocks) else "warning",
        )
