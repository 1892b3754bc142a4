"""Rules on the use of optimizers: with which models, variables and options."""

import re
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

from tracer.findings.rule import (
    FEW,
    MANY,
    Case,
    made_in,
    names_in_short,
    names_of,
    of_optimizer,
    rule,
    with_line,
)
from tracer.model.phrases import class_of, has_ended, skipper
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import listed, plural, some

MIN_RENEWED = 3  # optimizers in a row: fine-tuning has two, one a phase
MAX_COMPARED = 100  # optimizers whose pairs are compared
_IDENTIFIER = re.compile(
    r"Could not interpret optimizer identifier: "
    r"<(class ')?(([a-zA-Z_0-9]+)[\w.]*)\.(\w+)(?:'| object at)"
)
_GIVEN = {
    "a class": ("compile got the class {} instead of an optimizer.", "Call it: {}(...)."),
    "keras": (
        "A tf_keras model got an optimizer of Keras 3: {} of {}.",
        "Take both from the same Keras: tf_keras.optimizers.{} for this model, or build the model "
        "with keras.",
    ),
    "tf_keras": (
        "A Keras 3 model got an optimizer of tf_keras: {} of {}.",
        "Take both from the same Keras: keras.optimizers.{} for this model, or build the model "
        "with tf_keras.",
    ),
    "": (
        "compile got {} of {}, which is not an optimizer of its Keras.",
        "Derive the class from the Optimizer class of the Keras that made the model.",
    ),
}
"""The text and advice for what `compile` got, with its name and module."""
_SCALES = {
    "initial_scale": " by its scale ({:,.0f} at first)",
    "loss_scale_factor": " by its loss_scale_factor ({:,g})",
}


@rule(
    "keras-mixed",
    severity="error",
    title="a model of one Keras got an optimizer of the other",
    why=(
        "Keras 3 (`keras`, and `tf.keras` since TensorFlow 2.16) and Keras 2 "
        "(`tf_keras`) do not accept each other's objects."
    ),
    advice="Take model and optimizer from the same Keras.",
    explanation=(
        "Found in the error `Could not interpret optimizer identifier` that ended a "
        "program under `tracer run`; also if a class was passed instead of an optimizer. "
        "`TF_USE_LEGACY_KERAS=1` makes `tf.keras` mean tf_keras."
    ),
    whole=True,
    explains=(*FEW, "few steps"),
)
def keras_mixed(trace: Trace) -> Iterator[Case]:
    errors = dict.fromkeys(program.error for program in trace.programs)
    for found in filter(None, map(_IDENTIFIER.search, errors)):
        is_class, home, library, name = found.groups()
        text, advice = _GIVEN["a class" if is_class else library if library in _GIVEN else ""]
        yield Case(text.format(name, home), advice.format(name, home))


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
        "which model an optimizer trains."
    ),
    needs=("steps", "complete"),
    explains=FEW,
)
def never_passed(summary: Summary) -> Iterator[Case]:
    thawed = (
        "{were} made trainable after the train step was traced, and no optimizer ever got {them}: "
        "the step{of} trains only what was trainable before"
    )
    if names := summary.optimizers[0].never_passed:
        when, own = summary.dialect.advice("never-passed:when", thawed), summary.dialect.advice
        advice = own("never-passed:list") if all("[" in each for each in names) else ""
        for optimizer, each in summary.remarks("no-gradient"):
            lost = f"{len(each.variables):,} of {each.of:,}"
            when += f". {lost} parameters of {optimizer.name} are in no module"
            advice = own("never-passed:unowned")
        words = {"of": of_optimizer(summary), "made": made_in(summary)}
        yield Case(f"{{which}} {when}.", advice, names=names, words=words)


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
    explains=MANY,
)
def frozen_but_updated(summary: Summary) -> Iterator[Case]:
    roots = {each.root for each in summary.trace.optimizers}
    frozen = (
        "{were} frozen (trainable = False) after the train step was traced or compiled, and the "
        "step{of} still updates {them}"
    )
    if names := summary.optimizers[0].frozen:
        yield Case(
            f"{{which}} {summary.dialect.advice('frozen-but-updated:when', frozen)}.",
            severity="warning" if len(roots) == 1 else "info",
            names=names,
            words={"of": of_optimizer(summary)},
        )


