"""Rules on what an optimizer or its model was told, and what is not made use of."""

from collections.abc import Iterator

from tracer.findings.rule import Case, names_in_short, of_optimizer, rule
from tracer.model.labels import class_of
from tracer.model.programs import has_ended
from tracer.model.summary import Summary
from tracer.model.wording import listed, plural, some

_SCALES = {
    "initial_scale": " by its scale, {:,.0f} at first,",
    "loss_scale_factor": " by its loss_scale_factor, {:,g},",
}


@rule(
    "never-handed",
    severity="warning",
    title="trainable variables that no optimizer was handed",
    why=(
        "What no optimizer is handed keeps its value. A traced train step goes on with the "
        "variables that were trainable when it was traced, whatever is made trainable later."
    ),
    advice=(
        "Call model.compile again after `trainable` was changed; in a loop of your own, make the "
        "tf.function anew, and the optimizer, if it was built for the other variables only."
    ),
    explanation=(
        "For layers that were frozen while the train step was traced to a graph, were made "
        "trainable, and with which the model was trained on. Which model an optimizer trains is "
        "seen while the step is traced: the one whose trainable variables are just those that "
        "apply_gradients gets. So nothing is said of a list that was chosen otherwise, of an "
        "optimizer that trains several models, of eager mode, of what was made trainable after "
        "the last step, and of what another optimizer trains. With `torch.optim` it is a parameter "
        "of a model that the optimizer trains a part of, layers in plain lists included, which got "
        "a new gradient between two steps, was not written to, and is in no optimizer. Of other "
        "models it is reported only if the optimizer's own parameters have no gradient, as those "
        "of a model that was made anew, or are just those of another optimizer: a judge or a "
        "teacher that is not frozen gets gradients, too. With Keras on JAX and on PyTorch the step "
        "raises, which apply-raised reports."
    ),
    needs=("steps", "complete"),
)
def never_handed(summary: Summary) -> Iterator[Case]:
    """Layers were made trainable, and the step that was traced before does not train them."""
    thawed = (
        "{were} made trainable after the train step was traced, and no optimizer was ever handed "
        "{them}: the step{of} trains only what was trainable before"
    )
    if names := summary.optimizers[0].never_handed:
        when = summary.dialect.advice("never-handed:when", thawed)
        yield Case(f"{{which}} {when}.", names=names, words={"of": of_optimizer(summary)})


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
        "Call model.compile again after `trainable` was changed; in a loop of your own, make the "
        "tf.function anew."
    ),
    explanation=(
        "For layers of which `trainable` became False after the step was traced, or after "
        "`compile` with tf_keras, while the graph that updates them was called on. It is info if "
        "the trace has several optimizers, for the critic of a GAN is frozen for the sake of the "
        "generator; and nothing is said where a model with an optimizer of its own holds the "
        "layer, too. Which model an optimizer trains is seen as for never-handed, so nothing is "
        "said of a list that was chosen otherwise, and of eager mode. With `torch.optim` it is a "
        "parameter of which requires_grad was True and is False, and that still has a gradient "
        "when a step ends, as after `zero_grad(set_to_none=False)`. With Keras on JAX the step "
        "raises, and with Keras on PyTorch it reads `trainable` anew."
    ),
    needs=("steps",),
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
    "loss-not-scaled",
    severity="warning",
    title="gradients are divided by a loss scale, and the loss is not multiplied",
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
        "tf_keras only skips what is not finite, which is info. Nothing is said of a program that "
        "reads the scale itself, as by `optimizer.dynamic_scale`."
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
                f"and nobody called {remark.method}: the gradients are too small by that factor.",
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
        "else, for it may still be called. Nothing is said of a program that reads the averages "
        "itself (`_model_variables_moving_average`, `SwapEMAWeights`)."
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
            f"{some(summary.steps, 'step')}, and nobody put the averages into the model: neither "
            f"{remark.method} nor ema_overwrite_frequency was used.",
            severity="warning" if has_ended(summary.trace) else "info",
        )


@rule(
    "decay-exclusion",
    severity="warning",
    title="an exception from weight decay matches no variable",
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
    """`exclude_from_weight_decay` was told of variables that there are none of."""
    for optimizer in summary.optimizers:
        decay = optimizer.decay
        if decay is not None and decay.unmatched:
            yield Case(
                f"{optimizer.name} was told to leave {listed(decay.unmatched)} out of weight "
                f"decay ({decay.rate:g}), which "
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
