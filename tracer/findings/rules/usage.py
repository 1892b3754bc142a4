"""Rules on how a program uses its optimizers: with which model, variables and options."""

import re
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

from tracer.findings.rule import FEW, MANY, Case, names_in_short, names_of, of_optimizer, rule
from tracer.model.phrases import class_of, has_ended, skipper
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import listed, plural, some

MIN_RENEWED = 3  # optimizers in a row: two are the two phases of a fine-tuning
MAX_COMPARED = 100  # optimizers: of more than that no pairs are looked at
_IDENTIFIER = re.compile(
    r"Could not interpret optimizer identifier: "
    r"<(class ')?(([a-zA-Z_0-9]+)[\w.]*)\.(\w+)(?:'| object at)"
)
_GIVEN = {
    "a class": ("compile was given the class {}, and takes an optimizer.", "Call it: {}(...)."),
    "keras": (
        "A model of tf_keras was given an optimizer of Keras 3, {} of {}.",
        "Take both from one: tf_keras.optimizers.{} for this model, or build the model with keras.",
    ),
    "tf_keras": (
        "A model of Keras 3 was given an optimizer of tf_keras, {} of {}.",
        "Take both from one: keras.optimizers.{} for this model, or build the model with tf_keras.",
    ),
    "": (
        "compile was given {} of {}, which is no optimizer of its Keras.",
        "Derive it from the optimizer of the Keras that the model is of, or from no other.",
    ),
}
"""What is said of what `compile` was given: its name, and the module that it is of."""
_SCALES = {
    "initial_scale": " by its scale, {:,.0f} at first,",
    "loss_scale_factor": " by its loss_scale_factor, {:,g},",
}


@rule(
    "keras-mixed",
    severity="error",
    title="a model of one Keras was given an optimizer of the other",
    why=(
        "Keras 3 (`keras`, and `tf.keras` since TensorFlow 2.16) and Keras 2 (`tf_keras`) are two "
        "libraries: neither knows the layers and optimizers of the other."
    ),
    advice="Take model and optimizer from one Keras.",
    explanation=(
        "Found in the error that ended a program under `tracer run`: `Could not interpret "
        "optimizer identifier`, with an object whose class the other Keras defines. Also found is "
        "an optimizer's class that was not called. `TF_USE_LEGACY_KERAS=1`, set before TensorFlow "
        "is imported, makes `tf.keras` mean tf_keras; it changes nothing for `import keras`."
    ),
    whole=True,
    explains=(*FEW, "few steps"),
)
def keras_mixed(trace: Trace) -> Iterator[Case]:
    """`compile` could not take the optimizer that it was given."""
    errors = dict.fromkeys(program.error for program in trace.programs)
    for found in filter(None, map(_IDENTIFIER.search, errors)):
        is_class, home, library, name = found.groups()
        text, advice = _GIVEN["a class" if is_class else library if library in _GIVEN else ""]
        yield Case(text.format(name, home), advice.format(name, home))