@rule(
    "shared-variable",
    severity="warning",
    title="two optimizers take turns on the same variables",
    why="Each keeps moments that ignore the other one's steps.",
    advice=(
        "Nothing to do if both are meant to train it, as in an adversarial autoencoder. "
        "Otherwise give each its own variables; with compile, set `part.trainable = "
        "False` before you compile the model around it."
    ),
    explanation=(
        "A warning if one trains only a part of the other's variables, as with the "
        "discriminator of a GAN; else info. Silent if one begins after the other has "
        "ended."
    ),
    whole=True,
    explains=MANY,
)
def shared_variable(trace: Trace) -> Iterator[Case]:
    updated = _updated(trace)
    for one, other in combinations(list(updated)[:MAX_COMPARED], 2):
        shared = updated[one] & updated[other]
        turns = [each.optimizers[0].turns for each in (one, other)]
        # Their turns overlap.
        if shared and all(a[0] < b[1] for a, b in product(turns, repeat=2)):
            small, large = sorted((one, other), key=lambda each: len(updated[each]))
            inside = updated[small] < updated[large]
            others = some(len(updated[large] - updated[small]), f"other {one.dialect.variable}")
            both = (
                f"{small.optimizers[0].name}, which trains nothing else, and "
                f"{large.optimizers[0].name}, which also trains {others}"
                if inside
                else f"{one.optimizers[0].name} and {other.optimizers[0].name}"
            )
            names = names_of(one, sorted(shared))
            yield Case(
                f"{names_in_short(names)} {plural(len(names), 'is', 'are')} updated by two "
                f"optimizers in turns: {both}.",
                one.dialect.advice("shared-variable"),
                "warning" if inside else "info",
                names=names,
            )


def _updated(trace: Trace) -> dict[Summary, frozenset[int]]:
    """The variables updated by each root optimizer with known turns."""
    arguments = {index for index, each in enumerate(trace.variables) if each.argument}
    updated = {each: each.updated - arguments for each in summaries_of(trace)}
    return {each: of for each, of in updated.items() if of and each.optimizers[0].turns[0]}


@rule(
    "optimizer-renewed",
    severity="warning",
    title="a new optimizer again and again for the same variables",
    why="Each new one loses the moments, the step count and the place in a schedule.",
    advice=(
        "Nothing to do if each is meant to start from zero, as for each task in continual "
        "learning. Otherwise make and compile it once, before the loop; to change the "
        "rate, assign to optimizer.learning_rate."
    ),
    explanation=(
        f"{MIN_RENEWED} or more equal optimizers from one line; with JAX and optax also "
        "a state that is dropped or made again. Silent for optimizers without state and "
        "for folds of a validation."
    ),
    whole=True,
)
def optimizer_renewed(trace: Trace) -> Iterator[Case]:
    yield from _states_dropped(trace)
    yield from _traced_for_each(trace)
    alike: dict[tuple[Any, ...], list[Summary]] = {}
    for summary, variables in _updated(trace).items():
        root = summary.optimizers[0]
        options = frozenset((k, v) for k, v in root.settings.items() if k != "built")
        if root.made and not root.settings.get("state_loaded"):
            key = root.class_name, root.made, root.rate, options, variables
            alike.setdefault(key, []).append(summary)
    for (*_, variables), group in alike.items():
        row = sorted((each.optimizers[0] for each in group), key=lambda each: each.turns)
        one_after_the_other = all(a.turns[1] < b.turns[0] for a, b in pairwise(row))
        keep_something = any(
            each.slots and not skipper([each]) for summary in group for each in summary.optimizers
        )
        values = [each.values for each in row]
        reset = any(a == b is not None for a, b in pairwise(values))  # folds, or a search
        if len(row) >= MIN_RENEWED and one_after_the_other and keep_something and not reset:
            names, dialect = names_of(group[0], sorted(variables)), group[0].dialect
            known = [each.name for each in row]
            which = listed(known) if len(row) <= MIN_RENEWED else f"{known[0]} to {known[-1]}"
            yield Case(
                f"{row[0].made} made {len(row):,} optimizers of the class {class_of(row[0])}, one "
                f"after the other ({which}), and each trained "
                f"{names_in_short(names, noun=dialect.variable)}. Each started without the "
                "moments of the previous one.",
                dialect.advice("optimizer-renewed"),
                "info" if None in values else "warning",
                names=names,
            )


