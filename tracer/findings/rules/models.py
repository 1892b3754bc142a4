"""Rules on a model and its optimizer: what should be trained, and what is."""

from collections.abc import Iterator

from tracer.findings.cases import Case, Severity, names_in_short, of_optimizer
from tracer.findings.rule import rule
from tracer.model.summary import Summary


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
    if names := summary.optimizers[0].never_handed:
        yield _of_model(summary, "warning", "never-handed", names, _THAWED)


_THAWED = (
    "{were} made trainable after the train step was traced, and no optimizer was ever handed "
    "{them}: the step{of} trains only what was trainable before"
)


def _of_model(
    summary: Summary, severity: Severity, code: str, names: tuple[str, ...], when: str
) -> Case:
    """The case of these variables; `when` says what happened if the dialect does not."""
    were, them, their = ("was", "it", "its") if len(names) == 1 else ("were", "them", "their")
    which = names_in_short(names, noun=summary.dialect.variable)
    said = summary.dialect.advice(f"{code}:when", when)
    text = said.format(of=of_optimizer(summary), were=were, them=them, their=their)
    return Case(severity, f"{which} {text}.", variables=names)


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
    severity: Severity = "warning" if len(roots) == 1 else "info"
    if names := summary.optimizers[0].frozen:
        yield _of_model(summary, severity, "frozen-but-updated", names, _FROZEN)


_FROZEN = (
    "{were} frozen (trainable = False) after the train step was traced or compiled, and the "
    "step{of} goes on updating {them}"
)