@rule(
    "never-passed",
    severity="warning",
    title="trainable variables that were passed to no optimizer",
    why=(
        "What is passed to no optimizer keeps its value. A traced train step goes on with the "
        "variables that were trainable when it was traced, whatever is made trainable later."
    ),
    advice=(
        "Call model.compile again after `trainable` was changed; in a loop of your own, make a "
        "new tf.function, and a new optimizer, if it was built for the other variables only."
    ),
    explanation=(
        "For layers that were frozen while the train step was traced to a graph, were made "
        "trainable, and with which the model was trained on. Which model an optimizer trains is "
        "seen while the step is traced: the one whose trainable variables are just those that "
        "apply_gradients gets. So nothing is said of a list that was chosen otherwise, of an "
        "optimizer that trains several models, of eager mode, of what was made trainable after "
        "the last step, and of what another optimizer trains; with tf_keras also not of what was "
        "made trainable before `fit`, which shows each layer as it was at `compile`. With "
        "`torch.optim` it is a parameter of a model that the optimizer trains a part of, layers in "
        "plain lists included, which got a new gradient between two steps, was not written to, and "
        "is in no optimizer. Of other "
        "models it is reported only if the optimizer's own parameters have no gradient, as those "
        "of a model that was made again, or are just those of another optimizer: a judge or a "
        "teacher that is not frozen gets gradients, too. How many parameters of the optimizer no "
        "module has, and that had no gradient when it first stepped, is said with it. With Keras "
        "on JAX and on PyTorch the step raises, which apply-raised reports."
    ),
    needs=("steps", "complete"),
    explains=FEW,
)
def never_passed(summary: Summary) -> Iterator[Case]:
    """Layers were made trainable, and the step that was traced before does not train them."""
    thawed = (
        "{were} made trainable after the train step was traced, and no optimizer was ever passed "
        "{them}: the step{of} trains only what was trainable before"
    )
    if names := summary.optimizers[0].never_passed:
        when, own = summary.dialect.advice("never-passed:when", thawed), summary.dialect.advice
        advice = own("never-passed:list") if all("[" in each for each in names) else ""
        for optimizer, each in summary.remarks("no-gradient"):
            lost = f"{len(each.variables):,} of {each.of:,}"
            when += f". No module has {lost} parameters of {optimizer.name}"
            advice = own("never-passed:unowned")
        yield Case(f"{{which}} {when}.", advice, names=names, words={"of": of_optimizer(summary)})


@rule(
    "frozen-but-updated",
    severity="warning",
    title="frozen variables that are updated all the same",
    why=(
        "A traced train step goes on with the variables that were trainable when it was traced, "
        "and that of tf_keras with those that were trainable at `compile`: what is frozen later "
        "is trained on."
    ),
    advice=(
        "Call model.compile again after `trainable` was changed; in a loop of your own, make a "
        "new tf.function."
    ),
    explanation=(
        "For layers of which `trainable` became False after the step was traced, or after "
        "`compile` with tf_keras, while the graph that updates them was called on. It is info if "
        "the trace has several optimizers, for the critic of a GAN is frozen for the sake of the "
        "generator; and nothing is said where a model with an optimizer of its own holds the "
        "layer, too. Which model an optimizer trains is seen as for never-passed, so nothing is "
        "said of a list that was chosen otherwise, and of eager mode; with tf_keras only what was "
        "frozen while `fit` runs is reported, as by a callback. With `torch.optim` it is a "
        "parameter of which requires_grad was True and is False, and that still has a gradient "
        "when a step ends, as after `zero_grad(set_to_none=False)`. With Keras on JAX the step "
        "raises, and with Keras on PyTorch it reads `trainable` in each step."
    ),
    needs=("steps",),
    explains=MANY,
)
def frozen_but_updated(summary: Summary) -> Iterator[Case]:
    """Layers were frozen, and the step that was traced before trains them on."""
    roots = {each.root for each in summary.trace.optimizers}
    frozen = (
        "{were} frozen (trainable = False) after the train step was traced or compiled, and the "
        "step{of} goes on updating {them}"
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
    title="two optimizers update the same variables in turns",
    why=(
        "Each follows a gradient of its own, and keeps moments that do not know what the other "
        "one did. In a GAN it may be the discriminator, which the generator's optimizer makes "
        "worse."
    ),
    advice=(
        "If both are meant to train it, as a reconstruction and an adversary train one encoder, "
        "there is nothing to do. If not, give each optimizer its own variables; with compile, "
        "freeze the part (`part.trainable = False`) before the model that only passes through it "
        "is compiled."
    ),
    explanation=(
        "A warning if all that one of the optimizers updates is also updated by the other, which "
        "updates more. It is info if each has variables of its own, as two tasks that share an "
        "encoder, or both have the same ones. Which variables each updates is all that a trace "
        "knows, so the encoder of an adversarial autoencoder, which two are meant to train, is "
        "reported, too. Optimizers of which one begins after the other has "
        "ended, as the phases of a fine-tuning, are not reported, nor are steps of a `Session`."
    ),
    whole=True,
    explains=MANY,
)
def shared_variable(trace: Trace) -> Iterator[Case]:
    """Variables are updated by two optimizers that step in turns."""
    updated = _updated(trace)
    for one, other in combinations(list(updated)[:MAX_COMPARED], 2):
        shared = updated[one] & updated[other]
        turns = [each.optimizers[0].turns for each in (one, other)]
        # Each had a turn before and after one of the other.
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
    """What each root optimizer updated, of those of which the turns are known."""
    arguments = {index for index, each in enumerate(trace.variables) if each.argument}
    updated = {each: each.updated - arguments for each in summaries_of(trace)}
    return {each: of for each, of in updated.items() if of and each.optimizers[0].turns[0]}