def _traced_for_each(trace: Trace) -> Iterator[Case]:
    """One JAX function is traced for several optimizers in a row, and each steps once."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for summary in summaries_of(trace):
        graphs = [each for each in trace.graphs if each.root == summary.root]
        root = summary.optimizers[0]
        if root.made and len(graphs) == 1 and graphs[0].tracings == graphs[0].steps == 1:
            key = class_of(root), root.made, graphs[0].function
            alike.setdefault(key, []).append(root.name)
    for (name, made, function), roots in alike.items():
        if len(roots) >= MIN_RENEWED:
            yield Case(
                f"{function} was traced {len(roots):,} times, each time for a new {name} that "
                f"{made} made and that stepped once: {roots[0]} to {roots[-1]}.",
                "Make it once, before the loop. A static argument is compared by identity, so JAX "
                "traces and compiles the function again for each new transformation.",
            )


def _states_dropped(trace: Trace) -> Iterator[Case]:
    """A state was made again for trained weights, or never passed to the next step."""
    for summary in summaries_of(trace) if trace.complete else ():
        for optimizer, remark in summary.remarks("optimizer-renewed"):
            if remark.method == "init":
                where = f", in {remark.where}," if remark.where else ""
                yield Case(
                    f"{optimizer.name} started from zero after steps {remark.detail}: init{where} "
                    "made a new state for weights that were already trained.",
                    "Call init once, and pass on the state that the last update returned. If each "
                    "loop is meant to start from zero, as for each task, there is nothing to do.",
                )
                continue
            text = (
                f"{optimizer.name} started from zero in each of {remark.detail}: the state that "
                "update returned was never passed to the next step."
            )
            yield Case(
                with_line(summary, text),
                "Pass each step the state that the previous one returned, and call init once, "
                "before the loop. If each step is meant to start from zero, as the only step of "
                "an inner loop or of a candidate, there is nothing to do.",
            )


@rule(
    "never-used",
    severity="warning",
    title="an optimizer was built and never used",
    why=("It costs memory, and the program may train with another optimizer than it seems to."),
    advice="Check which optimizer the train step calls; compile keeps the one that it got.",
    explanation=(
        "The optimizer was built for its variables, and apply_gradients was never called; "
        "or `fit` ended, and the model's `train_step` never called it. Silent until the program "
        "has ended."
    ),
    needs=("complete", "finished"),
)
def never_used(summary: Summary) -> Iterator[Case]:
    root = summary.optimizers[0]
    fitted = any(remark.code == "fitted" for remark in root.remarks)
    built = root.settings.get("built") or (root.kind == "legacy" and root.iterations is not None)
    idle = not summary.replicas and not any(each.iterations for each in summary.optimizers)
    if fitted and idle:
        yield Case(
            f"fit trained a model that was compiled with {root.name} ({class_of(root)}), but the "
            "optimizer made no step: train_step never calls its apply_gradients.",
            "Call self.optimizer.apply_gradients(zip(gradients, self.trainable_variables)) in "
            "train_step.",
        )
    elif built and idle and not root.failures:
        yield Case(f"{root.name} ({class_of(root)}) was built for its variables, but made no step.")


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
    for optimizer, remark in summary.remarks("loss-not-scaled"):
        settings = optimizer.settings
        scales = (
            by.format(scale)
            for key, by in _SCALES.items()
            if isinstance(scale := settings.get(key), int | float)
        )
        # A scale of 1 changes nothing.
        if settings.get("initial_scale") != 1 or settings.get("dynamic_scale", 1) != 1:
            yield Case(
                f"{class_of(optimizer)}.{remark.detail} divided each gradient{next(scales, '')}, "
                f"but {remark.method} was never called: unless the loss was multiplied elsewhere, "
                "the gradients are too small by that factor.",
                f"Compute the gradients of optimizer.{remark.method}(loss)"
                f"{summary.dialect.advice('loss-not-scaled:where')}.",
            )
    for optimizer, remark in summary.remarks("never-scaled"):
        yield Case(
            f"{class_of(optimizer)} only skips steps that are not finite: {remark.method} was "
            "never called.",
            "With float16, compute the gradients of optimizer.get_scaled_loss(loss), and pass them "
            "through optimizer.get_unscaled_gradients before you apply them.",
            "info",
        )


@rule(
    "ema-unused",
    severity="warning",
    title="moving averages were never put into the model",
    why=("The model is evaluated and saved with its last weights, not with their averages."),
    advice=("Call optimizer.finalize_variable_values(model.trainable_variables) after training."),
    explanation=(
        "`use_ema=True` only keeps averages; `fit` puts them into the model at its end, "
        "but your own loop must do so. Info until the program has ended; silent if the "
        "code around the first step mentions them."
    ),
    needs=(
        "steps",
        "complete",
    ),
)
def ema_unused(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("ema-unused"):
        yield Case(
            f"{optimizer.name} kept a moving average of each variable (use_ema=True) for "
            f"{some(summary.steps, 'step')}, but neither {remark.method} nor "
            "ema_overwrite_frequency put the averages into the model.",
            severity="warning" if has_ended(summary.trace) else "info",
        )


@rule(
    "decay-exclusion",
    severity="warning",
    title="a weight-decay exclusion matches no variable",
    why="The variables that should be excluded decay with all others.",
    advice=(
        "Use words that occur in the names, or pass the variables: "
        "exclude_from_weight_decay(var_list=[...])."
    ),
    explanation=(
        "Keras searches variable names for each word of "
        "`exclude_from_weight_decay(var_names=...)`. A name has `layer_normalization`, not "
        "`LayerNorm`; on JAX and PyTorch it is only `kernel`, `bias` or `gamma`. Info if other "
        "words match."
    ),
    needs=("steps",),
)
def decay_exclusion(summary: Summary) -> Iterator[Case]:
    for optimizer in summary.optimizers:
        decay = optimizer.decay
        if decay is not None and decay.unmatched:
            yield Case(
                f"{optimizer.name} excludes {listed(decay.unmatched)} from weight decay "
                f"({decay.rate:g}), which "
                f"{plural(len(decay.unmatched), 'matches', 'match')} none of its variables (one is "
                f"`{decay.searched}`). These decay: {names_in_short(decay.decayed)}.",
                severity="info" if decay.matched else "warning",
                names=decay.decayed,
            )


@rule(
    "state-not-loaded",
    severity="warning",
    title="training went on without the optimizer's saved state",
    why=("Moments and iterations start at 0: a new Adam, and a schedule from its beginning."),
    advice=(
        "Call optimizer.build(model.trainable_variables) before load_weights, or load "
        "all of it with keras.models.load_model."
    ),
    explanation=(
        "`load_weights` skips the state of an optimizer that is not built yet, or was "
        "built for other variables. Silent for a model that is compiled after loading."
    ),
    needs=("steps",),
)
def state_not_loaded(summary: Summary) -> Iterator[Case]:
    for optimizer, _ in summary.remarks("state-not-loaded"):
        yield Case(
            f"The saved state of {optimizer.name} was not loaded, because the optimizer was not "
            "built for the same variables then: its iterations and slots are new."
        )
