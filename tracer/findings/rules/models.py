"""Rules on a model and its optimizer: what should be trained, and what is."""

from collections.abc import Iterator

from tracer.findings.cases import Case, names_in_short, of_optimizer
from tracer.findings.histories import Evidence
from tracer.findings.rule import rule


@rule(
    "never-handed",
    severity="warning",
    title="trainable variables that no optimizer was handed",
    why=(
        "A traced train step goes on with the variables that were trainable when it was traced: "
        "what is made trainable later keeps its value."
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
        "the last step, and of what another optimizer trains."
    ),
)
def never_handed(evidence: Evidence) -> Iterator[Case]:
    """Layers were made trainable, and the step that was traced before does not train them."""
    names = evidence.optimizers[0].never_handed
    if not names or not evidence.steps or not evidence.trace.complete:
        return
    were, them = ("was", "it") if len(names) == 1 else ("were", "them")
    yield Case(
        "warning",
        f"{names_in_short(names)} {were} made trainable after the train step was traced, and "
        f"no optimizer was ever handed {them}: the step{of_optimizer(evidence)} trains "
        "only what was trainable before.",
        variables=names,
    )


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
        "said of a list that was chosen otherwise, and of eager mode."
    ),
)
def frozen_but_updated(evidence: Evidence) -> Iterator[Case]:
    """Layers were frozen, and the step that was traced before trains them on."""
    names = evidence.optimizers[0].frozen
    if not names or not evidence.steps:
        return
    roots = {each.root for each in evidence.trace.optimizers}
    one = len(names) == 1
    yield Case(
        "warning" if len(roots) == 1 else "info",
        f"{names_in_short(names)} {'was' if one else 'were'} frozen (trainable = False) after the "
        f"train step was traced or compiled, and the step{of_optimizer(evidence)} goes on "
        f"updating {'it' if one else 'them'}.",
        variables=names,
    )