@rule(
    "optimizer-renewed",
    severity="warning",
    title="a new optimizer is made again and again for the same variables",
    why=(
        "What the one before has learnt is lost each time: its moments, its count of steps and "
        "with it the bias correction of Adam and the place in a schedule."
    ),
    advice=(
        "If each is meant to begin from zero, as one for each task in continual learning, there is "
        "nothing to do. If not, make the optimizer, and compile, once, before the loop; to change "
        "the rate, assign to optimizer.learning_rate."
    ),
    explanation=(
        f"For {MIN_RENEWED} optimizers or more of one class, rate and options, made in one "
        "line of the program, of which each begins after the one before has ended, and updates the "
        "same variables. Those that keep nothing, as SGD without momentum, are not reported, nor "
        "are those of different models, nor where two in a row begin with the same weights, as "
        "the folds of a validation. It is info where that is not known: on JAX, and in eager mode "
        "where apply_gradients gets an iterator. Of `torch.optim` the line is that of `wrap`, or "
        "of its first step in a recording; one that went on with a state that it had loaded is "
        "left out. On JAX and with optax it is also a state that is dropped: each of 5 steps or "
        "more, and all that are known, began with the same count of steps. Also with optax: `init` "
        "ran again, twice or more, when steps had run, and no small array of the weights that "
        "held one number at first holds it now; and a function that was traced for "
        f"{MIN_RENEWED} transformations or more of one line, each of which stepped once. A trace "
        "does not tell an epoch from a task, so a new optimizer for each task of continual "
        "learning is reported, too."
    ),
    whole=True,
)
def optimizer_renewed(trace: Trace) -> Iterator[Case]:
    """One line makes optimizer after optimizer, and each trains the same variables."""
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
                f"{len(row):,} optimizers of the class {class_of(row[0])} "
                f"were made in {row[0].made}, one after the other, and each trained "
                f"{names_in_short(names, noun=dialect.variable)}: {which}. Each began without "
                "the moments of the one before.",
                dialect.advice("optimizer-renewed"),
                "info" if None in values else "warning",
                names=names,
            )


def _traced_for_each(trace: Trace) -> Iterator[Case]:
    """One function of JAX is traced for optimizer after optimizer, of which each steps once."""
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
                f"{function} was traced {len(roots):,} times, each time for another {name}, made "
                f"in {made}, that stepped once: {roots[0]} to {roots[-1]}.",
                "Make it once, before the loop. A static argument is compared by identity: each "
                "new transformation is another one, and the function is traced and compiled again.",
            )


def _states_dropped(trace: Trace) -> Iterator[Case]:
    """Each step of a program of JAX is given a state with the same count of steps."""
    for summary in summaries_of(trace) if trace.complete else ():
        for optimizer, remark in summary.remarks("optimizer-renewed"):
            if remark.method == "init":
                where = f", in {remark.where}," if remark.where else ""
                yield Case(
                    f"{optimizer.name} began from zero after steps {remark.detail}: init{where} "
                    "made its state again, for weights that had been trained.",
                    "Call init once, and pass on the state that the last update returned. If each "
                    "loop is meant to begin from zero, as one for each task, there is nothing to "
                    "do.",
                )
                continue
            yield Case(
                f"{optimizer.name} began from zero in each of {remark.detail}: the state that "
                "update returned was never passed in again, each step got the same count or state.",
                "Give each step the state that the one before returned; make it (`init`) once, "
                "before the loop. If each step is meant to begin from zero, as one step of an "
                "inner loop, there is nothing to do.",
            )


