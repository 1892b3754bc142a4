"""Rules on the use of optimizers: with which models, variables and options."""

from collections.abc import Iterator

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
from tracer.model.evidence import Fitted, LossNotScaled, OutsideModules, StateRenewed
from tracer.model.phrases import class_of
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import first_of, some

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
        for optimizer, outside in summary.evidence(OutsideModules):
            lost = f"{len(outside.variables):,} of {outside.of:,}"
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
    fitted = any(isinstance(evidence, Fitted) for evidence in root.evidence)
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
    whole=True,
)
def optimizer_renewed(trace: Trace) -> Iterator[Case]:
    yield from _states_dropped(trace)
    yield from _traced_for_each(trace)
    arguments = {index for index, variable in enumerate(trace.variables) if variable.argument}
    alike: dict[tuple[str, str, frozenset[int]], list[Summary]] = {}
    for summary in summaries_of(trace):
        root, variables = summary.optimizers[0], summary.updated - arguments
        if root.made and variables:
            alike.setdefault((root.class_name, root.made, variables), []).append(summary)
    for (_, made, variables), group in alike.items():
        if len(group) >= MIN_RENEWED:
            names, dialect = names_of(group[0], sorted(variables)), group[0].dialect
            roots = [summary.optimizers[0] for summary in group]
            which = first_of([root.name for root in roots], MIN_RENEWED)
            yield Case(
                f"{made} made {len(roots):,} optimizers of the class {class_of(roots[0])} "
                f"({which}), and each trained {names_in_short(names, noun=dialect.variable)}.",
                dialect.advice("optimizer-renewed"),
                "info",
                names=names,
            )


def _states_dropped(trace: Trace) -> Iterator[Case]:
    """A state was never passed to the next step."""
    for summary in summaries_of(trace) if trace.complete else ():
        for optimizer, renewed in summary.evidence(StateRenewed):
            steps = some(renewed.steps, "step")
            text = (
                f"{optimizer.name} started from zero in each of {steps}: the state that "
                "update returned was never passed to the next step."
            )
            yield Case(
                with_line(summary, text),
                "Pass each step the state that the previous one returned, and call init once, "
                "before the loop. If each step is meant to start from zero, as the only step of "
                "an inner loop or of a candidate, there is nothing to do.",
            )
