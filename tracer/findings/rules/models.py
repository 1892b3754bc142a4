"""Rules on a model and its optimizer: what should be trained, and what is."""

from collections.abc import Iterator

from tracer.findings.cases import Case, of_optimizer
from tracer.findings.histories import Evidence
from tracer.findings.rule import rule
from tracer.model.wording import listed

_NAMES = 3


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
    which, were = listed(list(names)), "was" if len(names) == 1 else "were"
    if len(names) > _NAMES:
        first = ", ".join(names[:_NAMES])
        which = f"{len(names):,} variables ({first} and {len(names) - _NAMES:,} more)"
    yield Case(
        "warning",
        f"{which} {were} made trainable after the train step was traced, and no optimizer was "
        f"ever handed {'it' if len(names) == 1 else 'them'}: the step{of_optimizer(evidence)} "
        "trains only what was trainable before.",
        variables=names,
    )
