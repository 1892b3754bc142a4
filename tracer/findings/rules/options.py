"""Rules on what an optimizer was told, and nobody makes use of."""

from collections.abc import Iterator

from tracer.findings.cases import Case, names_in_short
from tracer.findings.rule import rule
from tracer.model.labels import class_of
from tracer.model.programs import has_ended
from tracer.model.summary import Summary
from tracer.model.wording import listed, plural, some


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
        scale = optimizer.settings.get("initial_scale")
        factor = optimizer.settings.get("loss_scale_factor")
        if scale == 1 == optimizer.settings.get("dynamic_scale", 1):
            continue  # which changes nothing
        times = f" by its scale, {scale:,.0f} at first," if isinstance(scale, int | float) else ""
        if not times and isinstance(factor, int | float):
            times = f" by its loss_scale_factor, {factor:,g},"
        where = summary.dialect.advice("loss-not-scaled:where")
        yield Case(
            "warning",
            f"{class_of(optimizer)}.{remark.detail} divided each gradient{times} and nobody called "
            f"{remark.method}: the gradients are too small by that factor.",
            f"Compute the gradients of optimizer.{remark.method}(loss){where}.",
        )
    for optimizer, remark in summary.remarks("never-scaled"):
        yield Case(
            "info",
            f"{class_of(optimizer)} only skips steps that are not finite: nobody called "
            f"{remark.method}.",
            "If float16 is used, compute the gradients of optimizer.get_scaled_loss(loss), and "
            "give them to optimizer.get_unscaled_gradients before they are applied.",
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
            "warning" if has_ended(summary.trace) else "info",
            f"{optimizer.name} kept a moving average of each variable (use_ema=True) in "
            f"{some(summary.steps, 'step')}, and nobody put the averages into the model: neither "
            f"{remark.method} nor ema_overwrite_frequency was used.",
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
                "info" if decay.matched else "warning",
                f"{optimizer.name} was told to leave {listed(list(decay.unmatched))} out of weight "
                f"decay ({decay.rate:g}), which "
                f"{plural(len(decay.unmatched), 'matches', 'match')} none of its variables, of "
                f"which one is `{decay.searched}`. What decays: {names_in_short(decay.decayed)}.",
                variables=decay.decayed,
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
            "warning",
            f"{optimizer.name} was to get its state from a file, which was left out, because it "
            "was not built for the same variables then: its iterations began at the start, and "
            "its slots are new.",
        )