@rule(
    "never-used",
    severity="warning",
    title="an optimizer was built and never used",
    why=(
        "It holds memory for each variable, and the program may train with another optimizer than "
        "it seems to."
    ),
    advice="Look which optimizer the train step calls; compile keeps the one that it was given.",
    explanation=(
        "The optimizer was wrapped, and built for its variables (as by loading a model), and "
        "apply_gradients was not called so far; or `fit` came to its end with it, whose "
        "`train_step` calls no apply_gradients. `tracer.record` and `tracer run` leave out what "
        "was not used, but for such a `fit` where no other optimizer was used, and the optimizer "
        "is none that `compile` has chosen (RMSprop)."
    ),
    needs=("complete",),
)
def never_used(summary: Summary) -> Iterator[Case]:
    """An optimizer was given its variables, and made no step."""
    root = summary.optimizers[0]
    fitted = any(remark.code == "fitted" for remark in root.remarks)
    built = root.settings.get("built") or (root.kind == "legacy" and root.iterations is not None)
    idle = not summary.replicas and not any(each.iterations for each in summary.optimizers)
    if fitted and idle:
        yield Case(
            f"A model was compiled with {root.name} ({class_of(root)}) and trained by fit, and "
            "the optimizer made no step: the train_step never calls its apply_gradients.",
            "Call self.optimizer.apply_gradients(zip(gradients, self.trainable_variables)) in "
            "train_step.",
        )
    elif built and idle and not root.failures:
        yield Case(f"{root.name} ({class_of(root)}) was built for its variables, and made no step.")


@rule(
    "loss-not-scaled",
    severity="warning",
    title="gradients are unscaled but the loss was never scaled",
    why=(
        "Each gradient is too small by the scale, 2**15 at first: SGD hardly moves, and Adam's "
        "epsilon outweighs the gradients."
    ),
    advice="Compute the gradients of optimizer.scale_loss(loss), inside of the GradientTape.",
    explanation=(
        "`model.fit` scales the loss; a `train_step` or loop of your own has to do it. The "
        "`apply` of Keras 3's LossScaleOptimizer always divides, and so does that of any optimizer "
        "with a `loss_scale_factor`, so that `scale_loss` was never called is a warning; so is "
        "`get_unscaled_gradients` without `get_scaled_loss` in tf_keras. Without either of them "
        "tf_keras only skips what is not finite, which is info. Nothing is said if a function that "
        "makes the first step, or calls the one that does, names the scale itself, as in "
        "`loss * optimizer.dynamic_scale`; if that is done elsewhere, the finding is none."
    ),
    needs=(
        "steps",
        "complete",
    ),
)
def loss_not_scaled(summary: Summary) -> Iterator[Case]:
    """A loss scale unscales what nobody has scaled."""
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
                f"{class_of(optimizer)}.{remark.detail} divided each gradient{next(scales, '')} "
                f"and nobody called {remark.method}: unless the loss was multiplied otherwise, the "
                "gradients are too small by that factor.",
                f"Compute the gradients of optimizer.{remark.method}(loss)"
                f"{summary.dialect.advice('loss-not-scaled:where')}.",
            )
    for optimizer, remark in summary.remarks("never-scaled"):
        yield Case(
            f"{class_of(optimizer)} only skips steps that are not finite: nobody called "
            f"{remark.method}.",
            "If float16 is used, compute the gradients of optimizer.get_scaled_loss(loss), and "
            "give them to optimizer.get_unscaled_gradients before they are applied.",
            "info",
        )


