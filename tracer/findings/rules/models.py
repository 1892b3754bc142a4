"""Rules on a model and its optimizer: what should be trained, and what is."""

from collections.abc import Iterator

from tracer.findings.cases import Case, Severity, names_in_short, of_optimizer
from tracer.findings.histories import Evidence
from tracer.findings.rule import rule
from tracer.model.labels import of_torch


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
)
def never_handed(evidence: Evidence) -> Iterator[Case]:
    """Layers were made trainable, and the step that was traced before does not train them."""
    names = evidence.optimizers[0].never_handed
    if not names or not evidence.steps or not evidence.trace.complete:
        return
    were, them = ("was", "it") if len(names) == 1 else ("were", "them")
    if of_torch(evidence.optimizers[:1]):
        yield Case(
            "warning",
            f"{names_in_short(names, noun='parameter')} got gradients while steps ran, and no "
            f"optimizer was handed {them}: nothing updates {them}.",
            "Hand over all parameters that should learn, also those that are frozen at first, and "
            "after the model is made; keep layers in torch.nn.ModuleList or ModuleDict, for a "
            "plain list hides them from model.parameters(). Set requires_grad of what should stay "
            "as it is to False, which saves its gradients.",
            variables=names,
        )
        return
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
        "said of a list that was chosen otherwise, and of eager mode. With `torch.optim` it is a "
        "parameter of which requires_grad was True and is False, and that still has a gradient "
        "when a step ends, as after `zero_grad(set_to_none=False)`. With Keras on JAX the step "
        "raises, and with Keras on PyTorch it reads `trainable` anew."
    ),
)
def frozen_but_updated(evidence: Evidence) -> Iterator[Case]:
    """Layers were frozen, and the step that was traced before trains them on."""
    names = evidence.optimizers[0].frozen
    if not names or not evidence.steps:
        return
    roots = {each.root for each in evidence.trace.optimizers}
    one = len(names) == 1
    severity: Severity = "warning" if len(roots) == 1 else "info"
    if of_torch(evidence.optimizers[:1]):
        yield Case(
            severity,
            f"{names_in_short(names, noun='parameter')} {'was' if one else 'were'} frozen "
            f"(requires_grad = False) and kept {'its' if one else 'their'} gradient, so the steps"
            f"{of_optimizer(evidence)} go on updating {'it' if one else 'them'}: momentum and "
            "weight decay do so even if the gradient is 0.",
            "Set the gradient to None where you freeze: parameter.grad = None, or "
            "optimizer.zero_grad() without set_to_none=False.",
            variables=names,
        )
        return
    yield Case(
        severity,
        f"{names_in_short(names)} {'was' if one else 'were'} frozen (trainable = False) after the "
        f"train step was traced or compiled, and the step{of_optimizer(evidence)} goes on "
        f"updating {'it' if one else 'them'}.",
        variables=names,
    )