@rule(
    "ema-unused",
    severity="warning",
    title="moving averages were kept, and never put into the model",
    why=(
        "The model is saved and evaluated with its last weights; the averages cost memory and time "
        "for nothing."
    ),
    advice="Call optimizer.finalize_variable_values(model.trainable_variables) after training.",
    explanation=(
        "`use_ema=True` only keeps averages. `model.fit` puts them into the model at its end; in a "
        "loop of your own that takes `finalize_variable_values`, or `ema_overwrite_frequency`. It "
        "is a warning for a program that has ended under `tracer run` without an error, and info "
        "else, for it may still be called. Nothing is said if a function that makes the first "
        "step, or calls the one that does, names the averages itself "
        "(`_model_variables_moving_average`, `SwapEMAWeights`)."
    ),
    needs=(
        "steps",
        "complete",
    ),
)
def ema_unused(summary: Summary) -> Iterator[Case]:
    """An optimizer averaged the weights, and its averages went nowhere."""
    for optimizer, remark in summary.remarks("ema-unused"):
        yield Case(
            f"{optimizer.name} kept a moving average of each variable (use_ema=True) in "
            f"{some(summary.steps, 'step')}, and neither {remark.method} nor "
            "ema_overwrite_frequency put the averages into the model.",
            severity="warning" if has_ended(summary.trace) else "info",
        )


@rule(
    "decay-exclusion",
    severity="warning",
    title="a weight-decay exclusion matches no variable",
    why="What was to be left out decays with the other weights.",
    advice=(
        "Use words that are in the names, or give the variables themselves: "
        "exclude_from_weight_decay(var_list=[...])."
    ),
    explanation=(
        "Keras searches each word of `exclude_from_weight_decay(var_names=...)` in the name that "
        "TensorFlow has of a variable, where that of a layer is what Keras calls it: "
        "`layer_normalization`, and not `LayerNorm`. On JAX and PyTorch the name has no layer at "
        "all: it is `kernel`, `bias` or `gamma`. It is info if other exceptions do match, for "
        "one list may be for several models."
    ),
    needs=("steps",),
)
def decay_exclusion(summary: Summary) -> Iterator[Case]:
    """`exclude_from_weight_decay` names variables that do not exist."""
    for optimizer in summary.optimizers:
        decay = optimizer.decay
        if decay is not None and decay.unmatched:
            yield Case(
                f"{optimizer.name} excludes {listed(decay.unmatched)} from weight decay "
                f"({decay.rate:g}), which "
                f"{plural(len(decay.unmatched), 'matches', 'match')} none of its variables, of "
                f"which one is `{decay.searched}`. What decays: {names_in_short(decay.decayed)}.",
                severity="info" if decay.matched else "warning",
                names=decay.decayed,
            )


@rule(
    "state-not-loaded",
    severity="warning",
    title="training went on without the state of the optimizer",
    why=(
        "Its moments begin at 0 and its iterations, too: the first steps are those of a new Adam, "
        "and a schedule begins again."
    ),
    advice=(
        "Build the optimizer before the weights are loaded, "
        "optimizer.build(model.trainable_variables), or load all of it: keras.models.load_model."
    ),
    explanation=(
        "`load_weights` of a file that was saved from a compiled model loads the state of the "
        "optimizer, too, but leaves it out if the optimizer was not built yet, or was built for "
        "other variables: it has another number of variables then. Keras warns of it. A model "
        "that is compiled after its weights are loaded has a new optimizer on purpose, and is not "
        "reported."
    ),
    needs=("steps",),
)
def state_not_loaded(summary: Summary) -> Iterator[Case]:
    """The state of an optimizer was in a file, and was not taken from it."""
    for optimizer, _ in summary.remarks("state-not-loaded"):
        yield Case(
            f"{optimizer.name} was to get its state from a file, which was left out, because it "
            "was not built for the same variables then: its iterations began at the start, and "
            "its slots are new."
        )
